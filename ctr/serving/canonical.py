"""Canonical bytes of a SavedModel, whichever process wrote it.

TensorFlow names functions by a counter of the process, stores them in the order of a hash table, and draws a random
number for each model. Here functions are numbered in the order in which the signatures reach them, and the random
number is replaced by a hash of the content. What is computed stays the same.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

_COUNTED = re.compile(r"[-_]\d+$")
_GRADIENT = "_gradient_op_type"
_ARGUMENT = "_user_specified_name"


def make_canonical(model: Path) -> None:
    """Rewrites ``saved_model.pb`` and ``fingerprint.pb`` of a model of one graph, which TensorFlow has just saved."""
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
    # Functions that compute the gradient of an operation (swish has one), by the name that operations know it under.
    own = {one.registered_op_type: one.gradient_func for one in library.registered_gradients}
    names = _numbered(_reached(graph.graph_def.node, by_name, own), "_")
    bodies = [graph.graph_def.node, *(by_name[name].node_def for name in names)]
    gradients = _numbered(
        (node.attr[_GRADIENT].s.decode() for body in bodies for node in body if _GRADIENT in node.attr), "-"
    )
    for node in (node for body in bodies for node in body):
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
    return {
        name: f"{_COUNTED.sub('', name)}{mark}{number}" for number, name in enumerate(dict.fromkeys(names))
    }


def _reached(
    nodes: Iterable[Any], functions: Mapping[str, Any], gradients: Mapping[str, str]
) -> dict[str, None]:
    """The functions that operations call or have as gradients, each followed by those that it calls itself."""
    found: dict[str, None] = {}

    def visit(nodes: Iterable[Any]) -> None:
        for node in nodes:
            called = [reference.name for reference in _references(node)]
            if _GRADIENT in node.attr:
                own = gradients.get(node.attr[_GRADIENT].s.decode())
                called += [] if own is None else [own]
            for name in called:
                if name not in found:
                    found[name] = None
                    visit(functions[name].node_def)

    visit(nodes)
    return found


def _references(node: Any) -> Iterator[Any]:
    for key in sorted(node.attr):
        value = node.attr[key]
        if value.HasField("func"):
            yield value.func
        yield from value.list.func
