"""Raw rows with features of every kind, and models of every kind."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.batches import set_rejects_apart
from ctr.data.derived import TIME_COLUMN
from ctr.data.ids.tables import pack_table
from ctr.data.reader import Rows, rows_of_table
from ctr.data.schema import Schema
from ctr.pipelines.tables.examples import Verdict, add_derived
from ctr.pipelines.tables.input_files import Chunk
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.run.position import Passed, Position
from ctr.training.run.snapshot import Snapshot, take_snapshot
from ctr.training.state import TrainState

# Columns with names that no function's argument can have, too.
FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "category", "source": "user:id", "buckets": 40, "width": 4},
    {"name": "item", "kind": "category", "source": "class", "buckets": 50, "width": 4},
    {"name": "price", "kind": "number", "source": "price", "boundaries": [0.5, 2, 8], "width": 2},
    {
        **{"name": "tags", "kind": "category", "source": "tags", "buckets": 30, "width": 4},
        **{"multivalent": True, "separator": "|", "max_values": 3, "keep": "last"},
    },
    {"name": "title", "kind": "text", "source": "title", "words": [1, 2], "buckets": 60, "width": 2},
    {"name": "tags_x_price", "kind": "cross", "of": ["tags", "price"], "buckets": 80, "width": 2},
    {"name": "position", "kind": "category", "source": "position", "vocabulary": list("123"), "tower": "ui"},
    {"name": "size", "kind": "number", "source": "size", "log": {}, "width": 3, "tower": "ui"},
    {"name": "position_x_user", "kind": "cross", "of": ["position", "user"], "buckets": 70, "tower": "ui"},
]
SCHEMA = parse_model(Schema, {"features": FEATURES}, "test")
# The ids of all hashed features but one grow.
GROWN = [{k: v for k, v in one.items() if k != "buckets" or one["name"] == "item"} for one in FEATURES]
GROWING = parse_model(Schema, {"features": GROWN}, "test")
# Numbers that the network reads as they are, in both towers.
NUMBERS = parse_model(
    Schema,
    {
        "features": [
            *FEATURES,
            {"name": "dwell", "kind": "number", "source": "dwell", "as": "value", "scale": "log"},
            {"name": "age", "kind": "number", "source": "age", "as": "value", "tower": "ui"},
            {
                "name": "image",
                "kind": "vector",
                "source": "image",
                "size": 3,
                "separator": ", ",
                "strip": "[]",
            },
            {
                **{"name": "query", "kind": "vector", "source": "query", "size": 2},
                **{"normalize": False, "tower": "ui"},
            },
        ]
    },
    "test",
)

NETWORK: dict[str, Any] = {
    "experts": ["network"],
    "crosses": {"layers": 2, "rank": 3, "ramp": [10, 110]},
    "deep": {"units": [16, 8], "activation": "smelu"},
    "prior": 0.2,
}
FACTORS = {"width": 4, "ui_units": [8]}
WIDE = {
    **NETWORK,
    "crosses": {**NETWORK["crosses"], "rank": 0},
    "deep": {"units": [16, 8], "ranks": [4, 0], "activation": "gelu"},
}
TWO, ALL = {"experts": ["linear", "network"]}, {"experts": ["linear", "network", "pairs"]}
RELU = {**NETWORK, "deep": {"units": [16, 8], "activation": "relu"}}
NO_LAYERS: dict[str, Any] = {"crosses": {"layers": 0}, "deep": {"units": []}, "prior": 0.2}
# Every kind of layer, head, ensemble and factor is in one of them, and every set of experts.
MODELS: dict[str, dict[str, Any]] = {
    "plain": NETWORK,
    "wide": WIDE,
    "linear and network": {**RELU, **TWO},
    "all experts": {**RELU, **ALL},
    "linear and pairs": {**NO_LAYERS, "experts": ["linear", "pairs"]},
    "attention": {**NETWORK, **ALL, "init_scale": 1.0, "pooling": {"tags": {"kind": "target", "of": "user"}}},
    "logistic": {**NO_LAYERS, "experts": ["linear"]},
    "ensemble": {**WIDE, **TWO, "ensemble": {"components": 2}},
    "ensemble of all": {**NETWORK, **ALL, "ensemble": {"components": 2, "embeddings": "separate"}},
    "factorized": {**NETWORK, "factorized": FACTORS},
    "factorized beside others": {**NETWORK, **ALL, "factorized": FACTORS},
    "factorized ensemble": {
        **NETWORK,
        "factorized": {**FACTORS, "transfer": "piecewise_linear", "pieces": 5},
        "ensemble": {"components": 2, "embeddings": "separate"},
    },
}
SCHEMAS = dict.fromkeys([*MODELS, "labeled"], SCHEMA) | {
    "numbers by tower": NUMBERS,
    "growing": GROWING,
    "growing network": GROWING,
}
MODELS |= {name: MODELS["factorized ensemble"] for name in ("numbers by tower", "growing")}
MODELS |= {"growing network": NETWORK, "labeled": MODELS["ensemble of all"]}
# Names of labels that end as those of layers do.
LABELS: dict[str, dict[str, str]] = {name: {} for name in ("sale", "u", "x_head")}
EXAMPLES, TRAINED_EXAMPLES = 123, 60
BATCH_ROWS = 64


def draw_raw(count: int, seed: int = 0, unknown: bool = False) -> dict[str, list[Any]]:
    """Raw columns with missing values, as Python has them.

    With ``unknown`` every third row has a user, and every fourth a tag and a word, that no other rows have.
    """
    rng = np.random.default_rng(seed)

    def some(values: list[Any], missing: Any = None) -> list[Any]:
        return [missing if rng.random() < 0.1 else values[rng.integers(len(values))] for _ in range(count)]

    words = ["Red", "blue,", "Grün", "x-y", "日本", "shoe"]
    raw = {
        "user:id": some([f"u{n}" for n in range(30)]),
        "class": some(list(range(100))),
        "price": some([-1.0, 0.5, 1.25, 3, 7.9, 8.0, 1e30], float("nan")),
        "tags": [[f"t{n}" for n in rng.integers(0, 20, size)] for size in rng.integers(0, 6, count)],
        "title": [" ".join(words[n] for n in rng.integers(0, 6, size)) for size in rng.integers(0, 5, count)],
        "position": some(["1", "2", "3", "4"]),
        "size": some([0.0, 1.0, 17.5, 300.0]),
    }
    for row in range(count) if unknown else ():
        if row % 3 == 0:
            raw["user:id"][row] = f"new user {row}"
        if row % 4 == 0:
            raw["tags"][row] = [f"new tag {row}", *raw["tags"][row]]
            raw["title"][row] = f"new{row} {raw['title'][row]}"
    return raw


def draw_numbers(count: int, seed: int = 0) -> dict[str, list[Any]]:
    """Raw columns of what ``NUMBERS`` has more, with missing and extreme values."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any], missing: Any) -> list[Any]:
        return [missing if rng.random() < 0.15 else one for one in values]

    vectors = np.round(rng.normal(3, 2, (count, 5)), 3)
    dwell = np.where(rng.random(count) < 0.1, np.inf, rng.normal(0, 1e6, count)).tolist()
    return {
        "dwell": some(dwell, None),
        "age": some(rng.choice([0.0, 1.5, -7.0, 1e30], count).tolist(), float("nan")),
        "image": some(vectors[:, :3].tolist(), []),
        "query": some(vectors[:, 3:].tolist(), None),
    }


def packed_table(raw: dict[str, list[Any]], schema: Schema = SCHEMA) -> pa.Table:
    """The rows of a log, one query after the other, three rows each."""
    count = len(next(iter(raw.values())))
    row = np.arange(count)
    keys = pa.table(
        {
            "query_time": row // 3 * 1000,
            "timestamp": row // 3 * 1000,
            "query_id": row // 3,
            "example_id": row,
            "label": (row % 4 == 0).astype(np.int8),
            "train_weight": np.ones(count, np.float32),
            "metric_weight": np.ones(count, np.float32),
        }
    )
    table = pa.table(raw)
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    times = np.array(raw[TIME_COLUMN]) if TIME_COLUMN in raw else row
    add_derived(schema.derive, columns, times, Verdict(Chunk(0, table, row, [])))
    return pack_table(schema, keys, pa.table(columns))


def packed_ids(rows: Rows) -> dict[str, np.ndarray]:
    """Ids as ``Scorer.score_ids`` takes them."""
    columns = {"ids": rows.ids}
    for name, (values, offsets) in rows.multivalent.items():
        columns |= {f"{name}.values": values, f"{name}.lengths": np.diff(offsets).astype(np.int32)}
    return columns


def randomize(state: TrainState, seed: int) -> None:
    """Weights as if something had been learned: linear weights and biases are not 0, nothing is symmetric.

    Each expert has a say.
    """
    rng = np.random.default_rng(seed)
    for table in state.tables.weights:
        table.assign(rng.normal(0, 0.4, table.numpy().shape))
    for weight in state.dense:
        weight.assign(weight.numpy() + rng.normal(0, 0.2, weight.shape))
    for weight in state.experts.weights.values():
        values = rng.normal(-1, 0.2, weight.shape)
        if values.ndim:
            values[1:] = rng.uniform(0.3, 0.7, len(values) - 1)
        weight.assign(values)
    if state.statistics is not None:
        state.statistics.assign(np.abs(rng.normal(3, 2, state.statistics.shape)))


def make_snapshot(
    state: TrainState, config: TrainConfig, schema: Schema, folder: Path, examples: int
) -> Snapshot:
    progress = {
        "position": Position(
            {"": Passed(examples)}, batches=3, trained_examples=TRAINED_EXAMPLES, window_times=[0, 5_000]
        ).as_json(),
        "consumed": [{"log": "", "intervals": 1, "sha256": "0" * 64}],
    }
    run: Any = SimpleNamespace(
        run_dir=folder, config=config, schema=schema, state=state, progress=lambda: progress
    )
    return take_snapshot(run)


def learn_ids(state: TrainState, config: TrainConfig, rows: Rows) -> None:
    """Gives ids that grow their slots."""
    if state.tables.id_maps:
        feed = make_feed(set_rejects_apart(rows), state.layouts, BATCH_ROWS, ids=config.ids)
        feed.with_rows(state.tables, learning=True)


def trainer_logits(state: TrainState, config: TrainConfig, rows: Rows) -> list[np.ndarray]:
    """What the trainer predicts for rows before it learns from them, of the click and each label, float32 [N]."""
    feed = make_feed(set_rejects_apart(rows), state.active_layouts, BATCH_ROWS)
    if state.tables.id_maps:
        feed = feed.with_rows(state.tables)
    scores = CompiledStep(state, config, jit=False).score(feed, config.ramps_at(TRAINED_EXAMPLES))
    return [scores.logit, *scores.labels]


def trainer_logit(state: TrainState, config: TrainConfig, rows: Rows) -> np.ndarray:
    """The first of ``trainer_logits``."""
    return trainer_logits(state, config, rows)[0]


@dataclass(frozen=True)
class Case:
    """A model, raw rows, the same as rows of a shard, and what the trainer predicts of them."""

    raw: dict[str, list[Any]]
    logit: np.ndarray
    snapshot: Snapshot
    state: TrainState
    table: pa.Table
    labels: tuple[np.ndarray, ...] = ()


def make_case(
    model: dict[str, Any],
    compute_dtype: str,
    folder: Path,
    rows: int = 90,
    schema: Schema = SCHEMA,
    raw: dict[str, list[Any]] | None = None,
    labels: dict[str, Any] | None = None,
) -> Case:
    # A second head, which ranks: no part of what is served.
    ranking = {"setup": "multi_task"} if model["deep"]["units"] else {}
    content = {
        "model": model,
        "compute_dtype": compute_dtype,
        "objective": {"ranking": ranking, "labels": labels or {}},
        "ids": {"shared_rows": 3} if schema is GROWING else {},
    }
    config = parse_model(TrainConfig, {**content, "batch": {"rows": BATCH_ROWS}}, "test")
    raw = draw_raw(rows) if raw is None else raw
    table = packed_table(raw, schema)
    state = TrainState(config.table_layouts(schema), config, compute_dtype)
    packed = rows_of_table(table, schema, 0)
    # Of ids that grow and of pairs, those of the first rows alone have rows of their own.
    learn_ids(state, config, packed.slice(0, rows // 2))
    randomize(state, EXAMPLES)
    logit, *of_labels = trainer_logits(state, config, packed)
    snapshot = make_snapshot(state, config, schema, folder, EXAMPLES)
    return Case(raw, logit, snapshot, state, table, tuple(of_labels))


def saved_variables(model: Path) -> list[np.ndarray]:
    """The variables of an exported model, in their order in it."""
    saved = tf.train.load_checkpoint(str(model / "variables" / "variables"))
    names = saved.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    return [saved.get_tensor(name) for name in sorted(names, key=lambda name: int(name.split("/")[1]))]
