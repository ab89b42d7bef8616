"""Results of a run as one table of sums, RUN/windows.parquet, from which all metrics and their intervals are computed.

A row is a sum, ``value``, of a ``metric``; a sum without a row is 0. The other columns are its keys, "" or -1 if
it has none:

    part      ``pass``, the log of the run; ``label NAME``, a further label; ``log NAME``, a constraint log; ``time``,
              the pass window by window; ``slices``, default slices; ``importance`` of features
    slice     feature or family of bias constraints whose values are the slices; in ``importance`` the feature
    id        int64, the slice
    window    int64, rows of the log up to the end of the window, or before the rows that measure importance
    bucket    int32, query bucket, 0 to 255; in ``time`` the group of eight buckets
    bin       int32, bin of the logit, or of the size of the query
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctr.eval.arrays import FloatArray, IntArray
from ctr.eval.calibration import SliceCalibration
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.states import BUCKETS, Arrays
from ctr.eval.timeline import GROUPS, PLACE, SUMS, Timeline

if TYPE_CHECKING:
    import pandas as pd

TEXTS = ("part", "metric", "slice")
KEYS = ("id", "window", "bucket", "bin")
COLUMNS = (*TEXTS, *KEYS, "value")

PASS, TIME, SLICES, IMPORTANCE = "pass", "time", "slices", "importance"

_CLASSES = ("non_clicks", "clicks")
_CELL = ("weight", "clicks", "predicted", "loss")
# By array of a state: the keys along its axes, and the names along the last one.
_METRICS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "traffic/examples": ((), ()),
    "traffic/queries": ((), ()),
    "auc/fine": (("bin",), _CLASSES),
    "auc/coarse": (("bucket", "bin"), _CLASSES),
    "auc/coarse_prediction": (("bucket", "bin"), ()),
    "auc/clipped": ((), ("low", "high")),
    "per_query_auc/auc_sum": (("bucket", "bin"), ()),
    "per_query_auc/scored": (("bucket", "bin"), ()),
    "per_query_auc/one_class": (("bucket",), ()),
    "logloss/class_weight": (("bucket",), _CLASSES),
    "logloss/loss": (("bucket",), ()),
    "calibration/sums": (("bucket",), _CELL[:3]),
}
_AXES = {**_METRICS, "windows": (("window",), PLACE[1:]), "sums": (("window", "bucket"), SUMS)}
_AXES_OF_IMPORTANCE: tuple[tuple[str, ...], tuple[str, ...]] = (("window", "bucket"), ())
# The slices' arrays: keys and sums, the axis after the slice, and the names of the sums.
_SLICE = (("key", "sums", "bucket", _CELL), ("bin_key", "bin_sums", "bin", _CLASSES))


class Sums:
    """Table of a run's sums. Metric states are written and read bit for bit; reading damaged sums raises ValueError."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._groups: dict[tuple[str, ...], pd.DataFrame] = {}

    @classmethod
    def of(cls, frame: "pd.DataFrame") -> Self:
        """Reads the rows of a table with ``COLUMNS``. Raises ValueError for damaged keys or values."""
        sums = cls()
        if any(frame[name].dtype.kind != "i" for name in KEYS) or not np.isfinite(frame["value"]).all():
            raise ValueError("keys must be whole numbers, and value finite")
        grouped = frame.groupby(list(TEXTS), sort=False, observed=True)
        sums._groups = {tuple(map(str, key)): part for key, part in grouped}
        return sums

    def table(self) -> pa.Table:
        """Returns all rows, in the order in which they were added."""
        return pa.concat_tables(self._tables)

    def _add(self, part: str, metric: str, values: Iterable[float], of: str = "", **keys: IntArray) -> None:
        value = np.asarray(values, np.float64)
        texts = [pa.repeat(text, len(value)) for text in (part, metric, of)]
        types = [np.int64 if name in ("id", "window") else np.int32 for name in KEYS]
        rows = [
            np.asarray(keys.get(name, np.full(len(value), -1)), kind)
            for name, kind in zip(KEYS, types, strict=True)
        ]
        self._tables.append(pa.table([*texts, *rows, value], names=list(COLUMNS)))

    def _rows(self, part: str, metric: str, of: str = "") -> dict[str, npt.NDArray[Any]]:
        rows = self._groups.get((part, metric, of))
        return {
            name: np.zeros(0, np.int64) if rows is None else rows[name].to_numpy()
            for name in (*KEYS, "value")
        }

    def _add_array(
        self, part: str, path: str, array: npt.NDArray[Any], windows: IntArray | None = None, of: str = ""
    ) -> None:
        """Adds the sums in an array that are not 0; ``windows`` are the keys along an axis ``window``."""
        axes, names = _AXES.get(path, _AXES_OF_IMPORTANCE)
        for name, sums in _by_metric(path, array, names):
            indices = np.nonzero(np.atleast_1d(sums))
            keys = dict(zip(axes, indices, strict=False))  # a single sum has an index, but no key
            if windows is not None:
                keys["window"] = windows[keys["window"]]
            self._add(part, name, np.atleast_1d(sums)[indices], of, **keys)

    def _array(
        self, part: str, path: str, shape: tuple[int, ...], windows: IntArray | None = None, of: str = ""
    ) -> FloatArray:
        """Restores the array, float64, that ``_add_array`` stored."""
        axes, names = _AXES.get(path, _AXES_OF_IMPORTANCE)
        array = np.zeros(shape)
        for name, sums in _by_metric(path, array, names):
            rows = self._rows(part, name, of)
            if windows is not None:
                rows["window"] = np.searchsorted(windows, rows["window"])
            for key, size in zip(axes, sums.shape, strict=True):
                if not ((rows[key] >= 0) & (rows[key] < size)).all():
                    raise ValueError(f"{part} {name}: {key} must be 0 to {size - 1}")
            np.add.at(sums, tuple(rows[key] for key in axes), rows["value"] if axes else rows["value"].sum())
        return array

    def add_metrics(self, part: str, metrics: ProgressiveMetrics) -> None:
        arrays = metrics.to_arrays()
        for path in _METRICS:
            self._add_array(part, path, arrays[path])
        self.add_slices(part, metrics.slices)

    def metrics(self, part: str = PASS) -> ProgressiveMetrics | None:
        """Returns the metrics of a part, or None if there are none."""
        if not any(key[0] == part for key in self._groups):
            return None
        arrays = ProgressiveMetrics().to_arrays()
        for path in _METRICS:
            arrays[path] = self._array(part, path, arrays[path].shape).astype(arrays[path].dtype)
        metrics = ProgressiveMetrics.from_arrays(arrays)
        metrics.slices.update(self.slices(part))
        return metrics

    def add_slices(self, part: str, states: Mapping[str, SliceCalibration]) -> None:
        for name, state in states.items():
            arrays = state.to_arrays()
            # Also of a feature without any slice.
            self._add(part, "slices", [len(arrays["id"])], name)
            for key, sums, axis, metrics in _SLICE:
                keys = {"id": arrays["id"][arrays[key] // BUCKETS], axis: arrays[key] % BUCKETS}
                for metric, values in zip(metrics, arrays[sums], strict=True):
                    self._add(part, f"slice/{metric}/{axis}", values, name, **keys)

    def slices(self, part: str = SLICES) -> dict[str, SliceCalibration]:
        """Returns the slices of a part by feature or family, in the order in which they were added."""
        states = {}
        for name in [key[2] for key in self._groups if key[:2] == (part, "slices")]:
            arrays = {"id": np.unique(self._rows(part, "slice/weight/bucket", name)["id"])}
            for key, sums, axis, metrics in _SLICE:
                rows = [self._rows(part, f"slice/{metric}/{axis}", name) for metric in metrics]
                arrays[key] = np.searchsorted(arrays["id"], rows[0]["id"]) * BUCKETS + rows[0][axis]
                arrays[sums] = np.stack([table["value"] for table in rows]).astype(np.float64)
            states[name] = SliceCalibration.from_arrays(arrays)
        return states

    def add_timeline(self, timeline: Timeline) -> None:
        windows = timeline.windows[:, 0]
        self._add_array(TIME, "windows", timeline.windows[:, 1:], windows)
        self._add_array(TIME, "sums", timeline.sums, windows)

    def timeline(self) -> Timeline:
        # The number is above 0 in every window.
        ends = np.unique(self._rows(TIME, f"windows/{PLACE[-1]}")["window"])
        others = self._array(TIME, "windows", (len(ends), len(PLACE) - 1), ends)
        timeline = Timeline()
        timeline.windows = np.concatenate([ends[:, np.newaxis], others.astype(np.int64)], axis=1)
        timeline.sums = self._array(TIME, "sums", (len(ends), GROUPS, len(SUMS)), ends)
        return timeline

    def add_importance(self, arrays: Arrays) -> None:
        """Adds the arrays of the feature importance (see ``ctr.eval.importance``)."""
        for path, array in arrays.items():
            metric, _, feature = path.partition("/")
            if metric in ("position", "rows"):
                self._add(IMPORTANCE, metric, array, window=arrays["position"])
            else:
                # Also of a feature that changes nothing.
                self._add(IMPORTANCE, "features", [len(array)], path)
                self._add_array(IMPORTANCE, metric, array, arrays["position"], feature)

    def importance(self) -> Arrays:
        """Returns the arrays of the feature importance, see ``ctr.eval.importance``; empty if it was not measured."""
        positions = self._rows(IMPORTANCE, "position")["window"]
        if not len(positions):
            return {}
        rows = self._rows(IMPORTANCE, "rows")["value"]
        arrays: dict[str, npt.NDArray[Any]] = {"position": positions, "rows": rows.astype(np.int64)}
        for path in [key[2] for key in self._groups if key[:2] == (IMPORTANCE, "features")]:
            metric, _, feature = path.partition("/")
            shape = len(positions), BUCKETS
            arrays[path] = self._array(IMPORTANCE, metric, shape, positions, feature)
        return arrays


def _by_metric(
    path: str, array: npt.NDArray[Any], names: tuple[str, ...]
) -> list[tuple[str, npt.NDArray[Any]]]:
    """Returns pairs of a metric and its values: views along the last axis if it has ``names``, or the whole array."""
    parts = [(f"{path}/{name}", array[..., index]) for index, name in enumerate(names)]
    return parts or [(path, array)]
