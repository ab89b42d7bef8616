"""FarmHash in Python against TensorFlow's, for texts of every length that the algorithm distinguishes."""

import random

import numpy as np
import tensorflow as tf

from ctr.data.ids.graph import fingerprint
from ctr.io.farmhash import fingerprint64, fingerprints_of


def test_it_is_tensorflows_for_every_length_one_by_one_and_in_arrays(monkeypatch):
    # Long arrays are hashed in parts.
    monkeypatch.setattr("ctr.io.farmhash._MOST", 1000)
    rng = random.Random(0)
    sizes = [*range(260), *range(260), 1000, 4096, *rng.choices(range(20), k=3000)]
    texts = [rng.randbytes(size) for size in sizes]
    texts += [bytes(size) for size in range(70)] + [b"\xff" * size for size in range(130)]
    middle = [text for text in texts if 8 <= len(text) <= 16]
    for some in (texts, texts[:9], middle, [b"ab"], [b"a" * 70], [b""], []):
        expected = fingerprint(tf.constant(some, tf.string)).numpy().tolist()
        assert [fingerprint64(text) for text in some] == expected
        lengths = np.array([len(text) for text in some], np.int64)
        content = np.frombuffer(b"".join(some), np.uint8)
        found = fingerprints_of(content, np.cumsum(lengths) - lengths, lengths)
        assert found.dtype == np.uint64 and found.tolist() == expected
