"""Ids that ingestion gave to raw values, as a configuration names them."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.data.feature_ops import category_ids, number_ids
from ctr.data.schema import Category, Cross, Number, Schema, Text
from ctr.data.spelling import float_text, spell
from ctr.io.errors import InputError
from ctr.io.words import listed

_SHOWN = 20


def feature_ids(schema: Schema, name: str, values: Sequence[bool | int | float | str | None]) -> np.ndarray:
    """Makes the ids of raw values of a single-valued category or number as ``ctr.data.transform`` makes them.

    Numbers stand for the bucket that they fall into; null or the empty text is missing. Returns [M], all different:
    int32, or int64 where ids grow. Raises InputError: no such feature, or one that is no single-valued category or
    number; a value that the feature does not read, that its vocabulary does not hold, or that has the id of an earlier
    one.
    """
    feature = schema.by_name.get(name)
    if feature is None:
        raise InputError(f"{name} is not a feature of the log; allowed: {listed(list(schema.by_name), name)}")
    if isinstance(feature, Text | Cross) or name not in schema.single_valued:
        kind = feature.kind if isinstance(feature, Text | Cross) else f"multivalent {feature.kind}"
        raise InputError(
            f"feature {name} is a {kind}; only single-valued categories and numbers have values to name"
        )
    spelled = schema.spells_numbers(feature.source)
    ids = _category(feature, values, spelled) if isinstance(feature, Category) else _number(feature, values)
    seen: dict[int, object] = {}
    for value, number in zip(values, ids.tolist(), strict=True):
        if number in seen:
            raise InputError(
                f"feature {name}: {value!r} and {seen[number]!r} have the same id {number}; name one of them"
            )
        seen[number] = value
    return ids


def _category(
    feature: Category, values: Sequence[bool | int | float | str | None], spelled: bool
) -> np.ndarray:
    texts = [_text(value) for value in values]
    if spelled:
        texts = [spell(text) for text in texts]
    if feature.vocabulary is not None:
        unknown = [text for text in texts if text and text not in feature.vocabulary]
        if unknown:
            allowed = [*feature.vocabulary[:_SHOWN], *(["..."] if len(feature.vocabulary) > _SHOWN else [])]
            raise InputError(
                f"feature {feature.name}: {unknown[0]!r} is not in its vocabulary; allowed: {', '.join(allowed)}"
            )
    return category_ids(feature, tf.constant(texts, tf.string)).numpy()


def _text(value: bool | int | float | str | None) -> str:
    if isinstance(value, float):
        return float_text(value)
    # As Arrow writes truth values.
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _number(feature: Number, values: Sequence[bool | int | float | str | None]) -> np.ndarray:
    numbers = []
    for value in values:
        if isinstance(value, str) and value:
            raise InputError(f"feature {feature.name}: {value!r} is not a number")
        numbers.append(float("nan") if value is None or value == "" else float(value))
    return number_ids(feature, tf.constant(numbers, tf.float32)).numpy().astype(np.int32)
