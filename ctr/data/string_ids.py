"""Int64 keys of strings, for the query_id and example_id of logs that name them by strings."""

import numpy as np
import pyarrow as pa

from ctr.io.errors import InputError
from ctr.io.farmhash import fingerprint64

_FEW = 4096  # up to which Python is faster than loading TensorFlow


def string_ids(values: pa.Array | pa.ChunkedArray | np.ndarray) -> np.ndarray:
    """Hashes N strings to int64: FarmHash Fingerprint64, its 64 bits read as signed. Raises InputError for others."""
    array = pa.array(values) if isinstance(values, np.ndarray) else values
    if array.null_count:
        raise InputError(
            f"{array.null_count} of the values to be converted to ids are null; every row requires one"
        )
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise InputError(f"values of type {array.type} cannot be converted to ids; strings are required")
    if len(array) <= _FEW:
        texts = array.cast(pa.large_binary()).to_pylist()
        return np.array([fingerprint64(text) for text in texts], np.uint64).view(np.int64)
    array = array.cast(pa.large_string())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    from ctr.data.transform import fingerprint_array

    return fingerprint_array(array).view(np.int64)
