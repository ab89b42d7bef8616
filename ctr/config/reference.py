"""Reference of a configuration: every key with its meaning, what is allowed and its default, by its JSON Schema."""

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from ctr.config import Dumper
from ctr.config.options import options_schema
from ctr.config.schema import Schema, key_tree, members, values_of
from ctr.io.errors import InputError
from ctr.io.words import did_you_mean
from ctr.optim.checked import Options

_WIDTH = 100
_TAGS = ("type", "kind")
_HIDDEN = ("preset",)  # a key that no default has


@dataclasses.dataclass(frozen=True)
class Group:
    """Keys of one model, in the order of its fields."""

    meaning: str
    keys: tuple["Key", ...]


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a configuration."""

    name: str
    meaning: str
    allowed: str  # its type and bounds, in words
    required: bool
    default: Any  # as plain data; of a required key an example, or None
    many: Literal["", "list", "names"] = ""  # groups describe the value itself, each item or each named value
    groups: tuple[Group, ...] = ()  # models of the keys below it; several where a choice is to be made
    is_open: bool = False  # whether the keys below it are in use where nothing is said


def describe(model: type[BaseModel] | type[Options]) -> Group:
    """Describes the keys of a pydantic model or of a dataclass of options, and of all below it."""
    return _group(key_tree(model) if issubclass(model, BaseModel) else options_schema(model()), {})


def _group(schema: Schema, values: Mapping[str, Any]) -> Group:
    """Describes a group; ``values`` stand in place of the defaults of its keys."""
    keys = []
    for name, node in schema["properties"].items():
        if name in _HIDDEN:
            continue
        required = name in schema.get("required", ())
        default = values.get(name, _default(name, node))
        many, groups = _groups(node, default)
        is_used = required if default is None else isinstance(default, Mapping | list) and bool(default)
        meaning = node.get("description") or (groups[0].meaning if len(groups) == 1 else "")
        keys.append(
            Key(name, meaning, _allowed(node), required, default, many, groups, bool(groups) and is_used)
        )
    # What chooses among models comes first.
    keys.sort(key=lambda key: key.name not in _TAGS)
    return Group(schema.get("description", ""), tuple(keys))


def _default(name: str, node: Schema) -> Any:
    """As plain data. Of a required key, or of one that a file cannot do without, an example."""
    if "examples" in node:
        return node["examples"][0]
    for key in ("default", "const"):
        if key in node:
            return node[key]
    if "enum" in node:
        return node["enum"][0]
    if node.get("type") == "integer":
        return node.get("minimum", 1)
    is_text = (
        node.get("type") == "string" and "format" not in node and not node.get("title", "").startswith("ISO")
    )
    return name.upper() if is_text else None


def _groups(node: Schema, default: Any) -> tuple[Literal["", "list", "names"], tuple[Group, ...]]:
    found = members(node)
    for one in found:
        below = one.get("items") if one.get("type") == "array" else values_of(one)
        if isinstance(below, dict) and (groups := _groups(below, _first(default))[1]):
            return "list" if one["type"] == "array" else "names", groups
    models = [one for one in found if "properties" in one]
    # Of several models the one that the default is of has its values.
    chosen = default if isinstance(default, Mapping) else {}
    return "", tuple(_group(one, chosen if _fits(one, chosen, len(models)) else {}) for one in models)


def _first(default: Any) -> Any:
    return default[0] if isinstance(default, list) and default else None


def _fits(model: Schema, values: Mapping[str, Any], models: int) -> bool:
    """Tells whether values are those of this model of a choice."""
    tags = {tag: model["properties"][tag] for tag in _TAGS if tag in model["properties"]}
    return models == 1 or all(
        values.get(tag) in (node.get("const"), *node.get("enum", ())) for tag, node in tags.items()
    )


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


def key_rows(group: Group) -> list[dict[str, Any]]:
    """Every key with its dotted path; lists are entered by ``[]``, values by name through ``NAME``.

    For each ``key, default, required, allowed, meaning``.
    """
    return [
        {
            "key": path,
            "default": key.default,
            "required": key.required,
            "allowed": key.allowed,
            "meaning": key.meaning,
        }
        for path, key in _walk(group, "")
    ]


_STEPS = {"": "", "list": "[]", "names": ".NAME"}


def _walk(group: Group, prefix: str) -> Iterator[tuple[str, Key]]:
    for key in group.keys:
        path = f"{prefix}{key.name}"
        yield path, key
        seen: set[str] = set()
        for part in key.groups:
            for below, found in _walk(part, f"{path}{_STEPS[key.many]}."):
                # Models to choose from share keys.
                if below not in seen:
                    seen.add(below)
                    yield below, found


def select(group: Group, path: str, what: str) -> Group:
    """Keeps nothing of a group but the key of a dotted path, all that is below it, and the keys above it.

    Raises InputError: there is no such key. Names those that are alike.
    """
    names = [name for name in _plain_path(path).split(".") if name]
    found = _select(group, names) if names else None
    if found is not None:
        return Group("", (found,))
    known = list(dict.fromkeys(_plain_path(known) for known, _ in _walk(group, "")))
    if meant := did_you_mean(path, known, 4):
        raise InputError(f"{what}: no key {path}{meant}")
    raise InputError(f"{what}: no key {path}; allowed: {', '.join(key.name for key in group.keys)}")


def _plain_path(path: str) -> str:
    """Path without items of lists and names: ``joins[].key``, ``joins.0.key``, ``joins.key`` are the same."""
    return re.sub(r"\[\]|\.[0-9]+(?=\.|$)|\.NAME(?=\.|$)", "", path)


def _select(group: Group, names: Sequence[str]) -> Key | None:
    for key in group.keys:
        if key.name != names[0]:
            continue
        if len(names) == 1:
            return dataclasses.replace(key, is_open=True)
        # Of models to choose from the first one that has the key.
        below = (_select(part, names[1:]) for part in key.groups)
        found = next((inner for inner in below if inner is not None), None)
        if found is not None:
            return Key(key.name, "", "", False, None, key.many, (Group("", (found,)),), is_open=True)
    return None


# ---------------------------------------------------------------- as YAML


def as_yaml(group: Group) -> str:
    """Writes a file with every key and its default, what is allowed, and what it means.

    What is off by default stands below its key, commented out; so do the other models where one is to be
    chosen.
    """
    return "\n".join(_lines(group)) + "\n"


def _lines(group: Group) -> Iterator[str]:
    for number, key in enumerate(group.keys):
        if number and (key.groups or group.keys[number - 1].groups):
            yield ""
        yield from _key_lines(key)


def _key_lines(key: Key) -> Iterator[str]:
    yield from _comment(f"{key.meaning}{' Required.' if key.required and key.is_open else ''}")
    below = [f"{key.name}:", *_indented(_below(key))]
    if key.groups and key.is_open:
        yield from below
        return
    notes = ["required"] if key.required else []
    notes += [key.allowed] if key.allowed != "group or null" else []
    yield f"{key.name}: {_scalar(key.default)}  # {', '.join(notes)}".removesuffix("  # ")
    if key.groups:
        yield from _commented(below)


def _below(key: Key) -> Iterator[str]:
    for number, group in enumerate(key.groups):
        lines = list(_lines(group))
        if key.many == "list":
            lines = _as_item(lines)
        elif key.many == "names":
            lines = ["NAME:", *_indented(lines)]
        if len(key.groups) > 1:
            lines = [*_comment(f"{'Or: ' if number else ''}{group.meaning}"), *lines]
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
