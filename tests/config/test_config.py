"""Typed configuration: what is refused, in which words, and what survives a round trip."""

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from ctr.config import StrictModel, apply_settings, dump_yaml, load_model, parse_model, read_yaml
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig


class Inner(StrictModel):
    rate: float = Field(default=0.5, ge=0, le=1)
    mode: Literal["sum", "mean"] = "sum"


class Outer(StrictModel):
    count: int = 1
    on: bool = False
    maybe: float | None = None
    sizes: tuple[int, ...] = ()
    widths: dict[str, int] = {}
    inner: Inner = Inner()
    needed: str


def refusal(content: object, model: type[StrictModel] = Outer) -> str:
    if isinstance(content, dict) and model is Outer:
        content = {"needed": "x", **content}
    with pytest.raises(InputError) as caught:
        parse_model(model, content, "config run.yaml")
    message = str(caught.value)
    assert message.startswith("config run.yaml: ")
    assert "\n" not in message
    return message.removeprefix("config run.yaml: ")


MAPPING = {"input": {"type": "csv"}, "time": {"column": "t", "unit": "s"}, "label": "y", "partition": "1d"}
FEATURE = {"name": "a", "kind": "category", "source": "a", "buckets": 9}
NO_LAYERS = {"crosses": {"layers": 0}, "deep": {"units": []}}
LINEAR = {"experts": ["linear", "pairs"]}
FAULTS: list[tuple[type[StrictModel], dict[str, Any], str]] = [
    (Outer, {"cuont": 2}, "cuont: unknown key; allowed: count, inner, maybe, needed, on, sizes, widths"),
    (Outer, {"inner": {"rate": 2}}, "inner.rate: 2 .*less than or equal to 1"),
    (Outer, {"inner": {"mode": "max"}}, "inner.mode: 'max' .*'sum' or 'mean'"),
    # A text or a truth value is no number, and a number no truth value; in groups of any kind.
    (Outer, {"count": "2"}, "count: '2' .*a valid integer$"),
    (Outer, {"sizes": [1, "2"]}, "sizes.1: '2' .*a valid integer$"),
    (Outer, {"on": "off"}, "on: 'off' .*a valid boolean$"),
    (Outer, {"needed": 5}, "needed: 5 .*a valid string$"),
    (Outer, {"count": 2**63}, "count: 9.223372036854776e[+]18 .*a valid integer$"),
    (Outer, {"maybe": 10**400}, "maybe: inf .*a finite number$"),
    (TrainConfig, {"batch": {"rows": 10, "max_query_rows": 9}}, r"batch: .*\(9\) must be at least rows \(10\)"),
    (TrainConfig, {"model": {"widths": {"a": -1}}}, "widths.a is -1; allowed: 0..4096"),
    (TrainConfig, {"optimizer": {"dense": {"shampoo": {"method": {"kind": []}}}}}, r"method: .* 'diagonal' or"),
    (TrainConfig, {"jit": "maybe"}, "jit: 'maybe' .*'auto', True or False"),
    # Experts that do not fit other keys.
    (TrainConfig, {"model": {"experts": ["pairs"]}}, "experts must name linear or network"),
    (TrainConfig, {"model": {"experts": ["linear", "trees"]}}, "'trees' is not allowed: .*'network' or 'pairs'"),
    (TrainConfig, {"model": {"factorized": {}, "experts": "all"}}, "^model.experts"),
    (TrainConfig, {"model": {"experts": ["network"], **NO_LAYERS}}, "network needs crosses or deep layers"),
    (TrainConfig, {"model": {**LINEAR, "factorized": {}}}, "factorized needs the expert network"),
    (TrainConfig, {"skip": [[5, 9], [7, 7]]}, r"skip: .*\[7, 7\] is not a range of rows; allowed: 0 <= first < end"),
    # Of a choice of groups one bad feature is one fault, with the keys of its kind.
    (Mapping, {**MAPPING, "features": [{**FEATURE, "name": "b d"}]}, r"features.0.category.name: 'b d' [^;]*$"),
    (Mapping, {**MAPPING, "features": [{**FEATURE, "kind": "categry"}]}, r"features.0: [^;]*$"),
    (Mapping, {**MAPPING, "features": [{**FEATURE, "bucket": 3}]}, "category.bucket: unknown key; allowed: buckets, "),
    (Mapping, {**MAPPING, "features": [FEATURE, FEATURE]}, "^feature a is defined twice$"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "content", "words"), FAULTS)
def test_a_fault_is_told_with_path_value_and_what_is_allowed(model, content, words):
    message = refusal(content, model)
    assert re.search(words, message), message


def test_all_faults_are_told_together_and_long_values_are_cut():
    message = refusal({"count": 2.5, "extra": 1, "inner": {"rate": 7, "mode": "max"}})
    assert all(path in message for path in ("count: ", "extra: ", "inner.rate: ", "inner.mode: "))
    assert message.count("; ") >= 3
    assert len(refusal({"needed": list(range(10_000))})) < 200
    with pytest.raises(InputError, match=r"^x: needed: missing$"):
        parse_model(Outer, {}, "x")


def test_settings_reach_every_depth_the_last_one_wins_and_a_malformed_one_is_named():
    content = {"seed": 4, "model": {"prior": 0.1}, "batch": None}
    given = ["model.crosses.ramp=7", "seed=5", "batch.rows=64", "seed=6", "metrics.slices=[a, b]"]
    config = parse_model(TrainConfig, apply_settings(content, given), "x")
    assert (config.seed, config.model.prior, config.model.crosses.ramp) == (6, 0.1, (0, 7))
    assert (config.batch.rows, config.metrics.slices) == (64, ("a", "b"))
    # The original stays as it was.
    assert content == {"seed": 4, "model": {"prior": 0.1}, "batch": None}
    malformed = {
        "model..prior=1": "key.path=value",
        "seed.deep=1": "seed is a value, not a",
        "seed=[1": "not YAML",
    }
    for setting, words in malformed.items():
        with pytest.raises(InputError, match=f"^--set {re.escape(setting)}: .*{words}") as caught:
            apply_settings({"seed": 1}, [setting])
        assert "\n" not in str(caught.value)


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes) -> Path:
        path = tmp_path / "run.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_a_file_is_read_changed_and_refused_with_its_name(write):
    path = write("seed: 3\ncheckpoint: {every_examples: 1e6}\n")
    config = load_model(TrainConfig, path, "config", ["model.crosses.rank=5"])
    assert (config.seed, config.model.crosses.rank) == (3, 5)
    assert parse_model(TrainConfig, {"seed": np.int64(3)}, "x").seed == 3
    # A whole number may be written with an exponent.
    assert config.checkpoint.every_examples == 1_000_000
    words = r"run\.yaml: model\.crosses\.rnk: unknown key; allowed: layers, ramp, rank"
    with pytest.raises(InputError, match=words):
        load_model(TrainConfig, path, "config", ["model.crosses.rnk=5"])
    assert load_model(TrainConfig, write("# nothing\n"), "config") == TrainConfig()
    # What is no mapping is left to be refused.
    with pytest.raises(InputError, match="a mapping of keys to values is expected, received list"):
        load_model(TrainConfig, write("[1, 2]\n"), "config", ["seed=3"])


def test_what_is_not_yaml_or_no_file_is_told_in_one_line(write, tmp_path):
    for content, words in (
        (b"a: [1\n", "line 2"),
        ("seed: 1".encode("utf-16"), "is UTF-16; allowed: YAML in UTF-8"),
        (b"PK\x03\x04rest", "is a zip archive; allowed"),
    ):
        with pytest.raises(InputError, match=f"^config .*run.yaml: .*{words}") as caught:
            read_yaml(write(content), "config")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="config /: is a directory; allowed: a file"):
        load_model(Outer, tmp_path / tmp_path.root, "config")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"link.yaml: is a symbolic link to nowhere, and leads to no file"):
        load_model(Outer, tmp_path / "link.yaml", "config")


@example(
    seed=1, rate=1e-6, units=[], widths={"1e5": 1, "\x85a": 2, "-.5E-3": 3, "null": 4, "é": 5}, jit="auto"
)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31 - 1),
    rate=st.floats(0, 1e30, allow_nan=False),
    units=st.lists(st.integers(1, 5000), max_size=4),
    widths=st.dictionaries(st.text(min_size=1), st.integers(0, 4096), max_size=3),
    jit=st.sampled_from(["auto", True, False]),
)
def test_the_dump_of_a_configuration_is_that_configuration(tmp_path_factory, seed, rate, units, widths, jit):
    content = {
        "seed": seed,
        "jit": jit,
        "model": {"deep": {"units": units}, "widths": widths},
        "optimizer": {"dense": {"shampoo": {"grafting": {"initial_accumulator": rate}}}},
    }
    config = parse_model(TrainConfig, content, "x")
    path = tmp_path_factory.mktemp("dump") / "config.yaml"
    path.write_text(dump_yaml(config), encoding="utf-8")
    again = load_model(TrainConfig, path, "config")
    assert again == config
    assert again.sha256() == config.sha256()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, (1 / 4096, 1)),
        ({"batch": {"rows": 64}}, (None, 1)),
        ({"batch": {"growth": 0.25, "least": 2}}, (0.25, 2)),
        # No call learns from many batches.
        ({"label_delay": 3}, (1 / 1024, 8)),
        ({"objective": {"ranking": {}}}, (1 / 1024, 8)),
        ({"batch": {"shapes": "few"}}, (1 / 1024, 8)),
        ({"optimizer": {"dense": {"preconditioned_from_rows": 1}}}, (1 / 4096, 1)),
        # These change results by rounding only.
        ({"batch": {"steps_per_execution": 1}, "jit": False}, (1 / 4096, 1)),
    ],
    ids=str,
)
def test_batches_begin_with_one_row_where_many_share_a_call(content, expected):
    batch = parse_model(TrainConfig, content, "test").batch
    assert (batch.growth, batch.least) == expected


@pytest.mark.parametrize(
    ("content", "begins_at"),
    [
        ({}, 185_360),
        ({"batch": {"rows": 256}}, 0),
        ({"batch": {"rows": 255}}, None),
        ({"batch": {"rows": 512, "growth": 0.01}}, 25_600),
        ({"optimizer": {"dense": {"preconditioned_from_rows": None}}}, None),
        ({"optimizer": {"dense": {"preconditioned_from_rows": 1}}}, 0),
    ],
    ids=str,
)
def test_shampoo_begins_where_batches_may_have_so_many_rows(content, begins_at):
    config = parse_model(TrainConfig, content, "test")
    assert config.preconditions == (begins_at is not None)
    sizes = config.batch.sizes(origin=7)
    for position in (0, 7, 25_606, 25_607, 185_366, 185_367, 10**9):
        begun = begins_at is not None and position >= (begins_at and begins_at + 7)
        assert config.preconditions_at(sizes.at(position)) == begun


def test_the_dump_holds_every_key_in_order_and_the_hash_its_meaning_only():
    lines = dump_yaml(TrainConfig()).splitlines()
    top = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert top == list(TrainConfig.model_fields)
    one = {"seed": 3, "model": {"prior": 0.25, "widths": {"a": 1, "b": 2}}}
    other = {"model": {"widths": {"b": 2, "a": 1}, "prior": 0.25, "init_scale": 0.01}, "seed": 3}
    config = parse_model(TrainConfig, one, "x")
    assert parse_model(TrainConfig, other, "x").sha256() == config.sha256()
    for changed in ({**one, "seed": 4}, {**one, "batch": {"rows": 8}}, {"seed": 3}):
        assert parse_model(TrainConfig, changed, "x").sha256() != config.sha256()
