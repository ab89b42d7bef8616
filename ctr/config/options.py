"""Options of optimizers as groups of a configuration: dataclasses that check their values themselves."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any, get_args, get_type_hints

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ctr.config.schema import Schema, field_meanings, summary
from ctr.optim.checked import Options, groups_of, range_of


@dataclass(frozen=True)
class OptionsKey:
    """Annotates a field of a model: a group with the options of a dataclass.

    Attributes:
        start: the options where a file gives none.
        without: names of those that a file cannot give.
        presets: by name, what the key ``preset`` starts from instead; each has the kinds of groups that ``start`` has.
    """

    start: Options
    without: frozenset[str] = frozenset()
    presets: Mapping[str, Options] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Reads and dumps by the functions below."""
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.dump)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describes the options that a file can give."""
        group = options_schema(self.start, self.without)
        if self.presets:
            group["properties"]["preset"] = {
                "enum": [*self.presets],
                "description": "What the others start from.",
            }
        return group

    def read(self, content: Any) -> Any:
        """Returns the options, from a mapping of some of them."""
        if isinstance(content, type(self.start)):
            return content
        if not isinstance(content, dict):
            raise ValueError("a group of keys is required")
        start, given = self.start, dict(content)
        if self.presets and "preset" in given:
            name = given.pop("preset")
            if not isinstance(name, str) or name not in self.presets:
                raise ValueError(f"preset is {name!r}; allowed: {', '.join(self.presets)}")
            start = self.presets[name]
        return start.changed(given, self.without)

    def dump(self, options: Options) -> dict[str, Any]:
        """Returns the options that a file can give."""
        return {name: value for name, value in asdict(options).items() if name not in self.without}


def options_schema(options: Options, without: frozenset[str] = frozenset()) -> Schema:
    """Returns the JSON Schema of a group of options, whose defaults are ``options``."""
    kind = type(options)
    hints, meanings = get_type_hints(kind, include_extras=True), field_meanings(kind)
    values, properties = asdict(options), {}
    for name in kind.names():
        if name in without:
            continue
        if groups := groups_of(kind, name):
            found = _choice(groups, getattr(options, name))
        else:
            found = _plain_values(hints[name])
        properties[name] = {"default": values[name], **found}
        if name in meanings:
            properties[name]["description"] = meanings[name]
    return {
        "type": "object",
        "description": summary(kind),
        "properties": properties,
        "additionalProperties": False,
    }


def _choice(groups: tuple[type[Options], ...], default: Any) -> Schema:
    """One group, or one of several by its ``kind``, which alone may stand for it; without one, that of the default."""
    kinds = [getattr(group, "kind", "") for group in groups]
    found = [options_schema(default if type(default) is group else group()) for group in groups]
    if not any(kinds):
        return found[0]
    for kind, group in zip(kinds, found, strict=True):
        if kind != getattr(default, "kind", None):
            group["required"] = ["kind"]
    return {"oneOf": [*found, {"enum": kinds}]}


def _plain_values(hint: Any) -> Schema:
    if NoneType in get_args(hint):
        return {"anyOf": [_plain_values(get_args(hint)[0]), {"type": "null"}]}
    if hint is bool:
        return {"type": "boolean"}
    found = range_of(hint)
    if found is not None:
        return found.json_schema
    words = get_args(hint)
    return {"const": words[0]} if len(words) == 1 else {"enum": [*words]}
