"""Functions of an export: what their inputs are called, the rows that ids have in them, and what they are made of."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.data.ids.graph import row_numbers
from ctr.data.reader import rows_of_table
from ctr.io.hashing import splitmix64
from ctr.models.rows import FeatureRows, TableLayout
from ctr.serving.signatures import _growing_rows, _splitmix64, input_names
from ctr.training.run.snapshot import LAST_KEY
from model_cases import packed_ids

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_input_names_are_the_columns_where_that_is_possible():
    columns = ["C1", "c1", "user:id", "user_id", "class", "self", "7days", "_x", "ü", "用户", "ü2"]
    names = input_names(columns)
    assert list(names.values()) == columns
    assert names["C1"] == "C1"
    assert all(name.isascii() and name.isidentifier() and name[0].isalpha() for name in names)
    assert (names["column_9"], names["column_10"], names["x_2"]) == ("ü", "用户", "ü2")
    assert input_names(["a b", "a_b", "a-b", "a_b_"]) == {
        "a_b__": "a b", "a_b": "a_b", "a_b___": "a-b", "a_b_": "a_b_",
    }  # fmt: skip


FEATURES = (
    FeatureRows("bucketed", 7, 4, "quality", 0),
    FeatureRows("a", 4, 4, "quality", 1, growing=True),
    FeatureRows("b", 2, 4, "quality", 2, growing=True),
)
LAYOUT = TableLayout("quality", 4, FEATURES)


@settings(max_examples=30)
@given(st.sets(INT64, max_size=20), st.lists(INT64, min_size=1, max_size=20))
@example({0, -1, 2**63 - 1, -(2**63)}, [0, 1, -1, 2**63 - 1, -(2**63)])
@example(set(), [5])
def test_an_id_has_the_row_of_its_key_or_a_shared_one(known, asked):
    keys = np.array([*sorted(known - {int(LAST_KEY)}), int(LAST_KEY)], np.int64)
    features = list(LAYOUT.growing)
    # Whatever is asked for, ids with these keys are in it.
    ids = np.array([*asked, *(keys ^ features[0].salt), *(keys ^ features[1].salt)], np.int64)
    found = _growing_rows(LAYOUT, tf.Variable(keys), features, tf.constant(np.stack([ids, ids], 1))).numpy()
    mixed = splitmix64(ids.view(np.uint64))
    np.testing.assert_array_equal(_splitmix64(tf.constant(ids.view(np.uint64))), mixed)
    places = {int(key): 13 + place for place, key in enumerate(keys[:-1])}
    for column, (feature, offset) in enumerate(zip(features, (7, 11), strict=True)):
        for row, value in enumerate(ids):
            expected = places.get(
                int(value ^ feature.salt), offset + 1 + int(mixed[row]) % (feature.buckets - 1)
            )
            assert found[row, column] == (offset if value == 0 else expected)


@pytest.mark.parametrize("lengths", [[2, 5], [1, 1], [0, 9, 3]])
def test_lengths_that_do_not_fit_the_values_stay_within_them(lengths):
    """A server is sent anything: each value belongs to a row that does not end before it, as a search finds it."""
    lists = tf.RaggedTensor.from_row_lengths(tf.zeros([4]), tf.constant(lengths), validate=False)
    found = np.searchsorted(np.cumsum(lengths), np.arange(4), side="right")
    np.testing.assert_array_equal(row_numbers(lists), found)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tensorflow_lite_computes_predict_ids_without_operations_of_tensorflow(case, exported):
    """Other formats have no search among ids, either."""
    made, folder = case("factorized ensemble"), exported("factorized ensemble")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=["predict_ids"])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    assert not converter.allow_custom_ops
    converted = tf.lite.Interpreter(model_content=converter.convert())
    function = converted.get_signature_runner("predict_ids")
    rows = rows_of_table(made.table, made.snapshot.schema, 0)
    for count in (len(made.logit), 1):
        given = {name.replace(".", "_"): values for name, values in packed_ids(rows.slice(0, count)).items()}
        assert set(function.get_input_details()) == set(given)
        np.testing.assert_allclose(function(**given)["logit"], made.logit[:count], rtol=0, atol=1e-5)
