"""What an inference results in: the guesses as a table, and the mapping as content and as text of a file."""

import textwrap
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from ctr.config import Dumper, parse_model
from ctr.data.derived import TIME_COLUMN
from ctr.data.mapping import Mapping
from ctr.data.times import DAY_US, duration_us, format_time
from ctr.io.errors import InputError, joined, printable
from ctr.pipelines.inference.features import Decision, feature_name
from ctr.pipelines.inference.files import TableFiles
from ctr.pipelines.inference.roles import Doubt, Roles, TimeColumn
from ctr.pipelines.inference.sample import Sample
from ctr.pipelines.inference.times import with_range

PARTITION_ROWS = 500_000  # at most, if all partitions had as many as the mean
KEPT_ROWS = 1_000_000  # up to so many rows of a table the raw values behind its ids are kept
_PARTITIONS = ("7d", "1d", "6h", "1h", "10m", "1m")
_ROW_ORDER = {"start": "2001-01-01T00:00:00Z", "step_us": 1000}
_ROW_ORDER_PARTITION = "8m"
_WIDTH = 108


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


def make_mapping(
    result: Inference,
    table: TableFiles,
    sample: Sample,
    roles: Roles,
    decisions: AnyMapping[str, Decision],
    nulls: Sequence[str],
) -> None:
    """Makes the mapping of an inference without doubts; InputError where no feature is left."""
    assert roles.label is not None
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
    content["keep_values"] = "all" if sample.table_rows <= KEPT_ROWS else []
    result.mapping = parse_model(Mapping, content, "the inferred mapping")
    if lacking := [name for name in result.mapping.raw_columns if name in sample.lacking]:
        content["input"]["optional"] = lacking
        result.mapping = parse_model(Mapping, content, "the inferred mapping")


def _add_features(result: Inference, decisions: AnyMapping[str, Decision], columns: set[str]) -> set[str]:
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
    first, last = int(time.us[time.us > 0].min()), int(time.us.max())
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
    good = time.us[time.us > 0]
    span = max(1, int(good.max()) - int(good.min()))
    content = with_range(time).model_dump(mode="json", exclude_none=True)
    for partition in _PARTITIONS:
        us = duration_us(partition)
        small = sample.table_rows * min(1.0, us / span) <= PARTITION_ROWS
        if small and us <= max(span, duration_us("1h")):
            return content, partition
    return content, _PARTITIONS[-1]


def mapping_text(inferred: Inference, source: str) -> str:
    """Writes an inference that has a mapping as the text of a mapping file; ``source`` stands in its first line."""
    content, guesses = inferred.content, {guess.column: guess for guess in inferred.guesses}
    lines = _comment(f"How {source} becomes examples: inferred by ctr quickstart, to be edited. docs/mapping.md "
                     "describes every key.")  # fmt: skip
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
        text = "The raw values behind ids are kept beside the log, so that the report shows them."
        lines += [*_comment(text), f"keep_values: {_flow(kept)}"]
    else:
        lines += _comment(
            "keep_values: all would keep the raw values behind ids beside the log, so that the report shows them. Of "
            f"more than {KEPT_ROWS:,} rows they take space on the disk."
        )
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
