"""State of a run: its weights and the state of its optimizers."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.models.architecture import Architecture
from ctr.models.embeddings import tower_widths
from ctr.models.initial_weights import init_weights
from ctr.models.rows import APART, FIRST_NUMBERS, STATISTICS, TableLayout, check_table, number_count
from ctr.objective.bias_constraints import Family
from ctr.optim.first_order.online_bias import all_variables
from ctr.optim.protocol import Spectrum
from ctr.training.config import TrainConfig
from ctr.training.device import variables_beside_steps
from ctr.training.division import Placement
from ctr.training.experts.forward import Experts, Sources, dense_shapes, make_experts, tables_of
from ctr.training.experts.state import ExpertState
from ctr.training.label_outputs import label_biases
from ctr.training.optimizers import dense_optimizer
from ctr.training.retrain import initial_weights
from ctr.training.tables.tables import EmbeddingTables
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part, Sharding
from ctr.workers.row_variables import read_rows, row_count

_PIECE = 65536

# Limit of a logit's or weight's magnitude. Training does not reach it: beyond it, the weights are broken, if finite.
_LARGEST = 1e6

_WEIGHTS = ("rows/", "dense/")
"""Prefixes of the names of weights."""
_CERTIFIED = ("shampoo/stack", "shampoo/status", "one_sided/")
"""Prefixes of the names of statistics, roots and certificates, which may be infinite where no root is used."""


def dense_weights(weights: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the dense weights of a model by their names in checkpoints."""
    return {f"dense/{index:03d}": weight for index, weight in enumerate(weights.values())}


def check_shapes(
    weights: Mapping[str, np.ndarray], config: TrainConfig, layouts: tuple[TableLayout, ...]
) -> None:
    """Raises KeyError or ValueError if a checkpoint's tables and dense weights do not fit the model."""
    for layout in layouts:
        check_table(weights[f"rows/{layout.name}"], layout)
    shapes = dense_shapes(config.model, config.objective, layouts)
    for (key, shape), name in zip(dense_weights(shapes).items(), shapes, strict=True):
        if weights[key].shape != shape:
            raise ValueError(f"{name} has the shape {list(weights[key].shape)}, not {list(shape)}")


class TrainState:
    """All variables that training changes; if workers divide a variable, this worker's part of it."""

    def __init__(
        self,
        layouts: tuple[TableLayout, ...],
        config: TrainConfig,
        compute_dtype: str,
        families: Sequence[Family] = (),
        group: Workers = ALONE,
        sources: Sources | None = None,
    ) -> None:
        """Creates the state of an untrained run."""
        self.layouts, self.families = layouts, tuple(families)
        self.group = group
        with variables_beside_steps():
            self.tables = EmbeddingTables(layouts, config, group)
            self._create_dense(config, compute_dtype, sources)
            # Statistics of the numbers that the network reads, float64 [3, K] (``ctr.models.numbers``).
            count = number_count(layouts)
            self.statistics: tf.Variable = _unlearned([3, count], tf.float64) if count else None
            self.apart: tf.Variable = _unlearned([3 + FIRST_NUMBERS, count], tf.float64) if count else None
            # lambda_k of each family of constrained slices, float32 [slices] (FF 7.1).
            self.duals = [_unlearned([family.slices]) for family in families]
            # For ``dual_step``, float32 [2, slices].
            self.slices_seen = [_unlearned([2, family.slices]) for family in families]

    def _create_dense(self, config: TrainConfig, compute_dtype: str, sources: Sources | None) -> None:
        experts = make_experts(config.model, config.objective, compute_dtype, self.layouts, sources)
        widths = tower_widths(self.layouts, config.model.factorized is not None)
        initial = initial_weights(init_weights(experts.network, widths, config.seed), config.retrain)
        # By the names of ``ctr.models.initial_weights``.
        self.weights = {name: tf.Variable(value, name=name) for name, value in initial.items()}
        self.experts = ExpertState(experts, self.weights)
        self._without_pairs = tables_of(experts.without_pairs, self.layouts)
        self.label_biases = label_biases(experts.network, self.weights)
        # Weights with separate Newton steps.
        self.fitted = {*self.experts.fitted, *(bias.name for bias in self.label_biases)}
        self.dense, weights = list(self.weights.values()), dense_weights(self.weights)
        self.dense_optimizer = dense_optimizer(config.optimizer.dense, config.preconditions, self.group)
        self.dense_optimizer.build(weights)

    @property
    def architecture(self) -> Architecture:
        """Returns the architecture of the network expert."""
        return self.experts.experts.network

    @property
    def all_weights(self) -> dict[str, tf.Variable]:
        """Returns all weights that are not in tables, by name."""
        return {**self.weights, **self.experts.weights}

    @property
    def active_layouts(self) -> tuple[TableLayout, ...]:
        """Returns the layouts of the tables that a step reads: all, or all but pairs while that expert is inactive."""
        return self.layouts if self.experts.active is self.experts.experts else self._without_pairs

    def experts_of(self, plans: Sequence[object]) -> Experts:
        """Returns the experts whose tables have plans in a batch: all, or all but pairs if their table has no plan."""
        return self.experts.experts if len(plans) == len(self.layouts) else self.experts.experts.without_pairs

    def variables(self) -> dict[str, tf.Variable]:
        named = self.tables.variables | dense_weights(self.weights) | self.dense_optimizer.variables
        named |= {**self.experts.variables(), **all_variables(self.label_biases)}
        if self.statistics is not None:
            named[STATISTICS], named[APART] = self.statistics, self.apart
        for family, variable, seen in zip(self.families, self.duals, self.slices_seen, strict=True):
            named[f"duals/{family.name}"] = variable
            named[f"slices_seen/{family.name}"] = seen
        return named

    @property
    def placement(self) -> Placement:
        """Returns this worker's share of each batch and table."""
        return Placement(self.group.deal, self.tables.rows.dealt)

    @property
    def sharding(self) -> Sharding:
        """Returns which of ``arrays`` are divided among workers, and this worker's parts."""
        return Sharding(self.group.deal, self.tables.lengths(), self.dense_optimizer.parts())

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the values of all variables and id maps, valid until the next step; copies only where necessary."""
        return {name: _value(leaf) for name, leaf in self.leaves().items()}

    def leaves(self) -> dict[str, tf.Variable | np.ndarray]:
        """Returns all variables and the arrays of the id maps, by name."""
        return self.variables() | self.experts.arrays() | self.tables.id_arrays()

    def layout(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        return {name: _layout(leaf) for name, leaf in self._written().items()}

    def _written(self) -> dict[str, tf.Variable | np.ndarray]:
        """Returns the leaves that this worker writes: its parts, and on the first worker also all undivided ones."""
        leaves, sharding = self.leaves(), self.sharding
        return {name: leaf for name, leaf in leaves.items() if self.group.is_chief or name in sharding}

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Yields (name, first row, values) of what this worker writes to a checkpoint, large variables in pieces.

        TensorFlow returns a whole table as a copy in fresh memory, which takes several times as long.
        """
        for name, leaf in self._written().items():
            rows = 0 if isinstance(leaf, np.ndarray) or leaf.shape.rank != 2 else row_count(leaf)
            if rows <= _PIECE:
                yield name, 0, _value(leaf)
                continue
            for begin in range(0, rows, _PIECE):
                yield name, begin, read_rows(leaf, begin, min(begin + _PIECE, rows))

    def digest(self) -> str:
        """Returns the SHA-256, in hexadecimal, of the leaves that are not divided among workers."""
        sharding, digest = self.sharding, hashlib.sha256()
        for name, leaf in self.leaves().items():
            if name not in sharding:
                digest.update(np.ascontiguousarray(_value(leaf)).tobytes())
        return digest.hexdigest()

    def restore(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Part] | None = None) -> None:
        """Sets all variables and id maps; ``parts`` of divided arrays. Raises ValueError if names or shapes differ."""
        names = self.leaves().keys()
        if set(arrays) != names:
            raise ValueError(f"the checkpoint holds {sorted(arrays)}, the model {sorted(names)}")
        for name, variable in self.variables().items():
            variable.assign(arrays[name])
        self.experts.restore(arrays)
        self.tables.restore(arrays, parts or {})

    def optimizer_report(self) -> dict[str, float | int]:
        return {**self.tables.optimizer.report(), **self.dense_optimizer.report()}

    def optimizer_spectra(self) -> dict[str, Spectrum]:
        """Returns the spectra of the optimizers' statistics, by the names of weights."""
        names = dict(zip(dense_weights(self.weights), self.weights, strict=True))
        of_tables, of_dense = self.tables.optimizer.spectra(), self.dense_optimizer.spectra()
        return {
            **{names[name]: spectrum for name, spectrum in of_dense.items()},
            **{f"embeddings/{name}": spectrum for name, spectrum in of_tables.items()},
        }

    def optimizer_timing(self) -> dict[str, float]:
        return {**self.tables.optimizer.timing(), **self.dense_optimizer.timing()}

    def parameter_counts(self) -> dict[str, int]:
        return {
            "parameters_dense": sum(int(np.prod(variable.shape)) for variable in self.dense),
            "parameters_embedding": self.tables.parameters,
        }


def _unlearned(shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, dtype), trainable=False)


def _value(leaf: tf.Variable | np.ndarray) -> np.ndarray:
    return leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf.read_value())


def _layout(leaf: tf.Variable | np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype
    rows = () if leaf.shape.is_fully_defined() else (row_count(leaf),)
    return (*rows, *leaf.shape[len(rows) :]), np.dtype(leaf.dtype.as_numpy_dtype)


def predicts_soundly(logit: np.ndarray) -> bool:
    """Returns whether all logits (float [N]) are finite and small enough not to come from diverged weights."""
    # False also for NaN.
    return bool((np.abs(logit) <= _LARGEST).all())


def first_broken(arrays: Iterable[tuple[str, np.ndarray]]) -> str | None:
    """Returns the name and fault of the first array that is not finite or too large for weights, or None."""
    for name, array in arrays:
        if name.startswith(_CERTIFIED) or not array.size:
            continue
        # Minimum and maximum propagate NaN, for which comparisons are false.
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            return f"{name} is not finite"
        if name.startswith(_WEIGHTS) and max(-low, high) > _LARGEST:
            return f"{name} has weights beyond {_LARGEST:g}"
    return None
