"""The Scorer: what it takes, what it refuses, and that its cache changes nothing but time."""

import doctest
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.io.files import file_sha256
from ctr.serving import scorer
from ctr.serving.export import publish
from ctr.serving.scorer import Scorer
from fault_points import flip
from model_cases import FEATURES, MODELS, draw_raw, make_case

TAGS = ["t1|t2", "", "t3"]
ROWS = {
    "user:id": ["u1", None, "u3"],
    "class": [1, 22, 7],
    "price": [1.0, None, 9],
    "tags": [["t1", "t2"], [], ["t3"]],
    "title": ["Red shoe", "", None],
    "position": ["1", "2", "9"],
    "size": [0.0, float("nan"), 17.0],
}


@pytest.fixture(scope="module")
def factorized(exported):
    return Scorer(exported("factorized"))


def test_other_ways_to_say_the_same(factorized):
    expected = factorized.predict(ROWS)
    assert expected.dtype == np.float32 and expected.shape == (3,)
    assert len(set(expected.tolist())) == 3
    for changes in (
        {"tags": TAGS},
        {"tags": [text.encode() for text in TAGS]},
        {"tags": [("t1", None, "t2"), None, np.array(["t3"])]},
        {"class": ["1", "22", "7"]},
        {"class": np.array([b"1", b"22", b"7"])},
        {"class": np.array([1, 22, 7], object)},
        {"class": [1.0, "22.0", "7.00"]},
        {"class": np.array([1, 22, 7], np.float32)},
        {"user:id": ["u1", "", b"u3"]},
        {"price": np.array([1.0, np.nan, 9.0], np.float32)},
        {"price": [True, None, np.int64(9)]},
        {"unknown": [1, 2]},
    ):
        np.testing.assert_array_equal(factorized.predict({**ROWS, **changes}), expected, err_msg=str(changes))
    # Truth values are texts.
    as_texts = factorized.predict({**ROWS, "class": ["true", "false", "1"]})
    np.testing.assert_array_equal(factorized.predict({**ROWS, "class": [True, False, 1]}), as_texts)


def test_one_value_stands_for_every_row_and_no_rows_give_empty_arrays(factorized):
    repeated = factorized.predict({**ROWS, "user:id": ["u5"] * 3, "price": [2.0] * 3, "title": [None] * 3})
    once = factorized.predict({**ROWS, "user:id": "u5", "price": 2, "title": None})
    np.testing.assert_array_equal(once, repeated)
    first = {name: values[0] for name, values in ROWS.items() if name != "tags"}
    made = factorized.predict({**first, "tags": "t1|t2"})
    np.testing.assert_allclose(made, factorized.predict(ROWS)[:1], rtol=1e-6)
    nothing = {name: [] for name in ROWS}
    assert factorized.predict(nothing).shape == (0,)
    assert factorized.ui(nothing).shape == factorized.quality(nothing).shape == (0, 1, 6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"class": [1, 2]}, "different numbers of rows: .*class 2"),
        ({"class": [1, {}, 3]}, "column class, row 1: {} is not allowed"),
        ({"class": [["a"], "b", "c"]}, "column class, row 0: a list is allowed only for a multivalent cat"),
        ({"tags": [["a|b"], [], []]}, r"column tags, row 0: 'a\|b' contains the separator '\|'"),
        ({"price": [1, "x", 2]}, "column price, row 1: 'x' is not allowed: a number"),
        ({"price": np.array(5.0)}, "column price: an array of 0 dimensions is not allowed; allowed: one dim"),
        ({"class": {1: 0, 2: 0, 3: 0}}, "column class: dict is not allowed: a list, an array or one"),
        ({"price": [1, 10**400, 2]}, "column price, row 1: a whole number outside the range of float64"),
        ({"title": ["\ud800", "", ""]}, "column title, row 0: .*surrogates not allowed"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(factorized, changes, words):
    with pytest.raises(InputError, match=words):
        factorized.predict({**ROWS, **changes})


def test_an_absent_column_and_absent_factors(factorized, exported):
    with pytest.raises(InputError, match="predict: the column price is absent; required: user:id, class, pr"):
        factorized.predict({name: values for name, values in ROWS.items() if name != "price"})
    ui = {name: ROWS[name] for name in ("position", "size", "user:id")}
    assert factorized.ui(ui).shape == (3, 1, 6)
    with pytest.raises(InputError, match="quality: the column class is absent"):
        factorized.quality(ui)
    other = Scorer(exported("logistic"))
    assert factorized.factorized and not other.factorized
    for ask in (other.quality, other.ui, lambda _: other.combine(np.zeros((1, 1, 3)), np.zeros((1, 1, 3)))):
        with pytest.raises(InputError, match="not factorized"):
            ask(ROWS)


def test_rows_of_u_are_computed_once_for_each_value_of_the_towers_columns(exported, factorized, monkeypatch):
    cached, direct = (Scorer(exported("factorized"), cached_rows=rows) for rows in (3, 0))
    call, computed = cached._call, []

    def noting(name, columns):
        computed.append(len(columns["position"]))
        return call(name, columns)

    monkeypatch.setattr(cached, "_call", noting)

    def same(rows) -> None:
        np.testing.assert_allclose(cached.ui(rows), direct.ui(rows), rtol=1e-5, atol=1e-6)

    same({name: [*ROWS[name], *ROWS[name]] for name in ("position", "size", "user:id")})
    same(ROWS)
    same({**ROWS, "class": [5, 5, 5]})
    assert computed == [3]
    # One at another position, and one of another size, are others.
    same({**ROWS, "position": ["1", "3", "9"]})
    same({**ROWS, "size": [0.0, 4.0, 17.0]})
    assert computed == [3, 1, 1]
    # Values that Python calls equal are told apart.
    rows = {"size": 1.0, "user:id": "u1"}
    made = [cached.ui({**rows, "position": [value]}) for value in (1, True, "1", None, "")]
    np.testing.assert_array_equal(made[0], made[2])
    np.testing.assert_array_equal(made[3], made[4])
    assert not np.array_equal(made[0], made[1])
    # More rows than it holds.
    many = {"position": [str(n) for n in range(10)], "size": list(range(10)), "user:id": "u"}
    same(many)
    computed.clear()
    # The last ones stay, and what it gives is not its own memory.
    last = {"position": ["7", "8", "9"], "size": [7, 8, 9], "user:id": "u"}
    cached.ui(last)[:] = 99
    same(last)
    assert computed == [] and len(cached._cache) == 3


def refused(path, words):
    with pytest.raises(InputError, match=words) as refusal:
        Scorer(path)
    assert "\n" not in str(refusal.value)


def test_of_versions_the_newest_whole_one_is_taken(copied, tmp_path):
    older = copied("logistic", "9")
    copied("logistic", "10")
    # One that is being written, all of which may be there but its last bytes.
    shutil.copytree(older, tmp_path / "11.partial")
    assert Scorer(tmp_path).path.name == "10"
    assert Scorer(str(older)).path == older
    for path in (tmp_path / "nothing", tmp_path / "9" / "variables"):
        refused(path, "neither an exported model")


METADATA = "assets.extra/ctr.json"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("saved_model.pb", flip, "saved_model.pb: damaged"),
        ("variables/variables.index", Path.unlink, r"variables\.index: missing"),
        ("more", Path.touch, r"123/more: is not among the files .* records: delete it"),
        ("link", lambda path: path.symlink_to("ab"), "link: a model has no symbolic links: delete"),
        (METADATA, Path.unlink, r"ctr\.json: no such file"),
        (METADATA, {"format": 7}, "made by an unreleased version of ctr; make it again"),
        (METADATA, {"signatures": None}, "signatures missing"),
        (METADATA, {"schema": {"features": []}}, "features: "),
    ],
)
def test_a_damaged_or_changed_file(copied, name, change, words):
    model = copied("logistic")
    if isinstance(change, dict):
        content = {**json.loads((model / name).read_text()), **change}
        (model / name).write_text(json.dumps({key: one for key, one in content.items() if one is not None}))
    else:
        change(model / name)
    refused(model, words)


def test_a_file_that_tensorflow_cannot_read(copied):
    model, name = copied("logistic"), "variables/variables.index"
    (model / name).write_bytes(b"\xff" * 100)
    content = json.loads((model / METADATA).read_text())
    content["files"][name] = file_sha256(model / name)
    (model / METADATA).write_text(json.dumps(content))
    refused(model, "123: cannot be loaded: ")


@pytest.mark.slow
def test_the_example_of_its_docstring(tmp_path):
    columns = {"user:id": "user", "price": "price", "position": "position"}
    features = [{**f, "source": columns[f["source"]]} for f in FEATURES if f.get("source") in columns]
    raw = {columns[name]: values for name, values in draw_raw(12).items() if name in columns}
    schema = parse_model(Schema, {"features": features}, "test")
    case = make_case(MODELS["logistic"], "float32", tmp_path / "run", rows=12, schema=schema, raw=raw)
    folder = publish(case.snapshot, tmp_path / "models").path
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(Scorer, "Scorer", module=scorer, extraglobs={"folder": folder})
    assert len(test.examples) == 3
    failures: list[str] = []
    doctest.DocTestRunner().run(test, out=failures.append)
    assert not failures, "".join(failures)
