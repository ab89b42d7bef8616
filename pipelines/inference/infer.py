"""Infers a mapping from a sample of a table; what is not certain is a ``Doubt``: a label is never guessed silently.

An inference is written as the text of a mapping file, and shown as a table of what each column becomes.
"""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import yaml

from ctr.config import Dumper, parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.kept_values import has_raw_values
from ctr.data.mapping import DelimitedInput, Mapping
from ctr.data.times import DAY_US, duration_us, format_time
from ctr.io.errors import InputError, joined, printable
from ctr.pipelines.inference.columns import ColumnProfile, find_nulls, profile_column, without_nulls
from ctr.pipelines.inference.features import Decision, decide_feature, dropped, feature_name
from ctr.pipelines.inference.files import TableFiles, some_of
from ctr.pipelines.inference.labels import choose_label, find_page, is_label_name, plain_label
from ctr.pipelines.inference.leaks import AFTER_CLICK, find_leak, find_outcome, strongest_columns
from ctr.pipelines.inference.queries import choose_query
from ctr.pipelines.inference.roles import (
    Doubt,
    Options,
    Roles,
    TimeColumn,
    choose_example_id,
    choose_weight,
    find_column,
    is_weight_name,
)
from ctr.pipelines.inference.sample import Sample
from ctr.pipelines.inference.times import choose_time, is_other_time, with_range

PARTITION_ROWS = 500_000  # at most, if all partitions had as many as the mean
_PARTITIONS = ("7d", "1d", "6h", "1h", "10m", "1m")
_ROW_ORDER = {"start": "2001-01-01T00:00:00Z", "step_us": 1000}
_ROW_ORDER_PARTITION = "8m"


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


def infer(table: TableFiles, sample: Sample, options: Options) -> Inference:
    """Infers the mapping of a table; InputError for an option that cannot be, or where no feature is left."""
    nulls = find_nulls(sample.columns) if isinstance(table.form, DelimitedInput) else ()
    file = table.files[0].name if len(table.files) > 1 else ""
    columns = {
        name: profile_column(name, without_nulls(array, nulls), sample.row_numbers, file)
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
    free = {name: column for name, column in columns.items() if name not in refused}
    result, roles = Inference(), Roles(free, options, sample)
    _choose_roles(roles, result)
    if roles.label is None and (page := find_page(free)):
        raise InputError(f"{table.files[0].path}: {page}")
    decisions = {name: dropped("--drop says so") for name in refused}
    decisions |= roles.used | dict(_decide(roles, kept))
    for name, column in columns.items():
        because = "; ".join(filter(None, (decisions[name].because, column.describe())))
        result.guesses.append(Guess(name, decisions[name].becomes, because))
    result.guesses += [Guess(name, "not used", why) for name, why in sample.unusable.items()]
    _add_notes(result, table, roles, nulls)
    if outcomes := [name for name, one in decisions.items() if one.is_outcome]:
        result.notes.append(f"not used, {AFTER_CLICK}: {', '.join(outcomes)}; --keep COLUMN keeps one")
    if roles.label is not None:
        used = {name: columns[name] for name, one in decisions.items() if one.feature is not None}
        result.strongest = strongest_columns(used, roles.label.values, roles.label.known)
    if not result.doubts:
        _make_mapping(result, table, roles, decisions, nulls)
    return result


def _choose_roles(roles: Roles, result: Inference) -> None:
    """Chooses each role by the columns that the roles before it have left, or adds a doubt."""
    options = roles.options
    label = choose_label(roles)
    if isinstance(label, Doubt):
        _ask(label, roles, result)
    else:
        roles.label, rule = label, label.label
        value = f"{rule.value:g}" if isinstance(rule.value, float) else rule.value
        role = "label" if rule.op is None else f"label {rule.op} {value}"
        roles.used[rule.column] = Decision(role, f"{label.because}; {label.share} positive")
        result.notes += [label.warning] if label.warning else []
    time = choose_time(roles)
    if isinstance(time, Doubt):
        _ask(time, roles, result)
    elif time is not None:
        roles.time = time
        why = "given by --time" if options.time else "read as one"
        why += f", though {time.other} reads it too" if time.other else ""
        roles.used[time.column.name] = Decision(f"time, {time.time.form}", why)
        if time.rejects:
            result.notes.append(f"{time.column.name}: {time.rejects}; such rows become rejects")
    query = choose_query(roles)
    if isinstance(query, Doubt):
        _ask(query, roles, result)
    else:
        roles.query, result.reasons["query"] = query
        if roles.query is not None and not options.session_gap:
            roles.used[roles.query.name] = Decision("query", query[1])
    _check_session(roles)
    weight = choose_weight(roles)
    if isinstance(weight, Doubt):
        _ask(weight, roles, result)
    elif weight[0] is not None:
        roles.weight = weight[0]
        roles.used[roles.weight.name] = Decision("weight", weight[1])
    elif options.weight is not None:
        unused = dropped("named like a weight, and --weight none says that there is none")
        named = [name for name, column in roles.columns.items() if is_weight_name(column)]
        roles.used = {name: unused for name in named if name not in options.keep} | roles.used
    columns = (roles.time.column if roles.time else None, roles.query, roles.weight)
    for option, column in zip(("--time", "--query", "--weight"), columns, strict=True):
        if column is not None and roles.label is not None and column.name == roles.label.label.column:
            raise InputError(f"{option} {column.name}: this column is the label")
    roles.example_id, why = choose_example_id(roles)
    if roles.example_id is not None:
        roles.used[roles.example_id.name] = Decision("example id", why)
    elif why:
        result.notes.append(why)


def _ask(doubt: Doubt, roles: Roles, result: Inference) -> None:
    """Adds a doubt; the columns that it is about are nothing else."""
    result.doubts.append(doubt)
    role = doubt.option.removeprefix("--")
    asked = [choice.column or choice.value for choice in doubt.choices]
    decision = Decision(f"{role}?", f"choose with {doubt.option}")
    roles.used |= {name: decision for name in asked if name in roles.columns}


def _check_session(roles: Roles) -> None:
    options = roles.options
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


def _decide(roles: Roles, kept: Sequence[str]) -> Iterator[tuple[str, Decision]]:
    """Returns what becomes of each column that has no role."""
    seen: dict[bytes, ColumnProfile] = {}
    for name in roles.used:
        seen.setdefault(roles.columns[name].codes.tobytes(), roles.columns[name])
    for column in roles.free:
        name, decision = column.name, decide_feature(column)
        if name in kept:
            if decision.feature is None:
                decision = Decision("category", "", {"kind": "category", "source": name})
            yield name, replace(decision, because="--keep says so")
            continue
        twin = seen.setdefault(column.codes.tobytes(), column)
        if reason := _outcome(column, roles):
            why = f"{reason}; --keep {shlex.quote(name)} keeps it"
            decision = Decision("not used", why, is_outcome=True)
        elif reason := _exclusion(column, twin, decision):
            decision = dropped(reason)
        yield name, decision


def _outcome(column: ColumnProfile, roles: Roles) -> str:
    """Why a column is known only after the impression; empty where nothing says so."""
    if is_label_name(column) and plain_label(column) is not None:
        return f"{AFTER_CLICK}: another outcome"
    if roles.label is None:
        return ""
    arguments = column.with_points or column, roles.label.values, roles.label.known
    return find_leak(*arguments) or find_outcome(*arguments)


def _exclusion(column: ColumnProfile, twin: ColumnProfile, decision: Decision) -> str:
    """Why a column that could be a feature is none; empty where it is one.

    The values of its ``twin`` change in the same rows.
    """
    if decision.feature is None:
        return ""
    if "propensity" in column.words:
        return "how likely a policy was to show the row belongs to the policy, not to the row"
    # Of columns without repetition the values always change in the same rows.
    repeats = decision.becomes == "category" and column.distinct < 0.5 * column.present
    if twin is not column and (repeats or list(column.texts) == list(twin.texts)):
        return f"a duplicate of {twin.name}"
    if decision.feature["kind"] != "number" and is_other_time(column):
        return "a time that is not the time of the row"
    return ""


def _add_notes(result: Inference, table: TableFiles, roles: Roles, nulls: Sequence[str]) -> None:
    sample = roles.sample
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
    if sample.lacking:
        files = table.lacking
        lacking = [f"{name} ({files[name]})" if files else name for name in sample.lacking]
        result.notes.append(f"missing where a file lacks them: {some_of(lacking, 5)}")
    if roles.time is None and not any(doubt.option == "--time" for doubt in result.doubts):
        result.notes.append("no column is the time of the row: the order of the rows is the order of time")
    if roles.query is None and "query" in result.reasons:
        result.notes.append(result.reasons["query"])
    if table.suggestion:
        result.notes.append(table.suggestion)


def _make_mapping(
    result: Inference, table: TableFiles, roles: Roles, decisions: dict[str, Decision], nulls: Sequence[str]
) -> None:
    """Makes the mapping of an inference without doubts; InputError where no feature is left."""
    assert roles.label is not None
    sample = roles.sample
    source = table.form.model_dump(mode="json", exclude_defaults=True)
    content = result.content = {"input": {"type": table.form.type, **source}}
    if nulls:
        content["input"]["nulls"] = ["", *nulls]
    content["time"], content["partition"] = _time_and_partition(sample, roles.time)
    if roles.query is not None:
        session = {"session": {"by": roles.query.name, "gap": roles.options.session_gap}}
        content["query"] = session if roles.options.session_gap else {"column": roles.query.name}
    if roles.example_id is not None:
        content["example_id"] = roles.example_id.name
    content["label"] = roles.label.label.model_dump(exclude_none=True)
    if roles.weight is not None:
        content["weight"] = roles.weight.name
    content["features"] = []
    taken = _add_features(result, decisions, set(sample.columns))
    _add_derived(result, roles.time, taken)
    if not content["features"]:
        raise InputError(
            f"{table.files[0].path}: no column is left as a feature ("
            + joined([f"{one.column}: {one.because}" for one in result.guesses if one.becomes == "not used"])
            + ")",
            "--keep COLUMN keeps one that was excluded",
        )
    result.mapping = parse_model(Mapping, content, "the inferred mapping")
    content["keep_values"] = [one.name for one in result.mapping.features if has_raw_values(one)]
    result.mapping = parse_model(Mapping, content, "the inferred mapping")
    if lacking := [name for name in result.mapping.raw_columns if name in sample.lacking]:
        content["input"]["optional"] = lacking
        result.mapping = parse_model(Mapping, content, "the inferred mapping")


def _add_features(result: Inference, decisions: dict[str, Decision], columns: set[str]) -> set[str]:
    """Adds a feature for each column that becomes one; returns the names that are taken."""
    reasons = {guess.column: guess.because for guess in result.guesses}
    taken: set[str] = set()
    used = {name: one for name, one in decisions.items() if one.feature is not None}
    stems = {name: name.rpartition(":")[0] if ":" in name else name for name in used}
    # A column keeps its name where another one would become the same.
    kept_names = {stem for stem in stems.values() if feature_name(stem, ()) == stem}
    for name, decision in used.items():
        stem = stems[name]
        feature = {"name": feature_name(stem, taken | (kept_names - {stem})), **(decision.feature or {})}
        if decision.cast is not None:
            feature["source"] = feature_name(f"{stem}_{decision.cast}", {*columns, *taken})
            rule = {"from": name, "cast": decision.cast}
            result.content.setdefault("derive", {})[feature["source"]] = rule
        result.content["features"].append(feature)
        result.reasons[feature["name"]] = reasons[name]
        taken |= {feature["name"], feature["source"]}
    return {*columns, *taken}


def _add_derived(result: Inference, time: TimeColumn | None, taken: set[str]) -> None:
    """Adds hour and weekday where the time spans more than a day."""
    features = result.content["features"]
    if time is None or TIME_COLUMN in {feature["source"] for feature in features}:
        return
    first, last = int(time.us[~time.bad].min()), int(time.us.max())
    if last - first <= DAY_US:
        name = time.column.name
        result.notes.append(f"{name} spans no more than a day: no hour and weekday are derived from it")
        return
    hours = len(np.unique(time.us // 3_600_000_000 % 24)) > 1
    why = f"derived from the time, which spans {format_time(first)} to {format_time(last)} in the sample"
    derive = result.content.setdefault("derive", {})
    for part in ("hour", "weekday") if hours else ("weekday",):
        name = feature_name(part if part not in taken else f"time_{part}", taken)
        derive[name] = {"from": "time", "part": part}
        features.append({"name": name, "kind": "category", "source": name})
        result.reasons[name] = why
        result.guesses.append(Guess(f"({part})", "category", why))


def _time_and_partition(sample: Sample, time: TimeColumn | None) -> tuple[dict[str, Any], str]:
    """The ``time`` of a mapping, and partitions that hold a bounded number of rows on the average."""
    if time is None:
        return {"row_order": dict(_ROW_ORDER)}, _ROW_ORDER_PARTITION
    good = time.us[~time.bad]
    span = max(1, int(good.max()) - int(good.min()))
    content = with_range(time).model_dump(mode="json", exclude_none=True)
    for partition in _PARTITIONS:
        us = duration_us(partition)
        small = sample.table_rows * min(1.0, us / span) <= PARTITION_ROWS
        if small and us <= max(span, duration_us("1h")):
            return content, partition
    return content, _PARTITIONS[-1]


_WIDTH = 108


def mapping_text(inferred: Inference, source: str) -> str:
    """Writes an inference that has a mapping as the text of a mapping file; ``source`` stands in its first line."""
    content, guesses = inferred.content, {guess.column: guess for guess in inferred.guesses}
    lines = _comment(f"How {source} becomes examples: inferred by ctr quickstart, to be edited. docs/howto/tables.md "
                     "describes the keys.")  # fmt: skip
    for note in inferred.notes:
        lines += _comment(f"- {note}")
    lines.append(f"input: {_flow(content['input'])}")
    time = content["time"].get("column")
    if time is None:
        lines += _comment("No column is the time: the order of the rows is, a row every millisecond.")
    lines += _explained(guesses.get(time), f"time: {_flow(content['time'])}")
    if "query" in content:
        query = content["query"].get("column") or content["query"]["session"]["by"]
        lines += _explained(guesses.get(query), f"query: {_flow(content['query'])}")
    else:
        lines += [*_comment(inferred.reasons["query"]), "query: none"]
    for key in ("example_id", "label", "weight"):
        if key in content:
            name = content[key]["column"] if isinstance(content[key], dict) else content[key]
            lines += _explained(guesses.get(name), f"{key}: {_flow(content[key])}")
    if "derive" in content:
        lines.append("derive:")
        lines += [f"  {_flow(name)}: {_flow(rule)}" for name, rule in content["derive"].items()]
    lines += ["# A partition must fit in memory.", f"partition: {content['partition']}", "features:"]
    for feature in content["features"]:
        reason = inferred.reasons[feature["name"]]
        lines += [*_comment(reason, "  "), f"  - {_flow(feature)}"]
    if kept := content["keep_values"]:
        text = (
            "The values behind ids are kept beside the log where they are few, so that the report shows them."
        )
        lines += [*_comment(text), f"keep_values: {_flow(kept)}"]
    unused = [guess for guess in inferred.guesses if guess.becomes == "not used"]
    if unused:
        lines += _comment("Not used:")
        for guess in unused:
            lines += _comment(f"- {guess.column or '(no name)'}: {guess.because}")
    return "\n".join(lines) + "\n"


def _explained(guess: Guess | None, line: str) -> list[str]:
    return [line] if guess is None else [*_comment(guess.because), line]


def _comment(text: str, indent: str = "") -> list[str]:
    # Values of the table may stand in comments: what ends a line of YAML is escaped.
    safe = printable(" ".join(text.split()))
    return textwrap.wrap(safe, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ",
                         break_on_hyphens=False)  # fmt: skip


def _flow(value: Any) -> str:
    text = ""
    for allow_unicode in (True, False):
        text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, sort_keys=False, width=10**9,
                         allow_unicode=allow_unicode)  # fmt: skip
        text = text.removesuffix("\n").removesuffix("\n...")
        # PyYAML reads some line ends that it has written as spaces.
        if text.isprintable():
            break
    return text


def guess_table(guesses: Sequence[Guess], width: int) -> str:
    """Formats the guesses as a table of one line each, cut at ``width`` characters."""

    def plain(text: str) -> str:
        return printable(" ".join(text.split()))

    rows = [("column", "becomes", "because")]
    rows += [(plain(one.column) or "(no name)", plain(one.becomes), plain(one.because)) for one in guesses]
    wide = [min(32, max(len(row[place]) for row in rows)) for place in (0, 1)]
    lines = []
    for row in rows:
        line = f"{row[0][: wide[0]]:<{wide[0]}}  {row[1][: wide[1]]:<{wide[1]}}  {row[2]}"
        lines.append(line if len(line) <= width else f"{line[: width - 3]}...")
    return "\n".join(lines)
