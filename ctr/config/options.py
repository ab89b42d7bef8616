"""Options of optimizers as groups of a configuration: dataclasses that check their values themselves."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ctr.optim.checked import Options


@dataclass(frozen=True)
class OptionsKey:
    """Annotates a field of a model: a group with the options of a dataclass.

    Attributes:
        start: the options where a file gives none.
        without: paths of those that a file cannot give.
        check: raises ValueError for options that the dataclass allows and this field does not.
        presets: by name, what the key ``preset`` starts from instead.
    """

    start: Options
    without: frozenset[str] = frozenset()
    check: Callable[[Any], object] | None = None
    presets: Mapping[str, Options] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Reads and dumps by the functions below."""
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.dump)
        )

    def read(self, content: Any) -> Any:
        """Returns the options, from a mapping of some of them."""
        if isinstance(content, type(self.start)):
            return content
        if not isinstance(content, dict):
            raise ValueError("a group of keys is required")
        start, given = self.start, dict(content)
        if self.presets and "preset" in given:
            name = given.pop("preset")
            if name not in self.presets:
                raise ValueError(f"preset is {name!r}; allowed: {', '.join(self.presets)}")
            start = self.presets[name]
        options = start.changed(given, self.without)
        if self.check is not None:
            self.check(options)
        return options

    def dump(self, options: Options) -> dict[str, Any]:
        """Returns the options that a file can give."""
        return pruned(asdict(options), self.without)


def pruned(content: Mapping[str, Any], without: frozenset[str]) -> dict[str, Any]:
    """Returns nested mappings without what is at some paths."""
    found = {}
    for name, value in content.items():
        if name in without:
            continue
        below = frozenset(path.removeprefix(f"{name}.") for path in without if path.startswith(f"{name}."))
        found[name] = pruned(value, below) if isinstance(value, Mapping) else value
    return found
