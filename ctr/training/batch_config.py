"""Configuration of batches: how many rows they have, and to what sizes they are padded."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ctr.config import StrictModel

if TYPE_CHECKING:
    from ctr.data.batches import BatchSize

GROWTH, GROWTH_FUSED = 1 / 1024, 1 / 4096
"""Shares of the rows before a batch, and where one call learns from many batches."""
_OPEN = frozenset(("growth", "least"))


class BatchConfig(StrictModel):
    """How rows are packed into batches: whole queries, up to a number of rows.

    Attributes:
        rows: maximum rows of a batch; whole queries are packed until the next one no longer fits.
        growth: the share of the rows before it that a batch may have, rounded down to a power of two, up to ``rows``
            and at least ``least``: so a short log has many steps, and a long one large batches. ``auto``: null where
            ``rows`` is given; 1/4096, or 1/1024 with what no call of many batches can do: ranking, a label delay,
            constraint logs, roots on the host. Null: batches have ``rows`` from the start.
        least: rows that a batch may have whatever ``growth`` says. ``auto``: 1, or 8 with a ``growth`` that is given,
            and where ``auto`` takes 1/1024.
        max_query_rows: maximum rows of a query. A query with more rows than ``rows`` is a batch of its own; one with
            more than this is set aside, counted and named; where those but the largest one are more than a tenth of
            the rows read so far, the run stops.
        within_partitions: end a batch where a partition of the log ends, so that a partition is trained on
            without waiting for the next one.
        shapes: the sizes that batches are padded to, for each of which XLA compiles the step. ``many``: of rows, ids,
            values and pairs one of several sizes each, so that little is padding. ``few``: at most four sets of sizes,
            whatever the log has (``ctr.training.shapes``), where a compilation takes minutes; tables whose ids grow
            have all rows from the start that ``ids.capacity`` allows. ``auto``: few on a TPU. Results change by
            rounding only.
        steps_per_execution: how many batches of up to 256 rows one compiled call scores and learns from, one after the
            other, where nothing is due on the host between two of them (``ctr.training.fused_steps``). 1, or
            ``jit`` false: each batch is a call of its own. Results change by rounding only.
    """

    rows: int = Field(default=4096, ge=1, le=2**20)
    growth: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] | None = GROWTH_FUSED
    least: Annotated[int, Field(ge=1, le=2**20)] | Literal["auto"] = 1
    max_query_rows: int = Field(default=65536, ge=1, le=2**22)
    within_partitions: bool = False
    shapes: Literal["auto", "few", "many"] = "auto"
    steps_per_execution: int = Field(default=64, ge=1, le=1024)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        given = {name: one for name, one in content.items() if name not in _OPEN or one != "auto"}
        if "growth" in given:
            return {"least": 8, **given}
        return {"growth": None, **given} if "rows" in given else given

    def sizes(self, origin: int = 0) -> "BatchSize":
        """Returns how many rows batches have by position; ``origin`` is where the first one begins."""
        from ctr.data.batches import BatchSize

        growth = self.growth if isinstance(self.growth, float) else None
        return BatchSize(self.rows, growth, first=int(self.least), origin=origin)

    @model_validator(mode="after")
    def _largest_at_least_rows(self) -> Self:
        if self.max_query_rows < self.rows:
            raise ValueError(f"max_query_rows ({self.max_query_rows}) must be at least rows ({self.rows})")
        return self
