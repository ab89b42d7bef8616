"""The Java programs of the tests themselves."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def services() -> ModuleType:
    sys.path.insert(0, str(HERE))
    try:
        import java_services
    finally:
        sys.path.remove(str(HERE))
    if reason := java_services.missing(java_services.FLINK_JARS):
        pytest.skip(reason)
    return java_services


def test_a_service_that_does_not_start_says_what_its_log_says(services, tmp_path):
    with (
        pytest.raises(services.ServiceError, match="did not start") as raised,
        services.flink_job_server(tmp_path, memory="nonsense"),
    ):
        pass
    assert "Invalid maximum heap size" in str(raised.value)
