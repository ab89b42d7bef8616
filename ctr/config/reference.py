"""Reference of a configuration: every key with its meaning, what is allowed and its default, by its JSON Schema."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import yaml

from ctr.config import Dumper
from ctr.config.schema import Schema, members, values_of
from ctr.io.errors import InputError, did_you_mean

_WIDTH = 100
_TAGS = ("type", "kind")
_HIDDEN = ("preset",)  # a key that no default has
_OPEN = "is_open"  # marks what `select` keeps: in use, whatever the default is


class _Key(NamedTuple):
    name: str
    node: Schema
    default: Any  # as plain data; of a required key an example, or None
    required: bool
    many: Literal["", "list", "names"]  # groups describe the value itself, each item or each named value
    groups: list[tuple[Schema, Mapping[str, Any]]]  # below it, with the values that stand for their defaults

    @property
    def is_open(self) -> bool:
        """Tells whether the keys below it are in use where nothing is said."""
        if _OPEN in self.node:
            return True
        given = self.default
        is_used = self.required if given is None else isinstance(given, Mapping | list) and bool(given)
        return bool(self.groups) and is_used

    @property
    def meaning(self) -> str:
        text: str = self.node.get("description", "")
        return text or (self.groups[0][0].get("description", "") if len(self.groups) == 1 else "")


def _keys(group: Schema, values: Mapping[str, Any]) -> Iterator[_Key]:
    # What chooses among models comes first.
    for name, node in sorted(group["properties"].items(), key=lambda item: item[0] not in _TAGS):
        if name not in _HIDDEN:
            default = values.get(name, _default(name, node))
            yield _Key(name, node, default, name in group.get("required", ()), *_groups(node, default))


def _default(name: str, node: Schema) -> Any:
    """Of a required key, or of one that a file cannot do without, an example."""
    if "examples" in node:
        return node["examples"][0]
    for key in ("default", "const"):
        if key in node:
            return node[key]
    if "enum" in node:
        return node["enum"][0]
    if node.get("type") == "integer":
        return node.get("minimum", 1)
    is_text = node.get("type") == "string" and "format" not in node
    return name.upper() if is_text and not node.get("title", "").startswith("ISO") else None


def _groups(
    node: Schema, default: Any
) -> tuple[Literal["", "list", "names"], list[tuple[Schema, Mapping[str, Any]]]]:
    found = members(node)
    for one in found:
        below = one.get("items") if one.get("type") == "array" else values_of(one)
        first = default[0] if isinstance(default, list) and default else None
        if isinstance(below, dict) and (groups := _groups(below, first)[1]):
            return "list" if one["type"] == "array" else "names", groups
    models = [one for one in found if "properties" in one]
    # Of several models the one that the default is of has its values.
    chosen = default if isinstance(default, Mapping) else {}
    return "", [(one, chosen if len(models) == 1 or _fits(one, chosen) else {}) for one in models]


def _fits(model: Schema, values: Mapping[str, Any]) -> bool:
    tags = {tag: model["properties"][tag] for tag in _TAGS if tag in model["properties"]}
    return all(values.get(tag) in (node.get("const"), *node.get("enum", ())) for tag, node in tags.items())


# ---------------------------------------------------------------- what is allowed, in words

_TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text"}
_FORMATS = {"path": "path", "date": "date"}


def _allowed(node: Schema, many: bool = False) -> str:
    """Type with its bounds, in words; a title names the type."""
    choice = node.get("anyOf") or node.get("oneOf")
    title = None if "properties" in node and "title" not in node else node.get("title")
    if choice:
        parts = members(node)
        texts = [title] if title else [_allowed(part, many) for part in parts]
        text = (", or " if any("," in text for text in texts) else " or ").join(dict.fromkeys(texts))
        if not any(one.get("type") == "null" for one in choice):
            return text
        return f"{text}, or null" if "," in text or " or " in text else f"{text} or null"
    if title is not None:
        return re.sub(r"^\w+", r"\g<0>s", title) if many else title
    if "const" in node or "enum" in node:
        *words, last = map(_scalar, node.get("enum") or [node["const"]])
        return f"{', '.join(words)} or {last}" if words else last
    if "properties" in node:
        return "groups" if many else "group"
    if node.get("type") == "array":
        items = node["items"] if "items" in node else node["prefixItems"][0]
        return f"list of {_allowed(items, True)}{_length(node, 'minItems', 'maxItems')}"
    if node.get("type") == "object":
        return f"by name: {_allowed(values_of(node) or {}, True)}{_length(node, 'minProperties', 'maxProperties')}"
    if "type" not in node:
        return "any value"
    text = _FORMATS.get(node.get("format", ""), _TYPES[node["type"]])
    return f"{text}{'s' if many and text in ('whole number', 'number', 'text') else ''}{_bounds(node)}"


def _scalar(value: Any) -> str:
    return _yaml(value).removesuffix("...\n").strip()


def _bounds(node: Schema) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    texts = [f"{word} {_number(node[bound])}" for bound, word in words.items() if bound in node]
    if {"minimum", "maximum"} <= node.keys():
        texts = [f"{_number(node['minimum'])} to {_number(node['maximum'])}"]
    if node.get("minLength") == 1:
        texts.append("not empty")
    if "pattern" in node:
        texts.append(f"matching {node['pattern']}")
    return "".join(f", {text}" for text in texts)


def _length(node: Schema, least: str, most: str) -> str:
    texts = []
    if least in node:
        texts.append(f"at least {node[least]} {'item' if node[least] == 1 else 'items'}")
    if most in node:
        texts.append(f"at most {node[most]} items")
    return "".join(f", {text}" for text in texts)


def _number(value: Any) -> str:
    for power in (31, 62, 63):
        if value in (2**power, 2**power - 1):
            return f"2^{power}{' - 1' if value % 2 else ''}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- keys by their paths


def key_rows(group: Schema) -> list[dict[str, Any]]:
    """Lists every key with its dotted path; lists are entered by ``[]``, values by name through ``NAME``.

    For each ``key, default, required, allowed, meaning``.
    """
    return [
        {
            "key": path,
            "default": key.default,
            "required": key.required,
            "allowed": _allowed(key.node),
            "meaning": key.meaning,
        }
        for path, key in _walk(group, {}, "").items()
    ]


_STEPS = {"": "", "list": "[]", "names": ".NAME"}


def _walk(group: Schema, values: Mapping[str, Any], prefix: str) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    for key in _keys(group, values):
        path = f"{prefix}{key.name}"
        found[path] = key
        for part, inner in key.groups:
            # Models to choose from share keys.
            found |= _walk(part, inner, f"{path}{_STEPS[key.many]}.") | found
    return found


def select(group: Schema, path: str, what: str) -> Schema:
    """Keeps nothing of a group but the key of a dotted path, all that is below it, and the keys above it.

    Raises InputError: there is no such key. Names those that are alike.
    """
    names = [name for name in _plain_path(path).split(".") if name]
    if names and (found := _select(group, {}, names)):
        return found
    known = list(dict.fromkeys(_plain_path(known) for known in _walk(group, {}, "")))
    if meant := did_you_mean(path, known, 4):
        raise InputError(f"{what}: no key {path}{meant}")
    raise InputError(f"{what}: no key {path}; allowed: {', '.join(key.name for key in _keys(group, {}))}")


def _plain_path(path: str) -> str:
    """Path without items of lists and names: ``joins[].key``, ``joins.0.key``, ``joins.key`` are the same."""
    return re.sub(r"\[\]|\.[0-9]+(?=\.|$)|\.NAME(?=\.|$)", "", path)


def _select(group: Schema, values: Mapping[str, Any], names: Sequence[str]) -> Schema | None:
    key = next((key for key in _keys(group, values) if key.name == names[0]), None)
    if key is None:
        return None
    if len(names) == 1:
        kept = {**key.node, "default": key.default, _OPEN: True}
        return {"properties": {key.name: kept}, "required": [key.name] * key.required}
    # Of models to choose from the first one that has the key.
    for part, inner in key.groups:
        if below := _select(part, inner, names[1:]):
            if key.many:
                word = "items" if key.many == "list" else "additionalProperties"
                below = {"type": "array" if key.many == "list" else "object", word: below}
            return {"properties": {key.name: {**below, _OPEN: True}}}
    return None


# ---------------------------------------------------------------- as YAML


def as_yaml(group: Schema) -> str:
    """Writes a file with every key and its default, what is allowed, and what it means.

    What is off by default stands below its key, commented out; so do the other models where one is to be
    chosen.
    """
    return "\n".join(_lines(group, {})) + "\n"


def _lines(group: Schema, values: Mapping[str, Any]) -> Iterator[str]:
    had_groups: bool | None = None
    for key in _keys(group, values):
        if had_groups is not None and (key.groups or had_groups):
            yield ""
        had_groups = bool(key.groups)
        yield from _key_lines(key)


def _key_lines(key: _Key) -> Iterator[str]:
    is_open = bool(key.groups) and key.is_open
    yield from _comment(f"{key.meaning}{' Required.' if key.required and is_open else ''}")
    below = [f"{key.name}:", *_indented(_below(key))]
    if is_open:
        yield from below
        return
    allowed = _allowed(key.node)
    notes = ["required"] * key.required + [allowed] * (allowed != "group or null")
    yield f"{key.name}: {_scalar(key.default)}  # {', '.join(notes)}".removesuffix("  # ")
    if key.groups:
        yield from _commented(below)


def _below(key: _Key) -> Iterator[str]:
    for number, (group, values) in enumerate(key.groups):
        lines = list(_lines(group, values))
        if key.many == "list":
            lines = _as_item(lines)
        elif key.many == "names":
            lines = ["NAME:", *_indented(lines)]
        if len(key.groups) > 1:
            lines = [*_comment(f"{'Or: ' if number else ''}{group.get('description', '')}"), *lines]
        # Of models to choose from, the first one stands.
        yield from _commented(lines) if number else lines


def _as_item(lines: Sequence[str]) -> list[str]:
    first = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    after = [f"  {line}" if line else "" for line in lines[first + 1 :]]
    return [*lines[:first], f"- {lines[first]}", *after]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _commented(lines: Iterable[str]) -> list[str]:
    return [f"# {line}" if line else "#" for line in lines]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _yaml(content: Any) -> str:
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, default_flow_style=True, width=1_000_000)
