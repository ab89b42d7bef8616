"""Typed configuration: strict models, read from YAML, changed by ``key=value``.

Each part of the system keeps its own model beside itself; this module only holds what they share.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ctr.io.documents import parse_yaml, read_short_floats
from ctr.io.errors import InputError
from ctr.io.files import not_text, require_file
from ctr.io.paths import address_fault
from ctr.io.words import did_you_mean

log = logging.getLogger(__name__)


def _refuse_address(value: Any) -> Any:
    if isinstance(value, str | Path) and (fault := address_fault(value)):
        raise ValueError(fault)
    return value


LocalPath = Annotated[Path, BeforeValidator(_refuse_address)]
"""Type of every key that is a path: refuses addresses such as ``s3://bucket/log``."""

LocalName = Annotated[str, BeforeValidator(_refuse_address)]
"""Type of a key that is the text of a path, or a glob of files."""


class StrictModel(BaseModel):
    """Refuses unknown keys, texts and truth values for numbers, and does not change after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_content(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        faults: list[InitErrorDetails] = []
        # Pydantic would read "5" and true as the numbers 5 and 1, and "off" and 0 as false.
        for name, field in cls.model_fields.items():
            value = content.get(field.alias or name)
            types = _leaf_types(field.annotation)
            if types <= _NUMBERS and _holds(value, str | bool):
                needed = "a number is required"
            elif types <= _NUMBERS and _holds_beyond(value, float not in types):
                needed = _bound_text(field.metadata, float not in types)
            elif types <= _TRUTHS and _holds(value, str | int | float) and not _holds(value, bool):
                needed = "true or false is required"
            else:
                continue
            error = PydanticCustomError("conversion", needed)
            faults.append({"type": error, "loc": (field.alias or name,), "input": value})
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return content


_NUMBERS = frozenset({int, float, type(None)})
_TRUTHS = frozenset({bool, type(None)})


def _leaf_types(annotation: Any) -> frozenset[Any]:
    """Types of the values that an annotation allows, within tuples and dicts too."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal or not arguments:
        return frozenset({origin or annotation})
    if origin is Annotated:
        return _leaf_types(arguments[0])
    if origin is dict:
        return _leaf_types(arguments[1])
    return frozenset().union(*(_leaf_types(argument) for argument in arguments if argument is not Ellipsis))


def _holds(value: Any, types: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds(part, types) for part in value)
    if isinstance(value, dict):
        return any(_holds(part, types) for part in value.values())
    return isinstance(value, types)


def _holds_beyond(value: Any, whole: bool) -> bool:
    """Tells whether any whole number fits neither into 64 bits nor, unless ``whole``, into a float."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_holds_beyond(part, whole) for part in value)
    return isinstance(value, int) and not -(2**63 if whole else 2**1023) <= value < (
        2**63 if whole else 2**1023
    )


def _bound_text(metadata: Sequence[object], whole: bool) -> str:
    """Bound that a number much too large has to be below, in the words of pydantic."""
    for bound in metadata:
        if isinstance(bound, annotated_types.Lt):
            return f"Input should be less than {bound.lt}"
        if isinstance(bound, annotated_types.Le):
            return f"Input should be less than or equal to {bound.le}"
    return f"Input should be less than {2**63 if whole else '1e308'}"


ModelT = TypeVar("ModelT", bound=StrictModel)


def _allowed_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> str | None:
    """Field names of the model that the last key of ``path`` was refused by, where it can be found."""
    found: list[Any] = [model]
    for key in path[:-1]:
        found = [part for one in found for part in _parts(one, key)]
    models = [one for one in found if isinstance(one, type) and issubclass(one, BaseModel)]
    return ", ".join(sorted(models[0].model_fields)) if len(models) == 1 else None


def _dotted_keys(kind: Any, path: str = "") -> Iterator[str]:
    """Keys of a model and of those in it, by their paths; none below a list or a name of one's own."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            key = f"{path}{field.alias or name}"
            yield key
            for one in _kinds(field.annotation):
                yield from _dotted_keys(one, f"{key}.")


def _parts(kind: Any, key: int | str) -> list[Any]:
    """Types that may stand under a key, or the kind of that tag among several, as an error's path names it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        by_name = {field.alias or name: field for name, field in kind.model_fields.items()}
        if key in by_name:
            return _kinds(by_name[str(key)].annotation)
        tags = [get_args(field.annotation) for field in by_name.values()]
        return [kind] if any(key in tag for tag in tags) else []
    arguments = [part for part in get_args(kind) if part is not Ellipsis]
    if get_origin(kind) is dict:
        return _kinds(arguments[1])
    return [part for argument in arguments for part in _kinds(argument)] if isinstance(key, int) else []


def _kinds(annotation: Any) -> list[Any]:
    """Types that an annotation allows, each by itself."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, UnionType):
        return [kind for argument in arguments for kind in _kinds(argument)]
    return [annotation]


def describe_validation_error(
    error: ValidationError, model: type[BaseModel], where: str, prefix: str = ""
) -> str:
    """One line for all faults of a config: each with its key's path, the value, and what is allowed.

    ``prefix`` stands before each path: where in a larger file the keys lie.
    """
    faults = []
    found = error.errors(include_url=False)
    for fault in found:
        deeper = [other["loc"] for other in found if len(other["loc"]) > len(fault["loc"])]
        if fault["type"] == "too_short" and any(loc[: len(fault["loc"])] == fault["loc"] for loc in deeper):
            # Items that are refused are not counted; they are named by themselves.
            continue
        path = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        if not (path or prefix) and fault["type"] == "value_error":
            # About several keys, which the message names.
            faults.append(fault["msg"].removeprefix("Value error, "))
            continue
        path = f"{prefix}{path}" if path else prefix.rstrip(".") or "(top level)"
        if fault["type"] == "extra_forbidden":
            allowed = _allowed_keys(model, fault["loc"])
            meant = did_you_mean(path.removeprefix(prefix), list(_dotted_keys(model)))
            message = "unknown key" + (f"; allowed: {allowed}" if allowed else "") + meant
        elif fault["type"] == "missing":
            message = "missing"
        else:
            received = repr(fault["input"])
            message = f"{received[:80]} is not allowed: {fault['msg'].removeprefix('Value error, ')}"
        faults.append(f"{path}: {message}")
    return f"{where}: " + "; ".join(faults)


def parse_model(model: type[ModelT], content: object, where: str, prefix: str = "") -> ModelT:
    """Validates ``content`` (nested dicts) as ``model``; raises InputError with one line on any fault."""
    if not isinstance(content, dict):
        raise InputError(
            f"{where}: a mapping of keys to values is expected, received {type(content).__name__}"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, model, where, prefix)) from None


class Dumper(yaml.SafeDumper):
    """Writes what ``parse_yaml`` reads: the text 1e-6 in quotes."""


read_short_floats(Dumper)


def read_yaml(path: Path, what: str) -> Any:
    """Parses a YAML file; an empty one is an empty mapping. Raises InputError with the line of a fault."""
    if found := not_text(require_file(path, what)):
        raise InputError(f"{what} {path}: is {found}; allowed: YAML in UTF-8")
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{what} {path}: not YAML: {error}") from None
    log.info("read %s %s", what, path)
    return {} if content is None else content


def apply_settings(content: Any, settings: Sequence[str]) -> Any:
    """Applies ``a.b=value`` settings (values in YAML) on a copy of ``content``, the last one winning.

    What is no mapping comes back as it is, for ``parse_model`` to refuse.
    """
    changed = _copy_tree(content)
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


def _copy_tree(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copy_tree(value) for key, value in node.items()}
    return node


def load_model(model: type[ModelT], path: Path | None, what: str, settings: Sequence[str] = ()) -> ModelT:
    """Reads, changes and validates a YAML file as ``model``; without a file, the defaults are changed."""
    content = read_yaml(path, what) if path is not None else {}
    where = f"{what} {path}" if path is not None else "settings"
    return parse_model(model, apply_settings(content, settings), where)


def dump_yaml(model: BaseModel) -> str:
    """Dumps the whole model as YAML, defaults included, in the order of its fields."""
    return yaml.dump(model.model_dump(mode="json", by_alias=True), Dumper=Dumper, sort_keys=False)


def changed_values(
    before: Mapping[str, Any], now: Mapping[str, Any], above: tuple[str, ...] = ()
) -> dict[tuple[str, ...], tuple[Any, Any]]:
    """Old and new value of each key that differs between two nested mappings, by the key's path."""
    changed: dict[tuple[str, ...], tuple[Any, Any]] = {}
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changed |= changed_values(old, new, (*above, key))
        elif old != new:
            changed[*above, key] = (old, new)
    return changed


def differing_keys(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences of two nested mappings, a text for each key with its path, its old and its new value."""
    changed = changed_values(before, now)
    return [f"{'.'.join(path)} was {old!r}, is {new!r}" for path, (old, new) in changed.items()]
