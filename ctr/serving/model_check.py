"""Check of an exported model before it is loaded: a SavedModel is a program, and this limits what it can do.

TensorFlow's operations read and write files, call back into Python and run code of other libraries. An export needs
none of this: every operation but those below is refused before anything of the model runs.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from ctr.io.errors import InputError, one_line

OPERATIONS = frozenset(
    [
        "Abs",
        "AddN",
        "AddV2",
        "All",
        "AsString",
        "Assert",
        "AssignVariableOp",
        "BatchMatMulV2",
        "BiasAdd",
        "Bitcast",
        "BitwiseXor",
        "BroadcastTo",
        "Cast",
        "ConcatV2",
        "Const",
        "Cumsum",
        "DenseBincount",
        "DisableCopyOnRead",
        "Elu",
        "Equal",
        "Erfc",
        "Exp",
        "ExpandDims",
        "Fill",
        "Fingerprint",
        "FloorDiv",
        "FloorMod",
        "GatherV2",
        "Greater",
        "GreaterEqual",
        "Identity",
        "IdentityN",
        "If",
        "IsFinite",
        "IsNan",
        "Less",
        "LessEqual",
        "Log",
        "LogicalAnd",
        "LowerBound",
        "MatMul",
        "Max",
        "Maximum",
        "Minimum",
        "Mul",
        "Neg",
        "NoOp",
        "NotEqual",
        "OnesLike",
        "Pack",
        "Placeholder",
        "Prod",
        "RaggedGather",
        "RaggedRange",
        "Range",
        "ReadVariableOp",
        "ReduceJoin",
        "RealDiv",
        "Relu",
        "Reshape",
        "ResourceGather",
        "RightShift",
        "Select",
        "SelectV2",
        "Shape",
        "Sigmoid",
        "Size",
        "Softplus",
        "Square",
        "Squeeze",
        "StatefulPartitionedCall",
        "StaticRegexFullMatch",
        "StaticRegexReplace",
        "StopGradient",
        "StridedSlice",
        "StringJoin",
        "StringLower",
        "StringNGrams",
        "StringSplitV2",
        "StringToHashBucketFast",
        "StringToNumber",
        "Sub",
        "Substr",
        "Sum",
        "Tanh",
        "Tile",
        "Transpose",
        "UnicodeDecode",
        "UnicodeEncode",
        "Unpack",
        "UnsortedSegmentSum",
        "UpperBound",
        "VarHandleOp",
        "Where",
        "ZerosLike",
    ]
)
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
    """Raises InputError for a damaged graph, an operation or object that no export has, or variables too large."""
    path = model / "saved_model.pb"
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: has {path.stat().st_size} bytes; allowed: {_MOST_BYTES}")
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(path.read_bytes())
    except Exception as error:
        raise InputError(f"{path}: not a SavedModel: {one_line(error)[:300]}") from None
    # Of several graphs, or of one without objects, TensorFlow would run the whole and not just functions.
    if len(saved.meta_graphs) != 1 or not saved.meta_graphs[0].object_graph_def.nodes:
        raise InputError(
            f"{path}: exactly one graph with objects is required; graphs: {len(saved.meta_graphs)}"
        )
    _check_graph(path, saved.meta_graphs[0])
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
    """Functions that can run when the named ones are called."""
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
