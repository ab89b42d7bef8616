"""Infers a mapping from a sample of a table; what is not certain is a ``Doubt``: a label is never guessed silently."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ctr.data.mapping import DelimitedInput
from ctr.data.times import duration_us
from ctr.io.errors import InputError
from ctr.pipelines.inference.aggregates import find_page
from ctr.pipelines.inference.columns import ColumnProfile, find_nulls, profile_column, without_nulls
from ctr.pipelines.inference.features import Decision, decide_feature, dropped
from ctr.pipelines.inference.files import TableFiles
from ctr.pipelines.inference.labels import choose_label, is_label_name, plain_label
from ctr.pipelines.inference.leaks import AFTER_CLICK, find_leak, find_outcome, strongest_columns
from ctr.pipelines.inference.mapping_file import Guess, Inference, make_mapping
from ctr.pipelines.inference.queries import choose_query
from ctr.pipelines.inference.roles import (
    Doubt,
    Options,
    Roles,
    choose_example_id,
    choose_weight,
    find_column,
    is_weight_name,
)
from ctr.pipelines.inference.sample import Sample
from ctr.pipelines.inference.times import choose_time, is_other_time


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
    result, roles = Inference(), Roles(free, options, sample.head_rows, sample.whole)
    _choose_roles(roles, result)
    if roles.label is None and (page := find_page(free)):
        raise InputError(f"{table.files[0].path}: {page}")
    decisions = (
        {name: dropped("--drop says so") for name in refused} | roles.used | dict(_decide(roles, kept))
    )
    for name, column in columns.items():
        because = "; ".join(filter(None, (decisions[name].because, column.describe())))
        result.guesses.append(Guess(name, decisions[name].becomes, because))
    result.guesses += [Guess(name, "not used", why) for name, why in sample.unusable.items()]
    _add_notes(result, table, sample, roles, nulls)
    if outcomes := [name for name, one in decisions.items() if one.is_outcome]:
        result.notes.append(f"not used, {AFTER_CLICK}: {', '.join(outcomes)}; --keep COLUMN keeps one")
    if roles.label is not None:
        used = {name: columns[name] for name, one in decisions.items() if one.feature is not None}
        result.strongest = strongest_columns(used, roles.label.values, roles.label.known)
    if not result.doubts:
        make_mapping(result, table, sample, roles, decisions, nulls)
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
    roles.used |= {
        name: (f"{role}?", f"choose with {doubt.option}") for name in asked if name in roles.columns
    }


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
    """What becomes of each column that has no role."""
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


def _add_notes(
    result: Inference, table: TableFiles, sample: Sample, roles: Roles, nulls: tuple[str, ...]
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
