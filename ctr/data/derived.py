"""Columns computed from a row's time or from another column, by rules that ingestion and the exported model share."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    model_validator,
)

from ctr.config import ShortModel, StrictModel
from ctr.config.plugins import RulePlugins
from ctr.data.spelling import Cast
from ctr.data.times import Duration, duration_us

TIME_SOURCE = "time"  # name of a row's parsed time in a rule

TIME_COLUMN = "time_us"  # raw column of that time, int64 microseconds since 1970 UTC; missing before 1970

Column = Annotated[str, Field(min_length=1, title="name of a column")]


class ColumnRule(StrictModel):
    """A rule of another package that converts strings to strings: subclasses add keys and the two methods.

    A missing value is passed as the empty text; an empty result also means missing. Text that is not UTF-8 is missing.

    Attributes:
        probes: texts, in addition to common ones, for which exports check that both methods return the same.
    """

    probes: ClassVar[tuple[str, ...]] = ()

    def of_text(self, text: str) -> str:
        """Converts the text of a row, at ingestion; called once for each distinct value."""
        raise NotImplementedError

    def of_tensor(self, texts: Any) -> Any:
        """Computes the same in the exported graph, strings [N] from strings [N], with TensorFlow operations only."""
        raise NotImplementedError


def _one_rule(rules: dict[str, StrictModel]) -> dict[str, StrictModel]:
    for name, rule in rules.items():
        if not isinstance(rule, ColumnRule):
            raise ValueError(f"{name} is no subclass of ctr.data.derived.ColumnRule")
    if len(rules) > 1:
        raise ValueError(f"{' and '.join(rules)}: at most one is possible")
    return rules


class Derived(ShortModel):
    """A new raw column, computed from the time of the row or from another column.

    Without ``part``, ``every``, ``prefix``, ``cast`` and ``plugin`` it is a copy.

    Attributes:
        source: the column that it is derived from; ``time`` for the parsed time of the row.
        part: the hour of the day (0 to 23) or the day of the week (Monday is 0) of the time, in UTC.
        every: the number of whole periods of this length between 1970 and the time.
        prefix: the number of characters to keep from the start of the value, as a category spells it.
        cast: how values are spelled: ``text`` as written, ``integer`` as whole numbers, ``number`` as numbers,
            ``decimal_comma`` as numbers with the comma replaced by a point.
        plugin: a rule of another package (entry points ``ctr.features``) by its name, with its keys. Empty: none.
    """

    left_out = ("plugin",)
    model_config = ConfigDict(serialize_by_alias=True)

    source: Column = Field(alias="from")
    part: Literal["hour", "weekday"] | None = None
    every: Duration | None = None
    prefix: int | None = Field(default=None, ge=1)
    cast: Cast | None = None
    plugin: Annotated[RulePlugins, AfterValidator(_one_rule)] = {}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = self.part, self.every, self.prefix, self.cast, self.plugin or None
        if sum(way is not None for way in ways) > 1:
            raise ValueError("part, every, prefix, cast and plugin cannot be combined")
        if self.of_time and self.source != TIME_SOURCE:
            raise ValueError("part and every are computed from the row's time; required: from: time")
        return self

    @property
    def of_time(self) -> bool:
        return self.part is not None or self.every is not None

    @property
    def column(self) -> str:
        return TIME_COLUMN if self.of_time else self.source

    @property
    def is_copy(self) -> bool:
        return not (self.of_time or self.prefix is not None or self.cast is not None or self.plugin)

    @property
    def rule(self) -> ColumnRule | None:
        """Returns the rule of another package, or None without ``plugin``."""
        return next((rule for rule in self.plugin.values() if isinstance(rule, ColumnRule)), None)

    @property
    def periods(self) -> tuple[int, int, int]:
        """Returns length (microseconds), shift and count of ``(time // length + shift) % count``; count 0: no ``%``."""
        if self.part is not None:
            # 1970-01-01 was a Thursday; Monday is 0.
            return (duration_us("1h"), 0, 24) if self.part == "hour" else (duration_us("1d"), 3, 7)
        assert self.every is not None
        return (duration_us(self.every), 0, 0)
