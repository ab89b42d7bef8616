# ruff: noqa: E501
"""Every parser of what comes from outside: by name its valid files, and how it is called.

A target's ``prepare(folder)`` writes what must lie beside the file and returns valid contents; ``parse(folder, content)``
reads a content. It returns when that was accepted, and then has checked that it means something; it raises InputError
or RunError when it was refused. Anything else is a fault.
"""

import functools
import gzip
import hashlib
import io
import json
import math
import runpy
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ctr.config import apply_settings, dump_yaml, parse_model, read_yaml
from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.data.log import read_manifests, read_schema, read_shard, schema_bytes
from ctr.data.mapping import FORMATS_FOLDER, Mapping, load_format, load_mapping
from ctr.data.reader import rows_of_table
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Number, Schema
from ctr.data.sidecar import read_sidecar_interval, sidecar_sha256, write_sidecar_interval
from ctr.errors import InputError
from ctr.eval.documents import parse_yaml
from ctr.simulator.config import SimulatorConfig

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

Prepare = Callable[[Path], list[bytes]]
Parse = Callable[[Path, bytes], object]


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        form: of its files, one of ``mutate.FORMS``.
        prepare, parse: as described above.
        slow: whether a call takes more than about a tenth of a second.
    """

    form: str
    prepare: Prepare
    parse: Parse
    slow: bool = False


@functools.cache
def _helper(path: str) -> SimpleNamespace:
    """The functions of a module of tests, which cannot be imported."""
    return SimpleNamespace(**runpy.run_path(str(TESTS / path)))


def _require_finite(tree: Any, path: str = "") -> None:
    """Numbers that no one can compute with do not get in."""
    if isinstance(tree, float):
        assert math.isfinite(tree), f"{path} is {tree}"
    for key, value in (
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        _require_finite(value, f"{path}.{key}")


# Configurations.


def _require_stable(model: Any) -> None:
    """What was accepted is accepted again, and is the same."""
    content = model.model_dump(mode="json", by_alias=True)
    _require_finite(content)
    text = dump_yaml(model)
    again = parse_model(type(model), parse_yaml(text), "again").model_dump(mode="json", by_alias=True)
    assert again == content, "the dump means something else"
    assert len(text) < 1 << 20, "a small file became a large one"


def _require_usable(schema: Schema) -> None:
    for feature in schema.features:
        if isinstance(feature, Number):
            edges = np.array(feature.edges(), np.float32)
            assert np.isfinite(edges).all() and (np.diff(edges) >= 0).all(), f"{feature.name}: {edges}"


def _yaml_seeds(*patterns: str) -> Prepare:
    def prepare(folder: Path) -> list[bytes]:
        found = [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        assert found
        return found

    return prepare


def _models() -> tuple[Any, Any]:
    from ctr.training.config import TrainConfig

    return TrainConfig, parse_model(Schema, {"features": FEATURES}, "test")


FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "category", "source": "user", "buckets": 40, "width": 4},
    {"name": "price", "kind": "number", "source": "price", "boundaries": [0.5, 2, 8], "width": 2},
    {"name": "tags", "kind": "category", "source": "tags", "buckets": 30, "width": 4, "multivalent": True, "separator": "|"},
    {"name": "title", "kind": "text", "source": "title", "words": [1, 2], "subwords": [3], "buckets": 60, "width": 2},
    {"name": "cross", "kind": "cross", "of": ["tags", "price"], "buckets": 80, "width": 2},
    {"name": "position", "kind": "category", "source": "position", "vocabulary": ["1", "2"], "tower": "ui"},
    {"name": "size", "kind": "number", "source": "size", "log": {}, "width": 3, "tower": "ui"},
    {"name": "age", "kind": "number", "source": "age", "step": {"low": 10, "high": 75, "size": 5}, "width": 8},
]  # fmt: skip

_TRAIN = {
    "seed": 3,
    "time_range": {"start": "2026-01-02", "end": "2026-02-01T06:00:00+01:00"},
    "sampling": {"name": "half", "score": "kept"},
    "objective": {
        "ranking": {"weight": 0.2, "setup": "multi_task", "ramp": {"start": 10, "length": 5}},
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
    "batch": {"rows": 64, "largest_query": 512, "within_intervals": True},
    "model": {
        "prior": 0.04,
        "crosses": {"layers": 2, "rank": 16, "ramp": {"length": 100}},
        "deep": {"units": [16, 8], "ranks": [4, 0], "activation": "smelu", "smelu_beta": 0.5},
        "factorised": {
            "width": 4,
            "ui_units": [8],
            "transfer": "piecewise_linear",
            "ui_features": ["position"],
        },
        "ensemble": {"components": 2, "embeddings": "separate"},
        "widths": {"user": 3},
    },
    "optimizer": {
        "rows": {"tower_rates": {"quality": 1.0, "ui": 0.5}, "update_limit_absolute": 0.1},
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
    config = load_model(kind, _put(folder / "config.yaml", content), "config")
    _require_stable(config)
    _lay_out(config, schema)
    config.ramps_at(10**9)
    config.sha256()


def _lay_out(config: Any, schema: Schema) -> None:
    """What was accepted can be built on a machine of today."""
    layouts = config.model.table_layouts(schema)
    assert sum(layout.rows * layout.columns for layout in layouts) < 2**40
    widths = [*config.model.deep.units, config.model.crosses.rank]
    assert max(widths) <= 2**16 and len(widths) <= 2**10


def _settings_seeds(folder: Path) -> list[bytes]:
    lines = (
        "seed=5\nmodel.deep.units=[8, 4]\nmodel.crosses.ramp.length=0\nobjective.ranking={}\nbatch.rows=10",
        "time_range.start=2026-01-01\nmodel.widths={user: 3}\noptimizer.rows.learning_rate=1e-3\njit=false\nexport=null",
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
        found = parse_model(model, read_yaml(_put(folder / "config.yaml", content), "config"), "config")
        _require_stable(found)

    return parse


def _sampling_seeds(folder: Path) -> list[bytes]:
    rule = {
        "rate": 0.3,
        "low_loss": {"teacher": "big", "below": 0.1, "log": "logs/a"},
        "low_visibility": {"feature": "position", "values": [3, None, "4"]},
    }
    content = {
        "salt": "a",
        "non_click_rate": 0.5,
        "uninformative": rule,
        "time_range": {"start": "2026-01-01"},
    }
    return [yaml.safe_dump(content).encode(), b"non_click_rate: 0.1\nsmallest_rate: 1e-3\n"]


def _simulator_seeds(folder: Path) -> list[bytes]:
    shown = SimulatorConfig(days=3, events={"format": "csv"})  # type: ignore[arg-type]
    return [dump_yaml(shown).encode(), b"examples: 1000\nstart: 2026-02-03\ndrift: 0.1\nwords: 50\n"]


def _experiment_seeds(folder: Path) -> list[bytes]:
    # Beside the training configurations that they begin with.
    shutil.copytree(ROOT / "examples", folder / "examples")
    return _yaml_seeds("examples/replay/accuracy.yaml", "examples/replay/[cer]*.yaml")(folder)


def _parse_experiment(folder: Path, content: bytes) -> None:
    from ctr.pipelines.replay_config import read_experiment

    experiment, training = read_experiment(_put(folder / "examples/replay/changed.yaml", content))
    _require_stable(experiment)
    json.dumps(training, default=str)


def _mapping_seeds(folder: Path) -> list[bytes]:
    rows = _helper("pipelines/conftest.py")
    return [path.read_bytes() for path in sorted(FORMATS_FOLDER.glob("*.yaml"))] + [
        json.dumps(rows.base_content()).encode(),
        json.dumps({**rows.base_content(), "features": FEATURES}).encode(),
    ]


def _parse_mapping(folder: Path, content: bytes) -> None:
    mapping = load_mapping(_put(folder / "mapping.yaml", content))
    _require_stable(mapping)
    _require_usable(mapping.feature_schema)
    assert 0 < mapping.interval_us < 2**62
    assert mapping.raw_columns and mapping.list_sources is not None


def _event_mapping_seeds(folder: Path) -> list[bytes]:
    events = _helper("pipelines/events/conftest.py")
    return [
        (ROOT / "examples/events/simulated.yaml").read_bytes(),
        *(json.dumps(events.content(form)).encode() for form in ("jsonl", "csv", "parquet")),
    ]


def _parse_event_mapping(folder: Path, content: bytes) -> None:
    mapping = load_event_mapping(_put(folder / "mapping.yaml", content))
    _require_stable(mapping)
    _require_usable(mapping.feature_schema)
    assert max(mapping.windows_us) < 2**62 and mapping.raw_columns


# Example logs.


def _put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _log(folder: Path) -> tuple[Path, Any]:
    small = _helper("training/conftest.py")
    log = folder / "log"
    if not log.exists():
        small.publish(log, small.draw_examples(30).table(), ((0, 20_000), (20_000, 10**9)))
        for interval in read_manifests(log):
            ids = np.concatenate(
                [read_shard(log, e, small.SCHEMA)["example_id"].to_numpy() for e in interval.shards]
            )
            table = pa.table(
                {"example_id": ids, "logit": np.zeros(len(ids), np.float32), "kept": np.ones(len(ids), bool)}
            )
            write_sidecar_interval(log, "teacher", interval, table)
    return log, small.SCHEMA


def _require_log(log: Path) -> int:
    """All that a log promises of the rows that it has."""
    schema, rows = read_schema(log), 0
    _require_usable(schema)
    for manifest in read_manifests(log):
        for entry in manifest.shards:
            found = rows_of_table(read_shard(log, entry, schema), schema, rows)
            assert len(found) == entry.rows
            rows += len(found)
    return rows


def _log_file(glob: str) -> tuple[Prepare, Parse]:
    """A file of a log in place of the first that matches."""

    def prepare(folder: Path) -> list[bytes]:
        log, _ = _log(folder)
        return [path.read_bytes() for path in sorted(log.glob(glob))]

    def parse(folder: Path, content: bytes) -> None:
        log, _ = _log(folder)
        path = min(log.glob(glob))
        before = path.read_bytes()
        try:
            path.write_bytes(content)
            _require_log(log)
            for interval in read_manifests(log):
                read_sidecar_interval(log, "teacher", interval)
            sidecar_sha256(log, "teacher")
        finally:
            path.write_bytes(before)

    return prepare, parse


def _schema_seeds(folder: Path) -> list[bytes]:
    return [
        schema_bytes(parse_model(Schema, {"features": FEATURES}, "test")),
        *_log_file("schema.json")[0](folder),
    ]


def _parse_schema(folder: Path, content: bytes) -> None:
    """As it is, and with the hash that makes a changed one valid."""
    (folder / "bare").mkdir(exist_ok=True)
    path = _put(folder / "bare/schema.json", content)
    try:
        read_schema(folder / "bare")
    except InputError as error:
        if "recorded version" not in str(error):
            raise
    tree = json.loads(content)
    schema = parse_model(Schema, {key: tree[key] for key in tree.keys() - {"format", "version"}}, "test")
    path.write_bytes(schema_bytes(schema))
    assert read_schema(folder / "bare") == schema
    _require_usable(schema)


def _shard_seeds(folder: Path) -> list[bytes]:
    log, _ = _log(folder)
    return [path.read_bytes() for path in sorted(log.glob("shards/*"))]


def _parse_shard(folder: Path, content: bytes) -> None:
    """With a manifest that speaks of these very bytes."""
    log, _ = _log(folder)
    path = min(log.glob("manifests/*"))
    before = path.read_bytes()
    tree = json.loads(before)
    entry = tree["shards"][0]
    entry |= {"file": "changed.parquet", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    try:
        path.write_text(json.dumps(tree))
        _put(log / "shards/changed.parquet", content)
        _require_log(log)
    finally:
        path.write_bytes(before)


def _sidecar_seeds(folder: Path) -> list[bytes]:
    log, _ = _log(folder)
    return [path.read_bytes() for path in sorted(log.glob("sidecars/teacher/*.parquet"))]


def _parse_sidecar(folder: Path, content: bytes) -> None:
    from ctr.data.joined_sidecar import JoinedSidecar, count_missing

    log, _ = _log(folder)
    path = min(log.glob("sidecars/teacher/*.json"))
    before = path.read_bytes()
    tree = {
        **json.loads(before),
        "file": "changed.parquet",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    try:
        path.write_text(json.dumps(tree))
        _put(path.parent / "changed.parquet", content)
        manifests = read_manifests(log)
        sidecar = JoinedSidecar(log, "teacher", ["logit"], manifests)
        count_missing(log, manifests, sidecar, "logit")
    finally:
        path.write_bytes(before)


# Raw inputs.


def _ingested(folder: Path, mapping: Mapping, path: Path) -> None:
    from ctr.pipelines.ingest import ingest

    log = folder / "out"
    shutil.rmtree(log, ignore_errors=True)
    result = ingest(mapping, [path], log, max_reject_share=1)
    if log.exists() and (log / "schema.json").exists():
        assert _require_log(log) == result.rows - result.rejected, result
    for file in log.glob("rejects/*"):
        assert len([json.loads(line) for line in file.read_text().splitlines()]) == result.rejected


def _table_input(suffix: str, changes: dict[str, Any], name: str = "rows") -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        rows = _helper("pipelines/conftest.py")
        own = folder / "tables"
        path = rows.write_rows(own, rows.make_rows(12), suffix)
        if name == "shops":
            path = own / "shops.csv"
        return [path.read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        mapping = _helper("pipelines/conftest.py").make_mapping(**changes)
        _put(folder / "tables" / (f"rows.{suffix}" if name == "rows" else f"{name}.csv"), content)
        _ingested(folder, mapping, folder / f"tables/rows.{suffix}")

    return prepare, parse


_FORMATS: dict[str, dict[str, str]] = {
    "criteo": {
        "train.txt": "".join(
            "\t".join([label, *["1", "-2", "5"], *[""] * 10, *(f"{n:08x}" for n in range(26))]) + "\n"
            for label in "010"
        )
    },
    "avazu": {
        "train.csv": "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21\n"
        "7,1,14102113,1,0,a,b,c,d,e,f,g,h,i,1,2,3,4,5,6,7,8,-1,9\n18446744073709551000,0,14102112,1,1"
        + ",x" * 19
        + "\n"
    },
    "movielens": {
        "x.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t10\t4\t900000000\n2\t10\t3\t900000000\n"
        "1\t11\t3.5\t900001800\n1\t12\t5\t900003601\n",
        "x.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        '10\tA "Film"\t1995\tDrama Comedy\n11\tB\t1996\tDrama\n',
        "x.user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\tcook\t85711\n",
    },
    "open_bandit": {
        "all.csv": ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user_feature_2,"
        "user_feature_3,user-item_affinity_0\n0,2019-11-24 00:00:17.004101+00:00,1,2,0,0.1,a,b,c,d,0.0\n"
        "1,2019-11-24 00:00:18+00:00,7,3,1,0.1,a,b,c,e,0.0\n",
        "item_context.csv": ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n0,1,-0.5,x,y,z\n",
    },
    "mind": {
        "behaviors.tsv": "2\tU1\t11/12/2019 2:14:46 PM\tN1 N9\tN1-0 N2-1\n1\tU2\t11/9/2019 6:42:51 AM\t\tN8-0\n",
        "news.tsv": 'N1\tnews\tworld\tOne "two"\t\thttp://x\t[{"WikidataId": "Q1"}]\t[]\n'
        "N2\tsports\tgolf\tTwo\tthree\thttp://x\t\t[]\n",
    },
}


def _format(name: str, changed: str) -> tuple[Prepare, Parse]:
    files = _FORMATS[name]

    def prepare(folder: Path) -> list[bytes]:
        (folder / name).mkdir(exist_ok=True)
        for file, text in files.items():
            _put(folder / name / file, text.encode())
        return [files[changed].encode()]

    def parse(folder: Path, content: bytes) -> None:
        _put(folder / name / changed, content)
        _ingested(folder, load_format(name), folder / name / next(iter(files)))

    return prepare, parse


def _events(form: str, kind: Any) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        events = _helper("pipelines/events/conftest.py")
        rows = events.draw_events(12)[kind]
        (folder / kind).mkdir(exist_ok=True)
        if form == "jsonl":
            return ["".join(json.dumps(row) + "\n" for row in rows).encode()]
        fields = [pa.field(key, value) for key, value in events.TYPES.items() if key in rows[0]]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), sink)
        return [sink.getvalue()]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.pipelines.events.read import Unit, read_unit, split_units
        from ctr.pipelines.events.tables import prepare as make

        events = _helper("pipelines/events/conftest.py")
        mapping: EventMapping = events.mapping(form)
        path = _put(folder / kind / f"x.{form}", content)
        for unit in split_units([Unit(kind, path.name, path)]):
            for chunk in read_unit(mapping, unit):
                made = make(mapping, kind, chunk, events.BEGIN_US + 10**9)
                assert made.count == chunk.count
                _require_events(mapping, kind, made.table)

    return prepare, parse


def _require_events(mapping: EventMapping, kind: str, table: pa.Table) -> None:
    for column in table.columns:
        assert not column.null_count
    if kind == "impressions":
        rows = rows_of_table(table, mapping.feature_schema, 0)
        assert not rows.fault.any()


def _kafka(kind: Any) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        events = _helper("pipelines/events/conftest.py")
        return ["".join(json.dumps(row) + "\n" for row in events.draw_events(12)[kind]).encode()]

    def parse(folder: Path, content: bytes) -> None:
        from apache_beam.utils.timestamp import Timestamp

        from ctr.pipelines.events.kafka import _Gather
        from ctr.pipelines.events.tables import prepare as make

        events = _helper("pipelines/events/conftest.py")
        mapping: EventMapping = events.mapping("jsonl", impressions={"topic": "i"}, clicks={"topic": "c"})
        gather = _Gather(mapping, kind)
        gather.start_bundle()
        values = [*content.split(b"\n"), content, None]
        for offset, value in enumerate(values):
            record = SimpleNamespace(value=value, topic="t", partition=0, offset=offset)
            assert not list(gather.process(record, Timestamp(1)))
        found = [chunk.value.chunk for chunk in gather.finish_bundle()]
        assert sum(chunk.count for chunk in found) == len(values) - 1, "a record is lost"
        for chunk in found:
            _require_events(mapping, kind, make(mapping, kind, chunk, events.BEGIN_US + 10**9).table)

    return prepare, parse


def _scored_rows(suffix: str) -> tuple[Prepare, Parse]:
    """What ``ctr score`` reads."""
    schema = parse_model(Schema, {"features": FEATURES}, "test")
    rows = [
        {"user": 1, "price": 2.5, "tags": "a|b", "title": "Red shoe", "position": "1", "size": 3, "age": 30},
        {"user": "x", "price": None, "tags": "", "title": None, "position": "9", "size": 1e9, "age": 5},
    ]
    texts = {
        "csv": ",".join(rows[0]) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows),
        "jsonl": "".join(json.dumps({**row, "tags": ["a"]}) + "\n" for row in rows),
    }
    texts["csv.gz"] = texts["csv"]

    def prepare(folder: Path) -> list[bytes]:
        content = texts[suffix].encode()
        return [gzip.compress(content), gzip.compress(content * 2000)] if suffix.endswith("gz") else [content]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.pipelines.raw_rows import plain_mapping, read_raw_rows

        path = _put(folder / f"rows.{suffix}", content)
        for keys, raw, rejects in read_raw_rows(schema, plain_mapping(schema, [path]), [path], 1 << 20):
            assert keys.num_rows == raw.num_rows
            json.dumps(rejects)

    return prepare, parse


# Checkpoints and runs.


def _checkpoint_folder(folder: Path) -> Path:
    from ctr.training import checkpoint

    target = folder / "checkpoints"
    if not target.exists():
        arrays = {
            "weights|a": np.ones((3, 2), np.float32),
            "states|b/c": np.arange(4),
            "flag": np.array(True),
        }
        checkpoint.save(target, 10, arrays, {"position": {"examples": 10}, "parts": ["a.parquet"]}, 2)
    return target


def _checkpoint_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [next(_checkpoint_folder(folder).glob(f"*/{name}")).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        """With the hashes that make a changed file valid, where it can still have them."""
        from ctr.training import checkpoint

        folder = _checkpoint_folder(folder)
        path = next(folder.glob("[0-9]*"))
        before = {file: file.read_bytes() for file in path.iterdir()}
        try:
            (path / name).write_bytes(content)
            try:
                state = json.loads((path / "state.json").read_bytes())
                state["arrays_sha256"] = hashlib.sha256((path / "arrays.npz").read_bytes()).hexdigest()
                state["state_sha256"] = checkpoint._state_hash(state)
                (path / "state.json").write_text(json.dumps(state))
            except (ValueError, TypeError, AttributeError, RecursionError):
                pass
            arrays, _ = checkpoint.read(folder)
            assert all(array.dtype != object for array in arrays.values())
        finally:
            for file, text in before.items():
                file.write_bytes(text)

    return prepare, parse


def _run_folder(folder: Path) -> Path:
    make = _helper("eval/run_directories.py")
    run = folder / "run"
    if not run.exists():
        rows = make.make_rows(1, queries=60)
        for name, seed in (("run", 1), ("other", 2)):
            make.write_run(
                folder / name, rows, make.predict(rows, seed, 1.0), slices=("position",), rejects=("bad",)
            )
            spectra = [
                {"name": "deep/0", "shape": [3, 2], "singular_values": [2.0, 1.0]},
                {"name": "deep/1", "shape": [9, 9], "omitted": "too large"},
            ]
            (folder / name / "weight_spectra.json").write_text(json.dumps({"weights": spectra}))
    return run


def _run_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [_file_of(_run_folder(folder), name).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.eval.paired_predictions import pair_predictions
        from ctr.eval.run_comparison import compare_runs
        from ctr.eval.run_files import (
            RunError,
            count_rejects,
            read_environment,
            read_run,
            read_weight_spectra,
            read_windows,
        )
        from ctr.eval.shown_run import show_runs

        run = _run_folder(folder)
        path = _file_of(run, name)
        before = path.read_bytes()
        try:
            path.write_bytes(content)
            read_run(run)
            read_environment(run)
            read_windows(run)
            read_weight_spectra(run)
            count_rejects(run)
            if name in ("summary.json", "config.yaml", "metric_states.npz"):
                show_runs([run])
                compared = compare_runs(folder / "other", run)
                json.dumps(compared.as_dict(), allow_nan=False)
                compared.as_text()
            if name.startswith("predictions"):
                try:
                    pair_predictions(folder / "other", run)
                except ValueError as error:
                    # What cannot be joined; a comparison then tells why in the place of the difference.
                    raise RunError(str(error)) from None
        finally:
            path.write_bytes(before)

    return prepare, parse


def _file_of(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


_REPORTED = (
    "summary.json",
    "environment.json",
    "metrics.jsonl",
    "weight_spectra.json",
    "rejects.jsonl",
    "config.yaml",
)


def _report_seeds(folder: Path) -> list[bytes]:
    """The files of a run in one."""
    run = _run_folder(folder)
    return ["\0".join((run / name).read_text() for name in _REPORTED).encode()]


def _parse_report(folder: Path, content: bytes) -> None:
    from ctr.eval.report import render_report

    run = _run_folder(folder)
    before = {name: (run / name).read_bytes() for name in _REPORTED}
    try:
        for name, text in zip(_REPORTED, content.split(b"\0"), strict=False):
            (run / name).write_bytes(text)
        page = render_report([run])
        page.encode()
        assert "<script" not in page
    finally:
        for name, text in before.items():
            (run / name).write_bytes(text)


def _experiment_folder(folder: Path) -> Path:
    make = _helper("eval/experiment_folders.py")
    target = folder / "experiment"
    if not target.exists():
        rows = make.make_rows(1, queries=60)
        make.write_plan(
            target, {"base": {"seeds": [1]}, "arm": {"seeds": [1, 2], "paper": {"accuracy": "1%"}}}
        )
        for name, seed in (("base", 1), ("arm", 1), ("arm", 2)):
            make.write_small(target / make.run_folder(name, seed), rows, make.logits(rows, name, seed))
        costs = {name: make.cost("base") for name in ("base", "arm")}
        (target / "costs.json").write_text(
            json.dumps({"arms": costs, "rounds": 3, "teacher_flops": {"big": 1e7}})
        )
    return target


def _experiment_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [(_experiment_folder(folder) / name).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        from ctr.eval.experiment import write_experiment

        target = _experiment_folder(folder)
        before = (target / name).read_bytes()
        try:
            (target / name).write_bytes(content)
            write_experiment(target).encode("utf-8", "surrogateescape")
            _require_finite(json.loads((target / "result.json").read_text()))
        finally:
            (target / name).write_bytes(before)

    return prepare, parse


def _evaluate_seeds(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(_run_folder(folder).glob("predictions/*"))]


def _parse_evaluate(folder: Path, content: bytes) -> None:
    from ctr.pipelines.evaluate_rows import find_row_groups, gather, read_row_group

    path = _put(folder / "predictions.parquet", content)
    for group in find_row_groups([path]):
        rows = gather(list(read_row_group(group)))
        assert np.isfinite(rows["logit"]).all() and np.isfinite(rows["weight"]).all()


def _loop_seeds(folder: Path) -> list[bytes]:
    (folder / "loop").mkdir(exist_ok=True)
    (folder / "base").mkdir(exist_ok=True)
    count = 40
    table = pa.table(
        {
            "day": pa.array(np.arange(count) // 20, pa.int64()),
            "query_id": np.arange(count),
            "randomised": np.arange(count) % 5 == 0,
            "ads": np.arange(count) % 4,
        }
    )
    pq.write_table(table, folder / "base/shown.parquet")
    return [(folder / "base/shown.parquet").read_bytes()]


def _parse_loop(folder: Path, content: bytes) -> None:
    from ctr.eval.ads_churn import compare_loops

    _put(folder / "loop/shown.parquet", content)
    compared = compare_loops(folder / "base", folder / "loop")
    json.dumps(compared.as_dict(), allow_nan=False)
    compared.as_text()


# Exported models.


def _export_folder(folder: Path) -> Path:
    from ctr.serving.export import publish

    serving = _helper("serving/conftest.py")
    target = folder / "models"
    if not target.exists():
        made = serving.make_case(serving.MODELS["factorised"], "float32", folder / "trained", rows=6)
        publish(made.snapshot, target)
    return next(target.glob("[0-9]*"))


def _export_file(name: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [(_export_folder(folder) / name).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        """With the hashes that make a changed file valid."""
        from ctr.serving.metadata import EXTRA, FILE
        from ctr.serving.scorer import Scorer

        model = _export_folder(folder)
        metadata = model / EXTRA / FILE
        before = {path: path.read_bytes() for path in (model / name, metadata)}
        try:
            (model / name).write_bytes(content)
            if model / name != metadata:
                tree = json.loads(before[metadata])
                tree["files"][name] = hashlib.sha256(content).hexdigest()
                metadata.write_text(json.dumps(tree))
            scorer = Scorer(model)
            scores = scorer.predict(_helper("serving/conftest.py").draw_raw(3))
            assert scores.shape == (3,)
        finally:
            for path, text in before.items():
                path.write_bytes(text)

    return prepare, parse


# The command line.


def _command_seeds(folder: Path) -> list[bytes]:
    _run_folder(folder)
    _log(folder)
    lines = (
        "compare run other --json",
        "compare run run/predictions",
        "report missing other",
        "sample log --name half --set non_click_rate=0.5",
        "train log --config absent.yaml --out new --set model.deep.units=[8]",
        "score model log --out scores.parquet",
        "evaluate missing --against run",
        "export run --out model --checkpoint 5",
    )
    return ["\n".join(line.split()).encode() for line in lines]


def _parse_command(folder: Path, content: bytes) -> None:
    """Arguments, one a line. The commands are those that end at once where the files are as they are here."""
    from ctr.cli import main

    arguments = content.replace(b"\0", b"").decode("utf-8", "surrogateescape").split("\n")
    if not arguments or arguments[0] not in (
        "compare",
        "sample",
        "train",
        "score",
        "evaluate",
        "export",
        "report",
    ):
        return
    # Nothing outside the folder is touched.
    paths = [part for argument in arguments for part in (argument, argument.partition("=")[2])]
    if any(path.startswith(("/", "~")) or ".." in path for path in paths):
        return
    out, told = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(told):
        try:
            status: Any = main(arguments)
        except SystemExit as ended:
            status = ended.code
    # 2: the usage, and what is wrong with the arguments.
    assert status in (0, 1, 2)
    if status == 1:
        text = told.getvalue()
        assert text.startswith("error: ")
        assert text.count("\n") == 1
        assert text[:-1].isprintable(), repr(text)
        raise InputError(text)


def _make_targets() -> dict[str, Target]:
    """All of them, by name."""
    csv, tsv = {}, {"input": {"type": "tsv"}}
    jsonl, parquet = {"input": {"type": "jsonl"}}, {"input": {"type": "parquet"}}
    targets = {
        "train config": Target("yaml", _train_seeds, _parse_train),
        "settings": Target("text", _settings_seeds, _parse_settings),
        "simulator config": Target("yaml", _simulator_seeds, _model_parser(SimulatorConfig)),
        "sampling config": Target("yaml", _sampling_seeds, _model_parser(SamplingConfig)),
        "experiment": Target("yaml", _experiment_seeds, _parse_experiment),
        "mapping": Target("yaml", _mapping_seeds, _parse_mapping),
        "event mapping": Target("yaml", _event_mapping_seeds, _parse_event_mapping),
        "schema": Target("json", _schema_seeds, _parse_schema),
        "manifest": Target("json", *_log_file("manifests/*.json")),
        "sidecar manifest": Target("json", *_log_file("sidecars/*/*.json")),
        "shard": Target("parquet", _shard_seeds, _parse_shard),
        "sidecar": Target("parquet", _sidecar_seeds, _parse_sidecar),
        "csv": Target("text", *_table_input("csv", csv)),
        "tsv": Target("text", *_table_input("tsv", tsv)),
        "csv.gz": Target("bytes", *_table_input("csv.gz", csv)),
        "csv.zst": Target("bytes", *_table_input("csv.zst", csv)),
        "jsonl": Target("jsonl", *_table_input("jsonl", jsonl)),
        "parquet": Target("parquet", *_table_input("parquet", parquet)),
        "side table": Target("text", *_table_input("csv", csv, "shops")),
        **{f"{name} {file}": Target("text", *_format(name, file)) for name, files in _FORMATS.items() for file in files},
        **{
            f"{kind} {form}": Target(form, *_events(form, kind))
            for kind in ("impressions", "clicks")
            for form in ("jsonl", "parquet")
        },
        **{f"kafka {kind}": Target("jsonl", *_kafka(kind)) for kind in ("impressions", "clicks")},
        "scored csv": Target("text", *_scored_rows("csv")),
        "scored jsonl": Target("jsonl", *_scored_rows("jsonl")),
        "scored csv.gz": Target("bytes", *_scored_rows("csv.gz")),
        "checkpoint arrays": Target("npz", *_checkpoint_file("arrays.npz")),
        "checkpoint state": Target("json", *_checkpoint_file("state.json")),
        "run summary": Target("json", *_run_file("summary.json")),
        "run environment": Target("json", *_run_file("environment.json")),
        "run windows": Target("jsonl", *_run_file("metrics.jsonl")),
        "run config": Target("yaml", *_run_file("config.yaml")),
        "run rejects": Target("jsonl", *_run_file("rejects.jsonl")),
        "run spectra": Target("json", *_run_file("weight_spectra.json")),
        "run metrics": Target("npz", *_run_file("metric_states.npz")),
        "run predictions": Target("parquet", *_run_file("predictions/*.parquet")),
        "report": Target("text", _report_seeds, _parse_report, slow=True),
        "experiment plan": Target("json", *_experiment_file("plan.json"), slow=True),
        "experiment costs": Target("json", *_experiment_file("costs.json"), slow=True),
        "evaluated predictions": Target("parquet", _evaluate_seeds, _parse_evaluate),
        "loop": Target("parquet", _loop_seeds, _parse_loop),
        "export metadata": Target("json", *_export_file("assets.extra/ctr.json"), slow=True),
        "export graph": Target("bytes", *_export_file("saved_model.pb"), slow=True),
        "export index": Target("bytes", *_export_file("variables/variables.index"), slow=True),
        "command line": Target("text", _command_seeds, _parse_command),
    }  # fmt: skip
    return targets


TARGETS = _make_targets()
