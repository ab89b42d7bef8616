"""The Java programs of the tests themselves."""

import pytest

import java_services
import services

MISSING = java_services.missing(java_services.FLINK_JARS)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


def test_a_service_that_does_not_start_says_what_its_log_says(tmp_path):
    with (
        pytest.raises(services.ServiceError, match="did not start") as raised,
        java_services.flink_job_server(tmp_path, memory="nonsense"),
    ):
        pass
    assert "Invalid maximum heap size" in str(raised.value)
