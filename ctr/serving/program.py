"""Graph of an exported model in TensorFlow: checked before it is loaded, and called without TensorFlow's overhead."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from ctr.io.errors import InputError, one_line
from ctr.serving.metadata import Chain
from ctr.serving.raw_values import FunctionInputs, make_texts
from ctr.serving.weights import Weights

OPERATIONS = frozenset((
    "Abs", "AddN", "AddV2", "All", "AsString", "Assert", "AssignVariableOp", "BatchMatMulV2", "BiasAdd",
    "Bitcast", "BitwiseXor", "BroadcastTo", "Cast", "ConcatV2", "Const", "Cumsum", "DenseBincount",
    "DisableCopyOnRead", "Elu", "Equal", "Erfc", "Exp", "ExpandDims", "Fill", "Fingerprint", "FloorDiv",
    "FloorMod", "GatherV2", "Greater", "GreaterEqual", "Identity", "IdentityN", "If", "IsFinite", "IsNan",
    "Less", "LessEqual", "Log", "LogicalAnd", "LowerBound", "MatMul", "Max", "Maximum", "Minimum", "Mul",
    "Neg", "NoOp", "NotEqual", "OnesLike", "Pack", "Placeholder", "Prod", "RaggedGather", "RaggedRange",
    "Range", "ReadVariableOp", "ReduceJoin", "RealDiv", "Relu", "Reshape", "ResourceGather", "RightShift",
    "Select", "SelectV2", "Shape", "Sigmoid", "Size", "Softplus", "Square", "Squeeze",
    "StatefulPartitionedCall", "StaticRegexFullMatch", "StaticRegexReplace", "StopGradient", "StridedSlice",
    "StringJoin", "StringLower", "StringNGrams", "StringSplitV2", "StringToHashBucketFast", "StringToNumber",
    "Sub", "Substr", "Sum", "Tanh", "Tile", "Transpose", "UnicodeDecode", "UnicodeEncode", "Unpack",
    "UnsortedSegmentSum", "UpperBound", "VarHandleOp", "Where", "ZerosLike",
))  # fmt: skip
"""Operations of exports of every kind of model and feature; none accesses files, Python or the network."""

SAVING = frozenset(("MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"))
"""Operations that TensorFlow adds to every SavedModel: allowed where no function of the model calls them."""

_KINDS = frozenset(("bare_concrete_function", "captured_tensor", "constant", "user_object", "variable"))
_OBJECTS = frozenset(("_generic_user_object", "signature_map", "trackable_list_wrapper"))
_REGISTERED = frozenset(("", "tf.TrackableConstant"))
_MOST_BYTES = 256 << 20
# TensorFlow's own record of the objects that hold the variables.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def check_model(model: Path) -> None:
    """Raises InputError for a damaged graph, an operation or object that no export has, or variables too large.

    A SavedModel is a program: TensorFlow's operations read and write files, call back into Python and run code of other
    libraries. All but those of exports are refused before anything of the model runs.
    """
    path = model / "saved_model.pb"
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: has {path.stat().st_size} bytes; allowed: {_MOST_BYTES}")
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(path.read_bytes())
    except Exception as error:
        raise InputError(f"{path}: not a SavedModel: {one_line(error)[:300]}") from None
    # Of several graphs, or of one without objects, TensorFlow would run the whole and not just functions.
    graphs = saved.meta_graphs
    if len(graphs) != 1 or not graphs[0].object_graph_def.nodes:
        raise InputError(f"{path}: exactly one graph with objects is required; graphs: {len(graphs)}")
    _check_graph(path, graphs[0])
    _check_variables(model / "variables" / "variables")


def _check_graph(path: Path, graph: Any) -> None:
    library = graph.graph_def.library
    functions = {function.signature.name: function.node_def for function in library.function}
    # Activations such as swish have gradients of their own, which nothing here calls.
    is_known = all(one.gradient_func in functions for one in library.registered_gradients)
    if len(functions) != len(library.function) or library.gradient or not is_known:
        raise InputError(
            f"{path}: a function appears twice, or its gradient is another function or none that is there"
        )
    if graph.asset_file_def:
        raise InputError(f"{path}: refers to asset files; exports have none")
    callable_names = _reached(graph.object_graph_def.concrete_functions, functions)
    for name, nodes in (("", graph.graph_def.node), *functions.items()):
        allowed = OPERATIONS if name in callable_names else OPERATIONS | SAVING
        for node in nodes:
            if node.op not in allowed:
                raise InputError(
                    f"{path}: holds the operation {node.op[:80]!r}, which no export of ctr has: it is not loaded"
                )
    for number, node in enumerate(graph.object_graph_def.nodes):
        kind = node.WhichOneof("kind")
        strange = (
            kind not in _KINDS
            or (kind == "user_object" and node.user_object.identifier not in _OBJECTS)
            or node.registered_name not in _REGISTERED
            or node.registered_saver
            or node.saveable_objects
        )
        if strange:
            raise InputError(
                f"{path}: object {number} is of a kind that no export of ctr has: it is not loaded"
            )


def _reached(names: Iterable[str], functions: dict[str, Any]) -> set[str]:
    reached: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for node in functions.get(name, ()):
            for value in node.attr.values():
                waiting += [value.func.name, *(function.name for function in value.list.func)]
    return reached


def _check_variables(prefix: Path) -> None:
    """Refuses variables that are larger than their files: a few bytes could request any amount of memory."""
    try:
        checkpoint = tf.train.load_checkpoint(str(prefix))
        shapes, types = checkpoint.get_variable_to_shape_map(), checkpoint.get_variable_to_dtype_map()
        sizes = {name: math.prod(shape) * types[name].size for name, shape in shapes.items()}
    except Exception as error:
        raise InputError(f"{prefix}: not the variables of a model: {one_line(error)[:300]}") from None
    held = sum(path.stat().st_size for path in prefix.parent.glob(f"{prefix.name}.data-*"))
    required = sum(size for name, size in sizes.items() if name != _OBJECT_GRAPH)
    if required > held or any(types[name] == tf.string for name in sizes if name != _OBJECT_GRAPH):
        raise InputError(f"{prefix}: declares {required} bytes of numbers, but its files have {held}")


class Program:
    """A loaded graph, with ``weights`` in the order of its variables. Raises InputError as ``check_model`` does."""

    def __init__(self, chain: Chain, inputs: Mapping[str, FunctionInputs], weights: Weights | None) -> None:
        check_model(chain.full)
        try:
            # Functions are held by the loaded object.
            self._loaded = tf.saved_model.load(str(chain.full))
            if weights is not None:
                for variable, value in zip(self._loaded.weights, weights.values(), strict=True):
                    variable.assign(value)
            signatures = self._loaded.signatures
            self._functions = {name: _Function(signatures[name], of) for name, of in inputs.items()}
        except InputError:
            raise
        except Exception as error:
            # What TensorFlow raises for what it did not write itself has no common kind.
            raise InputError(f"{chain.model}: cannot be loaded: {one_line(error)[:300]}") from None

    def __call__(
        self, name: str, columns: Mapping[str, Any], separators: Mapping[str, str | None]
    ) -> dict[str, np.ndarray]:
        function = self._functions[name]
        inputs = function.inputs
        numbers = {**inputs.numbers, **inputs.times}
        tensors = {key: tf.constant(columns[source]) for key, source in numbers.items()}
        if inputs.texts:
            sources = list(inputs.texts.values())
            parts = tf.unstack(_matrix(sources, [columns[source] for source in sources], separators))
            tensors |= dict(zip(inputs.texts, parts, strict=True))
        return function(tensors)

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        function = self._functions["predict_ids"]
        return function({key: tf.constant(packed[column]) for key, column in function.inputs.columns.items()})


def _matrix(
    names: Sequence[str], columns: list[list[Any]], separators: Mapping[str, str | None]
) -> tf.Tensor:
    """One tensor [S, N] of all texts: a tensor for each column would take longer than a small model."""
    try:
        matrix = tf.constant(columns, tf.string)
        if matrix.shape.rank == 2:
            return matrix
    except (TypeError, ValueError):
        pass
    named = zip(names, columns, strict=True)
    texts = [make_texts(name, column, separators.get(name)) for name, column in named]
    return tf.constant(texts, tf.string, shape=(len(texts), len(texts[0])))


class _Function:
    def __init__(self, signature: Any, inputs: FunctionInputs) -> None:
        self.inputs = inputs
        self._signature = signature
        specs = signature.structured_input_signature[1]
        if {name: spec.dtype.name for name, spec in specs.items()} != inputs.dtypes:
            raise ValueError("the inputs of a function are not those that its description names")
        self._order = tuple(getattr(signature, "_arg_keywords", None) or ())
        # Keyword arguments are matched and checked one by one, which takes as long as scoring a row does.
        is_known = set(self._order) == set(inputs.dtypes)
        self._flat = getattr(signature, "_call_flat", None) if is_known else None

    def __call__(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        if self._flat is not None:
            outputs = self._flat([tensors[name] for name in self._order], self._signature.captured_inputs)
        else:
            outputs = self._signature(**tensors)
        return {key: value.numpy() for key, value in outputs.items()}
