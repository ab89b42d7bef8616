"""Fuzzing of configurations and mappings."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from target import FEATURES, ROOT, Prepare, Target, put, require_finite, require_usable

import event_files
import raw_logs
from ctr.config import apply_settings, dump_yaml, load_model, parse_model
from ctr.config.kinds import CONFIGS, config_model
from ctr.data.mapping import FORMATS_FOLDER
from ctr.data.schema import Schema
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig

LOW_LOSS = {"teacher": "big", "max_loss": 0.1, "log": "logs/a"}
LOW_VISIBILITY = {"feature": "position", "values": [3, None, "4"]}
MORE: dict[str, list[Any]] = {
    "sampling": [
        {
            "salt": "a",
            "uninformative": {"rate": 0.3, "low_loss": LOW_LOSS, "low_visibility": LOW_VISIBILITY},
            "time_range": {"start": "2026-01-01"},
        }
    ],
    "simulator": [{"examples": 1000, "start": "2026-02-03", "drift": 0.1, "events": {"format": "csv"}}],
    "mapping": [raw_logs.base_content(), {**raw_logs.base_content(), "features": FEATURES}],
    "events": [event_files.content(form) for form in ("jsonl", "csv", "parquet")],
}
SETTINGS = (
    b"seed=5\nmodel.deep.units=[8, 4]\nmodel.crosses.ramp=0\nobjective.ranking={}\nbatch.rows=10",
    b"time_range.start=2026-01-01\nmodel.widths={user: 3}\noptimizer.embeddings.learning_rate=1e-3\njit=false",
)


def _seeds(kind: str) -> Prepare:
    """First the defaults, then the project's files of this kind."""
    model = config_model(kind)

    def prepare(folder: Path) -> list[bytes]:
        found = [*map(json.dumps, MORE.get(kind, []))]
        with suppress(InputError):
            found.append(dump_yaml(parse_model(model, {}, kind)))
        for path in sorted([*ROOT.glob("examples/**/*.yaml"), *FORMATS_FOLDER.glob("*.yaml")]):
            with suppress(InputError, yaml.YAMLError, ValueError):
                load_model(model, path, kind)
                found.append(path.read_text())
        return [text.encode() for text in found]

    return prepare


def _check(model: Any) -> None:
    """What was accepted is accepted again, is the same, and can be built on a machine of today."""
    content = model.model_dump(mode="json", by_alias=True)
    require_finite(content)
    text = dump_yaml(model)
    again = parse_model(type(model), parse_yaml(text), "again").model_dump(mode="json", by_alias=True)
    assert again == content, "the dump means something else"
    assert len(text) < 1 << 20, "a small file became a large one"
    if hasattr(model, "feature_schema"):
        require_usable(model.feature_schema)
        assert 0 < getattr(model, "partition_us", 1) < 2**62 and model.raw_columns
        assert all(max(windows) < 2**62 for windows in getattr(model, "windows_us", {}).values())
    if isinstance(model, TrainConfig):
        layouts = model.table_layouts(parse_model(Schema, {"features": FEATURES}, "test"))
        assert sum(layout.rows * layout.columns for layout in layouts) < 2**40
        widths = [*model.model.deep.units, model.model.crosses.rank]
        assert max(widths) <= 2**16 and len(widths) <= 2**10
        model.ramps_at(10**9)
        model.sha256()


def _parse_settings(folder: Path, content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    _check(parse_model(TrainConfig, apply_settings({}, text.split("\n")), "settings"))


def _parser(kind: str) -> Any:
    return lambda folder, content: _check(load_model(config_model(kind), put(folder / kind, content), kind))


TARGETS = {
    **{f"{kind} config": Target("yaml", _seeds(kind), _parser(kind)) for kind in CONFIGS},
    "settings": Target("text", lambda folder: list(SETTINGS), _parse_settings),
}
