"""``predict_ids`` where there is no TensorFlow: converted to TensorFlow Lite it predicts the same."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from ctr.data.ids.graph import row_numbers
from ctr.data.reader import rows_of_table
from ctr.serving.metadata import read_metadata


@pytest.fixture(scope="module")
def packed(case):
    """The ids of the case's rows, by the names of the inputs."""

    def ids(model: str) -> dict[str, np.ndarray]:
        rows = rows_of_table(case(model).table, case(model).snapshot.schema, 0)
        columns = {"ids": rows.ids}
        for name, (values, offsets) in rows.multivalent.items():
            columns |= {f"{name}_values": values, f"{name}_lengths": np.diff(offsets).astype(np.int32)}
        return columns

    return ids


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tensorflow_lite_computes_predict_ids_without_operations_of_tensorflow(case, exported, packed):
    model = "factorized ensemble"
    converter = tf.lite.TFLiteConverter.from_saved_model(str(exported(model)), signature_keys=["predict_ids"])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    assert not converter.allow_custom_ops
    converted = tf.lite.Interpreter(model_content=converter.convert())
    function = converted.get_signature_runner("predict_ids")
    given = packed(model)
    assert set(function.get_input_details()) == set(given)
    for count in (len(given["ids"]), 1):
        some = {
            name: values if name.endswith("_values") else values[:count] for name, values in given.items()
        }
        for name in given:
            if name.endswith("_values"):
                lengths = some[name.replace("_values", "_lengths")]
                some[name] = given[name][: int(lengths.sum())]
        made = function(**some)
        np.testing.assert_allclose(made["logit"], case(model).logit[:count], rtol=0, atol=1e-5)
        np.testing.assert_allclose(made["p"], 1 / (1 + np.exp(-case(model).logit[:count])), rtol=0, atol=1e-6)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("model", ["plain", "factorized ensemble"])
def test_no_model_searches_among_ids(exported, model):
    """Converters to other formats have no search."""
    assert "predict_ids" in read_metadata(exported(model))["signatures"]
    saved = saved_model_pb2.SavedModel.FromString((exported(model) / "saved_model.pb").read_bytes())
    functions = {
        function.signature.name: function for function in saved.meta_graphs[0].graph_def.library.function
    }
    signature = saved.meta_graphs[0].signature_def["predict_ids"]
    waiting = [
        node.attr["f"].func.name
        for node in saved.meta_graphs[0].graph_def.node
        if node.name == signature.outputs["p"].name.partition(":")[0]
    ]
    operations: set[str] = set()
    while waiting:
        for node in functions[waiting.pop()].node_def:
            operations.add(node.op)
            waiting += [node.attr["f"].func.name] if node.op.endswith("PartitionedCall") else []
    assert "UnsortedSegmentSum" in operations
    assert not operations & {"UpperBound", "LowerBound", "StringToHashBucketFast"}


@pytest.mark.parametrize(
    "lengths",
    [[], [0], [3], [0, 0], [0, 2, 0, 0, 1, 0], [5, 1, 1], [1] * 200, [0] * 50 + [7] + [0] * 50],
)
def test_the_row_of_each_value(lengths):
    lists = tf.RaggedTensor.from_row_lengths(tf.zeros([sum(lengths)]), tf.constant(lengths, tf.int32))
    numbers = row_numbers(lists)
    assert numbers.dtype == tf.int32
    np.testing.assert_array_equal(numbers, np.repeat(np.arange(len(lengths)), lengths))
    np.testing.assert_array_equal(row_numbers(lists.with_row_splits_dtype(tf.int64)), numbers)


@pytest.mark.parametrize("lengths", [[2, 5], [1, 1], [0, 9, 3]])
def test_lengths_that_do_not_fit_the_values_stay_within_them(lengths):
    """A server is sent anything: each value belongs to a row that does not end before it, as a search finds it."""
    lists = tf.RaggedTensor.from_row_lengths(tf.zeros([4]), tf.constant(lengths), validate=False)
    found = np.searchsorted(np.cumsum(lengths), np.arange(4), side="right")
    np.testing.assert_array_equal(row_numbers(lists), found)
