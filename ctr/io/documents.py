"""Parses untrusted JSON and YAML, and sealed manifests, to plain values: each key once, of bounded size."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ctr.io.errors import InputError, of_another_version, one_line
from ctr.io.files import check_local

_SEAL = "manifest_sha256"
_DEEPEST = 100
_MOST_VALUES = 1_000_000
# Errors of PyYAML's constructors for values that they take for a date, a number or a tag's type.
_FAULTS = (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError)


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text. Raises ValueError, also for a repeated key, an infinite number, or too deep a nesting."""
    try:
        content = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite
        )
        # An escape such as backslash-ud800 is half of a pair and stands for no character.
        json.dumps(content, ensure_ascii=False).encode()
        return content
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.80} appears twice")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:80]} is too large")
    return number


def parse_yaml(text: str) -> Any:
    """Parses a YAML text to plain values, None if it is empty. Unlike in PyYAML, 1e-6 and 1e6 are numbers.

    1e6 is a whole number. Raises ValueError if the text is not YAML, has a repeated key (PyYAML would use the last),
    refers to itself, or expands to far more values than it shows.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {}, 0)
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except _FAULTS as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        seen: set[Any] = set()
        for key in keys:
            value = self.construct_object(key, deep=True)
            try:
                fault = f"the key {value} appears twice" if value in seen else ""
            except TypeError:
                fault = "a key is a list or a mapping"
            if fault:
                raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
            seen.add(value)
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> int | float:
        number = super().construct_yaml_float(node)
        # The dumper also writes floats with a point.
        return int(number) if "." not in node.value and number.is_integer() else number


def read_short_floats(tool: Any) -> None:
    """Makes a loader or dumper of PyYAML treat 1e-6 as a number; a dumper then quotes the text 1e-6."""
    tool.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


read_short_floats(_Loader)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def _count_values(node: yaml.Node, sizes: dict[int, int | None], depth: int) -> int:
    """Returns the number of values of a node, every alias being a copy; ``sizes`` caches it by node."""
    size = sizes.get(id(node), 0)
    if size is None:
        raise ValueError("an alias (*) refers to a value that contains it")
    if size:
        return size
    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST}")
    sizes[id(node)] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.ScalarNode):
        # Half of a pair (backslash-ud800) stands for no character.
        node.value.encode()
    elif isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    size = 1 + sum(_count_values(part, sizes, depth + 1) for part in parts)
    if size > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values, with every alias (*) written out")
    sizes[id(node)] = size
    return size


def json_number(value: Any) -> float | None:
    """Converts a number for JSON: None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def json_bytes(content: object) -> bytes:
    """Formats an object as indented text: the same bytes for the same content."""
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def sealed_bytes(content: Mapping[str, object]) -> bytes:
    """Formats a manifest: an object, with the SHA-256 of its content under ``manifest_sha256``."""
    return json_bytes({**content, _SEAL: _sha256(content)})


def _sha256(content: Mapping[str, object]) -> str:
    # Without an indent, serialization is ten times as fast.
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Parses a JSON object. Raises InputError, which names ``where``, when it is malformed."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"{where}: must be a JSON object, got {type(content).__name__}")
    return content


def parse_sealed(text: bytes, where: str) -> dict[str, object]:
    """Parses ``sealed_bytes``. Raises InputError, which names ``where``, if the content was changed."""
    content = parse_json_object(text, where)
    recorded = content.pop(_SEAL, None)
    if recorded is None:
        raise of_another_version(where)
    if recorded != _sha256(content):
        raise InputError(
            f"{where}: damaged: its content does not have the SHA-256 that it records under {_SEAL} ({recorded})"
        )
    return content


def read_json_object(path: Path, absent: str) -> dict[str, object]:
    """Parses a file with a JSON object. Raises InputError if it is missing (message ``absent``) or malformed."""
    return parse_json_object(read_bytes(path, absent), str(path))


def read_sealed(path: Path, absent: str) -> dict[str, object]:
    """Parses a file of ``sealed_bytes``. Raises InputError if it is missing (message ``absent``) or was changed."""
    return parse_sealed(read_bytes(path, absent), str(path))


def read_bytes(path: Path, absent: str) -> bytes:
    """Reads a file. Raises InputError if it does not exist (message ``absent``) or reading fails."""
    if not path.is_file():
        check_local(path)
        raise InputError(absent)
    try:
        return path.read_bytes()
    except OSError as error:
        # The error of a failing disk does not name the file.
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
