from dataclasses import dataclass

import numpy as np

from ctr.io.hashing import splitmix64


@dataclass(frozen=True)
class GrowingFeature:
    name: str
    shared_row: int
    shared_rows: int
    capacity: int


@dataclass
class Learned:
    rows: np.ndarray
    fresh: np.ndarray


@dataclass(frozen=True)
class Occupants:
    rows: np.ndarray
    features: np.ndarray
    fingerprints: np.ndarray


class IdMap:
    def __init__(self, features, first_slot, admission, eviction):
        self.f, self.first, self.d = features, first_slot, {}

    @property
    def rows(self):
        return self.first + len(self.d)

    def look_up(self, features, fps):
        return np.array(
            [
                self.d.get((int(a), int(b)), self.f[a].shared_row + int(m) % self.f[a].shared_rows)
                for a, b, m in zip(features, fps, splitmix64(fps.view(np.uint64)))
            ],
            np.int32,
        )

    def learn(self, features, fps, counts, time_us, admit=None):
        fresh = []
        rows = []
        for i, k in enumerate(zip(features.tolist(), fps.tolist())):
            if k not in self.d:
                self.d[k] = self.first + len(self.d)
                fresh.append(i)
            rows.append(self.d[k])
        return Learned(np.array(rows, np.int32), np.array(fresh, np.int64))

    def occupants(self):
        rows = np.array(list(self.d.values()), np.int32)
        return Occupants(rows, self.to_arrays()["feature"], self.to_arrays()["fingerprint"])

    def to_arrays(self):
        return {
            "feature": np.array([k[0] for k in self.d], np.int16),
            "fingerprint": np.array([k[1] for k in self.d], np.int64),
        }

    def restore(self, a):
        self.d = {
            (f, k): self.first + i
            for i, (f, k) in enumerate(zip(a["feature"].tolist(), a["fingerprint"].tolist()))
        }
