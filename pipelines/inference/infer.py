"""Infers a mapping from a sample of a table; what is not certain is a ``Doubt``: a label is never guessed silently."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.mapping import DelimitedInput, Mapping
from ctr.data.times import DAY_US, duration_us, format_time
from ctr.io.errors import InputError, joined
from ctr.pipelines.inference.aggregates import find_page
from ctr.pipelines.inference.columns import ColumnFacts, column_facts, find_nulls, percent, without_nulls
from ctr.pipelines.inference.features import Decision, decide_feature, dropped, feature_name
from ctr.pipelines.inference.forms import TableFiles
from ctr.pipelines.inference.labels import LabelColumn, choose_label, is_label_name, plain_label
from ctr.pipelines.inference.leaks import AFTER_CLICK, find_leak, find_outcome, strongest_columns
from ctr.pipelines.inference.queries import Rows, choose_query
from ctr.pipelines.inference.roles import (
    Doubt,
    choose_example_id,
    choose_time,
    choose_weight,
    find_column,
    is_weight_name,
)
from ctr.pipelines.inference.sample import Sample
from ctr.pipelines.inference.times import TimeColumn, is_other_time, with_range

PARTITION_ROWS = 500_000  # at most, if all partitions had as many as the mean
KEPT_ROWS = 1_000_000  # up to so many rows of a table the raw values behind its ids are kept
_PARTITIONS = ("7d", "1d", "6h", "1h", "10m", "1m")
_ROW_ORDER = {"start": "2001-01-01T00:00:00Z", "step_us": 1000}
_ROW_ORDER_PARTITION = "8m"


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
class Guess:
    """Column of a table, what it becomes, and why."""

    column: str
    becomes: str
    because: str


@dataclass
class Inference:
    """Result of an inference: a mapping, or doubts that the user has to decide."""

    guesses: list[Guess] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mapping: Mapping | None = None  # None while there are doubts
    content: dict[str, Any] = field(default_factory=dict)  # as a mapping file has it: without defaults
    reasons: dict[str, str] = field(default_factory=dict)  # by name of a feature or key of the mapping
    strongest: list[tuple[str, float, int]] = field(default_factory=list)  # see ``strongest_columns``


@dataclass
class _Roles:
    """The columns with a role, and why; the label's values where there is a label."""

    label: LabelColumn | None = None
    time: TimeColumn | None = None
    query: ColumnFacts | None = None
    example_id: ColumnFacts | None = None
    weight: ColumnFacts | None = None
    used: dict[str, tuple[str, str]] = field(default_factory=dict)


def infer(table: TableFiles, sample: Sample, options: Options) -> Inference:
    """Infers the mapping of a table; InputError for an option that cannot be, or where no feature is left."""
    form = table.form
    nulls = find_nulls(sample.columns) if isinstance(form, DelimitedInput) else ()
    file = table.files[0].name if len(table.files) > 1 else ""
    columns = {
        name: column_facts(name, without_nulls(array, nulls), sample.row_numbers, file)
        for name, array in sample.columns.items()
    }
    if len(columns) < 2:
        names = "".join(f" ({name[:40]})" for name in columns)
        raise InputError(
            f"{table.files[0].path}: has {len(columns)} column{'s' * (len(columns) != 1)} that can be read{names}; "
            "a label and at least one feature are required, in columns between commas, tabs, ; or |"
        )
    refused = [find_column(name, columns, "--drop").name for name in options.drop]
    for role in ("label", "time", "query", "weight"):
        if (name := getattr(options, role)) in refused:
            raise InputError(f"--{role} {name}: --drop takes the same column out; leave one of the two out")
    kept = [find_column(name, columns, "--keep").name for name in options.keep]
    free = {name: facts for name, facts in columns.items() if name not in refused}
    result = Inference()
    roles = _choose_roles(free, sample, options, result)
    if roles.label is None and (page := find_page(free)):
        raise InputError(f"{table.files[0].path}: {page}")
    decisions = {name: dropped("--drop says so") for name in refused}
    decisions |= dict(_decide(free, roles, kept))
    for name in columns:
        becomes, because = roles.used.get(name) or (decisions[name].becomes, decisions[name].because)
        values = columns[name].describe()
        result.guesses.append(Guess(name, becomes, f"{because}; {values}" if because else values))
    result.guesses += [Guess(name, "not used", why) for name, why in sample.unusable.items()]
    _add_notes(result, table, sample, roles, nulls)
    if outcomes := [name for name, one in decisions.items() if one.is_outcome]:
        result.notes.append(f"not used, {AFTER_CLICK}: {', '.join(outcomes)}; --keep COLUMN keeps one")
    if roles.label is not None:
        used = {name: columns[name] for name, one in decisions.items() if one.feature is not None}
        result.strongest = strongest_columns(used, roles.label.values, roles.label.known)
    if not result.doubts:
        _make_mapping(result, table, sample, roles, decisions, nulls, options)
    return result


def _choose_roles(
    columns: dict[str, ColumnFacts], sample: Sample, options: Options, result: Inference
) -> _Roles:
    roles = _Roles()
    label = choose_label(options.label, columns, options.weight)
    if isinstance(label, Doubt):
        _ask(label, roles, result, columns)
    else:
        roles.label = label
        share = percent(float(label.values[label.known].mean()))
        op, value = label.label.op, label.label.value
        rule = "" if op is None else f" {op} {f'{value:g}' if isinstance(value, float) else value}"
        roles.used[label.label.column] = (f"label{rule}", f"{label.because}; {share} positive")
        result.notes += [label.warning] if label.warning else []
    time = choose_time(options.time, columns, sample.head_rows, list(roles.used))
    if isinstance(time, Doubt):
        _ask(time, roles, result, columns)
    elif time is not None:
        roles.time = time
        other = f", though {time.other} reads it too" if time.other else ""
        why = ("given by --time" if options.time else "read as one") + other
        roles.used[time.facts.name] = (f"time, {time.time.form}", why)
        if rejects := time.rejects:
            result.notes.append(f"{time.facts.name}: {rejects}; such rows become rejects")
    positive = None if roles.label is None else roles.label.positive
    rows = Rows(sample.head_rows, roles.time, positive)
    query = choose_query(options.query, columns, list(roles.used), rows)
    if isinstance(query, Doubt):
        _ask(query, roles, result, columns)
    else:
        roles.query, why = query
        result.reasons["query"] = why
        if roles.query is not None and not options.session_gap:
            roles.used[roles.query.name] = ("query", why)
    _check_session(options, roles)
    weight = choose_weight(options.weight, columns, list(roles.used), positive)
    if isinstance(weight, Doubt):
        _ask(weight, roles, result, columns)
    else:
        roles.weight, why = weight
        if roles.weight is not None:
            roles.used[roles.weight.name] = ("weight", why)
        elif options.weight is not None:
            named = [
                name for name, facts in columns.items() if is_weight_name(facts) and name not in options.keep
            ]
            unused = ("not used", "named like a weight, and --weight none says that there is none")
            roles.used = dict.fromkeys(named, unused) | roles.used
    time_facts = None if roles.time is None else roles.time.facts
    others = {"--time": time_facts, "--query": roles.query, "--weight": roles.weight}
    for option, facts in others.items():
        if facts is not None and roles.label is not None and facts.name == roles.label.label.column:
            raise InputError(f"{option} {facts.name}: this column is the label")
    roles.example_id, why = choose_example_id(columns, list(roles.used), sample.whole)
    if roles.example_id is not None:
        roles.used[roles.example_id.name] = ("example id", why)
    elif why:
        result.notes.append(why)
    return roles


def _ask(doubt: Doubt, roles: _Roles, result: Inference, columns: dict[str, ColumnFacts]) -> None:
    """Adds a doubt; the columns that it is about are nothing else."""
    result.doubts.append(doubt)
    role = doubt.option.removeprefix("--")
    asked = [choice.column or choice.value for choice in doubt.choices]
    roles.used |= {name: (f"{role}?", f"choose with {doubt.option}") for name in asked if name in columns}


def _check_session(options: Options, roles: _Roles) -> None:
    if options.session_gap is None:
        return
    try:
        duration_us(options.session_gap)
    except ValueError as error:
        raise InputError(f"--session-gap {options.session_gap}: {error}") from None
    if options.query is None or roles.query is None:
        raise InputError("--session-gap goes with --query COLUMN, such as that of the user")
    if roles.time is None and options.time is not None:
        raise InputError("--session-gap requires a time; --time none says that there is none")


def _decide(
    columns: dict[str, ColumnFacts], roles: _Roles, kept: list[str]
) -> Iterator[tuple[str, Decision]]:
    """What becomes of each column that has no role."""
    seen: dict[bytes, ColumnFacts] = {}
    for name in roles.used:
        seen.setdefault(columns[name].codes.tobytes(), columns[name])
    for name, facts in columns.items():
        if name in roles.used:
            continue
        decision = decide_feature(facts)
        if name in kept:
            if decision.feature is None:
                decision = Decision("category", "", {"kind": "category", "source": name})
            yield name, replace(decision, because="--keep says so")
            continue
        twin = seen.setdefault(facts.codes.tobytes(), facts)
        if reason := _outcome(facts, roles):
            why = f"{reason}; --keep {shlex.quote(name)} keeps it"
            decision = Decision("not used", why, is_outcome=True)
        elif reason := _exclusion(facts, twin, decision):
            decision = dropped(reason)
        yield name, decision


def _outcome(facts: ColumnFacts, roles: _Roles) -> str:
    """Tells why a column is known only after the impression; empty where nothing says so."""
    if is_label_name(facts) and plain_label(facts) is not None:
        return f"{AFTER_CLICK}: another outcome"
    if roles.label is None:
        return ""
    arguments = facts.with_points or facts, roles.label.values, roles.label.known
    return find_leak(*arguments) or find_outcome(*arguments)


def _exclusion(facts: ColumnFacts, twin: ColumnFacts, decision: Decision) -> str:
    """Why a column that could be a feature is none; empty where it is one."""
    if decision.feature is None:
        return ""
    if "propensity" in facts.words:
        return "how likely a policy was to show the row belongs to the policy, not to the row"
    if twin is not facts and _is_duplicate(facts, twin, decision):
        return f"a duplicate of {twin.name}"
    if decision.feature["kind"] != "number" and is_other_time(facts):
        return "a time that is not the time of the row"
    return ""


def _is_duplicate(facts: ColumnFacts, twin: ColumnFacts, decision: Decision) -> bool:
    """Whether a column whose values change in the same rows as those of another one says the same."""
    if list(facts.texts) == list(twin.texts):
        return True
    # Of columns without repetition the values always change in the same rows.
    return decision.becomes == "category" and facts.distinct < 0.5 * facts.present


def _add_notes(
    result: Inference, table: TableFiles, sample: Sample, roles: _Roles, nulls: tuple[str, ...]
) -> None:
    result.notes.append(f"inferred from {sample.describe()}")
    form = table.form
    if isinstance(form, DelimitedInput):
        shown = {"\t": "tab", " ": "space", "\x01": "\\x01"}
        delimiter = shown.get(form.field_delimiter, form.field_delimiter)
        header = "no header: the columns are named c1, c2, ..."
        if form.header:
            header = "the first line names the columns"
        if form.skip_lines:
            header = f"without the first {form.skip_lines} line{'s' * (form.skip_lines > 1)}; {header}"
        result.notes.append(f"read as {form.type}, delimiter {delimiter}; {header}")
    result.notes += table.notes
    if nulls:
        result.notes.append(f"read as missing: {', '.join(nulls)}")
    if sample.malformed:
        result.notes.append(f"{sample.malformed:,} rows of the sample could not be read: they become rejects")
    if sample.headers:
        result.notes.append(
            f"{sample.headers:,} lines of the sample repeat the header: they are rejects, not rows"
        )
    if names := sample.lacking[:5]:
        lacking = [f"{name} ({table.lacking[name]})" if table.lacking else name for name in names]
        more = ", ..." if len(sample.lacking) > 5 else ""
        result.notes.append(f"missing where a file lacks them: {', '.join(lacking)}{more}")
    if roles.time is None and not any(doubt.option == "--time" for doubt in result.doubts):
        result.notes.append("no column is the time of the row: the order of the rows is the order of time")
    if roles.query is None and "query" in result.reasons:
        result.notes.append(result.reasons["query"])
    if table.suggestion:
        result.notes.append(table.suggestion)


def _make_mapping(
    result: Inference,
    table: TableFiles,
    sample: Sample,
    roles: _Roles,
    decisions: dict[str, Decision],
    nulls: tuple[str, ...],
    options: Options,
) -> None:
    assert roles.label is not None
    source = table.form.model_dump(mode="json", exclude_defaults=True)
    content: dict[str, Any] = {"input": {"type": table.form.type, **source}}
    if nulls:
        content["input"]["nulls"] = ["", *nulls]
    content["time"], content["partition"] = _time_and_partition(sample, roles.time)
    if roles.query is not None:
        session = {"session": {"by": roles.query.name, "gap": options.session_gap}}
        content["query"] = session if options.session_gap else {"column": roles.query.name}
    if roles.example_id is not None:
        content["example_id"] = roles.example_id.name
    label = roles.label.label
    content["label"] = label.model_dump(exclude_none=True) if label.op else {"column": label.column}
    if roles.weight is not None:
        content["weight"] = roles.weight.name
    guesses = {guess.column: guess for guess in result.guesses}
    features: list[dict[str, Any]] = []
    content["features"] = features
    taken: set[str] = set()
    used = {name: decision for name, decision in decisions.items() if decision.feature is not None}
    stems = {name: name.rpartition(":")[0] if ":" in name else name for name in used}
    # A column keeps its name where another one would become the same.
    kept_names = {stem for stem in stems.values() if feature_name(stem, ()) == stem}
    for name, decision in used.items():
        stem = stems[name]
        feature = {"name": feature_name(stem, taken | (kept_names - {stem})), **(decision.feature or {})}
        if decision.cast is not None:
            feature["source"] = feature_name(f"{stem}_{decision.cast}", {*sample.columns, *taken})
            content.setdefault("derive", {})[feature["source"]] = {"from": name, "cast": decision.cast}
        features.append(feature)
        result.reasons[feature["name"]] = guesses[name].because
        taken |= {feature["name"], feature["source"]}
    _add_derived(result, content, roles.time, {*sample.columns, *taken})
    if not features:
        raise InputError(
            f"{table.files[0].path}: no column is left as a feature ("
            + joined([f"{one.column}: {one.because}" for one in result.guesses if one.becomes == "not used"])
            + ")",
            "--keep COLUMN keeps one that was excluded",
        )
    content["keep_values"] = "all" if sample.table_rows <= KEPT_ROWS else []
    result.content = content
    result.mapping = parse_model(Mapping, content, "the inferred mapping")
    if lacking := [name for name in result.mapping.raw_columns if name in sample.lacking]:
        content["input"]["optional"] = lacking
        result.mapping = parse_model(Mapping, content, "the inferred mapping")


def _add_derived(
    result: Inference, content: dict[str, Any], time: TimeColumn | None, taken: set[str]
) -> None:
    """Adds hour and weekday where the time spans more than a day."""
    if time is None or TIME_COLUMN in {feature["source"] for feature in content["features"]}:
        return
    first, last = int(time.us[time.us > 0].min()), int(time.us.max())
    if last - first <= DAY_US:
        result.notes.append(
            f"{time.facts.name} spans no more than a day: no hour and weekday are derived from it"
        )
        return
    hours = len(np.unique(time.us // 3_600_000_000 % 24)) > 1
    why = f"derived from the time, which spans {format_time(first)} to {format_time(last)} in the sample"
    derive = content.setdefault("derive", {})
    for part in ("hour", "weekday") if hours else ("weekday",):
        name = feature_name(part if part not in taken else f"time_{part}", taken)
        derive[name] = {"from": "time", "part": part}
        content["features"].append({"name": name, "kind": "category", "source": name})
        result.reasons[name] = why
        result.guesses.append(Guess(f"({part})", "category", why))


def _time_and_partition(sample: Sample, time: TimeColumn | None) -> tuple[dict[str, Any], str]:
    """The ``time`` of a mapping, and partitions that hold a bounded number of rows on the average."""
    if time is None:
        return {"row_order": dict(_ROW_ORDER)}, _ROW_ORDER_PARTITION
    good = time.us[time.us > 0]
    span = max(1, int(good.max()) - int(good.min()))
    content = with_range(time).model_dump(mode="json", exclude_none=True)
    for partition in _PARTITIONS:
        if duration_us(partition) > max(span, duration_us("1h")):
            continue
        if sample.table_rows * min(1.0, duration_us(partition) / span) <= PARTITION_ROWS:
            return content, partition
    return content, _PARTITIONS[-1]
