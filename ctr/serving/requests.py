"""Description of an exported model's requests: its inputs in words, and what ingestion does outside the model.

The exported model's ``ctr.json`` holds this under ``requests``, and docs/serving.md explains it.
"""

from typing import Any

from ctr.data.derived import Derived
from ctr.data.schema import Category, Cross, InputKind, Schema
from ctr.serving.signatures import input_names

_GIVEN: dict[InputKind, dict[str, str]] = {
    "text": {"dtype": "string", "missing": "the empty string"},
    "number": {"dtype": "float32", "missing": "NaN"},
    "time": {
        "dtype": "int64",
        "missing": "-1",
        "unit": "microseconds since 1970-01-01 00:00 UTC",
        "meaning": "when the impression is shown: what the mapping's time is parsed from at ingestion",
    },
}

NOT_IN_THE_MODEL = (
    "joins: a column that ingestion took from a side table is an input like any other: look it up before the call",
    "readers: a column that the reader of a format made (mind: history, category and the like) is an input: make it",
    "parsing: the mapping's time format is not in the model: give the time as the int64 above",
    "nulls: strings that the mapping's input.nulls lists must be given as missing",
    "lists: a multivalent category is one string, its values joined with the separator",
    "filters: a row that ingestion rejects is still scored: the value that it is rejected for counts as missing",
    "sessions, queries, labels, weights and sampling: they make and order the log and are not part of a prediction",
)


def describe_requests(log_schema: Schema, schema: Schema) -> dict[str, Any]:
    """Describes inputs, derived columns, and what is not in the model; columns have the names of the whole log's."""
    kinds, separators = log_schema.inputs, schema.list_separators
    inputs: dict[str, dict[str, Any]] = {}
    for name, column in input_names(kinds).items():
        if column not in schema.inputs:
            continue
        inputs[name] = {"column": column, "kind": kinds[column], **_GIVEN[kinds[column]]}
        if separators.get(column) is not None:
            inputs[name]["separator"] = separators[column]
        inputs[name]["features"] = [
            feature.name
            for feature in schema.features
            if not isinstance(feature, Cross) and schema.column_of(feature.source) == column
        ]
    return {
        "inputs": inputs,
        "derived": {name: _rule_text(rule) for name, rule in schema.derive.items()},
        "categories": _spelling_text(schema),
        "not_in_the_model": list(NOT_IN_THE_MODEL),
    }


def _rule_text(rule: Derived) -> str:
    if rule.part is not None:
        return f"the {rule.part} of {rule.column} (UTC{', 0 is Monday' if rule.part == 'weekday' else ''})"
    if rule.every is not None:
        return f"whole periods of {rule.every} between 1970-01-01 00:00 UTC and {rule.column}"
    if rule.prefix is not None:
        return f"the first {rule.prefix} characters of {rule.column}"
    return f"{rule.column}, a copy" if rule.cast is None else f"{rule.column}, cast to {rule.cast}"


def _spelling_text(schema: Schema) -> str:
    if not any(isinstance(feature, Category) for feature in schema.features):
        return "none"
    return "whole numbers lose a fraction of zeros: 12.0 is 12; nothing else changes"
