"""Options of optimizers as groups of a configuration: dataclasses that check their values themselves."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Options:
    """Annotates a field of a model: a group with the options of a dataclass.

    Attributes:
        start: the options where a file gives none.
        without: those that a file cannot give.
        check: raises ValueError for options that the dataclass allows and this field does not.
    """

    start: Any
    without: frozenset[str] = frozenset()
    check: Callable[[Any], object] | None = None

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
        allowed = sorted(self.dump(self.start))
        unknown = sorted(set(map(str, content)) - set(allowed))
        if unknown:
            raise ValueError(f"unknown key {unknown[0]}; allowed: {', '.join(allowed)}")
        options = replace(self.start, **content)
        if self.check is not None:
            self.check(options)
        return options

    def dump(self, options: Any) -> dict[str, Any]:
        """Returns the options that a file can give."""
        return {name: value for name, value in asdict(options).items() if name not in self.without}
