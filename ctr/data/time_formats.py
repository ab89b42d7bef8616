"""Formats of Python's ``strptime``, read the same on every machine, and rewritten so that Arrow reads most of them."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

ZONES = ("UTC", "GMT")  # names that %Z reads; Python would also read the names of the machine's own zone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIRECTIVES = frozenset("aAbBcdfGHIjmMpSuUVwWxXyYzZ%")
_TOKEN = re.compile(r"%.|\s+|[^%\s]+|%", re.DOTALL)
# Digits of each number where numbers touch, as in %m%d: strptime would also read fewer.
_WIDTHS = {"Y": "4", "G": "4", "j": "3", "f": "1,6", "u": "1", "w": "1"} | dict.fromkeys("mdHIMSyUWV", "2")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_SHORT_MONTHS, _SHORT_DAYS = ([name[:3] for name in names] for names in (MONTHS, WEEKDAYS))
# Of directives that can be rewritten: their text. A number that touches another one has all its digits.
_QUICK = {
    "%Y": "([0-9]{4})",
    **dict.fromkeys(("%m", "%d", "%H", "%I", "%M", "%S"), "([0-9]{1,2})"),
    "%f": "([0-9]{1,6})",
    "%z": "([+-][0-9]{2}:?[0-5][0-9]|Z)",
    "%b": f"({'|'.join(_SHORT_MONTHS)})",
    "%B": f"({'|'.join(MONTHS)})",
    "%p": "([AP]M)",
    "%a": f"(?:{'|'.join(_SHORT_DAYS)})",
    "%A": f"(?:{'|'.join(WEEKDAYS)})",
    "%Z": f"(?:{'|'.join(ZONES)})",
}
_MONTH_NUMBERS = tuple(
    (f"<{name}>", f"{number:02d}")
    for names in (MONTHS, _SHORT_MONTHS)
    for number, name in enumerate(names, 1)
)
_HOURS = tuple(
    (f"<{hour:02d} {half}>", f"{hour % 12 + 12 * (half == 'PM'):02d}")
    for half in ("AM", "PM")
    for hour in range(1, 13)
)


@dataclass(frozen=True)
class Rewriting:
    """Rewriting of texts of a format as ISO 8601."""

    pattern: str  # of the texts that are rewritten, for RE2; others are left to ``TimeFormat.read``
    steps: tuple[tuple[str, str], ...]  # patterns and what replaces them, one after another
    words: tuple[tuple[str, str], ...]  # texts, and what replaces them after the steps
    has_offset: bool


@dataclass(frozen=True)
class TimeFormat:
    """A format of ``strptime`` as it is read."""

    formats: tuple[str, ...]  # for Python, tried one after another
    parts: re.Pattern[str] | None  # splits a text into the parts of the format; None where none touch
    rewriting: Rewriting | None  # for Arrow; None where it cannot read the format

    def read(self, text: str) -> int | None:
        """Returns microseconds since 1970, in UTC where the text has no offset; None for a text of another form."""
        text = text.strip()
        if self.parts is not None:
            found = self.parts.fullmatch(text)
            if found is None:
                return None
            text = "|".join(found.groups())
        for form in self.formats:
            try:
                parsed = datetime.strptime(text, form)
            except (ValueError, re.error):
                continue
            aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
            return (aware - _EPOCH) // timedelta(microseconds=1)
        return None


def check_format(form: str) -> str:
    """Returns a format of ``strptime``. Raises ValueError where it names no part of a time, or an unknown one."""
    names = [token[1:] for token in _TOKEN.findall(form) if token.startswith("%")]
    unknown = [name for name in names if name not in _DIRECTIVES]
    if unknown:
        raise ValueError(f"%{unknown[0]} in {form!r} is no directive of strptime; %% is a percent sign")
    if not [name for name in names if name != "%"]:
        raise ValueError(
            f"{form!r} names no part of a time; allowed: iso8601, or a format of strptime such as %Y%m%d"
        )
    return form


@cache
def time_format(form: str) -> TimeFormat:
    """Finds how texts of a format are read."""
    tokens = _TOKEN.findall(form)
    numbers = [token[0] == "%" and token[1:] in _WIDTHS for token in tokens]
    around = zip([False, *numbers[:-1]], numbers, [*numbers[1:], False], strict=True)
    touches = [number and (before or after) for before, number, after in around]
    parts, spaced = None, form
    if any(touches):
        parts = re.compile("".join(map(_group, tokens, touches)), re.IGNORECASE)
        spaced = "|".join(tokens)
    # %%Z is a percent sign and a letter.
    pieces = re.split("(%.)", spaced)
    zones = ZONES if "%Z" in pieces else ZONES[:1]
    formats = ["".join(zone if piece == "%Z" else piece for piece in pieces) for zone in zones]
    return TimeFormat(tuple(formats), parts, _rewriting(tokens, touches))


def _group(token: str, touches: bool) -> str:
    if token.isspace():
        return r"(\s+)"
    if token == "%%":
        return "(%)"
    if token[0] != "%":
        return f"({re.escape(token)})"
    name = token[1:]
    if name in _WIDTHS:
        return rf"(\d{{{_WIDTHS[name]}}})" if touches else r"(\d+)"
    return r"(\D+?)" if name in "aAbBpZ" else "(.+?)"


def _rewriting(tokens: list[str], touches: list[bool]) -> Rewriting | None:
    """None where the format has other parts than ISO 8601, or not all that it takes."""
    found = [token for token in tokens if token in _QUICK]
    kinds = {{"%b": "%m", "%B": "%m", "%I": "%H", "%a": "%A"}.get(token, token) for token in found}
    directives = [token for token in tokens if token.startswith("%") and token != "%%"]
    needs = {"%M": "%H", "%S": "%M", "%f": "%S", "%z": "%H", "%p": "%I", "%I": "%p"}
    if len(found) < len(directives) or len(kinds) < len(found) or not {"%Y", "%m", "%d"} <= kinds:
        return None
    if any(part in found and not {needs[part]} & {*found, *kinds} for part in needs):
        return None
    pattern = ""
    place: dict[str, str] = {}
    for token, touching in zip(tokens, touches, strict=True):
        text = _QUICK.get(token) or (r"\s+" if token.isspace() else re.escape(token.replace("%%", "%")))
        if token in _QUICK and not text.startswith("(?"):
            place[token] = f"\\{len(place) + 1}"
        pattern += text.replace("{1,2}", "{2}") if touching else text
    month = place.get("%m") or f"<{place.get('%b') or place['%B']}>"
    hour = f"<{place['%I']} {place['%p']}>" if "%I" in place else place.get("%H", "00")
    template = f"{place['%Y']}-{month}-{place['%d']} {hour}:{place.get('%M', '00')}"
    for part, mark in (("%S", ":"), ("%f", "."), ("%z", "")):
        template += mark + place[part] if part in place else ""
    steps = ((f"^{pattern}$", template), (r"([-<: ])([0-9])\b", r"\10\2"))
    words = (*(_MONTH_NUMBERS if month[0] == "<" else ()), *(_HOURS if "%I" in place else ()))
    return Rewriting(f"^{pattern}$", steps, words, "%z" in place)
