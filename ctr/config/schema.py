"""JSON Schema of a configuration (draft 2020-12): the only description of its keys, for editors and for the reference.

Pydantic generates it from the models and the dataclasses of optimizers' options. A key's meaning is in the docstring
of its class under ``Attributes:``.
"""

import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ctr.io.files import check_output_folder, make_folder, write_atomic_bytes

Schema = dict[str, Any]

_SUFFIX = ".schema.json"


class _Writer(GenerateJsonSchema):
    # Keys get no titles derived from their names: a title is a model's name for the values of a key.

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        return {"$schema": self.schema_dialect, **super().generate(schema, mode)}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        written = super().dataclass_schema(schema)
        written.pop("title")
        written["description"] = summary(schema["cls"])
        for name, meaning in field_meanings(schema["cls"]).items():
            if name in written["properties"]:
                written["properties"][name]["description"] = meaning
        return written

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        written = super().dict_schema(schema)
        # Names that do not match the pattern are refused.
        return {**written, "additionalProperties": False} if "patternProperties" in written else written

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        return {**super().tagged_union_schema(schema), "required": [schema["discriminator"]]}

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        # The format `date-time` would refuse dates, and times without seconds or an offset.
        return {"type": "string", "pattern": r"^\d{4}-?[\dW]", "title": "ISO date, or date and time"}


def json_schema(model: type[Any]) -> Schema:
    """Returns the JSON Schema of a model's file, or of a dataclass of options."""
    schema = TypeAdapter(model).json_schema(schema_generator=_Writer)
    groups = schema.get("$defs", {})
    for group in (schema, *groups.values()):
        for node in group.get("properties", {}).values():
            # Editors do not look up the meaning of a key behind a reference.
            references = [part["$ref"].rpartition("/")[2] for part in members(node) if "$ref" in part]
            if len(references) == 1 and "description" not in node:
                node["description"] = groups[references[0]]["description"]
    return schema


def file_schema(kind: str, model: type[BaseModel]) -> Schema:
    """Returns the published JSON Schema of a kind of file, including its ``$id`` and ``title``."""
    schema = json_schema(model)
    named = {
        "$schema": schema["$schema"],
        "$id": f"urn:clicktrain:config:{kind}",
        "title": f"clicktrain {kind}",
    }
    return {**named, **schema}


def write_schemas(out: Path, models: Mapping[str, type[BaseModel]]) -> list[Path]:
    """Writes the schemas of all kinds of files, ``KIND.schema.json``; returns the files.

    Raises InputError if the directory contains other files.
    """
    names = {f"{kind}{_SUFFIX}": kind for kind in models}
    check_output_folder(
        out, "a directory of schemas", lambda folder: {path.name for path in folder.iterdir()} <= {*names}
    )
    make_folder(out)
    for name, kind in names.items():
        write_atomic_bytes(
            out / name, (json.dumps(file_schema(kind, models[kind]), indent=1) + "\n").encode()
        )
    return [out / name for name in names]


@functools.cache
def key_tree(model: type[Any]) -> Schema:
    """Returns the JSON Schema of a model with every reference replaced by its target."""
    schema = json_schema(model)
    kinds = schema.pop("$defs", {})

    def resolved(node: Any) -> Any:
        if isinstance(node, list):
            return [resolved(part) for part in node]
        if not isinstance(node, dict):
            return node
        target = kinds[node["$ref"].rpartition("/")[2]] if isinstance(node.get("$ref"), str) else {}
        return {key: resolved(part) for key, part in {**target, **node}.items() if key != "$ref"}

    tree: Schema = resolved(schema)
    return tree


def members(node: Schema) -> list[Schema]:
    """Returns the alternatives of a choice, without null, or the schema itself if it is no choice."""
    choices = node.get("oneOf") or node.get("anyOf")
    parts = [part for choice in choices for part in members(choice)] if choices else [node]
    return [part for part in parts if part.get("type") != "null"]


def values_of(node: Schema) -> Schema | None:
    """Returns the schema of the values of a mapping with free names, or None if it is no mapping or takes any value."""
    values = node.get("additionalProperties") or next(iter(node.get("patternProperties", {}).values()), None)
    return values if isinstance(values, dict) else None


def settable_keys(model: type[BaseModel]) -> list[str]:
    """Returns the dotted paths that ``--set`` takes: none is below a list or a free name."""
    return list(dict.fromkeys(_dotted_keys(key_tree(model), "")))


def _dotted_keys(node: Schema, above: str) -> Iterator[str]:
    for name, below in node["properties"].items():
        yield f"{above}{name}"
        for group in members(below):
            if "properties" in group:
                yield from _dotted_keys(group, f"{above}{name}.")


def keys_at(node: Schema, path: Sequence[int | str]) -> list[str] | None:
    """Returns the keys of the group at an error's path, which may contain a group's kind; None for anything else."""
    schemas = members(node)
    for key in path:
        schemas = [part for schema in schemas for below in _below(schema, key) for part in members(below)]
    groups = [schema for schema in schemas if "properties" in schema]
    return sorted(groups[0]["properties"]) if len(groups) == 1 else None


def _below(node: Schema, key: int | str) -> Iterator[Schema]:
    keys = node.get("properties", {})
    if key in keys:
        yield keys[key]
    elif any(key in (child.get("const"), *child.get("enum", ())) for child in keys.values()):
        yield node
    elif not keys and (below := node.get("items") if isinstance(key, int) else values_of(node)):
        yield below


# ---------------------------------------------------------------- meanings, from docstrings


def field_meanings(model: type) -> dict[str, str]:
    """Returns each field's meaning from the docstrings of a class and its bases, under ``Attributes:``, on one line."""
    meanings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is BaseModel:
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


def summary(model: type) -> str:
    """Returns a class's description: its docstring up to ``Attributes:``, on one line."""
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
