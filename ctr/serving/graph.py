"""The graph of an exported model in TensorFlow: made canonical when it was written; checked, loaded and called."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

from ctr.io.errors import InputError, one_line
from ctr.serving.metadata import Chain
from ctr.serving.raw_values import FunctionInputs
from ctr.serving.weights import OBJECT_GRAPH, Weights

OPERATIONS = frozenset((
    "Abs", "AddN", "AddV2", "All", "Any", "AsString", "Assert", "AssignVariableOp", "BatchMatMulV2", "BiasAdd",
    "Bitcast", "BitwiseXor", "BroadcastTo", "Cast", "ConcatV2", "Const", "Cumsum", "DenseBincount",
    "DisableCopyOnRead", "Elu", "Equal", "Erfc", "Exp", "ExpandDims", "Fill", "Fingerprint", "FloorDiv",
    "FloorMod", "GatherV2", "Greater", "GreaterEqual", "Identity", "IdentityN", "If", "IsFinite", "IsNan",
    "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LowerBound", "MatMul", "Max", "Maximum", "Mean",
    "Minimum", "Mul", "Neg", "NoOp", "NotEqual", "OnesLike", "Pack", "Pad", "Placeholder", "Prod", "RaggedGather",
    "RaggedRange", "Range", "ReadVariableOp", "RealDiv", "ReduceJoin", "Relu", "Reshape", "ResourceGather",
    "RightShift", "Rsqrt", "Select", "SelectV2", "Shape", "Sigmoid", "Sign", "Size", "Softplus", "Split", "Sqrt",
    "Square", "Squeeze", "StatefulPartitionedCall", "StaticRegexFullMatch", "StaticRegexReplace", "StopGradient",
    "StridedSlice", "StringJoin", "StringLower", "StringNGrams", "StringSplitV2", "StringToHashBucketFast",
    "StringToNumber", "Sub", "Substr", "Sum", "Tanh", "Tile", "Transpose", "UnicodeDecode", "UnicodeEncode",
    "Unpack", "UnsortedSegmentMax", "UnsortedSegmentSum", "UpperBound", "VarHandleOp", "Where", "ZerosLike",
))  # fmt: skip
"""Operations of exports of every kind of model and feature; none accesses files, Python or the network."""

SAVING = frozenset(("MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"))
"""Operations that TensorFlow adds to every SavedModel: allowed where no function of the model calls them."""

_KINDS = frozenset(("bare_concrete_function", "captured_tensor", "constant", "user_object", "variable"))
_OBJECTS = frozenset(("_generic_user_object", "signature_map", "trackable_list_wrapper"))
_REGISTERED = frozenset(("", "tf.TrackableConstant"))
_MOST_BYTES = 256 << 20
_COUNTED = re.compile(r"[-_]\d+$")
_GRADIENT = "_gradient_op_type"
_ARGUMENT = "_user_specified_name"


def make_canonical(model: Path) -> None:
    """Gives a model of one graph, which TensorFlow has just saved, the same bytes whichever process wrote it.

    TensorFlow names functions by a counter of the process, stores them in the order of a hash table, and draws a random
    number for each model. Here functions are numbered in the order in which the signatures reach them, and the random
    number is replaced by a hash of the content. What is computed stays the same.
    """
    path = model / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    (graph,) = saved.meta_graphs
    _rename_functions(graph)
    path.write_bytes(saved.SerializeToString(deterministic=True))
    # Hashes of the files as they now are, and a new random number.
    fingerprint = fingerprint_pb2.FingerprintDef.FromString(fingerprinting.CreateFingerprintDef(str(model)))
    fingerprint.ClearField("uuid")
    digest = hashlib.sha256(fingerprint.SerializeToString(deterministic=True)).digest()
    # As TensorFlow writes it: 64 bits in decimal.
    fingerprint.uuid = str(int.from_bytes(digest[:8], "little"))
    (model / "fingerprint.pb").write_bytes(fingerprint.SerializeToString(deterministic=True))


def _rename_functions(graph: Any) -> None:
    library, objects = graph.graph_def.library, graph.object_graph_def
    by_name = {function.signature.name: function for function in library.function}
    nodes_of = {name: function.node_def for name, function in by_name.items()}
    # Functions that compute the gradient of an operation (swish has one), by the name that operations know it under.
    own = {one.registered_op_type: one.gradient_func for one in library.registered_gradients}
    names = _numbered(_reached(_called(graph.graph_def.node, own), nodes_of, own), "_")
    bodies = [graph.graph_def.node, *(nodes_of[name] for name in names)]
    nodes = [node for body in bodies for node in body]
    gradients = _numbered((node.attr[_GRADIENT].s.decode() for node in nodes if _GRADIENT in node.attr), "-")
    for node in nodes:
        for reference in _references(node):
            reference.name = names[reference.name]
        if _GRADIENT in node.attr:
            node.attr[_GRADIENT].s = gradients[node.attr[_GRADIENT].s.decode()].encode()
    for number, argument in ((n, a) for name in names for n, a in by_name[name].arg_attr.items()):
        # What a function captures, a variable for instance, has its address in the counter for a name.
        if argument.attr[_ARGUMENT].s.isdigit():
            argument.attr[_ARGUMENT].s = str(number).encode()
    kept = sorted((gradients[name], names[function]) for name, function in own.items() if name in gradients)
    del library.registered_gradients[:]
    for name, function in kept:
        library.registered_gradients.add(registered_op_type=name, gradient_func=function)
    ordered = [by_name[name].SerializeToString() for name in names]
    del library.function[:]
    for name, content in zip(names.values(), ordered, strict=True):
        library.function.add().ParseFromString(content)
        library.function[-1].signature.name = name
    # A new name may be the former name of another function.
    described = {names[name]: one.SerializeToString() for name, one in objects.concrete_functions.items()}
    objects.concrete_functions.clear()
    for name, content in described.items():
        objects.concrete_functions[name].ParseFromString(content)
    for node in objects.nodes:
        if node.WhichOneof("kind") == "bare_concrete_function":
            bare = node.bare_concrete_function
            bare.concrete_function_name = names[bare.concrete_function_name]
        elif node.WhichOneof("kind") == "captured_tensor":
            node.captured_tensor.concrete_function = names[node.captured_tensor.concrete_function]


def _numbered(names: Iterable[str], mark: str) -> dict[str, str]:
    """Maps names to new ones, with a number of their own in place of the counter's."""
    numbers = enumerate(dict.fromkeys(names))
    return {name: f"{_COUNTED.sub('', name)}{mark}{number}" for number, name in numbers}


def _reached(
    names: Iterable[str], functions: Mapping[str, Iterable[Any]], gradients: Mapping[str, str]
) -> dict[str, None]:
    """The functions of these names, each followed by those that its nodes call or have as gradients."""
    found: dict[str, None] = {}
    ways = [iter(names)]
    while ways:
        name = next(ways[-1], None)
        if name is None:
            ways.pop()
        elif name not in found:
            found[name] = None
            ways.append(_called(functions.get(name, ()), gradients))
    return found


def _called(nodes: Iterable[Any], gradients: Mapping[str, str]) -> Iterator[str]:
    for node in nodes:
        yield from (reference.name for reference in _references(node))
        if _GRADIENT in node.attr and (own := gradients.get(node.attr[_GRADIENT].s.decode())) is not None:
            yield own


def _references(node: Any) -> Iterator[Any]:
    for key in sorted(node.attr):
        value = node.attr[key]
        if value.HasField("func"):
            yield value.func
        yield from value.list.func


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
    reached = _reached(graph.object_graph_def.concrete_functions, functions, {})
    for name, nodes in (("", graph.graph_def.node), *functions.items()):
        allowed = OPERATIONS if not name or name in reached else OPERATIONS | SAVING
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


def _check_variables(prefix: Path) -> None:
    """Refuses variables that are larger than their files: a few bytes could request any amount of memory."""
    try:
        checkpoint = tf.train.load_checkpoint(str(prefix))
        shapes, types = checkpoint.get_variable_to_shape_map(), checkpoint.get_variable_to_dtype_map()
        sizes = {name: math.prod(shape) * types[name].size for name, shape in shapes.items()}
    except Exception as error:
        raise InputError(f"{prefix}: not the variables of a model: {one_line(error)[:300]}") from None
    held = sum(path.stat().st_size for path in prefix.parent.glob(f"{prefix.name}.data-*"))
    required = sum(size for name, size in sizes.items() if name != OBJECT_GRAPH)
    if required > held or any(types[name] == tf.string for name in sizes if name != OBJECT_GRAPH):
        raise InputError(f"{prefix}: declares {required} bytes of numbers, but its files have {held}")


class Program:
    """A loaded graph, with ``weights`` in the order of its variables. Raises InputError as ``check_model`` does."""

    def __init__(self, chain: Chain, inputs: Mapping[str, FunctionInputs], weights: Weights | None) -> None:
        check_model(chain.full)
        self._inputs = inputs
        try:
            # Functions are held by the loaded object.
            self._loaded = tf.saved_model.load(str(chain.full))
            if weights is not None:
                for variable, value in zip(self._loaded.weights, weights.values(), strict=True):
                    variable.assign(value)
            signatures = self._loaded.signatures
            self._functions = {name: _function(signatures[name], of.dtypes) for name, of in inputs.items()}
        except InputError:
            raise
        except Exception as error:
            # What TensorFlow raises for what it did not write itself has no common kind.
            raise InputError(f"{chain.model}: cannot be loaded: {one_line(error)[:300]}") from None

    def __call__(self, name: str, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        inputs = self._inputs[name]
        numbers = {**inputs.numbers, **inputs.times}
        tensors = {key: tf.constant(columns[source]) for key, source in numbers.items()}
        if inputs.texts:
            tensors |= dict(zip(inputs.texts, tf.unstack(_matrix(inputs, columns)), strict=True))
        return self._functions[name](tensors)

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        columns = self._inputs["predict_ids"].columns
        return self._functions["predict_ids"]({key: tf.constant(packed[one]) for key, one in columns.items()})


def _matrix(inputs: FunctionInputs, columns: Mapping[str, Any]) -> tf.Tensor:
    """One tensor [S, N] of all texts: a tensor for each column would take longer than a small model."""
    try:
        matrix = tf.constant([columns[source] for source in inputs.texts.values()], tf.string)
        if matrix.shape.rank == 2:
            return matrix
    except (TypeError, ValueError):
        pass
    texts = inputs.all_texts(columns)
    return tf.constant(texts, tf.string, shape=(len(texts), len(texts[0])))


def _function(
    signature: Any, dtypes: Mapping[str, str]
) -> Callable[[Mapping[str, tf.Tensor]], dict[str, np.ndarray]]:
    specs = signature.structured_input_signature[1]
    if {name: spec.dtype.name for name, spec in specs.items()} != dtypes:
        raise ValueError("the inputs of a function are not those that its description names")
    order = tuple(getattr(signature, "_arg_keywords", None) or ())
    # Keyword arguments are matched and checked one by one, which takes as long as scoring a row does.
    flat = getattr(signature, "_call_flat", None) if set(order) == set(dtypes) else None

    def call(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        if flat is not None:
            outputs = flat([tensors[name] for name in order], signature.captured_inputs)
        else:
            outputs = signature(**tensors)
        return {key: value.numpy() for key, value in outputs.items()}

    return call
