"""The weights and optimizer state of a run."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.models.architecture import Architecture, Factors
from ctr.models.embeddings import create_table, first_rows, new_rows, tower_widths
from ctr.models.initial_weights import fitted_names, init_weights
from ctr.models.rows import TableLayout
from ctr.objective.bias_constraints import Family
from ctr.optim.kfac_core import Layer
from ctr.optim.online_bias import all_variables
from ctr.optim.row_variables import Rows, create_lines, grow_rows, read_rows, row_count, set_rows
from ctr.optim.state import in_present_form
from ctr.training.config import TrainConfig
from ctr.training.device import has_few_shapes, make_deterministic, resolve_compute_dtype
from ctr.training.division import Place, held_rows, is_divided
from ctr.training.feed import Feed
from ctr.training.ids.id_map import Occupants
from ctr.training.ids.of_tables import (
    arrays_of_maps,
    divided_lengths,
    divided_names,
    find_slots,
    id_arrays,
    make_id_map,
)
from ctr.training.optimizers import (
    dense_optimizer,
    make_averaging,
    make_calibrators,
    samples_labels,
    table_optimizer,
)
from ctr.training.shapes import most_rows
from ctr.workers.chips import Chips
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part, rows_of

_PIECE = 65536
_FIRST_SLOTS = 1024

Sources = Mapping[str, tuple[tuple[int, ...], ...]]
"""Of a supernet, see ``Architecture``."""


def architecture(config: TrainConfig, compute_dtype: str, sources: Sources | None = None) -> Architecture:
    """The model's architecture under a configuration; ``sources`` as ``Architecture``."""
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
        sources=sources or {},
    )


def dense_weights(weights: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Weights of a model by their names in checkpoints."""
    return {f"dense/{index:03d}": weight for index, weight in enumerate(weights.values())}


def linear_layers(shape: Architecture, weights: Mapping[str, tf.Tensor]) -> list[Layer]:
    """The linear products of a plain model in the order of the work, those of all components one after the other.

    By the numbers of their weights, in the order of ``dense_weights``.
    """
    numbers = {name: number for number, name in enumerate(weights)}
    layers: dict[str, list[Layer]] = {}
    for name, number in numbers.items():
        last = name.rpartition("/")[2]
        if last in ("w", "u", "v") or last.endswith("_head"):
            # Of one component: products of all components are computed at once.
            plain = name.partition("/")[2] if shape.components > 1 else name
            layers.setdefault(plain, []).append(Layer(number, numbers.get(f"{name}_bias")))
    return [layer for same in layers.values() for layer in same]


class TrainState:
    """All variables that training changes, and the maps from ids that grow to rows.

    Of several workers each has a part of the rows of large tables, with these rows' state, its part of the state of the
    dense weights, and all else, which is the same in all of them. Of the chips of a process, too, each has a part of
    these rows; but what is read and set here are all of them.

    Attributes:
        workers: those that train together.
        chips: those of this process that make each step together, each with a variable of its own of all that follow;
            None: one device does.
        divided: for each layout whether its rows are divided over the workers (``ctr.training.division``); over chips
            they are where ``RowLines`` says so.
        tables: for each layout float32 rows [rows, columns]; where ids grow with slots behind the fixed rows.
        id_maps: of the tables in which ids grow, by the tables' numbers.
        table_optimizer: their optimizer.
        architecture: of the dense part of the model.
        weights: its weights, by the names of ``ctr.models.initial_weights``.
        dense: the same without their names.
        fitted: those that are fitted beside the network where it is gated.
        layers: the linear products among them.
        dense_optimizer: their optimizer.
        averaging: what averages them but those that are fitted; None: nothing.
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
        workers: Workers = ALONE,
        chips: Chips | None = None,
        sources: Sources | None = None,
        in_lines: bool = False,
    ) -> None:
        """Begins with nothing learned.

        Args:
            sources: of a supernet, see ``Architecture``.
            in_lines: whether the rows of tables lie in lines (``ctr.optim.row_lines``); on chips they always do.
        """
        self.layouts = layouts
        self.workers, self.chips = workers, chips
        self._in_lines = in_lines or chips is not None
        with nullcontext() if chips is None else chips.holding():
            self._create(config, compute_dtype, families, sources)

    def _create(
        self,
        config: TrainConfig,
        compute_dtype: str,
        families: Sequence[Family],
        sources: Sources | None,
    ) -> None:
        layouts, workers, model, optimizer = self.layouts, self.workers, config.model, config.optimizer
        self.divided = tuple(
            not self._in_lines
            and is_divided(layout, workers.size, most_rows(config, layout), config.workers.divided_bytes)
            for layout in layouts
        )
        owners = [workers if divided else ALONE for divided in self.divided]
        # With the slots of all workers' parts.
        self._table_rows = [layout.rows for layout in layouts]
        self._init_scale = model.init_scale
        self._seed = config.seed if model.embedding_seed is None else model.embedding_seed
        self.tables = [self._create_table(number, config) for number in range(len(layouts))]
        self.id_maps = {
            number: make_id_map(layout, config.ids, workers)
            for number, layout in enumerate(layouts)
            if layout.growing
        }
        self.table_optimizer = table_optimizer(optimizer.embeddings, layouts, owners)
        self.table_optimizer.build(
            {layout.name: table for layout, table in zip(layouts, self.tables, strict=True)}
        )
        if has_few_shapes(config):
            for number in self.id_maps:
                self._grow(number, most_rows(config, layouts[number]))
        self.architecture = architecture(config, compute_dtype, sources)
        initial = init_weights(
            self.architecture, tower_widths(layouts, model.factorized is not None), config.seed
        )
        self.weights = {name: tf.Variable(value, name=name) for name, value in initial.items()}
        self.fitted = {name: self.weights[name] for name in fitted_names(self.architecture)}
        self.dense, weights = list(self.weights.values()), dense_weights(self.weights)
        self.layers = linear_layers(self.architecture, self.weights)
        self.dense_optimizer = dense_optimizer(optimizer.dense, workers, self.layers)
        self.dense_optimizer.build(weights)
        names = zip(weights, self.weights, strict=True)
        learned = {name: weights[name] for name, own in names if own not in self.fitted}
        self.averaging = make_averaging(optimizer.dense, learned)
        self.calibrators = make_calibrators(self.fitted)
        self.families = tuple(families)
        self.duals = [tf.Variable(tf.zeros([family.slices]), trainable=False) for family in families]
        self.slices_seen = [tf.Variable(tf.zeros([2, family.slices]), trainable=False) for family in families]

    def _create_table(self, number: int, config: TrainConfig) -> Rows:
        layout, init_scale, seed = self.layouts[number], self._init_scale, self._seed
        if not self._in_lines:
            own = self.workers if self.divided[number] else ALONE
            return create_table(layout, init_scale, seed, own.rank, own.size)
        most, from_bytes = most_rows(config, layout), config.workers.divided_bytes
        owners = self.group if is_divided(layout, self.group.size, most, from_bytes) else ALONE

        def part(chip: int) -> np.ndarray:
            return np.asarray(first_rows(layout, init_scale, seed, chip, owners.size))

        name, grows = f"rows/{layout.name}", bool(layout.growing)
        return create_lines(part, (layout.rows, layout.columns), owners, grows, name)

    def variables(self) -> dict[str, Rows]:
        """All variables under names that do not depend on the process."""
        named: dict[str, Rows] = {
            f"rows/{layout.name}": table for layout, table in zip(self.layouts, self.tables, strict=True)
        }
        named |= self.table_optimizer.variables
        named |= dense_weights(self.weights)
        named |= self.dense_optimizer.variables
        if self.averaging is not None:
            named |= self.averaging.variables
        named |= all_variables(self.calibrators)
        for family, variable, seen in zip(self.families, self.duals, self.slices_seen, strict=True):
            named[f"duals/{family.name}"] = variable
            named[f"slices_seen/{family.name}"] = seen
        return named

    @property
    def group(self) -> Workers:
        """Those among whom a step is divided: the chips of this process, or the workers."""
        return self.workers if self.chips is None else self.chips

    @property
    def samples_labels(self) -> bool:
        """Whether the optimizer of dense weights learns from labels that are sampled from the model."""
        return samples_labels(self.dense_optimizer)

    @property
    def workplace(self) -> Place | None:
        """Where this one stands among several workers, or that it has several chips; None: it is alone."""
        if self.chips is not None:
            return Place(0, self.chips.size, self.divided, has_all=True, by_chip=True)
        if self.workers.size == 1:
            return None
        return Place(self.workers.rank, self.workers.size, self.divided, numbered=self.samples_labels)

    def rows(self, number: int) -> int:
        """The number of rows that a table has by now, those of all workers' parts."""
        return self._table_rows[number] if self.divided[number] else row_count(self.tables[number])

    def parts(self) -> dict[str, Part]:
        """Which parts of arrays this worker has, by the names of ``arrays``; without those that it has whole."""
        parts = dict(self.dense_optimizer.parts())
        lengths = {name: self._table_rows[number] for name, number in self._row_arrays().items()}
        if self.workers.size > 1:
            lengths |= divided_lengths(self.layouts, self.id_maps)
        # Once for all arrays of one length: a part takes 8 bytes for each of its rows.
        of_length = {
            length: rows_of(self.workers.rank, self.workers.size, length) for length in set(lengths.values())
        }
        return parts | {name: of_length[length] for name, length in lengths.items()}

    def part_of(self) -> Callable[[str, int], Part | None]:
        """Returns which part this worker is to have of an array, of so many rows or entries; None: all of it."""
        of_dense, of_rows = self.dense_optimizer.parts(), set(self._row_arrays())
        if self.workers.size > 1:
            of_rows |= divided_names(self.layouts, self.id_maps)

        of_length = cache(partial(rows_of, self.workers.rank, self.workers.size))

        def part(name: str, rows: int) -> Part | None:
            return of_length(rows) if name in of_rows else of_dense.get(name)

        return part

    def _row_arrays(self) -> dict[str, int]:
        """The variables that have a row for each row of a divided table, by name, with the table's number."""
        kinds = ("rows", *self.table_optimizer.row_state)
        return {
            f"{kind}/{layout.name}": number
            for number, layout in enumerate(self.layouts)
            if self.divided[number]
            for kind in kinds
        }

    def place(self, feed: Feed, learning: bool = False) -> Feed:
        """Gives the ids of a feed that grow their rows.

        Args:
            learning: whether the feed is going to be learned from, once: then ids are counted, admitted and evicted,
                and slots that are used anew begin anew. Nothing is done for a feed whose ids have their rows.
        """
        if not self.id_maps:
            return feed
        plans, time_us, found_rows = feed.plans, feed.batch.times[1], dict[int, np.ndarray]()
        waiting = {number: new for number in self.id_maps if (new := plans[number].unplaced) is not None}
        ids = {number: (new.features, new.fingerprints) for number, new in waiting.items()}
        known: list[dict[str, np.ndarray]] = [{}] * len(ids)
        if ids and self.workers.size > 1:
            found = find_slots([self.id_maps[number] for number in ids], list(ids.values()), self.workers)
            known = [{"slots": slots} for slots in found]
        for (number, new), more in zip(waiting.items(), known, strict=True):
            id_map, own = self.id_maps[number], ids[number]
            if learning:
                learned = id_map.learn(*own, new.counts, time_us, new.drawn, **more)
                rows = learned.rows
                self._begin_rows(number, rows[learned.fresh], *(part[learned.fresh] for part in own))
            else:
                rows = id_map.look_up(*own, **more)
            found_rows[number] = rows
        placed = feed.with_rows(found_rows, self.rows)
        # Which chips hold the rows is known only now.
        if feed.largest is None or placed.fits():
            return placed
        return feed.largest().with_rows(found_rows, self.rows)

    def _begin_rows(
        self, number: int, rows: np.ndarray, features: np.ndarray, fingerprints: np.ndarray
    ) -> None:
        """Lets the slots of ids that have just been admitted begin anew; the table doubles where there are too few."""
        layout, table, id_map = self.layouts[number], self.tables[number], self.id_maps[number]
        size = self.rows(number)
        while size < id_map.rows:
            size = layout.rows + max(2 * (size - layout.rows), _FIRST_SLOTS)
        place = self.workplace
        if place is not None and self.divided[number]:
            self._table_rows[number] = size
            size = len(range(place.rank, size, place.size))
            which, rows = held_rows(rows, place)
            features, fingerprints = features[which], fingerprints[which]
        grow_rows(table, size)
        if len(rows):
            values = new_rows(layout, features, fingerprints, self._init_scale, self._seed)
            set_rows(table, rows, values)
            self.table_optimizer.begin_rows(number, rows, size)

    def _grow(self, number: int, size: int) -> None:
        """Gives a table rows until there are so many."""
        grow_rows(self.tables[number], size)
        self.table_optimizer.begin_rows(number, np.zeros(0, np.int32), size)

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
        return arrays_of_maps(self.layouts, self.id_maps)

    def layout(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array of which ``pieces`` are."""
        shapes = {
            name: (_shape(variable), np.dtype(variable.dtype.as_numpy_dtype))
            for name, variable in self._written().items()
        }
        return shapes | {
            name: (array.shape, array.dtype) for name, array in self._written_id_arrays().items()
        }

    def _written(self) -> dict[str, Rows]:
        """What this worker writes of ``variables``: its parts, and the first one also what all have."""
        variables = self.variables()
        if self.workers.is_chief:
            return variables
        parts = self.parts()
        return {name: variable for name, variable in variables.items() if name in parts}

    def _written_id_arrays(self) -> dict[str, np.ndarray]:
        """The same of the maps."""
        arrays = self._id_arrays()
        if self.workers.is_chief:
            return arrays
        parts = self.parts()
        return {name: array for name, array in arrays.items() if name in parts}

    def pieces(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """The values of all variables, those of many rows in pieces: name, first row and values.

        Of several workers each gives its parts, and the first one also what all have.

        TensorFlow hands a whole table out as a copy, in memory that is touched for the first time, which takes
        several times as long.
        """
        for name, array in self._written_id_arrays().items():
            yield name, 0, array
        for name, variable in self._written().items():
            rows = _shape(variable)[0] if variable.shape.rank == 2 else 0
            if rows <= _PIECE:
                yield name, 0, np.asarray(variable.read_value())
                continue
            for begin in range(0, rows, _PIECE):
                yield name, begin, read_rows(variable, begin, min(begin + _PIECE, rows))

    def digest(self) -> str:
        """A hash of the variables and of the maps' arrays that all workers have."""
        parts, found = self.parts(), hashlib.sha256()
        for name, variable in self.variables().items():
            if name not in parts:
                found.update(np.ascontiguousarray(variable.read_value()).tobytes())
        for name, array in self._id_arrays().items():
            if name not in parts:
                found.update(array.tobytes())
        return found.hexdigest()

    def whole_tables(self) -> list[tf.Variable]:
        """The tables with the rows of all workers, which all have to ask for; ``tables`` where none is divided.

        Of chips they are copies.
        """
        if self._in_lines:
            return [
                tf.Variable(
                    table.read_value(),
                    name=table.name.partition(":")[0],
                    shape=[None if layout.growing else layout.rows, layout.columns],
                )
                for layout, table in zip(self.layouts, self.tables, strict=True)
            ]
        place = self.workplace
        if place is None:
            return list(self.tables)
        whole = []
        for number, (layout, table) in enumerate(zip(self.layouts, self.tables, strict=True)):
            if not self.divided[number]:
                whole.append(table)
                continue
            rows = self.rows(number)
            values = np.zeros((rows if self.workers.is_chief else 0, layout.columns), np.float32)
            most, piece = len(range(0, rows, place.size)), _PIECE // place.size
            for begin in range(0, most, piece):
                end = min(begin + piece, most)
                own = np.zeros((end - begin, layout.columns), np.float32)
                held = range(begin, min(end, len(range(place.rank, rows, place.size))))
                own[: len(held)] = read_rows(table, held.start, held.stop)
                found = self.workers.gather_array(own)
                if self.workers.is_chief:
                    together = found.transpose(1, 0, 2).reshape(-1, layout.columns)
                    values[begin * place.size : end * place.size] = together[: rows - begin * place.size]
            shape = [None if layout.growing else len(values), layout.columns]
            whole.append(tf.Variable(values, name=table.name.partition(":")[0], shape=shape))
        return whole

    def restore(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Part] | None = None) -> None:
        """Sets all variables and maps. Raises ValueError when names or shapes differ.

        Args:
            arrays: by the names of ``variables`` and of the maps' arrays; of a divided one this worker's part.
            parts: which parts these are, where they are not those with which the state began.
        """
        variables = self.variables()
        names = {*variables, *self._id_arrays()}
        if set(arrays) != names:
            raise ValueError(f"the checkpoint holds {sorted(arrays)}, the model {sorted(names)}")
        for name, variable in variables.items():
            variable.assign(in_present_form(name, arrays[name]))
        for number, layout in enumerate(self.layouts):
            part = (parts or {}).get(f"rows/{layout.name}")
            self._table_rows[number] = layout.rows if part is None else part.total
        for number, id_map in self.id_maps.items():
            own, entries = (
                id_arrays(self.layouts[number], arrays),
                id_arrays(self.layouts[number], parts or {}),
            )
            id_map.restore(own, {name: part.total for name, part in entries.items()})

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


def _shape(variable: Rows) -> tuple[int, ...]:
    """The shape of a variable, whose number of rows may change."""
    if variable.shape.is_fully_defined():
        return tuple(variable.shape)
    return (row_count(variable), *variable.shape[1:])


def fresh_state(
    config: TrainConfig,
    schema: Schema,
    families: Sequence[Family] = (),
    workers: Workers = ALONE,
    chips: Chips | None = None,
) -> TrainState:
    """The state that a run begins with, the same whenever it is asked for.

    From here on TensorFlow is restricted to operations that repeat bit by bit.
    """
    make_deterministic(config.seed)
    layouts, dtype = config.table_layouts(schema), resolve_compute_dtype(config)
    return TrainState(layouts, config, dtype, families, workers, chips)
