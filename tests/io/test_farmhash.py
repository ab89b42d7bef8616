"""FarmHash in Python against TensorFlow's, for texts of every length that the algorithm distinguishes."""

import random

import numpy as np
import tensorflow as tf

from ctr.data.ids.graph import fingerprint
from ctr.io.farmhash import fingerprint64, fingerprints_of


def test_it_is_tensorflows_for_every_length():
    rng = random.Random(0)
    texts = [rng.randbytes(size) for size in [*range(200), 255, 256, 257, 1000, 4096] for _ in range(3)]
    texts += [bytes(size) for size in range(70)] + [b"\xff" * size for size in range(130)]
    found = [fingerprint64(text) for text in texts]
    assert found == fingerprint(tf.constant(texts)).numpy().tolist()


def test_of_arrays_it_is_the_same():
    rng = random.Random(1)
    texts = [
        rng.randbytes(
            rng.choice([0, 1, 2, 3, 5, 7, 8, 12, 16, 17, 25, 32, 33, 50, 64, 65, 128, 129, 190, 300])
        )
        for _ in range(40_000)
    ]
    texts += [rng.randbytes(size) for size in [*range(65, 260), 5000] for _ in range(20)]
    for some in (
        texts,
        texts[:9],
        [text for text in texts if 8 <= len(text) <= 16],
        [b"ab"],
        [b"a" * 70],
        [b""],
        [],
    ):
        sizes = np.array([len(text) for text in some], np.int64)
        begins = np.cumsum(sizes) - sizes
        content = np.frombuffer(b"".join(some), np.uint8)
        found = fingerprints_of(content, begins, sizes)
        assert found.dtype == np.uint64
        assert found.tolist() == [fingerprint64(text) for text in some]
