"""Reference of a configuration: every key with its meaning, what is allowed and its default.

All of it comes from the models themselves. A key's meaning stands in its model's docstring under
``Attributes:``; its default and what is allowed come from the annotations. A dataclass may stand in a model
(Shampoo's options); what it allows is said by the ``allowed`` of the objects in its ``Annotated`` types.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from ctr.config import Dumper, StrictModel
from ctr.config.options import OptionsKey, pruned
from ctr.io.errors import InputError
from ctr.io.words import did_you_mean

_WIDTH = 100
_TAGS = ("type", "kind")


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


def describe(model: type, values: Mapping[str, Any] | None = None, without: Collection[str] = ()) -> Group:
    """Describes the keys of a pydantic model or a dataclass, and of all below it.

    ``values`` stand in place of the fields' own defaults; fields named in ``without`` a file cannot give.
    """
    meanings = field_meanings(model)
    values = values or {}
    keys = []
    for name, field in _fields(model).items():
        if name in without:
            continue
        shown = field.alias or name
        default = _default(shown, field)
        if shown in values:
            default = values[shown]
        options = next((item for item in field.metadata if isinstance(item, OptionsKey)), None)
        if options is None:
            below = [path.removeprefix(f"{name}.") for path in without if path.startswith(f"{name}.")]
            many, groups = _groups_in(field.annotation, default, below)
        else:
            default = pruned(default, options.without)
            many, groups = "", (describe(type(options.start), default, options.without),)
        keys.append(
            Key(
                name=shown,
                meaning=meanings.get(name) or (groups[0].meaning if len(groups) == 1 else ""),
                allowed=_allowed(field.annotation, field.metadata, field.title),
                required=field.is_required(),
                default=default,
                many=many,
                groups=groups,
                is_open=bool(groups)
                and (
                    field.is_required()
                    if default is None
                    else isinstance(default, Mapping | list) and bool(default)
                ),
            )
        )
    # What chooses among models comes first.
    keys.sort(key=lambda key: key.name not in _TAGS)
    return Group(_summary(model), tuple(keys))


def _fields(model: type) -> dict[str, FieldInfo]:
    if issubclass(model, BaseModel):
        return dict(model.model_fields)
    hints = get_type_hints(model, include_extras=True)
    return {
        field.name: FieldInfo.from_annotated_attribute(hints[field.name], field.default)
        for field in dataclasses.fields(cast(Any, model))
    }


def _default(name: str, field: FieldInfo) -> Any:
    """As plain data. Of a required key, or of one that a file cannot do without, an example."""
    if field.examples:
        return field.examples[0]
    if not field.is_required():
        return to_jsonable_python(field.get_default(), by_alias=True)
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)[0]
    if field.annotation is int:
        return next((item.ge for item in field.metadata if isinstance(item, annotated_types.Ge)), 1)
    return name.upper() if field.annotation is str else None


# ---------------------------------------------------------------- meanings, from docstrings


def field_meanings(model: type) -> dict[str, str]:
    """Meaning of each field in the docstrings of a model and its bases, under ``Attributes:``, on one line."""
    meanings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base in (BaseModel, StrictModel):
            continue
        section = inspect.cleandoc(vars(base).get("__doc__") or "").partition("\nAttributes:\n")[2]
        names: list[str] = []
        for line in section.splitlines():
            entry = re.fullmatch(r" {4}([a-z_0-9]+(?:, [a-z_0-9]+)*): (.+)", line)
            if entry is not None:
                names = entry[1].split(", ")
                meanings |= dict.fromkeys(names, entry[2])
            elif line.startswith(" " * 8):
                meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
            elif line.strip():
                break
    return {name: _plain(text) for name, text in meanings.items()}


def _summary(model: type) -> str:
    text = inspect.cleandoc(vars(model).get("__doc__") or "")
    return _plain(" ".join(text.partition("\nAttributes:\n")[0].split()))


def _plain(text: str) -> str:
    # In YAML.
    text = re.sub(
        r"\b(?:None|True|False)\b", lambda word: {"None": "null"}.get(word[0], word[0].lower()), text
    )
    if text[:1].islower():
        text = text[0].upper() + text[1:]
    text = text.replace("``", "`").strip()
    return text if not text or text.endswith(".") else f"{text}."


# ---------------------------------------------------------------- what is allowed, from annotations


def _groups_in(
    annotation: Any, default: Any, without: Collection[str] = ()
) -> tuple[Literal["", "list", "names"], tuple[Group, ...]]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _groups_in(arguments[0], default, without)
    if origin is tuple:
        return "list" if _groups_in(arguments[0], None)[1] else "", _groups_in(arguments[0], _first(default))[
            1
        ]
    if origin is dict:
        groups = _groups_in(arguments[1], None)[1]
        return "names" if groups else "", groups
    models = [part for part in _members(annotation) if _is_model(part)]
    if not models:
        return "", ()
    # Of several models the one that the default is of comes first.
    chosen = default if isinstance(default, Mapping) else {}
    return "", tuple(describe(model, _fitting(model, chosen, len(models)), without) for model in models)


def _first(default: Any) -> Any:
    return default[0] if isinstance(default, list | tuple) and default else None


def _fitting(model: type, values: Mapping[str, Any], models: int) -> Mapping[str, Any]:
    """The values, unless they are those of another model of a union."""
    fields = _fields(model)
    for tag in _TAGS:
        if models > 1 and tag in fields and values.get(tag) not in get_args(fields[tag].annotation):
            return {}
    return values


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
    )


def _members(annotation: Any) -> tuple[Any, ...]:
    """Types of a union, or the one that it is, without what they are annotated with."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return (annotation,)


_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    date: "date",
    datetime: "ISO date, or date and time",
    Any: "any value",
}


def _allowed(
    annotation: Any, metadata: Sequence[Any] = (), title: str | None = None, many: bool = False
) -> str:
    """Type with its bounds, in words; ``title`` names the type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        titles = (item.title for item in arguments[1:] if isinstance(item, FieldInfo))
        title = title or next((text for text in titles if text), None)
        return _allowed(arguments[0], (*arguments[1:], *metadata), title, many)
    if origin in (Union, UnionType):
        members = [part for part in arguments if part is not NoneType]
        texts = [title or ""] if title else [_allowed(part, metadata, None, many) for part in members]
        text = " or ".join(dict.fromkeys(texts))
        if NoneType not in arguments:
            return text
        return f"{text}, or null" if "," in text or " or " in text else f"{text} or null"
    if title is not None:
        return re.sub(r"^\w+", r"\g<0>s", title) if many else title
    if origin is Literal:
        *words, last = map(_scalar, arguments)
        return f"{', '.join(words)} or {last}" if words else last
    if origin is tuple:
        return f"list of {_allowed(arguments[0], (), None, True)}{_length(metadata)}"
    if origin is dict:
        return f"by name: {_allowed(arguments[1], (), None, True)}{_length(metadata)}"
    if _is_model(annotation):
        return "groups" if many else "group"
    text = _TYPES[annotation]
    return f"{text}{'s' if many and annotation in (int, float, str) else ''}{_bounds(metadata)}"


def _scalar(value: Any) -> str:
    return _yaml(value).removesuffix("...\n").strip()


def _flat(metadata: Sequence[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _flat(item.metadata)
        else:
            yield item


def _bounds(metadata: Sequence[Any]) -> str:
    low = high = ""
    texts: list[str] = []
    for item in _flat(metadata):
        if isinstance(item, annotated_types.Ge):
            low = f"at least {_number(item.ge)}"
        elif isinstance(item, annotated_types.Gt):
            low = f"above {_number(item.gt)}"
        elif isinstance(item, annotated_types.Le):
            high = f"at most {_number(item.le)}"
        elif isinstance(item, annotated_types.Lt):
            high = f"below {_number(item.lt)}"
        elif isinstance(item, annotated_types.MinLen) and item.min_length == 1:
            texts.append("not empty")
        elif isinstance(pattern := getattr(item, "pattern", None), str):
            texts.append(f"matching {pattern}")
        elif isinstance(allowed := getattr(item, "allowed", None), str):
            texts.append(allowed.removeprefix("a whole number "))
    if low.startswith("at least ") and high.startswith("at most "):
        low, high = f"{low.removeprefix('at least ')} to {high.removeprefix('at most ')}", ""
    return "".join(f", {text}" for text in (low, high, *texts) if text)


def _length(metadata: Sequence[Any]) -> str:
    texts = []
    for item in _flat(metadata):
        if isinstance(item, annotated_types.MinLen):
            texts.append(f"at least {item.min_length} {'item' if item.min_length == 1 else 'items'}")
        elif isinstance(item, annotated_types.MaxLen):
            texts.append(f"at most {item.max_length} items")
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


def settable_keys(group: Group) -> list[str]:
    """Dotted paths that ``--set`` takes, in the order of the file."""
    return [path for path, _ in _walk(group, "") if "[]" not in path and ".NAME" not in path]


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
