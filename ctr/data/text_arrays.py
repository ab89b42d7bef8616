"""Text of values in Arrow arrays, and its spelling (spelling.py), many at a time."""

import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.spelling import WHOLE, WHOLE_SPELLED, float_text


def may_spell(strings: pa.Array) -> bool:
    """Tells whether a string of an Arrow array may have another spelling: a quick test that excludes most columns."""
    content = strings.buffers()[2]
    # One byte is found many times faster than two.
    return content is not None and b"." in (found := content.to_pybytes()) and b".0" in found


def spell_array(strings: pa.Array) -> pa.Array:
    """Spells Arrow strings as a category does; null stays null."""
    if not may_spell(strings):
        return strings
    return pc.replace_substring_regex(strings, WHOLE, WHOLE_SPELLED)


def text_array(values: pa.Array) -> pa.Array:
    """Writes strings, integers, decimals, truth values or floats of an Arrow array as text; NaN is null."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values
    if not pa.types.is_floating(kind):
        return values.cast(pa.string())
    encoded = pc.dictionary_encode(values.cast(pa.float32()) if pa.types.is_float16(kind) else values)
    distinct = encoded.dictionary.to_numpy(zero_copy_only=False)
    texts = pa.array([float_text(number) or None for number in distinct], pa.string())
    return texts.take(encoded.indices)
