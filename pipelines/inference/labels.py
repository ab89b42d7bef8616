"""Label column and its positive values, where they are not certain, and tables whose rows have no label of their own.

The last are those of whole pages, and of counts of several impressions and their clicks.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.ids.arrow import is_text
from ctr.data.mapping import Label, LabelOp
from ctr.io.errors import InputError
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import ColumnProfile, Columns, count_rows, percent
from ctr.pipelines.inference.roles import (
    TOLERANCE,
    Choice,
    Doubt,
    LabelColumn,
    Roles,
    find_column,
    rejects_text,
)
from ctr.pipelines.rows.convert import parse_labels

_ZEROS, _ONES = {"0", "false", "0.0"}, {"1", "true", "1.0"}
# Values that say that a row is positive, and those of events that have an outcome: click, purchase and so on.
_YES, _OUTCOMES = (
    {yes for _, yes in lexicon.NO_AND_YES} | lexicon.LABEL_WORDS | _ONES,
    lexicon.LABEL_WORDS - {"y"},
)
_RULE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*\S")
# A column of more values has no rule for each of them.
_FEW_VALUES = 10
# Of a column named like a label beside one that is certain: so many rows may have other values, or none.
_NEARLY = 0.1
_WRITE = "write 0 or 1 there, or leave these rows out of the table"
_PLURALS = frozenset(("clicks", "likes"))


def _read_label(label: Label, column: ColumnProfile, because: str = "", warning: str = "") -> LabelColumn:
    try:
        values, bad, _ = parse_labels(column.array, label)
    except InputError as error:
        raise InputError(f"--label: the column {column.name} is {error}") from None
    return LabelColumn(label, because + rejects_text(column, bad), values, ~bad, warning)


def is_label_name(column: ColumnProfile) -> bool:
    """Tells whether a name is one of labels: click, is_click, click_bool, label, installed and so on."""
    return column.consists_of(lexicon.LABEL_WORDS, lexicon.LABEL_HELPERS)


def plain_label(column: ColumnProfile) -> Label | None:
    """Returns the label that a column with two values is, such as 0 and 1 or no and yes; None for other columns.

    Other values, and no value, are allowed in as many rows as the tolerance says.
    """
    found = _two_values(column)
    return None if found is None or _fault(column, *found) else found[0]


def _two_values(column: ColumnProfile) -> tuple[Label, np.ndarray] | None:
    """The label that two values of a column make, and [N] bool, the rows that have neither."""
    name, lower, numbers = column.name, column.lower, column.numbers
    if column.is_list or len(lower) < 2 or (len(lower) > 1000 and not is_label_name(column)):
        return None
    if _ZEROS & set(lower) and _ONES & set(lower):
        values, bad, _ = parse_labels(column.array, Label(column=name))
        if len(set(values[~bad].tolist())) == 2:
            return Label(column=name), bad
    if numbers is not None:
        if (numbers == 1).any() and (numbers == 0).any():
            return Label(column=name, op="==", value=1.0), ~np.isin(numbers, [0, 1])
        if (numbers == 1).any() and (numbers == -1).any():
            return Label(column=name, op=">", value=0.0), ~np.isin(numbers, [-1, 1])
    elif is_text(column.array.type):
        for no, yes in lexicon.NO_AND_YES:
            # A rule takes one spelling.
            op: LabelOp = "==" if lower.count(yes) == 1 else "!="
            word = yes if op == "==" else no
            if {no, yes} <= set(lower) and lower.count(word) == 1:
                others = ~np.isin(column.codes, [n for n, text in enumerate(lower) if text in (no, yes)])
                return Label(column=name, op=op, value=column.texts[lower.index(word)]), others
    return None


def _missing(column: ColumnProfile) -> np.ndarray:
    """[N] bool: rows without a value, or with a number that is none."""
    texts = column.texts if column.numbers is not None else ()
    odd = [place for place, text in enumerate(texts) if text.lower() == "nan"]
    return (column.codes < 0) | np.isin(column.codes, odd)


def _fault(column: ColumnProfile, label: Label, others: np.ndarray) -> str:
    """Why two values of a column are not enough for a label; empty where the other rows are few.

    A value that is neither counts as a lost label of the rarer kind, since it may be one.
    """
    missing = _missing(column)
    wrong = others & ~missing
    ones = int((_read_label(label, column).positive & ~wrong).sum())
    rarer = min(ones, len(wrong) - int(others.sum()) - ones)
    if wrong.sum() > TOLERANCE * min(len(wrong), rarer):
        counted, of = wrong, f"{len(wrong):,} rows"
        if column.numbers is not None and (above := wrong & (column.numbers > 0)).any():
            counted, of = above, f"{ones + int(above.sum()):,} positive rows"
        different = len(np.unique(column.codes[counted]))
        more = f" (or one of {different - 1} other values)" if different > 1 else ""
        most = column.value_at(column.codes == int(np.bincount(column.codes[counted]).argmax()))
        return column.placed(f"{most}{more} stands in {int(counted.sum()):,} of {of}", counted)
    if missing.sum() > TOLERANCE * len(missing):
        none = f"there is no value in {count_rows(missing)}"
        return f"{column.placed(none, missing)}; {_WRITE}"
    return ""


def choose_label(roles: Roles) -> LabelColumn | Doubt:
    """Chooses the label, given by ``--label`` or certain by name and values; InputError for what is no label."""
    columns = roles.columns
    if roles.options.label is not None:
        return _given_label(roles.options.label, columns, roles.options.weight)
    plain = {name: label for name, column in columns.items() if (label := plain_label(column)) is not None}
    labels = [column for column in columns.values() if is_label_name(column)]
    named = [column.name for column in labels if column.name in plain]
    failing = [column for column in labels if column.name not in plain and column.present]
    if named:
        failing = [column for column in failing if len(named) == 1 and _is_near(column)]
        if len(named) == 1 and not failing:
            column, label = columns[named[0]], plain[named[0]]
            why = "two values, and named like a label" + _neither(column)
            return _read_label(label, column, why, _count_warning(label, column, columns))
    else:
        for column in failing or filter(_is_count_name, columns.values()):
            if fault := _count_fault(column, columns):
                raise fault
    return _label_doubt(columns, plain, named, failing)


def _neither(column: ColumnProfile) -> str:
    """The few rows with neither of the two values of a rule, in words after the reason; empty where there are none."""
    found = _two_values(column)
    if found is None or found[0].op is None or not (others := found[1] & ~_missing(column)).any():
        return ""
    counted = "positive" if found[0].op == "!=" else "negative"
    return f"; {count_rows(others)} have neither and count as {counted} ({column.first_of(others)})"


def _is_near(column: ColumnProfile) -> bool:
    """Returns whether a column that is no label nearly is one."""
    found = _two_values(column)
    return found is not None and not column.has_word(_PLURALS) and bool(found[1].mean() <= _NEARLY)


def _label_doubt(
    columns: Columns, plain: Mapping[str, Label], named: Sequence[str], failing: Sequence[ColumnProfile]
) -> Doubt:
    choices = [_plain_choice(columns[name], plain[name]) for name in named]
    for column in failing:
        choices += _rules(column)
    if not named:
        choices += [_plain_choice(columns[name], label) for name, label in plain.items()]
        taken = {*plain, *(column.name for column in failing)}
        free = [column for name, column in columns.items() if name not in taken]
        choices += [choice for column in free if (choice := _rating_choice(column)) is not None]
        for column in free:
            is_event = column.distinct <= _FEW_VALUES and not _OUTCOMES.isdisjoint(column.lower)
            if column.distinct == 2 or (is_event and column.numbers is None):
                choices += _rules(column)
    faults = "; ".join(f"{one.name} is named like one, but {_label_fault(one)}" for one in failing[:3])
    question = f"which column is the label: {faults}"
    if len(failing) == 1 and not named and _rules(failing[0]):
        question = f"which rows of {failing[0].name} are positive: {_label_fault(failing[0])}"
    elif named and not failing:
        question += f"{len(named)} are named like one"
    elif plain and not failing:
        question += "no column with two values is named like one"
    elif not failing:
        which = "no column is named like one" if choices else "none has two values"
        question += f"{which}; a rule such as 'rating>=4' makes one of a number"
    return Doubt("--label", question, tuple(choices))


def _label_fault(column: ColumnProfile) -> str:
    """Why a column is no label, with a value that is none and its row."""
    found = _two_values(column)
    if found is not None:
        return _fault(column, *found)
    missing = column.codes < 0
    value = column.value_at(~missing)
    if column.distinct > 1:
        return column.placed(f"it has {column.distinct:,} values, e.g. {value}", ~missing)
    if not missing.any():
        return f"it is always {value}"
    none = f"it is always {value}, or has no value ({count_rows(missing)})"
    return f"{column.placed(none, missing)}; {_WRITE}"


def _parse_rule(text: str, columns: Columns) -> Label:
    """A column, or a rule on one; names of columns may have in them what looks like a rule."""
    if text in columns:
        return Label(column=text)
    names = {column.stem for column in columns.values()} | set(columns)
    for name in sorted(filter(text.startswith, names), key=len, reverse=True):
        if name and _RULE.match(rest := text.removeprefix(name)):
            return _rule_on(name, rest)
    return Label.model_validate(text)


def _rule_on(name: str, rule: str) -> Label:
    return Label.model_validate(f"x{rule}").model_copy(update={"column": name})


def _given_label(text: str, columns: Columns, weight: str | None) -> LabelColumn | Doubt:
    try:
        rule = _parse_rule(text, columns)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, Label, f"--label {text!r}")) from None
    column = find_column(rule.column, columns, "--label")
    rule = rule.model_copy(update={"column": column.name})
    if rule.op is None or weight is not None:
        fault = _count_fault(column, columns, None if rule.op is None else weight)
        if fault is not None:
            raise fault
    why = "given by --label"
    if rule.op is None and (plain := plain_label(column)) is not None:
        rule, why = plain, why + _neither(column)
    elif rule.op is None and (choices := _rules(column)):
        question = f"which rows of {column.name} are positive: {_label_fault(column)}"
        return Doubt("--label", question, tuple(choices))
    found = _read_label(rule, column, why, _count_warning(rule, column, columns))
    unread = 1 - found.known.mean()
    if unread > TOLERANCE:
        bad = ~found.known
        stem = column.stem
        rules = f"a rule such as --label '{stem}>=4' or --label '{stem}==yes' makes a label of other values"
        raise InputError(
            f"--label {text}: {percent(unread)} of the rows have no label there ({column.first_of(bad)}; "
            f"{column.describe()}); allowed: 0, 1, true, false, yes, no, in at least 99.5% of the rows",
            _WRITE if (_missing(column) | ~bad).all() else rules,
        )
    if len(set(found.values[found.known].tolist())) < 2:
        only = int(found.values[found.known][0])
        raise InputError(
            f"--label {text}: all {int(found.known.sum()):,} rows that were looked at have the label {only}; "
            f"both 0 and 1 are required ({column.describe()})"
        )
    return found


def _plain_choice(column: ColumnProfile, label: Label) -> Choice:
    shown = " and ".join(sorted(column.texts)) if column.distinct == 2 else column.describe()
    return Choice(column.name, f"{shown}, {_read_label(label, column).share} positive")


def _rating_choice(column: ColumnProfile) -> Choice | None:
    is_rating = column.has_word(lexicon.RATING_WORDS) and column.numbers is not None
    return _threshold(column) if is_rating and 3 <= column.distinct <= 100 else None


def _threshold(column: ColumnProfile) -> Choice:
    values = column.finite
    levels = np.unique(values)
    level = next((float(level) for level in levels if (values >= level).mean() <= 0.6), float(levels[-1]))
    share = percent(float((values >= level).mean()))
    return Choice(f"{column.stem}>={level:g}", f"{len(levels)} numbers, {share} of them so high", column.name)


def _rules(column: ColumnProfile) -> list[Choice]:
    """Rules that make a label of a column of other values, the likeliest first; none that would lose many rows."""
    if column.is_list or column.distinct < 2 or _missing(column).mean() > TOLERANCE:
        return []
    if (rating := _rating_choice(column)) is not None:
        return [rating]
    if column.numbers is not None and column.distinct > 2:
        return _number_rules(column)
    if column.distinct > _FEW_VALUES or not (is_text(column.array.type) or column.numbers is not None):
        return []
    places, both = np.argsort(column.counts, kind="stable").tolist(), ""
    if column.distinct == 2:
        places, both = places[:1], f"{' and '.join(sorted(column.texts))}, "
    else:
        said = [place for place in places if column.lower[place] in _YES]
        places = (said or places)[:4]
    choices = []
    for place in places:
        rule = _condition(column, column.texts[place])
        # Of yes and Yes a rule would take but one.
        if rule and column.lower.count(column.lower[place]) == 1:
            share = percent(float(column.counts[place] / column.present))
            choices.append(Choice(rule, f"{both}{share} positive", column.name))
    return choices


def _number_rules(column: ColumnProfile) -> list[Choice]:
    low, high = float(column.finite.min()), float(column.finite.max())
    if not column.is_whole:
        rule = ">=0.5" if low >= 0 and high <= 1 else ""
    elif low == 0:
        rule = ">=1"
    elif low < 0 < high:
        rule = ">0"
    else:
        return [_threshold(column)] if column.distinct <= _FEW_VALUES else []
    if not rule:
        return []
    share = _read_label(_rule_on(column.name, rule), column).share
    return [Choice(f"{column.stem}{rule}", f"{share} positive", column.name)]


def _condition(column: ColumnProfile, text: str) -> str:
    """The rule that a column has one value, as it can be written again; empty where it cannot."""
    if not text.isprintable():
        return ""
    if column.numbers is not None:
        return f"{column.stem}=={text.strip()}"
    try:
        float(text)
    except ValueError:
        needs_quotes = text != text.strip() or text[0] in "\"'" or text[-1] in "\"'"
    else:
        needs_quotes = True
    return f'{column.stem}=="{text}"' if needs_quotes else f"{column.stem}=={text}"


_ROWS = 1000
_SHARE = 0.95
_ITEM = re.compile(r"[^\s,;|\[\](){}'\"]+")
# MIND: N55689-1 N35729-0.
_WITH_LABELS = re.compile(r"[^\s,;|]+[-:][01]([\s,;|]+[^\s,;|]+[-:][01])+")
_ALLOWED = "allowed: one row for each impression, with a column of 0 and 1"


def find_page(columns: Columns) -> str:
    """Tells why a row is a whole list of impressions, and what is allowed; empty where nothing says so."""
    for column in columns.values():
        texts = [] if column.is_list else column.texts[:_ROWS]
        # A page of one impression has no second item.
        if texts and sum(_WITH_LABELS.fullmatch(text) is not None for text in texts) > 0.5 * len(texts):
            return (
                f"a row is a whole page: {column.name} is a list of impressions, each with its label behind it, as in "
                f"MIND's behaviors.tsv (which ctr ingest mind reads under that name, beside its news.tsv); {_ALLOWED}"
            )
    items = {name: _items(column) for name, column in columns.items()}
    lengths = {name: [len(row) for row in rows if row] for name, rows in items.items()}
    lists = {name: items[name] for name, found in lengths.items() if found and np.mean(found) > 1.2}
    outcomes = {name for name, column in columns.items() if column.has_word(lexicon.LABEL_WORDS)}
    for name, rows in sorted(items.items(), key=lambda item: item[0] not in outcomes):
        outcome = name in outcomes
        if outcome and name in lists and set(chain.from_iterable(rows)) <= {"0", "1"}:
            return f"a row is a whole page: {name} is a list of labels, one for each item shown; {_ALLOWED}"
        for shown, others in lists.items():
            named = outcome or columns[shown].has_word(lexicon.SHOWN_WORDS)
            if name != shown and named and _is_part(rows, others):
                return (
                    f"a row is a whole page: {shown} lists what was shown, and {name} what was clicked of it; "
                    f"allowed: one row for each item of {shown}, with 1 where {name} has it, else 0"
                )
    return ""


def _items(column: ColumnProfile) -> list[list[str]]:
    """The items of each of the first rows; of a column of single values, one or none."""
    if column.is_list and pa.types.is_null(column.array.type.value_type):
        return [[]] * min(_ROWS, len(column.array))
    if column.is_list:
        values = column.array.slice(0, _ROWS).cast(pa.list_(pa.string())).to_pylist()
        return [[item for item in row or [] if item is not None] for row in values]
    found = [_ITEM.findall(text) for text in column.texts]
    return [found[code] if code >= 0 else [] for code in column.codes[:_ROWS].tolist()]


def _is_part(rows: list[list[str]], others: list[list[str]]) -> bool:
    """Returns whether a column's items are, row by row, some of those of another column."""
    pairs = [(set(row), set(other)) for row, other in zip(rows, others, strict=True) if row]
    inside = sum(row <= other for row, other in pairs)
    fewer = sum(len(row) < len(other) for row, other in pairs)
    return len(pairs) >= 5 and inside >= _SHARE * len(pairs) and fewer > 0.5 * len(pairs)


def _is_count_name(column: ColumnProfile) -> bool:
    """Returns whether a name is that of a number of outcomes: clicks, num_clicks, total_conversion."""
    return column.consists_of(lexicon.LABEL_WORDS, lexicon.LABEL_HELPERS | lexicon.COUNT_WORDS)


def _counts(column: ColumnProfile) -> np.ndarray | None:
    """[N] whole numbers from 0 on, 0 where there is none; None where they are others, or only 0 and 1."""
    found = column.finite
    if column.numbers is None or not column.is_whole or found.min() < 0 or found.max() <= 1:
        return None
    return np.nan_to_num(column.numbers)


def _exposures(columns: Columns, names: frozenset[str]) -> list[tuple[ColumnProfile, np.ndarray]]:
    """The columns that count impressions, by the words of their names; and the counts."""
    helpers = lexicon.COUNT_WORDS | {"ad", "ads", "page", "of"}
    named = [one for one in columns.values() if one.consists_of(names, helpers)]
    return [(one, counts) for one in named if (counts := _counts(one)) is not None]


def _exposure_of(column: ColumnProfile, columns: Columns) -> tuple[ColumnProfile, str, np.ndarray] | None:
    """The column that no number of clicks is above; the share of clicks; and [N] bool, where there are several."""
    clicks = _counts(column) if _is_count_name(column) else None
    if clicks is None:
        return None
    for shown, counts in _exposures(columns, lexicon.EXPOSURE_WORDS):
        if shown is not column and (clicks > counts).mean() <= TOLERANCE:
            rate = percent(float(column.finite.sum() / max(shown.finite.sum(), 1.0)))
            return shown, rate, clicks > 1
    return None


def _count_fault(column: ColumnProfile, columns: Columns, weight: str | None = None) -> InputError | None:
    """Why a column is no label: it counts the clicks of several impressions; None where it does not.

    Where --weight names a column (``weight``), only a weight by the impressions is wrong.
    """
    found = _exposure_of(column, columns)
    if found is None:
        return None
    shown, rate, several = found
    if weight is not None and weight.lower() not in (shown.name.lower(), shown.stem.lower()):
        return None
    values = f"{column.name} {column.value_at(several)}, {shown.name} {shown.value_at(several)}"
    return InputError(
        f"{column.name} is no label: a row counts what became of several impressions "
        f"({column.placed(values, several)}), of which {rate} are positive; allowed: a row is one impression, with the "
        "label 0 or 1",
        f"write each row {shown.name} times, {column.name} of them with the label 1 and the others with 0; --label "
        f"'{column.stem}>0' without --weight predicts whether any of a row's impressions was positive",
    )


def _count_warning(label: Label, column: ColumnProfile, columns: Columns) -> str:
    """A warning of a label in a table that may count impressions; empty where it does not."""
    if label.op is not None and (found := _exposure_of(column, columns)) is not None:
        return (
            f"warning: a row counts several impressions, and the label is whether any of them was positive; of the "
            f"impressions {found[1]} are ({column.name} / {found[0].name})"
        )
    for shown, counts in _exposures(columns, lexicon.IMPRESSION_WORDS):
        if shown is not column:
            return (
                f"warning: {shown.name} has values above 1 ({shown.first_of(counts > 1)}): if a "
                "row counts several impressions, its label is not that of one"
            )
    return ""
