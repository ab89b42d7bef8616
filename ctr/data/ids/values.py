"""Ids of the raw values that configurations name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.features import Category, Number
from ctr.data.ids import arrow
from ctr.data.ids.rules import FeatureIds
from ctr.data.schema import Schema
from ctr.data.spelling import float_text, spell
from ctr.io.errors import InputError, listed

RawValue = bool | int | float | str | None

_SHOWN = 20


def feature_ids(schema: Schema, name: str, values: Sequence[RawValue]) -> np.ndarray:
    """Computes the ids of raw values of a single-valued category or number, as a configuration names them.

    Numbers stand for the bucket that they fall into; null or the empty text is missing. Raises InputError if there is
    no such feature or value, or a value has the id of an earlier one.
    """
    feature = schema.by_name.get(name)
    if feature is None:
        raise InputError(f"{name} is not a feature of the log; allowed: {listed(list(schema.by_name), name)}")
    if not isinstance(feature, Category | Number) or name not in schema.single_ids:
        of_lists = isinstance(feature, Category) and feature.multivalent
        kind = f"multivalent {feature.kind}" if of_lists else feature.kind
        kind = "number as a value" if isinstance(feature, Number) else kind
        raise InputError(
            f"feature {name} is a {kind}; only single-valued categories and numbers in buckets have values to name"
        )
    if isinstance(feature, Category):
        texts = list(map(_text, values))
        if schema.spells_numbers(feature.source):
            texts = list(map(spell, texts))
        if (vocabulary := feature.vocabulary) is not None:
            unknown = [text for text in texts if text and text not in vocabulary]
            if unknown:
                allowed = [*vocabulary[:_SHOWN], *(["..."] if len(vocabulary) > _SHOWN else [])]
                raise InputError(
                    f"feature {name}: {unknown[0]!r} is not in its vocabulary; allowed: {', '.join(allowed)}"
                )
        column: Any = pa.array(texts, pa.large_string())
    else:
        numbers = []
        for value in values:
            if isinstance(value, str) and value:
                raise InputError(f"feature {name}: {value!r} is not a number")
            numbers.append(float("nan") if value is None or value == "" else float(value))
        with np.errstate(over="ignore"):
            column = np.array(numbers, np.float32)
    ids: list[int] = FeatureIds(schema).of_values(arrow, feature, column).ids.tolist()
    seen: dict[int, object] = {}
    for value, number in zip(values, ids, strict=True):
        if number in seen:
            raise InputError(
                f"feature {name}: {value!r} and {seen[number]!r} have the same id {number}; name one of them"
            )
        seen[number] = value
    return np.array(ids, np.int64 if feature.buckets is None else np.int32)


def _text(value: RawValue) -> str:
    if isinstance(value, float):
        return float_text(value)
    # Booleans as Arrow writes them.
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
