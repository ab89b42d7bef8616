"""Reference of a configuration: a table of its keys, from the JSON Schema of its model."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ctr.config.schema import Schema, key_tree, members, values_of
from ctr.io.errors import InputError, did_you_mean

_TYPES = {"boolean": "true or false", "integer": "whole number", "string": "text"}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "pattern": "matching {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} names",
}


def key_rows(model: type, under: str = "", what: str = "") -> list[dict[str, Any]]:
    """Lists every key of a model, or the key ``under`` and those below it.

    Each row has the ``key``, a dotted path with ``[]`` for items of lists and ``NAME`` for values by name, and its
    ``default``, ``required``, ``allowed`` and ``meaning``. Raises InputError, whose message begins with ``what``, if
    there is no key ``under``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in _walk(key_tree(model), {}, ""):
        # Alternative models of a choice share keys.
        rows.setdefault(row["key"], row)
    if not under:
        return [*rows.values()]
    path = _plain_path(under)
    chosen = [row for key, row in rows.items() if f"{_plain_path(key)}.".startswith(f"{path}.")]
    if chosen:
        return chosen
    meant = did_you_mean(under, list(dict.fromkeys(map(_plain_path, rows))), 4)
    top = ", ".join(key for key in rows if "." not in key)
    raise InputError(f"{what}: no key {under}{meant or f'; allowed: {top}'}")


def key_table(rows: list[dict[str, Any]]) -> str:
    """Formats keys, a line each: the key with its default, what is allowed, and the meaning."""
    texts = []
    for row in rows:
        is_group = row["allowed"].startswith("group") or (
            row["default"] and isinstance(row["default"], Mapping)
        )
        default = "(required)" if row["required"] else _short(row["default"])
        texts.append(row["key"] if is_group else f"{row['key']}: {default}")
    width = max(len(text) for text in texts if len(text) <= 60 or len(rows) == 1)
    lines = zip(texts, rows, strict=True)
    return "\n".join(f"{text:<{width}}  {row['meaning']} [{row['allowed']}]" for text, row in lines)


def _walk(group: Schema, values: Mapping[str, Any], above: str) -> Iterator[dict[str, Any]]:
    for name, node in group["properties"].items():
        default = values.get(name, node.get("default", node.get("const")))
        parts = [*_groups(node, "")]
        meaning = node.get("description") or (parts[0][0].get("description", "") if len(parts) == 1 else "")
        yield {
            "key": f"{above}{name}",
            "default": default,
            "required": name in group.get("required", ()),
            "allowed": _allowed(node),
            "meaning": meaning,
        }
        for part, step in parts:
            inner = default if isinstance(default, Mapping) and not step else {}
            yield from _walk(part, inner, f"{above}{name}{step}.")


def _groups(node: Schema, step: str) -> Iterator[tuple[Schema, str]]:
    """Yields the groups that a value consists of, each with the path to its keys."""
    for part in members(node):
        if "properties" in part:
            yield part, step
        elif isinstance(items := part.get("items"), dict):
            yield from _groups(items, f"{step}[]")
        elif (below := values_of(part)) is not None:
            yield from _groups(below, f"{step}.NAME")


def _allowed(node: Schema) -> str:
    """Describes type and bounds in words; a title names the type."""
    # A title describes the pattern in words.
    forms = {name: form for name, form in _BOUNDS.items() if name != "pattern" or "title" not in node}
    bounds = [form.format(_short(node[name])) for name, form in forms.items() if name in node]
    return ", ".join([_type(node), *bounds])


def _type(node: Schema) -> str:
    choice = node.get("anyOf") or node.get("oneOf")
    if "title" in node:
        is_optional = any(part.get("type") == "null" for part in choice or ())
        return f"{node['title']} or null" if is_optional else str(node["title"])
    if choice:
        return " or ".join(dict.fromkeys(map(_allowed, choice)))
    if "const" in node or "enum" in node:
        return " or ".join(map(_short, node.get("enum") or [node["const"]]))
    if "properties" in node:
        return "group"
    if node.get("type") == "array":
        return f"list of {_allowed(node['items'] if 'items' in node else node['prefixItems'][0])}"
    if node.get("type") == "object":
        return f"by name: {_allowed(values_of(node) or {})}"
    kind = node.get("type", "any value")
    return str(node.get("format", _TYPES.get(kind, kind)))


def _short(value: Any) -> str:
    for power in (31, 62, 63):
        if value in (2**power, 2**power - 1) and isinstance(value, int):
            return f"2^{power}{' - 1' if value % 2 else ''}"
    return value if isinstance(value, str) and value else json.dumps(value)


def _plain_path(path: str) -> str:
    """Removes list items and names from a path: ``joins[].key``, ``joins.0.key`` and ``joins.key`` become the same."""
    return re.sub(r"\[\]|\.[0-9]+(?=\.|$)|\.NAME(?=\.|$)", "", path)
