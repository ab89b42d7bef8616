"""The weights and optimizer state of a run."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.models.click_model import Architecture, ClickModel, Factors
from ctr.models.embeddings import create_table, new_rows, tower_widths
from ctr.models.rows import TableLayout, place_rows
from ctr.objective.bias_constraints import Family
from ctr.optim.adagrad import grow_rows, row_count
from ctr.optim.online_bias import all_variables
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import Feed
from ctr.training.ids.config import IdsConfig
from ctr.training.ids.id_map import GrowingFeature, IdMap, Occupants
from ctr.training.optimizers import dense_optimizer, make_calibrators, table_optimizer

_PIECE = 65536
_FIRST_SLOTS = 1024


def architecture(config: TrainConfig, compute_dtype: str) -> Architecture:
    """The model's architecture under a configuration."""
    model, ranking, factorized = config.model, config.objective.ranking, config.model.factorized
    factors = None
    if factorized is not None:
        pieces = factorized.pieces if factorized.transfer == "piecewise_linear" else 0
        factors = Factors(factorized.width, factorized.ui_units, pieces, factorized.knot_range)
    return Architecture(
        cross_layers=model.crosses.layers,
        cross_rank=model.crosses.rank,
        deep_units=model.deep.units,
        deep_ranks=model.deep.ranks,
        activation=model.deep.activation,
        smelu_beta=model.deep.smelu_beta,
        prior=model.prior,
        compute_dtype=compute_dtype,
        rank_head=ranking is not None and ranking.setup == "multi_task",
        components=model.ensemble.components,
        factors=factors,
        gated=model.network_loss == "own",
    )


def create_network(
    layouts: tuple[TableLayout, ...], config: TrainConfig, compute_dtype: str, compiled: bool = True
) -> ClickModel:
    """The model without its tables, with fresh weights; ``compiled`` as ``ctr.models.passes`` says."""
    widths = tower_widths(layouts, config.model.factorized is not None)
    return ClickModel(architecture(config, compute_dtype), widths, compiled, seed=config.seed)


def dense_weights(network: ClickModel) -> dict[str, tf.Variable]:
    """The weights of a network by their names in checkpoints."""
    return {f"dense/{index:03d}": weight for index, weight in enumerate(network.weights().values())}


class TrainState:
    """All variables that training changes, and the maps from ids that grow to rows.

    Attributes:
        tables: for each layout a float32 [rows, columns] variable; where ids grow with slots behind the fixed rows.
        id_maps: of the tables in which ids grow, by the tables' numbers.
        table_optimizer: their optimizer.
        network: the dense part of the model.
        dense: its weights.
        dense_optimizer: their optimizer.
        calibrators: the optimizers of what is fitted beside the network where it is gated: of the bias, then of the
            offset and the gate.
        duals: for each family of constrained slices its lambda_k, float32 [slices] (FF 7.1).
        slices_seen: what ``ctr.objective.bias_constraints.dual_step`` remembers of the slices, float32 [2, slices].
    """

    def __init__(
        self,
        layouts: tuple[TableLayout, ...],
        config: TrainConfig,
        compute_dtype: str,
        families: Sequence[Family] = (),
    ) -> None:
        model, optimizer = config.model, config.optimizer
        self.layouts = layouts
        self._init_scale = model.init_scale
        self._seed = config.seed if model.embedding_seed is None else model.embedding_seed
        self.tables = [create_table(layout, self._init_scale, self._seed) for layout in layouts]
        self.id_maps = {
            number: make_id_map(layout, config.ids) for number, layout in enumerate(layouts) if layout.growing
        }
        self.table_optimizer = table_optimizer(optimizer.embeddings, layouts)
        self.table_optimizer.build(
            {layout.name: table for layout, table in zip(layouts, self.tables, strict=True)}
        )
        self.network = create_network(layouts, config, compute_dtype)
        weights = dense_weights(self.network)
        self.dense = list(weights.values())
        self.dense_optimizer = dense_optimizer(optimizer.dense)
        self.dense_optimizer.build(weights)
        self.calibrators = make_calibrators(self.network.calibrated)
        self.families = tuple(families)
        self.duals = [tf.Variable(tf.zeros([family.slices]), trainable=False) for family in families]
        self.slices_seen = [tf.Variable(tf.zeros([2, family.slices]), trainable=False) for family in families]

    def variables(self) -> dict[str, tf.Variable]:
        """All variables under names that do not depend on the process."""
        named = {
            f"rows/{layout.name}": table for layout, table in zip(self.layouts, self.tables, strict=True)
        }
        named |= self.table_optimizer.variables
        named |= dense_weights(self.network)
        named |= self.dense_optimizer.variables
        named |= all_variables(self.calibrators)
        for family, variable, seen in zip(self.families, self.duals, self.slices_seen, strict=True):
            named[f"duals/{family.name}"] = variable
            named[f"slices_seen/{family.name}"] = seen
        return named

    def place(self, feed: Feed, learning: bool = False) -> Feed:
        """Gives the ids of a feed that grow their rows.

        Args:
            learning: whether the feed is going to be learned from, once: then ids are counted, admitted and evicted,
                and slots that are used anew begin anew. Nothing is done for a feed whose ids have their rows.
        """
        if not self.id_maps:
            return feed
        plans = list(feed.plans)
        for number, id_map in self.id_maps.items():
            unplaced = plans[number].unplaced
            if unplaced is None:
                continue
            ids = unplaced.features, unplaced.fingerprints
            if learning:
                learned = id_map.learn(*ids, unplaced.counts, feed.batch.times[1], unplaced.drawn)
                rows = learned.rows
                self._begin_rows(number, rows[learned.fresh], *(part[learned.fresh] for part in ids))
            else:
                rows = id_map.look_up(*ids)
            plans[number] = place_rows(plans[number], rows, row_count(self.tables[number]))
        return feed.with_plans(plans)

    def _begin_rows(
        self, number: int, rows: np.ndarray, features: np.ndarray, fingerprints: np.ndarray
    ) -> None:
        """Lets the slots of ids that have just been admitted begin anew; the table doubles where there are too few."""
        layout, table, id_map = self.layouts[number], self.tables[number], self.id_maps[number]
        size = row_count(table)
        while size < id_map.rows:
            size = layout.rows + max(2 * (size - layout.rows), _FIRST_SLOTS)
        grow_rows(table, size)
        if len(rows):
            values = new_rows(layout, features, fingerprints, self._init_scale, self._seed)
            table.scatter_update(tf.IndexedSlices(values, rows))
            self.table_optimizer.begin_rows(number, rows, size)

    def adopt(self, number: int, feature: int, known: Occupants, which: np.ndarray) -> np.ndarray:
        """Gives ids of another run slots in a map, whose rows begin as those of new ids do.

        Args:
            number: of the table.
            feature: its number in ``TableLayout.growing``.
            known: what the other run's map has.
            which: int64 [N], the ids of it.

        Returns:
            int32 [N], their rows; -1 for ids that did not fit.
        """
        features, fingerprints = np.full(len(which), feature, np.int16), known.fingerprints[which]
        rows = self.id_maps[number].adopt(
            features,
            fingerprints,
            known.first_seen[which],
            known.last_seen[which],
            known.uses[which],
            known.frequency[which],
            known.time_us,
        )
        fits = rows >= 0
        self._begin_rows(number, rows[fits], features[fits], fingerprints[fits])
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """The values of all variables and maps, to be read before the next step: where possible, their own memory."""
        values = {name: np.asarray(variable.read_value()) for name, variable in self.variables().items()}
        return values | self._id_arrays()

    def _id_arrays(self) -> dict[str, np.ndarray]:
        return {
            f"ids/{self.layouts[number].name}/{name}": array
            for number, id_map in self.id_maps.items()
            for name, array in id_map.to_arrays().items()
        }

    def layout(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each of ``arrays``."""
        shapes = {
            name: (_shape(variable), np.dtype(variable.dtype.as_numpy_dtype))
            for name, variable in self.variables().items()
        }
        return shapes | {name: (array.shape, array.dtype) for name, array in self._id_arrays().items()}

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """The values of all variables, those of many rows in pieces: name, first row and values.

        TensorFlow hands a whole table out as a copy, in memory that is touched for the first time, which takes
        several times as long.
        """
        for name, array in self._id_arrays().items():
            yield name, 0, array
        for name, variable in self.variables().items():
            rows = _shape(variable)[0] if variable.shape.rank == 2 else 0
            if rows <= _PIECE:
                yield name, 0, np.asarray(variable.read_value())
                continue
            for begin in range(0, rows, _PIECE):
                piece = variable.sparse_read(tf.range(begin, min(begin + _PIECE, rows)))
                yield name, begin, np.asarray(piece)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets all variables and maps. Raises ValueError when names or shapes differ."""
        variables = self.variables()
        names = {*variables, *self._id_arrays()}
        if set(arrays) != names:
            raise ValueError(f"the checkpoint holds {sorted(arrays)}, the model {sorted(names)}")
        for name, variable in variables.items():
            variable.assign(arrays[name])
        for number, id_map in self.id_maps.items():
            id_map.restore(id_arrays(self.layouts[number], arrays))

    def optimizer_report(self) -> dict[str, float | int]:
        """What there is to watch of both optimizers."""
        return {**self.table_optimizer.report(), **self.dense_optimizer.report()}

    def optimizer_timing(self) -> dict[str, float]:
        """Seconds that both optimizers have spent beside the step since the process began."""
        return {**self.table_optimizer.timing(), **self.dense_optimizer.timing()}

    def parameter_counts(self) -> dict[str, int]:
        """Number of dense and of embedding parameters."""
        return {
            "parameters_dense": sum(int(np.prod(variable.shape)) for variable in self.dense),
            "parameters_embedding": sum(
                layout.columns * (self.id_maps[number].rows if layout.growing else layout.rows)
                for number, layout in enumerate(self.layouts)
            ),
        }


def make_id_map(layout: TableLayout, ids: IdsConfig) -> IdMap:
    """The map, empty yet, of a table in which ids grow."""
    offsets = layout.offsets()
    features = [
        GrowingFeature(
            feature.name,
            offsets[feature.name] + 1,
            ids.shared_rows,
            ids.capacity_of(feature.name),
        )
        for feature in layout.growing
    ]
    return IdMap(features, layout.rows, ids.admission, ids.eviction)


def id_arrays(layout: TableLayout, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a table's map restores itself from, of all arrays of a state."""
    prefix = f"ids/{layout.name}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _shape(variable: tf.Variable) -> tuple[int, ...]:
    """The shape of a variable, whose number of rows may change."""
    if variable.shape.is_fully_defined():
        return tuple(variable.shape)
    return (row_count(variable), *variable.shape[1:])


def fresh_state(config: TrainConfig, schema: Schema, families: Sequence[Family] = ()) -> TrainState:
    """The state that a run begins with, the same whenever it is asked for.

    From here on TensorFlow is restricted to operations that repeat bit by bit.
    """
    make_deterministic(config.seed)
    return TrainState(config.table_layouts(schema), config, resolve_compute_dtype(config), families)
