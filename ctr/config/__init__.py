"""Typed configuration: strict models, read from YAML, changed by ``key=value``; begin here.

Each part of the system defines its model in its folder; this module holds the shared parts. ``schema`` makes the JSON
Schema of a model's file, the only description of its keys; ``reference`` prints it as ``ctr config`` does.
"""

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import ArgsKwargs, CoreSchema, to_jsonable_python

from ctr.config.schema import field_meanings, key_tree, keys_at, settable_keys, summary
from ctr.io.documents import parse_yaml, read_short_floats
from ctr.io.errors import InputError, did_you_mean
from ctr.io.files import address_fault, not_text, require_file

log = logging.getLogger(__name__)


def _refuse_address(value: Any) -> Any:
    if isinstance(value, str | Path) and (fault := address_fault(value)):
        raise ValueError(fault)
    return value


# Checked as text, since the conversion to a path would remove the second slash of an address.
AnyPath = Annotated[Path, Field(strict=False), BeforeValidator(_refuse_address)]
"""Type of every key that is a path."""

LocalName = Annotated[str, BeforeValidator(_refuse_address)]
"""Type of a key that is a glob of files."""


class StrictModel(BaseModel):
    """Refuses unknown keys, and strings and booleans for numbers; instances are immutable, and sequences tuples."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Adds the descriptions of the model and of its fields from the docstring."""
        written = handler(schema)
        group = handler.resolve_ref_schema(written)
        group.pop("title")
        group["description"] = summary(cls)
        for name, meaning in field_meanings(cls).items():
            # A docstring may also describe class variables, which are no keys.
            if name in cls.model_fields:
                group["properties"][cls.model_fields[name].alias or name]["description"] = meaning
        return written


class ShortModel(StrictModel):
    """Omits keys with default values from its text, so that new keys do not change hashes.

    ``left_out`` names these keys.
    """

    left_out: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        for name in self.left_out:
            field = type(self).model_fields[name]
            if getattr(self, name) == field.default:
                content.pop(name, None)
                content.pop(field.alias or name, None)
        return content


ModelT = TypeVar("ModelT", bound=StrictModel)


def describe_validation_error(
    error: ValidationError, model: type[BaseModel], where: str, prefix: str = ""
) -> str:
    """Describes all faults of a config on one line: each with its key's path, the value, and what is allowed.

    ``prefix`` is put before each path: the position of the keys in a larger file.
    """
    faults, listed = [], set()
    errors = error.errors(include_url=False)
    for fault in errors:
        deeper = [other["loc"] for other in errors if len(other["loc"]) > len(fault["loc"])]
        if fault["type"] == "too_short" and any(loc[: len(fault["loc"])] == fault["loc"] for loc in deeper):
            # The missing items were refused, and have separate faults.
            continue
        path = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        if not (path or prefix) and fault["type"] == "value_error":
            # The message names the keys that are concerned.
            faults.append(fault["msg"].removeprefix("Value error, "))
            continue
        path = f"{prefix}{path}" if path else prefix.rstrip(".") or "(top level)"
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            # The first of several unknown keys in a group lists the group's keys.
            allowed = [] if fault["loc"][:-1] in listed else keys_at(key_tree(model), fault["loc"][:-1])
            listed.add(fault["loc"][:-1])
            meant = did_you_mean(path.removeprefix(prefix), settable_keys(model))
            message = "unknown key" + (f"; allowed: {', '.join(allowed)}" if allowed else "") + meant
        elif fault["type"] == "missing":
            message = "missing"
        elif isinstance(fault["input"], ArgsKwargs):
            # The message names the options that are concerned.
            message = fault["msg"].removeprefix("Value error, ")
        else:
            # The value as written: a list, not the tuple that was made from it.
            received = repr(to_jsonable_python(fault["input"], fallback=repr))
            message = f"{received[:80]} is not allowed: {fault['msg'].removeprefix('Value error, ')}"
        faults.append(f"{path}: {message}")
    return f"{where}: " + "; ".join(faults)


def _as_values(content: Any) -> Any:
    """Converts lists to tuples, and an integer beyond 64 bits to a float, which keys for integers then refuse."""
    if isinstance(content, dict):
        return {key: _as_values(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return tuple(map(_as_values, content))
    if isinstance(content, Integral) and not isinstance(content, bool):
        # Also one of NumPy's types.
        whole = int(content)
        if not -(2**63) <= whole < 2**63:
            return float(whole) if abs(whole) < 2**1023 else math.inf
        return whole
    return content


def parse_model(model: type[ModelT], content: object, where: str, prefix: str = "") -> ModelT:
    """Validates ``content`` (nested dicts) as ``model``; raises InputError with one line on any fault.

    Validation is strict: "5" and true are no numbers.
    """
    if not isinstance(content, dict):
        raise InputError(
            f"{where}: a mapping of keys to values is expected, received {type(content).__name__}"
        )
    try:
        return model.model_validate(_as_values(content))
    except ValidationError as error:
        raise InputError(describe_validation_error(error, model, where, prefix)) from None


class Dumper(yaml.SafeDumper):
    """Writes YAML that ``parse_yaml`` reads back unchanged: the string 1e-6 is quoted."""


read_short_floats(Dumper)


def read_yaml(path: Path, what: str) -> Any:
    """Parses a YAML file; an empty one is an empty mapping. Raises InputError with the line of a fault."""
    if kind := not_text(require_file(path, what)):
        raise InputError(f"{what} {path}: is {kind}; allowed: YAML in UTF-8")
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{what} {path}: not YAML: {error}") from None
    log.info("read %s %s", what, path)
    return {} if content is None else content


def apply_settings(content: Any, settings: Sequence[str]) -> Any:
    """Applies ``a.b=value`` settings (values in YAML) on a copy of ``content``, the last one winning.

    Content that is not a mapping is returned unchanged. Raises InputError if a setting is malformed or below a value.
    """
    changed = copy.deepcopy(content)
    if not isinstance(changed, dict):
        return changed
    for setting in settings:
        path, separator, text = setting.partition("=")
        keys = path.strip().split(".")
        if not separator or not all(keys):
            raise InputError(f"--set {setting}: the form is key.path=value")
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise InputError(f"--set {setting}: not YAML: {error}") from None
        node = changed
        for key in keys[:-1]:
            child = node.get(key)
            if child is None:
                child = node[key] = {}
            if not isinstance(child, dict):
                raise InputError(f"--set {setting}: {key} is a value, not a group of keys")
            node = child
        node[keys[-1]] = value
    return changed


def load_model(model: type[ModelT], path: Path | None, what: str, settings: Sequence[str] = ()) -> ModelT:
    """Reads a YAML file (None: the defaults), applies ``settings`` and validates; raises InputError for any fault."""
    content = read_yaml(path, what) if path is not None else {}
    where = f"{what} {path}" if path is not None else "settings"
    return parse_model(model, apply_settings(content, settings), where)


def dump_yaml(model: BaseModel) -> str:
    """Dumps the whole model as YAML, defaults included, in the order of its fields."""
    return yaml.dump(model.model_dump(mode="json", by_alias=True), Dumper=Dumper, sort_keys=False)


def changed_values(
    before: Mapping[str, Any], now: Mapping[str, Any], above: tuple[str, ...] = ()
) -> dict[tuple[str, ...], tuple[Any, Any]]:
    """Returns the old and new value of each key that differs between two nested mappings, by the key's path."""
    changed: dict[tuple[str, ...], tuple[Any, Any]] = {}
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changed |= changed_values(old, new, (*above, key))
        elif old != new:
            changed[*above, key] = (old, new)
    return changed


def differing_keys(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Lists the differences of two nested mappings, a text for each key with its path, its old and its new value."""
    changed = changed_values(before, now)
    return [f"{'.'.join(path)} was {old!r}, is {new!r}" for path, (old, new) in changed.items()]
