"""What the choices of roles share: the user's options, questions, and how many rows a role may cost.

The column of weights and that of example ids are chosen here; label, time and query have modules of their own.
"""

from dataclasses import dataclass, field

import numpy as np

from ctr.data.mapping import Label, Time
from ctr.io.errors import InputError, listed
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import ColumnProfile, Columns, count_rows, percent
from ctr.pipelines.inference.features import Decision
from ctr.pipelines.inference.sample import Sample
from ctr.pipelines.rows.convert import parse_weights

NONE = "none"  # what --query, --time and --weight take for: there is none
# At most this share of the rows, and of the positive ones, becomes rejects for a role's sake.
TOLERANCE = 0.005


@dataclass(frozen=True)
class Options:
    """Decisions of the user, as the options of the command."""

    label: str | None = None  # a column, or a rule such as ``rating>=4``
    query: str | None = None
    session_gap: str | None = None
    time: str | None = None  # also with the form of the column as in ``when=ms``
    weight: str | None = None
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # features although something speaks against it


@dataclass(frozen=True)
class Choice:
    """Possible answer to a doubt: a value of the option."""

    value: str
    because: str
    column: str = ""  # that it is about, where the value is not its name


@dataclass(frozen=True)
class Doubt:
    """Question that the user has to decide by an option."""

    option: str
    question: str  # with the value that makes it one and its row
    choices: tuple[Choice, ...]  # the likeliest first


@dataclass(frozen=True)
class LabelColumn:
    """The label of N rows."""

    label: Label
    because: str
    values: np.ndarray  # [N] 0 or 1; 0 where it is not known
    known: np.ndarray  # [N] bool, the rows with a label; the others become rejects
    warning: str = ""

    @property
    def positive(self) -> np.ndarray:
        """[N] bool: the rows whose label is 1."""
        return self.values == 1

    @property
    def share(self) -> str:
        return percent(float(self.values[self.known].mean()))


@dataclass(frozen=True)
class TimeColumn:
    """A column that can be read as a time in most of N rows."""

    column: ColumnProfile
    time: Time
    us: np.ndarray  # [N] int64 microseconds since 1970; 0 where ``bad``
    bad: np.ndarray  # [N] bool, the rows without a readable time
    rank: float  # how much its name, and that it only grows, speak for the time of the row
    other: str = ""  # another format that reads as many of its values
    is_open: bool = False  # nothing speaks for one of the two formats

    @property
    def bad_share(self) -> float:
        return float(self.bad.mean())

    @property
    def rejects(self) -> str:
        """Tells how many rows have no readable time, and the first; empty where all have one."""
        if not self.bad.any():
            return ""
        share = f"{count_rows(self.bad)} have no readable time ({percent(self.bad_share)})"
        return f"{share}: {show_value(self.column, self.bad)}"


def show_value(column: ColumnProfile, rows: np.ndarray) -> str:
    """Formats the value of the first of some rows, [N] bool, and its number where that is known."""
    code = int(column.codes[np.argmax(rows)])
    return column.placed("no value" if code < 0 else repr(" ".join(column.texts[code].split())[:60]), rows)


@dataclass
class Roles:
    """Columns of a sample of N rows, what the user decides, and the roles that are known so far."""

    columns: Columns
    options: Options
    sample: Sample
    used: dict[str, Decision] = field(default_factory=dict)  # by column
    label: LabelColumn | None = None
    time: TimeColumn | None = None
    query: ColumnProfile | None = None
    weight: ColumnProfile | None = None
    example_id: ColumnProfile | None = None

    @property
    def free(self) -> list[ColumnProfile]:
        return [column for name, column in self.columns.items() if name not in self.used]

    @property
    def positive(self) -> np.ndarray | None:
        """[N] bool, the rows with the label 1; None where there is no label."""
        return None if self.label is None else self.label.positive

    def is_none(self, text: str | None) -> bool:
        """Tells whether an option says that no column has a role."""
        return text == NONE and NONE not in self.columns


Chosen = tuple[ColumnProfile | None, str]
"""A column, or none, and why."""


def find_column(name: str, columns: Columns, option: str) -> ColumnProfile:
    """Finds the column that the user names: exactly, without RecBole's ending, or in other case; or InputError."""
    if name in columns:
        return columns[name]
    for names in ([column.stem for column in columns.values()], [column.lower() for column in columns]):
        wanted = name if name in names else name.lower()
        several = [column for column, other in zip(columns, names, strict=True) if other == wanted]
        if len(several) == 1:
            return columns[several[0]]
        if several:
            raise InputError(f"{option} {name}: may be {' or '.join(several)}: write the name as it is there")
    raise InputError(f"{option} {name}: no such column; the columns are {listed(list(columns), name)}")


def rejects_text(column: ColumnProfile, bad: np.ndarray) -> str:
    """Formats the rows that become rejects, [N] bool, to follow the reason of a role; empty where there are none."""
    if not bad.any():
        return ""
    return f"; {count_rows(bad)} become rejects ({column.first_of(bad)})"


def too_many(bad: np.ndarray, positive: np.ndarray | None) -> str:
    """Tells which rows, [N] bool, are too many to become rejects, such as ``60 of 3,000 rows``; empty where few.

    Of the positive rows, [N] bool, no more may be lost than the tolerance and chance allow.
    """
    lost = int(bad.sum())
    if lost > TOLERANCE * len(bad):
        return count_rows(bad)
    if positive is None or not positive.any():
        return ""
    clicks, all_clicks = int((bad & positive).sum()), int(positive.sum())
    expected = lost * all_clicks / len(bad)
    if clicks > max(TOLERANCE * all_clicks, expected + 4 * expected**0.5 + 1):
        return f"{clicks:,} of {all_clicks:,} positive rows"
    return ""


def choose_weight(roles: Roles) -> Chosen | Doubt:
    """Chooses the weights, given or certain by their name, and says why; InputError for a wrong --weight."""
    text = roles.options.weight
    if roles.is_none(text):
        return None, ""
    if text is not None:
        column = find_column(text, roles.columns, "--weight")
        bad, fault = _weight_fault(column, roles.positive)
        if fault:
            raise InputError(
                f"--weight {text}: allowed: numbers from 0 on in every row; {fault} ({column.describe()})"
            )
        return column, "given by --weight" + rejects_text(column, bad)
    for column in roles.free:
        if not is_weight_name(column) or not column.present:
            continue
        bad, fault = _weight_fault(column, roles.positive)
        if fault:
            question = f"which column is the weight: {column.name} is named like one, but {fault}"
            return Doubt("--weight", question, (Choice(NONE, "each row counts once"),))
        # Numbers such as 007 are codes elsewhere, and weights here.
        if column.distinct > 1 and (column.numbers is None or column.finite.min() < column.finite.max()):
            return column, "its name and values" + rejects_text(column, bad)
    return None, ""


def is_weight_name(column: ColumnProfile) -> bool:
    """Tells whether a name is one of importance weights."""
    return column.plain_name in lexicon.WEIGHT_NAMES


def _weight_fault(column: ColumnProfile, positive: np.ndarray | None) -> tuple[np.ndarray, str]:
    """[N] bool, the rows without a weight that can be, and why they are too many; empty where they are few."""
    try:
        _, bad = parse_weights(column.array)
    except InputError as error:
        return np.ones(column.rows, bool), f"it is {error}"
    many = too_many(bad, positive)
    if not many:
        return bad, ""
    value = column.value_at(bad)
    stands = f"{value} is no weight" if value else "there is no value"
    return bad, f"{column.placed(stands, bad)} ({many})"


def choose_example_id(roles: Roles) -> Chosen:
    """Chooses the column that names each row, by its name and because hardly a value comes twice; and why, or why not.

    Only where the sample is the whole table may values come twice, as few as the tolerance says.
    """
    why_not = ""
    for column in roles.free:
        if not (column.plain_name in lexicon.EXAMPLE_NAMES and column.rows > 1 and _may_name_rows(column)):
            continue
        bad = np.ones(column.rows, bool)
        bad[np.unique(column.codes, return_index=True)[1]] = False
        bad |= column.codes < 0
        if not bad.any():
            return column, "its name, and no value comes twice"
        # A row may be sent twice; `id` alone may be that of a user.
        may_repeat = roles.sample.whole and column.plain_name != "id"
        if bad.sum() <= TOLERANCE * column.rows and (may_repeat or not (bad & (column.codes >= 0)).any()):
            return column, "its name, and hardly a value comes twice" + rejects_text(column, bad)
        if column.distinct > 0.5 * column.rows and not why_not:
            shown = column.placed(f"{value} again" if (value := column.value_at(bad)) else "no value", bad)
            why_not = (
                f"{column.name} is named like the id of a row and is none: {count_rows(bad)} "
                f"have an earlier row's, or none ({shown})"
            )
    return None, why_not


def is_single(column: ColumnProfile) -> bool:
    """Tells whether the values are words or numbers, as ids are."""
    return column.kind in ("word", "commas", "number")


def _may_name_rows(column: ColumnProfile) -> bool:
    has_fractions = any("." in text or "e" in text.lower() for text in column.texts[:100])
    return is_single(column) and (column.numbers is None or (column.is_whole and not has_fractions))
