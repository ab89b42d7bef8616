"""Result of an ingest, and its text for people."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctr.data.times import format_time


def few(names: Sequence[str]) -> str:
    """Lists the first three names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@dataclass(frozen=True)
class IngestResult:
    """Rows that an ingest has read, rejected and published."""

    rows: int  # of the input that were read
    examples: int  # rows in the partitions that it published, those that were held back before among them
    queries: int
    clicks: int | None  # examples with label 1; None: rows have no labels
    rejected: int
    reject_reasons: dict[str, int]  # by ``key: reason``, the most frequent first
    rejects_file: Path | None
    partitions: list[tuple[int, int]]  # published ones (start, end) of query time, in microseconds
    first_time_us: int | None  # query time, None where nothing was published
    last_time_us: int | None
    held_rows: int  # held back until later ones come
    held_partitions: list[tuple[int, int]]
    # Before this query time the log takes no more rows, but in partitions without any.
    closed_until_us: int | None
    known_files: list[str]  # files of the input that were in the log before; they were not added again
    warnings: list[str]
    seconds: dict[str, float]  # how long each stage was busy; stages overlap

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rejects_file": str(self.rejects_file or "")}

    def as_text(self) -> str:
        """Describes it in a line, followed by what is kept unpublished, the reasons of rejects, and warnings."""
        clicks = "no labels" if self.clicks is None else f"{self.clicks} clicks"
        text = f"{self.examples} examples, {self.queries} queries, {clicks}"
        text += f", {len(self.partitions)} partitions, {self.seconds['total']:.1f} s"
        if self.known_files:
            shown, count = few(self.known_files), len(self.known_files)
            text += f"\n{count} {'files are' if count > 1 else 'file is'} in the log already, not added again: {shown}"
        if self.held_rows:
            start, end = self.held_partitions[0][0], self.held_partitions[-1][1]
            text += (
                f"\n{self.held_rows} rows of [{format_time(start)}, {format_time(end)}) are kept unpublished, as "
                "--append asks, until later rows come; ctr ingest without files and without --append publishes them"
            )
        elif self.closed_until_us is not None:
            text += (
                f"\npublished up to {format_time(self.closed_until_us)}: earlier rows are no longer accepted; "
                "for more files use --append"
            )
        if self.rejected:
            # Without new files, duplicates among the rows that were kept unpublished.
            share = f"{self.rejected} of {self.rows}" if self.rows else f"{self.rejected}"
            text += f"\n{share} rows rejected, see {self.rejects_file}:"
            text += "".join(f"\n  {count} x {reason}" for reason, count in self.reject_reasons.items())
        return text + "".join(f"\nwarning: {warning}" for warning in self.warnings)
