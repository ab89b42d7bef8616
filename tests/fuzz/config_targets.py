# ruff: noqa: E501
"""Fuzzing of configurations and mappings."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from target import FEATURES, ROOT, Parse, Prepare, put, require_finite, require_usable

from ctr.config import apply_settings, dump_yaml, parse_model, read_yaml
from ctr.data.event_mapping import load_event_mapping
from ctr.data.mapping import FORMATS_FOLDER, load_mapping
from ctr.data.schema import Schema
from ctr.io.documents import parse_yaml
from ctr.simulator.config import SimulatorConfig


def _require_stable(model: Any) -> None:
    """What was accepted is accepted again, and is the same."""
    content = model.model_dump(mode="json", by_alias=True)
    require_finite(content)
    text = dump_yaml(model)
    again = parse_model(type(model), parse_yaml(text), "again").model_dump(mode="json", by_alias=True)
    assert again == content, "the dump means something else"
    assert len(text) < 1 << 20, "a small file became a large one"


def _yaml_seeds(*patterns: str) -> Prepare:
    def prepare(folder: Path) -> list[bytes]:
        found = [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        assert found
        return found

    return prepare


def _models() -> tuple[Any, Any]:
    from ctr.training.config import TrainConfig

    return TrainConfig, parse_model(Schema, {"features": FEATURES}, "test")


_TRAIN = {
    "seed": 3,
    "time_range": {"start": "2026-01-02", "end": "2026-02-01T06:00:00+01:00"},
    "sampling": {"name": "half", "score": "kept"},
    "objective": {
        "ranking": {"weight": 0.2, "setup": "multi_task", "ramp": [10, 15]},
        "distillation": {"teacher": "big", "log": "logs/a"},
        "anti_distillation": {"weight": 0.1},
        "bias_constraints": {
            "families": [
                {
                    "name": "ctr",
                    "estimated_ctr": [0.1, 0.5],
                    "features": {"position": ["1", None], "user": "all"},
                },
                {"name": "exposure", "log": "random", "learning_rate": 0.02},
            ],
            "logs": [{"name": "random", "path": "logs/random", "own_loss": True}],
        },
    },
    "batch": {"rows": 64, "max_query_rows": 512, "within_partitions": True},
    "model": {
        "prior": 0.04,
        "crosses": {"layers": 2, "rank": 16, "ramp": 100},
        "deep": {"units": [16, 8], "ranks": [4, 0], "activation": "smelu", "smelu_beta": 0.5},
        "factorized": {
            "width": 4,
            "ui_units": [8],
            "transfer": "piecewise_linear",
            "ui_features": ["position"],
        },
        "ensemble": {"components": 2, "embeddings": "separate"},
        "widths": {"user": 3},
    },
    "optimizer": {
        "embeddings": {"tower_rates": {"quality": 1.0, "ui": 0.5}, "update_limit_absolute": 0.1},
        "dense": {"clip_norm": 1.0, "shampoo": {"block_size": 64, "momentum": 0}},
    },
    "metrics": {"window_examples": 100, "slices": ["position"]},
    "checkpoint": {"every_examples": 1000},
    "export": {"every_examples": 1000, "keep": 1},
    "compute_dtype": "float32",
    "jit": True,
}


def _train_seeds(folder: Path) -> list[bytes]:
    return [
        yaml.safe_dump(_TRAIN).encode(),
        *_yaml_seeds("examples/*.yaml", "examples/replay/simulated.yaml")(folder),
    ]


def _parse_train(folder: Path, content: bytes) -> None:
    from ctr.config import load_model

    kind, schema = _models()
    config = load_model(kind, put(folder / "config.yaml", content), "config")
    _require_stable(config)
    _lay_out(config, schema)
    config.ramps_at(10**9)
    config.sha256()


def _lay_out(config: Any, schema: Schema) -> None:
    """What was accepted can be built on a machine of today."""
    layouts = config.table_layouts(schema)
    assert sum(layout.rows * layout.columns for layout in layouts) < 2**40
    widths = [*config.model.deep.units, config.model.crosses.rank]
    assert max(widths) <= 2**16 and len(widths) <= 2**10


def _settings_seeds(folder: Path) -> list[bytes]:
    lines = (
        "seed=5\nmodel.deep.units=[8, 4]\nmodel.crosses.ramp=0\nobjective.ranking={}\nbatch.rows=10",
        "time_range.start=2026-01-01\nmodel.widths={user: 3}\noptimizer.embeddings.learning_rate=1e-3\njit=false\nexport=null",
    )
    return [line.encode() for line in lines]


def _parse_settings(folder: Path, content: bytes) -> None:
    kind, schema = _models()
    text = content.decode("utf-8", "surrogateescape")
    config = parse_model(kind, apply_settings({}, text.split("\n")), "settings")
    _require_stable(config)
    _lay_out(config, schema)


def _model_parser(model: Any) -> Parse:
    def parse(folder: Path, content: bytes) -> None:
        found = parse_model(model, read_yaml(put(folder / "config.yaml", content), "config"), "config")
        _require_stable(found)

    return parse


def _sampling_seeds(folder: Path) -> list[bytes]:
    rule = {
        "rate": 0.3,
        "low_loss": {"teacher": "big", "max_loss": 0.1, "log": "logs/a"},
        "low_visibility": {"feature": "position", "values": [3, None, "4"]},
    }
    content = {
        "salt": "a",
        "non_click_rate": 0.5,
        "uninformative": rule,
        "time_range": {"start": "2026-01-01"},
    }
    return [yaml.safe_dump(content).encode(), b"non_click_rate: 0.1\nmin_rate: 1e-3\n"]


def _simulator_seeds(folder: Path) -> list[bytes]:
    shown = SimulatorConfig(days=3, events={"format": "csv"})  # type: ignore[arg-type]
    return [dump_yaml(shown).encode(), b"examples: 1000\nstart: 2026-02-03\ndrift: 0.1\nwords: 50\n"]


def _experiment_seeds(folder: Path) -> list[bytes]:
    # Beside the training configurations that they begin with.
    shutil.copytree(ROOT / "examples", folder / "examples")
    return _yaml_seeds("examples/replay/accuracy.yaml", "examples/replay/[cer]*.yaml")(folder)


def _parse_experiment(folder: Path, content: bytes) -> None:
    from ctr.experiments.config import read_experiment

    experiment, training = read_experiment(put(folder / "examples/replay/changed.yaml", content))
    _require_stable(experiment)
    json.dumps(training, default=str)


def _mapping_seeds(folder: Path) -> list[bytes]:
    import raw_logs as rows

    return [path.read_bytes() for path in sorted(FORMATS_FOLDER.glob("*.yaml"))] + [
        json.dumps(rows.base_content()).encode(),
        json.dumps({**rows.base_content(), "features": FEATURES}).encode(),
    ]


def _parse_mapping(folder: Path, content: bytes) -> None:
    mapping = load_mapping(put(folder / "mapping.yaml", content))
    _require_stable(mapping)
    require_usable(mapping.feature_schema)
    assert 0 < mapping.partition_us < 2**62
    assert mapping.raw_columns and mapping.list_sources is not None


def _event_mapping_seeds(folder: Path) -> list[bytes]:
    import event_files as events

    return [
        (ROOT / "examples/events/simulated.yaml").read_bytes(),
        *(json.dumps(events.content(form)).encode() for form in ("jsonl", "csv", "parquet")),
    ]


def _parse_event_mapping(folder: Path, content: bytes) -> None:
    mapping = load_event_mapping(put(folder / "mapping.yaml", content))
    _require_stable(mapping)
    require_usable(mapping.feature_schema)
    assert max(mapping.windows_us) < 2**62 and mapping.raw_columns
