"""Records of a csv stream whose quotes are malformed, which a parser would accept.

A value may stand in quotes (RFC 4180): its quote is the first character of a field, its end is followed by a delimiter,
a line end or nothing, and a quote within is doubled. A quote elsewhere in a field is a plain character. Where that
does not hold the line in which the record begins is at fault, and what comes after it is read anew: so a quote that is
never closed costs the line that it is in, and not all lines until the next quote.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

UNCLOSED = "a quote is never closed"
TEXT_AFTER = "text after a closing quote"
ALLOWED = "a quoted value ends with a quote before the delimiter or line end; quotes within are doubled"

_QUOTE, _NEWLINE, _RETURN = b'"'[0], b"\n"[0], b"\r"[0]
_MARK = b"\xef\xbb\xbf"
_IS_BOUNDARY, _IS_QUOTE = 1, 2


@dataclass
class StrictQuotes:
    """Csv stream, read-only, with each malformed line replaced by an invalid one, of too many or few fields.

    So who parses it refuses that line, at its place.
    """

    stream: Any  # of bytes; ``read(n)`` returns b"" at its end
    delimiter: str
    fields: int  # of a record
    limit: int  # bytes; a quoted value is taken to be never closed where its record would be longer
    # Reason and original line, by what stands for the line in the stream.
    faults: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    closed: bool = False
    _pending: bytes = b""
    _ready: bytes = b""
    _ended: bool = False
    _begun: bool = False

    def __post_init__(self) -> None:
        # What each byte is to a quote beside it.
        kinds = bytearray(256)
        for byte in (ord(self.delimiter), _NEWLINE, _RETURN):
            kinds[byte] = _IS_BOUNDARY
        kinds[_QUOTE] = _IS_QUOTE
        self._kinds = bytes(kinds)

    def close(self) -> None:
        # The stream stays open: it is the caller's.
        self.closed = True

    def read(self, size: int = -1) -> bytes:
        """Reads at most ``size`` bytes, whole records wherever they fit; b"" at the end."""
        if size < 0:
            pieces = iter(lambda: self.read(1 << 24), b"")
            return b"".join(pieces)
        while not self._ready and not self._ended:
            data = self.stream.read(max(size - len(self._pending), 1 + size // 2))
            self._ended = not data
            data = self._pending + data
            self._ready, cut = self._checked(data, self._ended)
            self._pending = data[cut:]
            self._begun = self._begun or cut > 0
        found = self._ready
        if len(found) > size:
            self._ready = found[size:]
            return found[:size]
        self._ready = b""
        return found

    def _checked(self, data: bytes, final: bool) -> tuple[bytes, int]:
        """What can be passed on of ``data``, which begins with a record, and how many bytes of it that stands for."""
        if _QUOTE not in data:
            cut = len(data) if final else _line_end_before(data, 0, len(data))
            if cut == 0 and len(data) > self.limit:
                cut = len(data)
            return data if cut == len(data) else data[:cut], cut
        # As if the data stood between line ends; what follows its last byte may still have to come.
        kinds = np.frombuffer(b"".join((b"\x01", data.translate(self._kinds), b"\x01")), np.uint8)
        places = np.flatnonzero(kinds == _IS_QUOTE)
        if not self._begun and places[0] == 1 + len(_MARK) and data.startswith(_MARK):
            kinds = np.concatenate([np.full(len(_MARK) + 1, _IS_BOUNDARY, np.uint8), kinds[len(_MARK) + 1 :]])
        # In well-formed text quotes open and close by turns; a doubled one closes and opens.
        if kinds[places[0::2] - 1].all() and kinds[places[1::2] + 1].all():
            outside = len(places) % 2 == 0
            if final and outside:
                return data, len(data)
            cut = _record_end_before(data, places - 1, outside)
            if not final and len(data) - cut <= self.limit:
                return data[:cut], cut
        opens = kinds[places - 1] == _IS_BOUNDARY
        closes = kinds[places + 1] == _IS_BOUNDARY
        doubled = kinds[places + 1] == _IS_QUOTE
        return self._scan(
            data, (places - 1).tolist(), opens.tolist(), closes.tolist(), doubled.tolist(), final
        )

    def _scan(
        self,
        data: bytes,
        places: Sequence[int],
        opens: Sequence[bool],
        closes: Sequence[bool],
        doubled: Sequence[bool],
        final: bool,
    ) -> tuple[bytes, int]:
        """Goes from quote to quote and replaces the lines that are at fault; as ``_checked``."""
        pieces: list[bytes] = []
        # Up to where all is passed on, where the record begins, and from where on no quote is open.
        passed = record = outside = number = 0
        while number < len(places):
            place = places[number]
            record = max(record, _line_end_before(data, outside, place))
            if not opens[number]:
                outside, number = place + 1, number + 1
                continue
            last = number + 1
            while last < len(places) and doubled[last]:
                last += 2
            ends = last < len(places)
            if ends and closes[last] and (final or places[last] < len(data) - 1):
                outside, number = places[last] + 1, last + 1
                continue
            is_unknown = not ends or closes[last]
            if is_unknown and not final and len(data) - record <= self.limit:
                break
            line_end = _line_end_after(data, record)
            is_cut = line_end == len(data) and data[-1:] not in (b"\n", b"\r")
            if is_cut and not final and len(data) - record <= self.limit:
                break
            crosses = not ends or places[last] >= line_end
            reason = UNCLOSED if crosses else TEXT_AFTER
            pieces += [data[passed:record], self._replace(reason, data[record:line_end])]
            passed = record = outside = line_end
            number = bisect_left(places, line_end)
        else:
            record = len(data) if final else max(record, _line_end_before(data, outside, len(data)))
        pieces.append(data[passed:record])
        return b"".join(pieces), record

    def _replace(self, reason: str, line: bytes) -> bytes:
        token = f"\x02{len(self.faults)}\x02"
        text = token if self.fields > 1 else f"{token}{self.delimiter}{token}"
        self.faults[text] = reason, line.rstrip(b"\r\n")
        return text.encode() + b"\n"


def _line_end_before(data: bytes, first: int, last: int) -> int:
    """The place after the last line end in data[first:last]; 0 without any."""
    return max(data.rfind(b"\n", first, last), data.rfind(b"\r", first, last)) + 1


def _line_end_after(data: bytes, first: int) -> int:
    """The place after the first line end from ``first`` on; the end of the data without any."""
    newline = data.find(b"\n", first)
    stop = len(data) if newline < 0 else newline
    ret = data.find(b"\r", first, stop)
    if ret < 0:
        return len(data) if newline < 0 else newline + 1
    return ret + 2 if ret + 1 == newline else ret + 1


def _record_end_before(data: bytes, places: np.ndarray, outside: bool) -> int:
    """The end of the last whole record of well-formed data; ``outside``: no quote is open at its end."""
    if outside:
        found = _line_end_before(data, int(places[-1]) + 1, len(data))
        if found:
            return found
    number = len(places) - (2 if outside else 1)
    while number >= 0:
        first = int(places[number - 1]) + 1 if number else 0
        found = _line_end_before(data, first, int(places[number]))
        if found:
            return found
        number -= 2
    return 0
