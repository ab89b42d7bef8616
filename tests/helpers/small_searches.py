"""Small searches by weight sharing."""

from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.search.config import SearchConfig
from ctr.search.problem import cost_of, counted
from ctr.search.space import space_of
from ctr.search.supernet import SupernetResult, search_supernet
from ctr.training.config import TrainConfig
from small_runs import merged

BASE: dict[str, Any] = {
    "batch": {"rows": 50, "max_query_rows": 64},
    "model": {
        "crosses": {"layers": 2, "rank": 3, "ramp": [100, 600]},
        "deep": {"units": [8, 6]},
        "init_scale": 0.05,
        "prior": 0.3,
    },
    "metrics": {"window_examples": 230},
    "checkpoint": {"every_examples": 310, "keep": 2},
    "compute_dtype": "float32",
}
SPACE: dict[str, list[Any]] = {
    "model.deep.layers": [1, 2],
    "model.deep.units.0": [3, 8],
    "model.crosses.layers": [0, 1, 2],
    "model.crosses.rank": [1, 3],
    "model.widths.user,item": [0, 2, 4],
    "features.tags": [True, False],
}


def search(
    log: Path,
    out: Path,
    space: dict[str, Any] = SPACE,
    changes: dict[str, Any] | None = None,
    progress=lambda line: None,
    **config: Any,
) -> SupernetResult:
    base = parse_model(TrainConfig, merged(BASE, changes or {}), "test")
    own = parse_model(SearchConfig, {"space": space, **config}, "test")
    made = space_of(own)
    return search_supernet(own, made, cost_of(made, base, counted(log, "training")), base, log, out, progress)
