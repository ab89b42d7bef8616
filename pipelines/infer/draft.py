"""Drafts the mapping of a table from the roles that the user names, with a comment for each column."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from ctr.config import Dumper, parse_model
from ctr.data import mapping as mappings
from ctr.data.derived import TIME_COLUMN
from ctr.data.kept_values import has_raw_values
from ctr.data.times import DAY_US, duration_us, format_time
from ctr.io.errors import InputError, joined, printable
from ctr.pipelines.infer.columns import (
    LEAK,
    Column,
    Columns,
    Decision,
    decide_feature,
    feature_name,
    find_nulls,
    not_used,
    percent,
    profile_column,
    strongest_columns,
)
from ctr.pipelines.infer.dialect import Sample, TableFiles
from ctr.pipelines.infer.roles import (
    FIRST_US,
    LAST_US,
    LabelColumn,
    Options,
    TimeColumn,
    check_weight,
    count_rows,
    find_column,
    label_of,
    label_rules,
    looks_like_query,
    looks_like_time,
    plain_label,
    read_label,
    read_query,
    read_time,
)
from ctr.pipelines.tables.convert import parse_times

PARTITION_ROWS = 500_000  # at most, if all partitions had as many as the mean
_PARTITIONS = ("7d", "1d", "6h", "1h", "10m", "1m")
_ROW_ORDER = {"row_order": {"start": "2001-01-01T00:00:00Z", "step_us": 1000}}
_EXACT = 2.0**53  # above it not every whole number is a float64
_WIDTH = 108


@dataclass
class Draft:
    """A drafted mapping, and the reasons for each of its decisions."""

    columns: dict[str, Decision] = field(default_factory=dict)  # what each column becomes, by its name
    notes: list[str] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)  # as a mapping file has it: without defaults
    comments: dict[str, str] = field(default_factory=dict)  # by key of the content, or by name of a feature
    strongest: list[tuple[str, float]] = field(default_factory=list)  # see ``strongest_columns``


def profile_columns(table: TableFiles, sample: Sample) -> tuple[Columns, tuple[str, ...]]:
    """Profiles the columns of a sample; returns them and the texts that mean a missing value."""
    nulls = find_nulls(sample.columns) if isinstance(table.form, mappings.DelimitedInput) else ()
    columns = {name: profile_column(name, array, nulls) for name, array in sample.columns.items()}
    return columns, nulls


def list_labels(table: TableFiles, sample: Sample) -> list[tuple[str, str]]:
    """Lists possible labels, as ``--label`` takes them, with their share of positive rows.

    Lists columns of two values, or of times that many rows lack; if there are none, a rule for columns of few values.
    """
    columns, _ = profile_columns(table, sample)
    choices = []
    for name, column in columns.items():
        if (rule := plain_label(column)) is not None:
            what = "times, none in other rows" if rule.value == "" else " and ".join(sorted(column.texts))
            choices.append((name, f"{what}; {percent(label_of(column, rule).share)} positive"))
    choices = choices or [rules[0] for column in columns.values() if (rules := label_rules(column))]
    if any(name in columns[name].texts for name in table.columns if name in columns):
        because = "or c2, ...: the columns of a file without a header, as the first line looks like values"
        choices.insert(0, ("c1", because))
    return choices


def draft_mapping(table: TableFiles, sample: Sample, options: Options) -> Draft:
    """Drafts a mapping, features in file order. Raises InputError for an impossible role, a leak, or no feature."""
    columns, nulls = profile_columns(table, sample)
    for option, names in (("--drop", options.drop), ("--keep", options.keep)):
        for name in names:
            find_column(name, columns, option)
    assert options.label is not None
    label = read_label(options.label, columns)
    time = None if options.time is None else read_time(options.time, columns)
    decided = _decide_roles(columns, options, label, time)
    draft = Draft(notes=_describe_reading(table, sample, nulls, options))
    decided |= _decide_features(draft, columns, decided, options, sample.whole)
    for name, column in columns.items():
        because = "; ".join(filter(None, (decided[name].because, column.describe())))
        draft.columns[name] = replace(decided[name], because=because)
    draft.columns |= {name: not_used(why) for name, why in sample.unusable.items()}
    used = {name: columns[name] for name, decision in decided.items() if decision.feature is not None}
    draft.strongest = strongest_columns(used, label.values, label.labeled)
    if leaks := [name for name, auc in draft.strongest if auc >= LEAK and name not in options.keep]:
        scores = ", ".join(f"{name} (AUC {auc:.3f})" for name, auc in draft.strongest if name in leaks)
        drops = " ".join(f"--drop {shlex.quote(name)}" for name in leaks)
        raise InputError(
            f"{table.files[0].path}: known only after the label, by how well it alone ranks the rows: {scores}",
            f"{drops} trains without; --keep keeps what is known before",
        )
    form = table.form.model_dump(mode="json", exclude_defaults=True)
    form |= {"nulls": ["", *nulls]} if nulls else {}
    form |= {"optional": list(sample.lacking)} if sample.lacking else {}
    query: Any = {"column": options.query} if options.query else "none"
    if options.session_gap:
        query = {"session": {"by": options.query, "gap": options.session_gap}}
    times: dict[str, Any] = _ROW_ORDER
    if time is not None:
        times = time.time.model_dump(mode="json", exclude_none=True)
        # A value that was not read as a time, such as 0 for none, is also rejected by the ingest.
        us, bad = parse_times(sample.columns[times["column"]], time.time)
        left_out = us[time.bad & ~bad]
        times |= {"first": "1990-01-01"} if (left_out < FIRST_US).any() else {}
        times |= {"last": "2099-12-31"} if (left_out >= LAST_US).any() else {}
    roles = {"query": options.query, "label": label.rule.column, "weight": options.weight}
    roles |= {"time": time.time.column if time else None}
    draft.comments |= {key: draft.columns[column].because for key, column in roles.items() if column}
    derive, features = _features(draft, set(sample.columns), time)
    if not features:
        unused = joined([f"{name}: {use.because}" for name, use in draft.columns.items() if not use.feature])
        raise InputError(
            f"{table.files[0].path}: no column is left as a feature ({unused})",
            "--keep COLUMN keeps one that was excluded",
        )
    content = {
        "input": form,
        "time": times,
        "query": query,
        "label": label.rule.model_dump(exclude_none=True),
        "weight": options.weight,
        "derive": derive,
        "partition": _partition(sample, time),
        "features": features,
    }
    draft.content = {key: value for key, value in content.items() if value}
    mapping = parse_model(mappings.Mapping, draft.content, "the drafted mapping")
    if "optional" in form:
        form["optional"] = [name for name in form["optional"] if name in mapping.raw_columns]
    draft.content["keep_values"] = [feature.name for feature in mapping.features if has_raw_values(feature)]
    draft.comments["partition"] = "A partition must fit in memory."
    draft.comments["keep_values"] = (
        "The values behind ids are kept beside the log where they are few, so that the report shows them."
    )
    return draft


def _decide_roles(
    columns: Columns, options: Options, label: LabelColumn, time: TimeColumn | None
) -> dict[str, Decision]:
    """Returns the decisions on columns that have only a role. Raises InputError if a column has two roles."""
    rule = label.rule
    value = f"{rule.value:g}" if isinstance(rule.value, float) else repr(rule.value)
    role = "label" if rule.op is None else f"label {rule.op} {value}"
    chosen = {"--label": (rule.column, Decision(role, f"given by --label; {percent(label.share)} positive"))}
    if time is not None:
        lost = f"; {count_rows(time.bad)} have no readable time and become rejects" if time.bad.any() else ""
        decision = Decision(f"time, {time.time.form}", f"given by --time{lost}")
        chosen["--time"] = str(time.time.column), decision
    if (query := read_query(options, columns)) is not None:
        missing = query.codes < 0
        lost = f"; {count_rows(missing)} have none and become rejects" if missing.any() else ""
        chosen["--query"] = query.name, Decision("query", f"given by --query{lost}")
    if options.weight is not None:
        check_weight(options.weight, columns)
        chosen["--weight"] = options.weight, Decision("weight", "given by --weight")
    roles: dict[str, str] = dict.fromkeys(options.drop, "--drop")
    for option, (name, _) in chosen.items():
        if name in roles:
            raise InputError(f"{option} {name}: {roles[name]} names the same column")
        roles[name] = option
    if options.session_gap is not None:
        # The user of sessions is also a feature.
        del chosen["--query"]
    return dict(chosen.values())


def _decide_features(
    draft: Draft, columns: Columns, roles: Mapping[str, Decision], options: Options, whole: bool
) -> dict[str, Decision]:
    """Decides the use of each column without a role; notes columns that look like a time or a query."""
    decisions: dict[str, Decision] = {}
    seen: dict[bytes, Column] = {columns[name].codes.tobytes(): columns[name] for name in roles}
    for name, column in columns.items():
        if name in roles:
            continue
        if name in options.drop:
            decisions[name] = not_used("--drop says so")
            continue
        decision = decide_feature(column, whole)
        if name in options.keep:
            feature = decision.feature or {"kind": "category", "source": name}
            becomes = decision.becomes if decision.feature else "category"
            decisions[name] = Decision(becomes, "--keep says so", feature, decision.cast)
            continue
        if looks_like_time(column):
            decision = not_used("looks like a time that is not the time of the row")
            if options.time is None:
                draft.notes.append(f"{name} looks like a time: --time {name} makes it the time of the rows")
        elif options.query is None and looks_like_query(column):
            each = f"{column.present / column.distinct:.3g} rows each"
            draft.notes.append(f"{name} looks like a query, {each}: --query {name} makes it one")
        twin = seen.setdefault(column.codes.tobytes(), column)
        # The values of columns without repetition always change in the same rows.
        repeats = decision.becomes == "category" and column.distinct < 0.5 * column.present
        if decision.feature and twin is not column and (repeats or list(column.texts) == list(twin.texts)):
            decision = not_used(f"a duplicate of {twin.name}")
        is_rounded = pa.types.is_floating(column.array.type) and column.is_whole
        if decision.feature and is_rounded and np.abs(column.finite).max() >= _EXACT:
            draft.notes.append(
                f"warning: {name} has whole numbers above 2^53 as floats, of which neighbors are one where they were "
                "written: write them as whole numbers or text"
            )
        decisions[name] = decision
    return decisions


def _describe_reading(table: TableFiles, sample: Sample, nulls: Sequence[str], options: Options) -> list[str]:
    form = table.form
    reading = ""
    if isinstance(form, mappings.DelimitedInput):
        delimiter = "tab" if form.field_delimiter == "\t" else form.field_delimiter
        skipped = f"without the first {form.skip_lines} lines; " if form.skip_lines else ""
        no_header = "no header: the columns are c1, c2, ..."
        header = "the first line names the columns" if form.header else no_header
        reading = f"read as {form.type}, delimiter {delimiter}; {skipped}{header}"
    malformed, headers = sample.malformed, sample.headers
    notes: dict[str, object] = {
        f"inferred from {sample.describe()}": True,
        reading: reading,
        **dict.fromkeys(table.notes, True),
        f"missing where a file lacks them: {', '.join(sample.lacking)}": sample.lacking,
        f"read as missing: {', '.join(nulls)}": nulls,
        f"{malformed:,} rows of the sample could not be read: they become rejects": malformed,
        f"{headers:,} lines of the sample repeat the header: they are rejects, not rows": headers,
        "no --time: the order of the rows is the order of time": options.time is None,
        "no --query: each row is a query": options.query is None,
    }
    return [note for note, applies in notes.items() if applies]


def _features(
    draft: Draft, columns: set[str], time: TimeColumn | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the derived columns, and the features of columns and of the time."""
    derive: dict[str, Any] = {}
    features: list[dict[str, Any]] = []
    taken: set[str] = set()
    used = {name: decision for name, decision in draft.columns.items() if decision.feature is not None}
    # A column keeps its name where another one would become the same.
    unchanged = {name for name in used if feature_name(name, ()) == name}
    for name, decision in used.items():
        feature = {"name": feature_name(name, taken | (unchanged - {name})), **(decision.feature or {})}
        if decision.cast is not None:
            feature["source"] = feature_name(f"{name}_{decision.cast}", {*columns, *taken})
            derive[feature["source"]] = {"from": name, "cast": decision.cast}
        features.append(feature)
        draft.comments[feature["name"]] = decision.because
        taken |= {feature["name"], feature["source"]}
    if time is None or TIME_COLUMN in taken:
        return derive, features
    us = time.us[~time.bad]
    first, last = int(us.min()), int(us.max())
    because = f"derived from the time, which spans {format_time(first)} to {format_time(last)} in the sample"
    parts = ("hour", "weekday") if len(np.unique(us // 3_600_000_000 % 24)) > 1 else ("weekday",)
    for part in parts if last - first > DAY_US else ():
        name = feature_name(part if part not in columns | taken else f"time_{part}", columns | taken)
        derive[name] = {"from": "time", "part": part}
        features.append({"name": name, "kind": "category", "source": name})
        draft.comments[name] = because
        draft.columns[f"({part})"] = Decision("category", because)
    return derive, features


def _partition(sample: Sample, time: TimeColumn | None) -> str:
    """Returns a partition length with which partitions have at most 500,000 rows on average, if possible."""
    if time is None:
        return "8m"
    span = max(1, int(np.ptp(time.us[~time.bad])))
    for partition in _PARTITIONS:
        length = duration_us(partition)
        is_small = sample.table_rows * min(1.0, length / span) <= PARTITION_ROWS
        if is_small and length <= max(span, duration_us("1h")):
            return partition
    return _PARTITIONS[-1]


def mapping_text(draft: Draft, source: str) -> str:
    """Formats a draft as the text of a mapping file; ``source`` is in its first line."""
    written = "written by ctr quickstart, to be edited. docs/howto/tables.md describes the keys."
    lines = _comment(f"How {source} becomes examples: {written}")
    for note in draft.notes:
        lines += _comment(f"- {note}")
    for key, value in draft.content.items():
        lines += _comment(draft.comments.get(key, "")) if key != "features" else []
        if key == "derive":
            lines += ["derive:", *(f"  {_flow(name)}: {_flow(rule)}" for name, rule in value.items())]
        elif key == "features":
            lines.append("features:")
            for feature in value:
                lines += [*_comment(draft.comments[feature["name"]], "  "), f"  - {_flow(feature)}"]
        else:
            lines.append(f"{key}: {_flow(value)}")
    unused = {name: decision for name, decision in draft.columns.items() if decision.becomes == "not used"}
    lines += _comment("Not used:") if unused else []
    for name, decision in unused.items():
        lines += _comment(f"- {name or '(no name)'}: {decision.because}")
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: str = "") -> list[str]:
    # Values of the table may stand in comments, so characters that end a line of YAML are escaped.
    safe = printable(" ".join(text.split()))
    return textwrap.wrap(
        safe, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_on_hyphens=False
    )


def _flow(value: Any) -> str:
    style: dict[str, Any] = {"default_flow_style": True, "sort_keys": False, "width": 10**9}
    written = (yaml.dump(value, Dumper=Dumper, allow_unicode=allowed, **style) for allowed in (True, False))
    texts = [text.removesuffix("\n").removesuffix("\n...") for text in written]
    # PyYAML reads some line ends that it has written as spaces.
    return texts[0] if texts[0].isprintable() else texts[1]


def decision_table(columns: Mapping[str, Decision], width: int) -> str:
    """Formats the use of each column as a table of one line each, cut at ``width`` characters."""
    texts = [("column", "becomes", "because")]
    texts += [(name, decision.becomes, decision.because) for name, decision in columns.items()]
    rows = [[printable(" ".join(text.split())) or "(no name)" for text in row] for row in texts]
    wide = [min(32, max(len(row[index]) for row in rows)) for index in (0, 1)]
    lines = [f"{row[0][: wide[0]]:<{wide[0]}}  {row[1][: wide[1]]:<{wide[1]}}  {row[2]}" for row in rows]
    return "\n".join(line if len(line) <= width else f"{line[: width - 3]}..." for line in lines)
