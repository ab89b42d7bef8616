"""Typed configuration: strict models, read from YAML, changed by ``key=value``.

Each part of the system keeps its own model beside itself; this module only holds what they share.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ctr.errors import InputError
from ctr.files import require_file


class StrictModel(BaseModel):
    """Refuses unknown keys and does not change after it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


ModelT = TypeVar("ModelT", bound=StrictModel)


def _allowed_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> str | None:
    """The field names of the model that the last key of ``path`` was refused by, where it can be found."""
    current: Any = model
    for key in path[:-1]:
        fields = getattr(current, "model_fields", None)
        if fields is None or key not in fields:
            return None
        current = fields[key].annotation
    fields = getattr(current, "model_fields", None)
    return ", ".join(sorted(fields)) if fields else None


def describe_validation_error(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """One line for all faults of a config: each with its key's path, the value, and what is allowed."""
    faults = []
    for fault in error.errors(include_url=False):
        path = ".".join(str(part) for part in fault["loc"]) or "(top level)"
        if fault["type"] == "extra_forbidden":
            allowed = _allowed_keys(model, fault["loc"])
            message = "unknown key" + (f"; allowed: {allowed}" if allowed else "")
        elif fault["type"] == "missing":
            message = "missing"
        else:
            received = repr(fault["input"])
            message = f"{received[:80]} is not allowed: {fault['msg']}"
        faults.append(f"{path}: {message}")
    return f"{where}: " + "; ".join(faults)


def parse_model(model: type[ModelT], content: object, where: str) -> ModelT:
    """Validates ``content`` (nested dicts) as ``model``; raises InputError with one line on any fault."""
    if not isinstance(content, dict):
        raise InputError(f"{where}: a mapping of keys to values is expected, received {type(content).__name__}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, model, where)) from None


def read_yaml(path: Path, what: str) -> Any:
    """Parses a YAML file; an empty one is an empty mapping. Raises InputError with the line of a fault."""
    try:
        content = yaml.safe_load(require_file(path, what).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path}: not YAML: {' '.join(str(error).split())}") from None
    return {} if content is None else content


def apply_settings(content: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Applies ``a.b=value`` settings (values in YAML) on a copy of ``content``, the last one winning."""
    changed = _copy_tree(content)
    for setting in settings:
        path, separator, text = setting.partition("=")
        keys = path.strip().split(".")
        if not separator or not all(keys):
            raise InputError(f"--set {setting}: the form is key.path=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(f"--set {setting}: not YAML: {' '.join(str(error).split())}") from None
        node = changed
        for key in keys[:-1]:
            child = node.setdefault(key, {})
            if not isinstance(child, dict):
                raise InputError(f"--set {setting}: {key} is a value, not a group of keys")
            node = child
        node[keys[-1]] = value
    return changed


def _copy_tree(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copy_tree(value) for key, value in node.items()}
    return node


def load_model(model: type[ModelT], path: Path, what: str, settings: Sequence[str] = ()) -> ModelT:
    """Reads, changes and validates a YAML file as ``model``."""
    content = read_yaml(path, what)
    if isinstance(content, dict):
        content = apply_settings(content, settings)
    return parse_model(model, content, f"{what} {path}")


def dump_yaml(model: BaseModel) -> str:
    """The whole model as YAML, defaults included, in the order of its fields."""
    return yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
