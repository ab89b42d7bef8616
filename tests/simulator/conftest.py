"""One simulation whose log, randomized traffic and events all tests read that change nothing of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from ctr.config import parse_model
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate

WORLD: dict[str, Any] = {
    "examples": 30_000,
    "queries_per_day": 2_000,
    "users": 300,
    "ads": 100,
    "advertisers": 20,
    "words": 100,
    "topics": 5,
    "base_ctr": 0.2,
    "drift": 0.05,
    "randomized_share": 0.1,
    "events": {"duplicate_share": 0.05, "straggler_share": 0.02},
}


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Folders, and what ``simulate`` told of them."""
    folder = tmp_path_factory.mktemp("simulated")
    log, randomized, events = (folder / name for name in ("log", "random", "events"))
    counts = simulate(parse_model(SimulatorConfig, WORLD, "test"), log, None, randomized, events)
    return SimpleNamespace(log=log, randomized=randomized, events=events, counts=counts)


@pytest.fixture(scope="session")
def small() -> Any:
    """Makes the settings of a simulation of ten days, with some changes."""

    def make(events: dict[str, Any] | None = None, **changes: Any) -> SimulatorConfig:
        delivered = WORLD["events"] if events is None else events
        content = {**WORLD, "examples": 2_000, "queries_per_day": 200, "events": delivered, **changes}
        return parse_model(SimulatorConfig, content, "test")

    return make
