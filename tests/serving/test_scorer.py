"""The Scorer: what it takes, what it refuses, and that its cache changes nothing but time."""

import doctest
import json
import shutil

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.serving import scorer
from ctr.serving.export import publish
from ctr.serving.scorer import Scorer
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
def plain(exported) -> Scorer:
    return Scorer(exported("plain"))


@pytest.fixture(scope="module")
def factorized(exported) -> Scorer:
    return Scorer(exported("factorized"))


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": TAGS},
        {"tags": [text.encode() for text in TAGS]},
        {"tags": np.array(TAGS)},
        {"tags": [("t1", None, "t2"), None, np.array(["t3"])]},
        {"class": ["1", "22", "7"]},
        {"class": np.array([1, 22, 7])},
        {"class": np.array([b"1", b"22", b"7"])},
        {"class": np.array([1, 22, 7], object)},
        {"class": [1.0, "22.0", "7.00"]},
        {"class": np.array([1, 22, 7], np.float32)},
        {"user:id": ["u1", "", b"u3"]},
        {"price": np.array([1.0, np.nan, 9.0], np.float32)},
        {"price": [True, None, np.int64(9)]},
        {"unknown": [1, 2]},
    ],
)
def test_other_ways_to_say_the_same(plain, changes):
    expected = plain.predict(ROWS)
    assert expected.dtype == np.float32
    assert expected.shape == (3,)
    assert len(set(expected.tolist())) == 3
    np.testing.assert_array_equal(plain.predict({**ROWS, **changes}), expected)


def test_truth_values_are_texts(plain):
    made = [plain.predict({**ROWS, "class": values}) for values in ([True, False, 1], ["true", "false", "1"])]
    np.testing.assert_array_equal(*made)


def test_one_value_stands_for_every_row(plain):
    repeated = plain.predict({**ROWS, "user:id": ["u5"] * 3, "price": [2.0] * 3, "title": [None] * 3})
    np.testing.assert_array_equal(
        plain.predict({**ROWS, "user:id": "u5", "price": 2, "title": None}), repeated
    )
    first = {name: values[0] for name, values in ROWS.items() if name != "tags"}
    np.testing.assert_allclose(plain.predict({**first, "tags": "t1|t2"}), plain.predict(ROWS)[:1], rtol=1e-6)


def test_no_rows_give_empty_arrays(plain, factorized):
    nothing = {name: [] for name in ROWS}
    assert plain.predict(nothing).shape == (0,)
    assert factorized.ui(nothing).shape == (0, 1, 6)
    assert factorized.quality(nothing).shape == (0, 1, 6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"class": [1, 2]}, "different numbers of rows: .*class 2"),
        ({"class": [1, {}, 3]}, "column class, row 1: {} is not allowed"),
        (
            {"class": [["a"], "b", "c"]},
            "column class, row 0: a list is allowed only for a multivalent category",
        ),
        ({"tags": [["a|b"], [], []]}, r"column tags, row 0: 'a\|b' contains the separator '\|'"),
        ({"tags": [[], [["a"]], []]}, "column tags, row 1: a list"),
        ({"price": [1, "x", 2]}, "column price, row 1: 'x' is not allowed: a number"),
        (
            {"price": np.array(5.0)},
            "column price: an array of 0 dimensions is not allowed; allowed: one dimension",
        ),
        ({"price": np.ones((3, 1))}, "column price: an array of 2 dimensions is not allowed"),
        ({"class": np.array("7")}, "column class: an array of 0 dimensions"),
        ({"price": {0: 1.0, 1: 2.0, 2: 3.0}}, "column price: dict is not allowed: a list, an array or one"),
        ({"class": {1: 0, 2: 0, 3: 0}}, "column class: dict is not allowed"),
        ({"class": iter("123")}, "column class: .*iterator is not allowed"),
        ({"price": [1, 10**400, 2]}, "column price, row 1: a whole number outside the range of float64"),
        ({"price": -(10**400)}, "column price, row 0: a whole number outside"),
        ({"title": ["\ud800", "", ""]}, "column title, row 0: .*surrogates not allowed"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(plain, changes, words):
    with pytest.raises(InputError, match=words):
        plain.predict({**ROWS, **changes})


def test_an_absent_column(plain, factorized):
    with pytest.raises(
        InputError, match="predict: the column price is absent; required: user:id, class, price"
    ):
        plain.predict({name: values for name, values in ROWS.items() if name != "price"})
    ui = {name: ROWS[name] for name in ("position", "size", "user:id")}
    assert factorized.ui(ui).shape == (3, 1, 6)
    with pytest.raises(InputError, match="quality: the column class is absent"):
        factorized.quality(ui)


def test_the_plain_model_has_no_factors(plain):
    for ask in (plain.quality, plain.ui):
        with pytest.raises(InputError, match="not factorized"):
            ask(ROWS)
    with pytest.raises(InputError, match="not factorized"):
        plain.combine(np.zeros((1, 1, 3)), np.zeros((1, 1, 3)))
    assert not plain.factorized


class TestCacheOfU:
    @pytest.fixture
    def counted(self, exported, monkeypatch):
        """A scorer that notes how many rows of U the model computes."""
        scorer = Scorer(exported("factorized"), cached_rows=3)
        call, computed = scorer._call, []

        def noting(name, columns, rows):
            computed.append(rows)
            return call(name, columns, rows)

        monkeypatch.setattr(scorer, "_call", noting)
        return scorer, computed

    def test_rows_are_computed_once(self, counted, exported):
        scorer, computed = counted
        direct = Scorer(exported("factorized"), cached_rows=0)
        repeated = {name: [*ROWS[name], *ROWS[name]] for name in ("position", "size", "user:id")}
        np.testing.assert_allclose(scorer.ui(repeated), direct.ui(repeated), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(scorer.ui(ROWS), scorer.ui(ROWS))
        np.testing.assert_allclose(scorer.ui(ROWS), direct.ui(ROWS), rtol=1e-5, atol=1e-6)
        assert computed == [3]

    def test_only_what_the_tower_reads_counts(self, counted):
        scorer, computed = counted
        scorer.ui(ROWS)
        scorer.ui({**ROWS, "class": [5, 5, 5]})
        assert computed == [3]
        scorer.ui({**ROWS, "size": [0.0, 4.0, 17.0]})
        assert computed == [3, 1]

    def test_values_that_python_calls_equal_are_told_apart(self, counted):
        scorer, computed = counted
        rows = {"size": 1.0, "user:id": "u1"}
        made = [scorer.ui({**rows, "position": [value]}) for value in (1, True, "1", None, "")]
        np.testing.assert_array_equal(made[0], made[2])
        np.testing.assert_array_equal(made[3], made[4])
        assert not np.array_equal(made[0], made[1])
        assert sum(computed) >= 3

    def test_more_rows_than_it_holds(self, counted, exported):
        scorer, _ = counted
        many = {"position": [str(n) for n in range(10)], "size": list(range(10)), "user:id": "u"}
        direct = Scorer(exported("factorized"), cached_rows=0)
        for _ in range(2):
            np.testing.assert_allclose(scorer.ui(many), direct.ui(many), rtol=1e-5, atol=1e-6)


class TestFolders:
    @pytest.fixture
    def model(self, exported, tmp_path):
        shutil.copytree(exported("plain"), tmp_path / "9")
        return tmp_path / "9"

    def test_of_versions_the_newest_is_taken(self, exported, model, tmp_path):
        shutil.copytree(exported("logistic"), tmp_path / "10")
        (tmp_path / "11.partial").mkdir()
        assert Scorer(tmp_path).path.name == "10"
        assert Scorer(str(model)).path == model

    def refused(self, path, words):
        with pytest.raises(InputError, match=words) as refusal:
            Scorer(path)
        assert "\n" not in str(refusal.value)

    def test_no_model(self, tmp_path):
        self.refused(tmp_path, "neither an exported model")
        self.refused(tmp_path / "nothing", "neither an exported model")

    def test_a_model_of_others(self, model):
        (model / "assets.extra" / "ctr.json").unlink()
        self.refused(model, r"ctr\.json: no such file")

    @pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.data-00000-of-00001"])
    def test_a_flipped_bit(self, model, name):
        content = bytearray((model / name).read_bytes())
        content[len(content) // 2] ^= 4
        (model / name).write_bytes(content)
        self.refused(model, f"{name}: damaged")

    def test_a_missing_file(self, model):
        (model / "variables" / "variables.index").unlink()
        self.refused(model, r"variables\.index: missing")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format": 7}, "made by an unreleased version of ctr; make it again"),
            ({"signatures": None}, "signatures missing"),
            ({"network": None}, "network missing"),
            ({"schema": {"features": []}}, "features: "),
        ],
    )
    def test_changed_metadata(self, model, change, words):
        path = model / "assets.extra" / "ctr.json"
        content = {**json.loads(path.read_text()), **change}
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        self.refused(model, words)


@pytest.mark.slow
def test_the_example_of_its_docstring(tmp_path):
    columns = {"user:id": "user", "price": "price", "position": "position"}
    features = [{**f, "source": columns[f["source"]]} for f in FEATURES if f.get("source") in columns]
    raw = {columns[name]: values for name, values in draw_raw(12).items() if name in columns}
    schema = parse_model(Schema, {"features": features}, "test")
    case = make_case(MODELS["logistic"], "float32", tmp_path / "run", rows=12, schema=schema, raw=raw)
    folder = publish(case.snapshot, tmp_path / "models").path
    (test,) = doctest.DocTestFinder(recurse=False).find(
        Scorer, "Scorer", module=scorer, extraglobs={"folder": folder}
    )
    assert len(test.examples) == 3
    failures: list[str] = []
    doctest.DocTestRunner().run(test, out=failures.append)
    assert not failures, "".join(failures)
