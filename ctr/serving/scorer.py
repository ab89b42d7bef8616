"""Scoring with an exported model inside a Python process, without the trainer; with TensorFlow for many rows."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctr.io.errors import InputError, one_line
from ctr.serving.metadata import NETWORK, check_files, find_model, model_schema, read_chain, read_metadata
from ctr.serving.raw_values import FunctionInputs
from ctr.serving.row_model import RowModel, probabilities, transfers_of
from ctr.serving.weights import read_weights, stored_weights

if TYPE_CHECKING:
    from ctr.serving.graph import Program

_FEW_ROWS = 8  # up to which Python is faster than a call of TensorFlow (``benchmarks/bench_serving.py``)

_SOME_ROWS = 4095  # up to which, of all calls together, they are faster than loading TensorFlow


class Scorer:
    """Calls the functions of an exported model on Python's values.

    Args:
        path: the model's folder, or a folder of versions, of which the newest is taken. A delta needs the versions
            that it builds on beside it.
        cached_rows: how many rows of U a factorized model keeps; 0: none.
        lazy: whether TensorFlow is loaded only when it is needed: when calls of more than 8 rows have had more than
            4095 of them together, or by a call of no rows, or of values that ``ctr.data.ids.values`` asks it about.
        on_load: called before it is.

    Attributes:
        metadata: the content of ctr.json.
        schema: the features of the logs that it learned from.
        raw_schema: those that can be made of the columns that ``predict`` takes; the others the model leaves out.

    Raises:
        InputError: no model, a damaged one, a delta without what it builds on, or one that could do more than compute
            (``ctr.serving.graph``).

    Example, of a model whose features read the columns user, price and position:
        >>> scorer = Scorer(folder)
        >>> probabilities = scorer.predict({"user": ["u1", "u2"], "price": [1.5, None], "position": "1"})
        >>> probabilities.shape
        (2,)
    """

    def __init__(
        self,
        path: Path | str,
        cached_rows: int = 65_536,
        lazy: bool = False,
        on_load: Callable[[], object] | None = None,
    ) -> None:
        self.path = find_model(Path(path))
        self.metadata = read_metadata(self.path)
        self.schema = model_schema(self.metadata, self.path)
        self._chain = read_chain(self.path)
        self._changed = read_weights(self._chain) if self._chain.deltas else None
        if self._changed is None:
            check_files(self.path, self.metadata)
        self._cache: RowCache | None = None
        self._on_load = _once(on_load)
        self._loading = threading.Lock()
        self._loaded: Program | None = None
        self._few = _SOME_ROWS if lazy else _FEW_ROWS
        try:
            signatures = self.metadata["signatures"]
            self._inputs = {
                name: FunctionInputs(name, of["inputs"], self.schema.list_separators)
                for name, of in signatures.items()
            }
            self.raw_schema = self.schema.made_of(set(self._inputs["predict"].columns.values()))
            self._transfers = transfers_of(self.metadata["model"])
            self.factorized = "ui" in signatures
            if self.factorized and cached_rows:
                self._cache = RowCache(cached_rows, signatures["ui"]["outputs"]["U"]["shape"][1:])
            if not lazy:
                _ = self._program
            names = self.metadata[NETWORK]["variables"]
            weights = stored_weights(self.path, names) if self._changed is None else self._changed
            by_name = dict(zip(names, weights.values(), strict=True))
            self._rows = RowModel(self.metadata, self.schema, by_name, self._on_load)
        except InputError:
            raise
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise InputError(f"{self.path}: cannot be loaded: {one_line(error)[:300]}") from None

    @property
    def _program(self) -> "Program":
        """Graph, loaded once, whichever thread needs it first."""
        with self._loading:
            if self._loaded is None:
                self._on_load()
                from ctr.serving.graph import Program

                self._loaded = Program(self._chain, self._inputs, self._changed)
                self._few = _FEW_ROWS
            return self._loaded

    @property
    def labels(self) -> tuple[str, ...]:
        """The further labels whose probabilities the model predicts, too."""
        return tuple(self.metadata[NETWORK]["architecture"].get("labels", ()))

    @property
    def signatures(self) -> tuple[str, ...]:
        return tuple(self.metadata["signatures"])

    def predict(self, features: Mapping[str, Any]) -> np.ndarray:
        """Predicts click probabilities, float32 [N], of N rows of raw values.

        ``features`` has for each input (``raw_schema.inputs``) N values, or one for all rows; other columns are
        ignored. Raises InputError: an input is absent, lengths differ, or a value is not one of its kind.
        """
        return self.score(features)["p"]

    def score(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Computes ``p`` and ``logit``, and ``p_NAME`` of labels, float32 [N], arguments as for ``predict``."""
        return self._call("predict", *self._read("predict", features))

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes what ``score`` does of ids as ``ctr.serving.signatures.packed_columns`` has them."""
        scoring = self._rows if self._are_few(len(packed["ids"])) else self._program
        return scoring.score_ids(packed)

    def quality(self, features: Mapping[str, Any]) -> np.ndarray:
        """Computes Q, float32 [N, n, K], of the Quality tower's columns; arguments as for ``predict``."""
        self._require_factors()
        return self._call("quality", *self._read("quality", features))["Q"]

    def ui(self, features: Mapping[str, Any]) -> np.ndarray:
        """Computes U, float32 [N, n, K], of the UI tower's columns as ``predict`` takes them, or from the cache."""
        self._require_factors()
        columns, rows = self._read("ui", features)
        if self._cache is None:
            return self._call("ui", columns, rows)["U"]
        keys = list(zip(*(_hashable(column) for column in columns.values()), strict=True))

        def compute(places: list[int]) -> np.ndarray:
            some = {
                source: column[places]
                if isinstance(column, np.ndarray)
                else [column[place] for place in places]
                for source, column in columns.items()
            }
            return self._call("ui", some, len(places))["U"]

        return self._cache.get(keys, compute)

    def combine(self, quality: np.ndarray, ui: np.ndarray) -> np.ndarray:
        """Computes click probabilities, float32 [N], of Q and U row by row.

        Both are float32 [N, n, K]; one of them may be [1, n, K], which then goes with every row of the other.
        """
        self._require_factors()
        return probabilities((quality * ui).sum(axis=2).T, self._transfers)

    def combine_pairs(self, quality: np.ndarray, ui: np.ndarray) -> np.ndarray:
        """Computes click probabilities, float32 [A, T], of each row of Q, [A, n, K], with each row of U, [T, n, K]."""
        self._require_factors()
        return probabilities(quality.transpose(1, 0, 2) @ ui.transpose(1, 2, 0), self._transfers)

    def _require_factors(self) -> None:
        if not self.factorized:
            raise InputError(
                f"{self.path}: the model is not factorized: it has only predict, not quality and ui"
            )

    def _read(self, name: str, features: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        # Keys of the cache are texts, too.
        few = self._few if name != "ui" or self._cache is None else 2**62
        return self._inputs[name].read(features, few)

    def _are_few(self, rows: int) -> bool:
        """Returns whether so many rows are scored without TensorFlow, of which there are then fewer left."""
        if not 0 < rows <= self._few:
            return False
        if self._loaded is None and rows > _FEW_ROWS:
            # Many small calls take as long as a large one.
            self._few = max(_FEW_ROWS, self._few - rows)
        return True

    def _call(self, name: str, columns: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
        """Calls a function of raw values, the way that is faster for so many rows."""
        if self._are_few(rows):
            try:
                return self._rows.call(name, columns, rows)
            except UnicodeEncodeError:
                self._inputs[name].all_texts(columns)
                raise
        return self._program(name, columns)


def _once(function: Callable[[], object] | None) -> Callable[[], None]:
    """A function that the first call of it calls, whichever thread that is in; the others wait until it is done."""
    lock, pending = threading.Lock(), [] if function is None else [function]

    def call() -> None:
        with lock:
            if pending:
                pending.pop()()

    return call


def _hashable(column: Any) -> list[Any]:
    """A column's values as parts of a key; numbers by their bits, since NaN does not equal itself."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype == np.int64:
        return column.tolist()
    return np.where(np.isnan(column), np.float32(np.nan), column).view(np.int32).tolist()


ComputeRows = Callable[[list[int]], np.ndarray]


class RowCache:
    """Rows of float32 by key, ``capacity`` of them; drops the least recently used. Threads may share it."""

    def __init__(self, capacity: int, shape: Sequence[int]) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} is not allowed; allowed: at least 1")
        self._capacity = capacity
        self._rows = np.empty((capacity, *shape), np.float32)
        self._places: dict[Hashable, int] = {}
        self._keys: OrderedDict[int, Hashable] = OrderedDict()  # by place, the longest unused first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, keys: Sequence[Hashable], compute: ComputeRows) -> np.ndarray:
        """Returns the rows of N keys; ``compute`` makes those at some positions, of unknown keys, none twice."""
        with self._lock:
            places = np.fromiter(map(self._places.get, keys, repeat(-1)), np.int64, len(keys))
            missing = np.flatnonzero(places < 0).tolist()
            # A loop that is not in Python.
            deque(map(self._keys.move_to_end, places[places >= 0].tolist()), maxlen=0)
            rows = self._rows[places]
        if not missing:
            return rows
        begins: dict[Hashable, int] = {}
        for position in missing:
            begins.setdefault(keys[position], position)
        computed = compute(list(begins.values()))
        numbers = {key: number for number, key in enumerate(begins)}
        rows[missing] = computed[[numbers[keys[position]] for position in missing]]
        with self._lock:
            fresh = [key for key in begins if key not in self._places][-self._capacity :]
            self._rows[[self._new_place(key) for key in fresh]] = computed[[numbers[key] for key in fresh]]
        return rows

    def _new_place(self, key: Hashable) -> int:
        place = len(self._places)
        if place == self._capacity:
            place, oldest = self._keys.popitem(last=False)
            del self._places[oldest]
        self._places[key], self._keys[place] = place, key
        return place
