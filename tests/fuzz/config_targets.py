"""Fuzzing of configurations and mappings."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from target import FEATURES, ROOT, Parse, Prepare, Target, put, require_finite, require_usable

import event_files
import raw_logs
from ctr.config import apply_settings, dump_yaml, load_model, parse_model
from ctr.data.event_mapping import load_event_mapping
from ctr.data.mapping import FORMATS_FOLDER, load_mapping
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Schema
from ctr.experiments.config import read_experiment
from ctr.io.documents import parse_yaml
from ctr.simulator.config import SimulatorConfig
from ctr.training.config import TrainConfig

SAMPLING = {
    "salt": "a",
    "non_click_rate": 0.5,
    "uninformative": {
        "rate": 0.3,
        "low_loss": {"teacher": "big", "max_loss": 0.1, "log": "logs/a"},
        "low_visibility": {"feature": "position", "values": [3, None, "4"]},
    },
    "time_range": {"start": "2026-01-01"},
}
SETTINGS = (
    b"seed=5\nmodel.deep.units=[8, 4]\nmodel.crosses.ramp=0\nobjective.ranking={}\nbatch.rows=10",
    b"time_range.start=2026-01-01\nmodel.widths={user: 3}\noptimizer.embeddings.learning_rate=1e-3\njit=false",
)


def require_stable(model: Any) -> None:
    """What was accepted is accepted again, and is the same."""
    content = model.model_dump(mode="json", by_alias=True)
    require_finite(content)
    text = dump_yaml(model)
    again = parse_model(type(model), parse_yaml(text), "again").model_dump(mode="json", by_alias=True)
    assert again == content, "the dump means something else"
    assert len(text) < 1 << 20, "a small file became a large one"


def files(*patterns: str) -> Prepare:
    """Those of the project."""

    def prepare(folder: Path) -> list[bytes]:
        return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]

    return prepare


def read_by(load: Callable[[Path], Any], check: Callable[[Any], object] = lambda found: None) -> Parse:
    def parse(folder: Path, content: bytes) -> None:
        found = load(put(folder / "config.yaml", content))
        require_stable(found)
        check(found)

    return parse


def of_model(model: Any) -> Parse:
    return read_by(lambda path: load_model(model, path, "config"))


def _train_seeds(folder: Path) -> list[bytes]:
    written = files("examples/*.yaml", "examples/replay/simulated.yaml")(folder)
    # First every key that there is.
    return [dump_yaml(TrainConfig()).encode(), *written]


def _check_train(config: Any) -> None:
    """What was accepted can be built on a machine of today."""
    layouts = config.table_layouts(parse_model(Schema, {"features": FEATURES}, "test"))
    assert sum(layout.rows * layout.columns for layout in layouts) < 2**40
    widths = [*config.model.deep.units, config.model.crosses.rank]
    assert max(widths) <= 2**16 and len(widths) <= 2**10
    config.ramps_at(10**9)
    config.sha256()


def _parse_settings(folder: Path, content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    config = parse_model(TrainConfig, apply_settings({}, text.split("\n")), "settings")
    require_stable(config)
    _check_train(config)


def _experiment_seeds(folder: Path) -> list[bytes]:
    # Beside the training configurations that they begin with.
    shutil.copytree(ROOT / "examples", folder / "examples")
    return files("examples/replay/accuracy.yaml", "examples/replay/[cer]*.yaml")(folder)


def _parse_experiment(folder: Path, content: bytes) -> None:
    experiment, training = read_experiment(put(folder / "examples/replay/changed.yaml", content))
    require_stable(experiment)
    json.dumps(training, default=str)


def _mapping_seeds(folder: Path) -> list[bytes]:
    own = [raw_logs.base_content(), {**raw_logs.base_content(), "features": FEATURES}]
    found = [path.read_bytes() for path in sorted(FORMATS_FOLDER.glob("*.yaml"))]
    return [*found, *(json.dumps(content).encode() for content in own)]


def _check_mapping(mapping: Any) -> None:
    require_usable(mapping.feature_schema)
    assert 0 < mapping.partition_us < 2**62
    assert mapping.raw_columns and mapping.list_sources is not None


def _event_mapping_seeds(folder: Path) -> list[bytes]:
    shipped = (ROOT / "examples/events/simulated.yaml").read_bytes()
    return [
        shipped,
        *(json.dumps(event_files.content(form)).encode() for form in ("jsonl", "csv", "parquet")),
    ]


def _check_event_mapping(mapping: Any) -> None:
    require_usable(mapping.feature_schema)
    assert max(mapping.windows_us) < 2**62 and mapping.raw_columns


def _simulator_seeds(folder: Path) -> list[bytes]:
    shown = SimulatorConfig(days=3, events={"format": "csv"})  # type: ignore[arg-type]
    return [dump_yaml(shown).encode(), b"examples: 1000\nstart: 2026-02-03\ndrift: 0.1\nwords: 50\n"]


TARGETS = {
    "train config": Target(
        "yaml",
        _train_seeds,
        read_by(lambda path: load_model(TrainConfig, path, "config"), _check_train),
    ),
    "settings": Target("text", lambda folder: list(SETTINGS), _parse_settings),
    "simulator config": Target("yaml", _simulator_seeds, of_model(SimulatorConfig)),
    "sampling config": Target(
        "yaml", lambda folder: [yaml.safe_dump(SAMPLING).encode()], of_model(SamplingConfig)
    ),
    "experiment": Target("yaml", _experiment_seeds, _parse_experiment),
    "mapping": Target("yaml", _mapping_seeds, read_by(load_mapping, _check_mapping)),
    "event mapping": Target("yaml", _event_mapping_seeds, read_by(load_event_mapping, _check_event_mapping)),
}
