"""Rejected rows: their positions and reasons, and the limit on their share."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes

# Default limit of the share of rejected rows, above which an ingest stops.
MAX_REJECT_SHARE = 0.01
EARLY_ROWS = 100_000  # from this many rows on, the share of rejects is also checked before the input ends
# The reason of lines that are no rows: they are counted, and do not count against the allowed share.
REPEATED_HEADER = "repeats the header"

_SHOWN = 80


@dataclass(frozen=True)
class Reject:
    """Rejected row, with the refused value and the reason."""

    file: int  # number of the source file
    row: int  # 1-based line or record number
    key: str  # the column or the part of the mapping that refused it
    reason: str
    value: str
    allowed: str


def make_reject(file: int, row: int, key: str, reason: str, value: object, allowed: str) -> Reject:
    """Makes a Reject with the value as text, cut to 80 characters."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="backslashreplace")
    text = "" if value is None else str(value)
    return Reject(file, row, key, reason, text[:_SHOWN], allowed)


def reject_line(reject: Reject, file: str) -> bytes:
    """Formats a reject of the named file as a line of JSON."""
    return json_line({**asdict(reject), "file": file})


def json_line(content: Mapping[str, object]) -> bytes:
    """Formats an object as a line of JSON in UTF-8."""
    # A value cut out of broken UTF-8 (a lone surrogate from JSON, say) must not break the record of it.
    return f"{json.dumps(content, ensure_ascii=False)}\n".encode("utf-8", errors="backslashreplace")


def reject_reasons(rejects: Iterable[Reject]) -> dict[str, int]:
    """Counts rejects by ``key: reason``, the most frequent first."""
    counted = Counter(f"{reject.key}: {reject.reason}" for reject in rejects)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def check_reject_share(share: float) -> None:
    """Raises InputError for a share of rejects that is not from 0 to 1."""
    if not 0 <= share <= 1:
        raise InputError(f"--max-reject-share {share} is not allowed: a share from 0 to 1")


@dataclass
class RejectLog:
    """Rejects of one ingest, which stop it when their share is too large."""

    names: Sequence[str]  # of the source files, by their numbers
    max_share: float
    path: Path
    rejects: list[Reject] = field(default_factory=list)
    _headers: int = 0

    def add(self, rejects: Iterable[Reject]) -> None:
        before = len(self.rejects)
        self.rejects.extend(rejects)
        self._headers += sum(reject.reason == REPEATED_HEADER for reject in self.rejects[before:])

    def check(self, rows: int) -> None:
        """Raises InputError when more than the allowed share of ``rows`` rows is rejected."""
        count = len(self.rejects) - self._headers
        rows -= self._headers
        if count > self.max_share * rows:
            counted = Counter((r.key, r.reason) for r in self.rejects if r.reason != REPEATED_HEADER)
            (key, reason), most = counted.most_common(1)[0]
            alike = (r for r in self.rejects if (r.key, r.reason) == (key, reason))
            first = min(alike, key=lambda r: (r.file, r.row))
            raise InputError(
                f"{count} of {rows} rows rejected, more than the allowed share of {self.max_share:g}; most often "
                f"{key}: {reason} ({most} rows, first {self.names[first.file]} row {first.row}, "
                f"value {first.value!r}; allowed: {first.allowed})"
            )

    def write(self) -> None:
        """Writes one JSON object per line, by file and row; without rejects, removes the file of an earlier run."""
        if not self.rejects:
            self.path.unlink(missing_ok=True)
            return
        ordered = sorted(self.rejects, key=lambda r: (r.file, r.row, r.key, r.reason, r.value))
        write_atomic_bytes(
            self.path, b"".join(reject_line(reject, self.names[reject.file]) for reject in ordered)
        )
