"""Typed configuration: what is refused, in which words, and what survives a round trip."""

import re
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from ctr.config import (
    StrictModel,
    apply_settings,
    dump_yaml,
    load_model,
    parse_model,
    read_yaml,
)
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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"cuont": 2}, ["cuont: unknown key", "allowed: count, inner, maybe, needed, on, sizes, widths"]),
        ({"inner": {"raet": 2}}, ["inner.raet: unknown key", "allowed: mode, rate"]),
        ({"inner": {"rate": 2}}, ["inner.rate: 2 ", "less than or equal to 1"]),
        ({"inner": {"rate": float("nan")}}, ["inner.rate: nan ", "finite"]),
        ({"inner": {"mode": "max"}}, ["inner.mode: 'max' ", "'sum' or 'mean'"]),
        ({"inner": 3}, ["inner: 3 ", "dictionary"]),
        ({"count": "2"}, ["count: '2' ", "a number is required"]),
        ({"count": True}, ["count: True ", "a number is required"]),
        ({"count": 2.5}, ["count: 2.5 ", "integer"]),
        ({"count": None}, ["count: None ", "integer"]),
        ({"maybe": "2"}, ["maybe: '2' ", "a number is required"]),
        ({"sizes": [1, "2"]}, ["sizes: [1, '2'] ", "a number is required"]),
        ({"widths": {"a": True}}, ["widths: {'a': True} ", "a number is required"]),
        ({"on": "off"}, ["on: 'off' ", "true or false is required"]),
        ({"on": 0}, ["on: 0 ", "true or false is required"]),
        ({"needed": None}, ["needed: None ", "string"]),
        ({"needed": 5}, ["needed: 5 ", "string"]),
    ],
)
def test_a_fault_is_told_with_path_value_and_what_is_allowed(content, words):
    message = refusal(content)
    assert all(word in message for word in words), message


def test_all_faults_are_told_together():
    message = refusal({"count": 2.5, "extra": 1, "inner": {"rate": 7, "mode": "max"}})
    assert all(path in message for path in ("count: ", "extra: ", "inner.rate: ", "inner.mode: "))
    assert message.count("; ") >= 3


def test_a_missing_key_and_content_that_is_no_mapping():
    assert refusal({"count": 1}, TrainConfig).startswith("count: unknown key")
    with pytest.raises(InputError, match=r"^x: needed: missing$"):
        parse_model(Outer, {}, "x")
    with pytest.raises(InputError, match=r"^x: a mapping of keys to values is expected, received list$"):
        parse_model(Outer, [1], "x")


def test_a_long_value_is_cut():
    assert len(refusal({"needed": list(range(10_000))})) < 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"batch": {"rows": 10, "max_query_rows": 9}},
            ["batch: ", "max_query_rows (9) must be at least rows (10)"],
        ),
        ({"batch": {"rows": 0}}, ["batch.rows: 0 "]),
        ({"model": {"deep": {"units": [8, 0]}}}, ["model.deep: ", "1..65536"]),
        ({"model": {"deep": {"activation": "sine"}}}, ["model.deep.activation: 'sine' ", "'relu'"]),
        ({"model": {"widths": {"a": -1}}}, ["widths.a is -1; allowed: 0..4096"]),
        ({"model": {"prior": 0}}, ["model.prior: 0 ", "greater than 0"]),
        ({"model": {"crosses": {"ramp": -1}}}, ["model.crosses.ramp: -1 "]),
        (
            {"optimizer": {"embeddings": {"tower_rates": {"quality": -1}}}},
            ["optimizer.embeddings.tower_rates.quality: -1 "],
        ),
        (
            {"optimizer": {"embeddings": {"tower_rates": {"left": 1}}}},
            ["tower_rates.left: ", "'quality' or 'ui'"],
        ),
        ({"jit": "maybe"}, ["jit: 'maybe' ", "'auto', True or False"]),
        ({"seed": 2**31}, [f"seed: {2**31} "]),
        ({"checkpoint": {"keep": 0}}, ["checkpoint.keep: 0 "]),
        ({"rollback": {"after_skipped_steps": 0}}, ["rollback.after_skipped_steps: 0 "]),
        ({"rollback": {"after_skipped_steps": 2.5}}, ["rollback.after_skipped_steps: 2.5 ", "integer"]),
        ({"rollback": None}, ["rollback: None "]),
        ({"max_rejected_share": 1.5}, ["max_rejected_share: 1.5 "]),
        ({"model": {"ensemble": 5}}, ["model.ensemble: 5 is not allowed"]),
        (
            {"optimizer": {"dense": {"shampoo": {"grafting": {"kind": []}}}}},
            ["grafting is {'kind': []}; allowed: "],
        ),
    ],
)
def test_impossible_training_configurations_are_refused(content, words):
    message = refusal(content, TrainConfig)
    assert all(word in message for word in words), message


def test_rollbacks_are_on_and_can_be_switched_off():
    assert TrainConfig().rollback.after_skipped_steps == 10
    config = parse_model(TrainConfig, {"rollback": {"after_skipped_steps": None}}, "x")
    assert config.rollback.after_skipped_steps is None


def test_a_configuration_does_not_change():
    config = TrainConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


def test_settings_reach_every_depth_and_the_last_one_wins():
    content = {"seed": 4, "model": {"prior": 0.1}, "batch": None}
    settings = ["model.crosses.ramp=7", "seed=5", "batch.rows=64", "seed=6", "metrics.slices=[a, b]"]
    changed = apply_settings(content, settings)
    config = parse_model(TrainConfig, changed, "x")
    assert (config.seed, config.model.prior, config.model.crosses.ramp) == (6, 0.1, (0, 7))
    assert (config.batch.rows, config.metrics.slices) == (64, ("a", "b"))
    # The original stays as it was.
    assert content == {"seed": 4, "model": {"prior": 0.1}, "batch": None}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("seed", "key.path=value"),
        ("=5", "key.path=value"),
        ("model..prior=1", "key.path=value"),
        ("seed.deep=1", "seed is a value, not a group of keys"),
        ("seed=[1", "not YAML"),
    ],
)
def test_a_malformed_setting_is_named(setting, words):
    with pytest.raises(InputError) as caught:
        apply_settings({"seed": 1}, [setting])
    message = str(caught.value)
    assert message.startswith(f"--set {setting}: ")
    assert words in message
    assert "\n" not in message


def test_a_setting_of_an_unknown_key_is_refused_with_its_path(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 3\n")
    with pytest.raises(
        InputError, match=r"run\.yaml: model\.crosses\.rnk: unknown key; allowed: layers, ramp, rank"
    ):
        load_model(TrainConfig, path, "config", ["model.crosses.rnk=5"])
    assert load_model(TrainConfig, path, "config", ["model.crosses.rank=5"]).model.crosses.rank == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("-2.E+3", -2e3),
        (".5e1", 5.0),
        ("5E2", 500.0),
        ("0.25", 0.25),
        ("12", 12),
        ("e5", "e5"),
        ("1e", "1e"),
        ("'1e-6'", "1e-6"),
    ],
)
def test_numbers_of_yaml(tmp_path, text, value):
    path = tmp_path / "file.yaml"
    path.write_text(f"value: {text}\n")
    found = read_yaml(path, "file")["value"]
    assert found == value
    assert type(found) is type(value)


def test_a_whole_number_may_be_written_with_an_exponent(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("checkpoint: {every_examples: 1e6}\n")
    assert load_model(TrainConfig, path, "config").checkpoint.every_examples == 1_000_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [1\n", "line 2"),
        (b"a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "the key c appears twice"),
        (b"\xff\xfe", "is UTF-16"),
        (b"a: !!python/object/apply:os.system [ls]\n", "not YAML"),
    ],
)
def test_what_is_not_yaml_is_told_in_one_line(tmp_path, content, words):
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_yaml(path, "config")
    message = str(caught.value)
    assert message.startswith(f"config {path}: ")
    assert words in message
    assert "\n" not in message


def test_an_empty_file_is_the_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert load_model(TrainConfig, path, "config") == TrainConfig()


@pytest.mark.soak
@example(
    seed=1, rate=1e-6, units=[], widths={"1e5": 1, "\x85a": 2, "-.5E-3": 3, "null": 4, "é": 5}, jit="auto"
)
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


def test_the_dump_holds_every_key_in_order():
    lines = dump_yaml(TrainConfig()).splitlines()
    top = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert top == list(TrainConfig.model_fields)
    assert "    - 10000" in lines


def test_the_hash_depends_on_the_meaning_only():
    one = {"seed": 3, "model": {"prior": 0.25, "widths": {"a": 1, "b": 2}}}
    other = {"model": {"widths": {"b": 2, "a": 1}, "prior": 0.25, "init_scale": 0.01}, "seed": 3}
    config = parse_model(TrainConfig, one, "x")
    assert parse_model(TrainConfig, other, "x").sha256() == config.sha256()
    for changed in ({**one, "seed": 4}, {**one, "batch": {"rows": 8}}, {"seed": 3}):
        assert parse_model(TrainConfig, changed, "x").sha256() != config.sha256()


def test_settings_leave_what_is_no_mapping_to_be_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("[1, 2]\n")
    with pytest.raises(InputError, match="a mapping of keys to values is expected, received list"):
        load_model(TrainConfig, path, "config", ["seed=3"])


def bounded_fields(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, FieldInfo]]:
    """Every field of a tree of models that has a bound, with its dotted path."""
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        optional = () if get_origin(field.annotation) is tuple else get_args(field.annotation)
        for kind in (field.annotation, *optional):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from bounded_fields(kind, here)
        if any(isinstance(bound, Ge | Gt | Le | Lt) for bound in field.metadata):
            yield ".".join(here), field


BOUNDED = [pytest.param(path, field, id=path) for path, field in bounded_fields(TrainConfig)]


@pytest.mark.parametrize(("path", "field"), BOUNDED)
def test_a_number_out_of_bounds_is_told_the_bound(path, field):
    for bound in field.metadata:
        limit = getattr(bound, type(bound).__name__.lower())
        above = isinstance(bound, Le | Lt)
        wrong = int(limit) * 10**30 + 1 if above else -1
        with pytest.raises(InputError) as caught:
            parse_model(TrainConfig, apply_settings({}, [f"{path}={wrong}"]), "config c")
        fault = next(text for text in str(caught.value).split("; ") if f"{path}: " in text)
        words = "less than" if above else "greater than"
        assert re.search(rf"{words} (or equal to )?{int(limit)}\b", fault), fault


def test_a_number_without_a_bound_is_told_what_fits():
    assert refusal({"count": 10**30}).endswith("less than 9223372036854775808")
    assert refusal({"maybe": 10**400}).endswith("less than 1e308")


MAPPING = {"input": {"type": "csv"}, "time": {"column": "t", "unit": "s"}, "label": "y", "partition": "1d"}
FEATURE = {"name": "a", "kind": "category", "source": "a", "buckets": 9}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": "bad name"}, "features.0.category.name: 'bad name' is not allowed: String should match"),
        ({"tower": "x"}, "features.0.category.tower: 'x' is not allowed: Input should be 'quality' or 'ui'"),
        ({"kind": "categry"}, "features.0: "),
    ],
)
def test_one_bad_feature_is_one_fault(changes, fault):
    with pytest.raises(InputError) as caught:
        parse_model(Mapping, {**MAPPING, "features": [{**FEATURE, **changes}]}, "mapping m")
    message = str(caught.value)
    assert message.startswith(f"mapping m: {fault}")
    assert ";" not in message and "at least 1 item" not in message


def test_features_that_are_not_there_are_a_fault():
    with pytest.raises(InputError, match=r"features: .* at least 1 item"):
        parse_model(Mapping, {**MAPPING, "features": []}, "mapping m")


def test_an_unknown_key_of_a_feature_is_told_those_of_its_kind():
    with pytest.raises(InputError, match=r"features.0.category.bucket: unknown key; allowed: buckets, "):
        parse_model(Mapping, {**MAPPING, "features": [{**FEATURE, "bucket": 3}]}, "mapping m")


def test_a_fault_of_the_whole_shows_no_insides():
    with pytest.raises(InputError, match=r"^mapping m: feature a is defined twice$"):
        parse_model(Mapping, {**MAPPING, "features": [FEATURE, FEATURE]}, "mapping m")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("seed: 1".encode("utf-16"), "is UTF-16; allowed: YAML in UTF-8"),
        ("seed: 1".encode("utf-16-le"), "is UTF-16; allowed"),
        (b"PK\x03\x04rest", "is a zip archive; allowed"),
        (b"\x1f\x8brest", "is compressed with gzip; allowed"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, content, words):
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(InputError, match=re.escape(f"config {tmp_path / 'run.yaml'}: {words}")):
        read_yaml(tmp_path / "run.yaml", "config")


def test_a_directory_is_no_missing_file(tmp_path):
    with pytest.raises(InputError, match="config /: is a directory; allowed: a file"):
        load_model(Outer, tmp_path / tmp_path.root, "config")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"link.yaml: is a symbolic link to nowhere, and leads to no file"):
        load_model(Outer, tmp_path / "link.yaml", "config")
