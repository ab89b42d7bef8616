"""Label column and its positive values, and where they are not certain."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.mapping import Label
from ctr.io.errors import InputError
from ctr.pipelines.inference.aggregates import count_fault, count_warning, is_count_name
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.names import LABEL_HELPERS, LABEL_WORDS, RATING_WORDS
from ctr.pipelines.inference.roles import TOLERANCE, Choice, Doubt, find_column, rejects_text
from ctr.pipelines.rows.convert import is_text, parse_labels

_PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("f", "t"),
    ("neg", "pos"),
    ("negative", "positive"),
    ("notclicked", "clicked"),
    ("none", "click"),
)
_ZEROS, _ONES = {"0", "false", "0.0"}, {"1", "true", "1.0"}
# Values that say that a row is positive, and those of events that have an outcome: click, purchase and so on.
_YES, _OUTCOMES = {yes for _, yes in _PAIRS} | LABEL_WORDS | _ONES, LABEL_WORDS - {"y"}
_RULE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*\S")
# A column of more values has no rule for each of them.
_FEW_VALUES = 10
# Of a column named like a label beside one that is certain: so many rows may have other values, or none.
_NEARLY = 0.1
_WRITE = "write 0 or 1 there, or leave these rows out of the table"
_PLURALS = {"clicks", "likes"}


@dataclass(frozen=True)
class LabelColumn:
    """The label of N rows."""

    label: Label
    because: str
    values: np.ndarray  # [N] 0 or 1
    known: np.ndarray  # [N] bool, the rows with a label; the others become rejects
    warning: str = ""

    @property
    def positive(self) -> np.ndarray:
        """[N] bool: the rows whose label is 1."""
        return self.known & (self.values == 1)


def is_label_name(facts: ColumnFacts) -> bool:
    """Tells whether a name is one of labels: click, is_click, click_bool, label, installed and so on."""
    words = set(facts.words) - LABEL_HELPERS
    return bool(words) and words <= LABEL_WORDS


def plain_label(facts: ColumnFacts) -> Label | None:
    """Returns the label that a column with two values is, such as 0 and 1 or no and yes; None for other columns.

    Other values, and no value, are allowed in as many rows as the tolerance says.
    """
    found = _two_values(facts)
    return None if found is None or _fault(facts, *found) else found[0]


def _two_values(facts: ColumnFacts) -> tuple[Label, np.ndarray] | None:
    """The label that two values of a column make, and [N] bool, the rows that have neither."""
    if facts.is_list or facts.distinct < 2 or (facts.distinct > 1000 and not is_label_name(facts)):
        return None
    lower = [text.strip().lower() for text in facts.texts]
    if _ZEROS & set(lower) and _ONES & set(lower):
        values, bad, _ = parse_labels(facts.array, Label(column=facts.name))
        if len(set(values[~bad].tolist())) == 2:
            return Label(column=facts.name), bad
    if facts.numbers is not None:
        zero, one = (bool((facts.numbers == value).any()) for value in (0, 1))
        if zero and one:
            return Label(column=facts.name, op="==", value=1.0), ~np.isin(facts.numbers, [0, 1])
        if one and (facts.numbers == -1).any():
            return Label(column=facts.name, op=">", value=0.0), ~np.isin(facts.numbers, [-1, 1])
        return None
    for no, yes in _PAIRS:
        spelled = [
            [text for text, short in zip(facts.texts, lower, strict=True) if short == word]
            for word in (no, yes)
        ]
        if all(spelled) and is_text(facts.array.type):
            others = ~np.isin(facts.codes, [place for place, short in enumerate(lower) if short in (no, yes)])
            if len(spelled[1]) == 1:
                return Label(column=facts.name, op="==", value=spelled[1][0]), others
            if len(spelled[0]) == 1:
                return Label(column=facts.name, op="!=", value=spelled[0][0]), others
    return None


def _missing(facts: ColumnFacts) -> np.ndarray:
    """[N] bool: rows without a value, or with a number that is none."""
    odd = []
    if facts.numbers is not None:
        odd = [place for place, text in enumerate(facts.texts) if text.lower() == "nan"]
    return (facts.codes < 0) | np.isin(facts.codes, odd)


def _fault(facts: ColumnFacts, label: Label, others: np.ndarray) -> str:
    """Why two values of a column are not enough for a label; empty where the other rows are few.

    A value that is neither counts as a lost label of the rarer kind, since it may be one.
    """
    found = _label_column(label, facts, "")
    missing = _missing(facts)
    wrong = others & ~missing
    ones = int((found.positive & ~wrong).sum())
    rarer = min(ones, len(wrong) - int(others.sum()) - ones)
    if wrong.sum() > TOLERANCE * min(len(wrong), rarer):
        number = facts.numbers
        above = wrong & (number > 0) if number is not None else np.zeros(len(wrong), bool)
        counted = above if above.any() else wrong
        of = f"{ones + int(above.sum()):,} positive rows" if above.any() else f"{len(wrong):,} rows"
        different = len(np.unique(facts.codes[counted]))
        more = f" (or one of {different - 1} other values)" if different > 1 else ""
        most = facts.value_at(facts.codes == int(np.bincount(facts.codes[counted]).argmax()))
        text = f"{most}{more} stands in {int(counted.sum()):,} of {of}"
        return facts.placed(text, counted)
    if missing.sum() > TOLERANCE * len(missing):
        text = facts.placed(f"there is no value in {int(missing.sum()):,} of {len(missing):,} rows", missing)
        return f"{text}; {_WRITE}"
    return ""


def choose_label(
    text: str | None, columns: Mapping[str, ColumnFacts], weight: str | None = None
) -> LabelColumn | Doubt:
    """Chooses the label, given by ``--label`` or certain by name and values; InputError for what is no label."""
    if text is not None:
        return _given_label(text, columns, weight)
    plain = {name: label for name, facts in columns.items() if (label := plain_label(facts)) is not None}
    named = [name for name in plain if is_label_name(columns[name])]
    failing = [
        facts
        for name, facts in columns.items()
        if is_label_name(facts) and name not in plain and facts.present
    ]
    if len(named) == 1 and not any(map(_is_near, failing)):
        facts = columns[named[0]]
        why = "two values, and named like a label" + _neither(facts)
        return _label_column(plain[named[0]], facts, why, columns)
    if not named:
        for facts in failing or filter(is_count_name, columns.values()):
            if fault := count_fault(facts, columns):
                raise fault
    else:
        failing = list(filter(_is_near, failing)) if len(named) == 1 else []
    return _label_doubt(columns, plain, named, failing)


def _neither(facts: ColumnFacts) -> str:
    """The few rows with neither of the two values of a rule, in words after the reason; empty where there are none."""
    found = _two_values(facts)
    others = np.zeros(facts.rows, bool) if found is None else found[1] & ~_missing(facts)
    if found is None or found[0].op is None or not others.any():
        return ""
    counted = "positive" if found[0].op == "!=" else "negative"
    shown = facts.placed(facts.value_at(others), others)
    return f"; {int(others.sum()):,} of {len(others):,} rows have neither and count as {counted} ({shown})"


def _is_near(facts: ColumnFacts) -> bool:
    """Whether a column that is no label nearly is one."""
    found = _two_values(facts)
    return found is not None and not set(facts.words) & _PLURALS and found[1].mean() <= _NEARLY


def _label_doubt(
    columns: Mapping[str, ColumnFacts],
    plain: Mapping[str, Label],
    named: Sequence[str],
    failing: Sequence[ColumnFacts],
) -> Doubt:
    choices = [Choice(name, _label_share(plain[name], columns[name])) for name in named]
    for facts in failing:
        choices += _rules(facts)
    if not named:
        choices += [Choice(name, _label_share(label, columns[name])) for name, label in plain.items()]
        taken = {*plain, *(facts.name for facts in failing)}
        ratings = [_rating_choice(facts) for facts in columns.values() if facts.name not in taken]
        choices += [choice for choice in ratings if choice is not None]
        for facts in columns.values():
            outcome = facts.distinct <= _FEW_VALUES and any(
                text.strip().lower() in _OUTCOMES for text in facts.texts
            )
            if facts.name not in taken and (facts.distinct == 2 or (outcome and facts.numbers is None)):
                choices += _rules(facts)
    faults = "; ".join(f"{facts.name} is named like one, but {_label_fault(facts)}" for facts in failing[:3])
    if len(failing) == 1 and not named and _rules(failing[0]):
        question = f"which rows of {failing[0].name} are positive: {_label_fault(failing[0])}"
    elif failing:
        question = f"which column is the label: {faults}"
    elif named:
        question = f"which column is the label: {len(named)} are named like one"
    elif plain:
        question = "which column is the label: no column with two values is named like one"
    else:
        which = "no column is named like one" if choices else "none has two values"
        question = f"which column is the label: {which}; a rule such as 'rating>=4' makes one of a number"
    return Doubt("--label", question, tuple(choices))


def _label_fault(facts: ColumnFacts) -> str:
    """Why a column is no label, with a value that is none and its row."""
    found = _two_values(facts)
    if found is not None:
        return _fault(facts, *found)
    missing = facts.codes < 0
    if facts.distinct == 1:
        always = f"always {facts.value_at(~missing)}"
        if not missing.any():
            return f"it is {always}"
        none = f"it is {always}, or has no value ({int(missing.sum()):,} of {len(missing):,} rows)"
        return f"{facts.placed(none, missing)}; {_WRITE}"
    return facts.placed(f"it has {facts.distinct:,} values, e.g. {facts.value_at(~missing)}", ~missing)


def _parse_rule(text: str, columns: Mapping[str, ColumnFacts]) -> Label:
    """A column, or a rule on one; names of columns may have in them what looks like a rule."""
    if text in columns:
        return Label(column=text)
    names = {facts.stem for facts in columns.values()} | set(columns)
    for name in sorted(names, key=len, reverse=True):
        rest = text.removeprefix(name) if name and text.startswith(name) else ""
        if _RULE.match(rest):
            return Label.model_validate(f"x{rest}").model_copy(update={"column": name})
    return Label.model_validate(text)


def _given_label(text: str, columns: Mapping[str, ColumnFacts], weight: str | None) -> LabelColumn | Doubt:
    try:
        rule = _parse_rule(text, columns)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, Label, f"--label {text!r}")) from None
    facts = find_column(rule.column, columns, "--label")
    rule = rule.model_copy(update={"column": facts.name})
    if rule.op is None or weight is not None:
        fault = count_fault(facts, columns, None if rule.op is None else weight)
        if fault is not None:
            raise fault
    why = "given by --label"
    if rule.op is None and (plain := plain_label(facts)) is not None:
        rule, why = plain, why + _neither(facts)
    elif rule.op is None and (choices := _rules(facts)):
        question = f"which rows of {facts.name} are positive: {_label_fault(facts)}"
        return Doubt("--label", question, tuple(choices))
    found = _label_column(rule, facts, why, columns)
    unread = 1 - found.known.mean()
    if unread > TOLERANCE:
        bad = ~found.known
        rules = f"a rule such as --label '{facts.stem}>=4' or --label '{facts.stem}==yes' makes a label of other values"
        shown = facts.placed(facts.value_at(bad) or "no value", bad)
        raise InputError(
            f"--label {text}: {percent(unread)} of the rows have no label there ({shown}; {facts.describe()}); "
            "allowed: 0, 1, true, false, yes, no, in at least 99.5% of the rows",
            _WRITE if (_missing(facts) | ~bad).all() else rules,
        )
    if len(set(found.values[found.known].tolist())) < 2:
        only = int(found.values[found.known][0])
        raise InputError(
            f"--label {text}: all {int(found.known.sum()):,} rows that were looked at have the label {only}; "
            f"both 0 and 1 are required ({facts.describe()})"
        )
    return found


def _label_column(
    label: Label, facts: ColumnFacts, because: str, columns: Mapping[str, ColumnFacts] | None = None
) -> LabelColumn:
    try:
        values, bad, _ = parse_labels(facts.array, label)
    except InputError as error:
        raise InputError(f"--label: the column {facts.name} is {error}") from None
    warning = "" if columns is None else count_warning(label, facts, columns)
    return LabelColumn(label, because + rejects_text(facts, bad), values, ~bad, warning)


def _positive_share(label: Label, facts: ColumnFacts) -> str:
    found = _label_column(label, facts, "")
    return percent(float(found.values[found.known].mean()))


def _label_share(label: Label, facts: ColumnFacts) -> str:
    shown = " and ".join(sorted(facts.texts)) if facts.distinct == 2 else facts.describe()
    return f"{shown}, {_positive_share(label, facts)} positive"


def _rating_choice(facts: ColumnFacts) -> Choice | None:
    is_rating = bool(set(facts.words) & RATING_WORDS) and facts.numbers is not None
    return _threshold(facts) if is_rating and 3 <= facts.distinct <= 100 else None


def _threshold(facts: ColumnFacts) -> Choice:
    values = facts.finite
    levels = np.unique(values)
    level = next((float(level) for level in levels if (values >= level).mean() <= 0.6), float(levels[-1]))
    share = percent(float((values >= level).mean()))
    return Choice(f"{facts.stem}>={level:g}", f"{len(levels)} numbers, {share} of them so high", facts.name)


def _rules(facts: ColumnFacts) -> list[Choice]:
    """Rules that make a label of a column of other values, the likeliest first; none that would lose many rows."""
    if facts.is_list or facts.distinct < 2 or _missing(facts).mean() > TOLERANCE:
        return []
    if (rating := _rating_choice(facts)) is not None:
        return [rating]
    if facts.numbers is not None and facts.distinct > 2:
        return _number_rules(facts)
    if facts.distinct > _FEW_VALUES or not (is_text(facts.array.type) or facts.numbers is not None):
        return []
    places = np.argsort(facts.counts, kind="stable").tolist()
    if facts.distinct == 2:
        places = places[:1]
    else:
        said = [place for place in places if facts.texts[place].strip().lower() in _YES]
        places = (said or places)[:4]
    lower = [text.strip().lower() for text in facts.texts]
    # Of yes and Yes a rule would take but one.
    once = [place for place in places if lower.count(lower[place]) == 1]
    rules = [(_condition(facts, facts.texts[place]), place) for place in once]
    share = facts.counts / facts.present
    both = f"{' and '.join(sorted(facts.texts))}, " if facts.distinct == 2 else ""
    return [
        Choice(rule, f"{both}{percent(float(share[place]))} positive", facts.name)
        for rule, place in rules
        if rule
    ]


def _number_rules(facts: ColumnFacts) -> list[Choice]:
    low, high = float(facts.finite.min()), float(facts.finite.max())
    if not facts.is_whole:
        rule = ">=0.5" if low >= 0 and high <= 1 else ""
    elif low == 0:
        rule = ">=1"
    elif low < 0 < high:
        rule = ">0"
    else:
        return [_threshold(facts)] if facts.distinct <= _FEW_VALUES else []
    if not rule:
        return []
    label = Label.model_validate(f"x{rule}").model_copy(update={"column": facts.name})
    return [Choice(f"{facts.stem}{rule}", f"{_positive_share(label, facts)} positive", facts.name)]


def _condition(facts: ColumnFacts, text: str) -> str:
    """The rule that a column has one value, as it can be written again; empty where it cannot."""
    if not text.isprintable():
        return ""
    if facts.numbers is not None:
        return f"{facts.stem}=={text.strip()}"
    try:
        float(text)
    except ValueError:
        needs_quotes = text != text.strip() or text[0] in "\"'" or text[-1] in "\"'"
    else:
        needs_quotes = True
    return f'{facts.stem}=="{text}"' if needs_quotes else f"{facts.stem}=={text}"
