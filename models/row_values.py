import hashlib

import numpy as np

from ctr.io.hashing import splitmix64


def initial_rows(fps, name, columns, scale, seed):
    s = np.frombuffer(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "<u8")[0]
    k = splitmix64(fps.view(np.uint64) ^ s)
    e = splitmix64(k[:, None] + np.arange(columns, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    t = e.view(np.uint16).reshape(len(fps), columns, 4).sum(2, dtype=np.int64)
    return ((t - 2 * 65535) / (65535 * np.sqrt(1 / 3)) * scale).astype(np.float32)
