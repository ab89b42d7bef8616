"""Rows of a table, or of state with a row for each of them, in lines of 128 numbers, divided over chips.

A TPU gathers and scatters lines of 128 numbers as they lie in its memory; of a table [R, 17] it would copy all of it
to another layout and back at every step. So a line has as many rows as fit into it, one behind the other; a wider row
has a line of its own, of a multiple of 128::

    slot s of C columns:    line s // k, from column (s % k) * C on,    k = 128 // C

Of W chips that divide the rows, row r is held by chip r % W as its slot r // W; all chips have as many lines.

A step adds to lines, so that lines that several rows of the batch share are no special case. To add ``new - old``
would round; therefore lines hold the bits as int32, and their difference is added: integers wrap around to those of
``new``.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr.workers.collectives import ALONE, Workers

_LINE = 128
_FEW = 64


class RowLines:
    """Float32 rows [R, C] of one device, or of the chips of a process, each with a variable of its own.

    ``variable`` has their bits, int32 [lines, 128 or a multiple]; on each chip those of the rows that it holds.
    """

    dtype = tf.float32

    def __init__(
        self,
        values: Callable[[int], np.ndarray],
        rows: int,
        columns: int,
        owners: Workers = ALONE,
        grows: bool = False,
        name: str | None = None,
    ) -> None:
        """Creates the variable; ``values`` gives, by the number of a chip, the rows [., C] that it begins with.

        ``owners`` divide the rows; with ``ALONE`` each chip has all of them. ``grows``: there may be more rows.
        """
        self.rows, self.columns, self._owners, self._grows = rows, columns, owners, grows
        self._line = -(-columns // _LINE) * _LINE
        self._each = self._line // columns
        lines = self._pack(values(0), self._lines(rows))
        shape = [None if grows else len(lines), self._line]
        self.variable = tf.Variable(lines, trainable=False, shape=shape, name=name)
        self.name = self.variable.name
        for number, own in enumerate(self.on_devices()):
            if number and owners.size > 1:
                own.assign(self._pack(values(number), len(lines)))

    @property
    def is_divided(self) -> bool:
        return self._owners.size > 1

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([None if self._grows else self.rows, self.columns])

    def like(self, row: np.ndarray) -> "RowLines":
        """Creates as many other rows on the same chips, all of which begin as ``row``, float32 [C]."""
        size = self._owners.size

        def part(number: int) -> np.ndarray:
            # No more than the rows that there are: what is behind them are the zeros that ``grow`` appends.
            held = len(range(number, self.rows, size))
            return np.broadcast_to(np.asarray(row, np.float32), [held, len(row)])

        return RowLines(part, self.rows, len(row), self._owners, self._grows)

    def on_devices(self) -> list[tf.Variable]:
        one = self.variable
        return list(one.values) if isinstance(one, tf.distribute.DistributedValues) else [one]

    # In a step.

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Reads rows, int32 [U], as float32 [U, C]: on each chip all of them, also those that others hold.

        Of W chips each holds U / W of them, and they stand chip by chip.
        """
        slots = self._slots(rows)
        bits = tf.gather(self.variable, slots // self._each)[:, : self._each * self.columns]
        if self._each > 1:
            parts = tf.reshape(bits, [-1, self._each, self.columns])
            bits = tf.reduce_sum(tf.where(self._place(slots), parts, 0), axis=1)
        if self.is_divided:
            own = tf.range(self._owners.size)[:, tf.newaxis, tf.newaxis] == self._owners.number
            # Of integers the sum of a number and zeros is the number, that of -0.0 and zeros too.
            (bits,) = self._owners.all_reduce([tf.reshape(tf.where(own, bits, 0), [-1, self.columns])])
        return tf.bitcast(bits, tf.float32)

    def replace(self, rows: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> None:
        """Replaces rows, int32 [U] as ``gather`` takes them, that are ``old`` by ``new``, float32 [U, C].

        Each chip replaces those that it holds. A row that is there several times is to change at one of them only.
        """
        slots = self._slots(rows)
        change = tf.bitcast(self._own(new), tf.int32) - tf.bitcast(self._own(old), tf.int32)
        if self._each > 1:
            change = tf.where(self._place(slots), change[:, tf.newaxis], 0)
            change = tf.reshape(change, [-1, self._each * self.columns])
        change = tf.pad(change, [[0, 0], [0, self._line - self._each * self.columns]])
        tf.raw_ops.ResourceScatterAdd(
            resource=self.variable.handle, indices=slots // self._each, updates=change
        )

    def _slots(self, rows: tf.Tensor) -> tf.Tensor:
        return self._own(rows) // self._owners.size

    def _own(self, whole: tf.Tensor) -> tf.Tensor:
        size = self._owners.size
        if size == 1:
            return whole
        # A slice from a place that is not constant comes out wrong where a program is lowered to StableHLO.
        return tf.gather(tf.reshape(whole, [size, -1, *whole.shape[1:]]), self._owners.number)

    def _place(self, slots: tf.Tensor) -> tf.Tensor:
        """Returns which of the places of its line each slot has, bool [U, k, 1]."""
        return tf.one_hot(slots % self._each, self._each, True, False)[:, :, tf.newaxis]

    # Between two steps.

    def grow(self, size: int) -> None:
        lines = self._lines(size)
        for own in self.on_devices():
            has = int(tf.raw_ops.VariableShape(input=own.handle)[0])
            if has < lines:
                own.assign(tf.pad(own.read_value(), [[0, lines - has], [0, 0]]))
        self.rows = max(self.rows, size)

    def set(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Replaces some rows, each once, by ``values``, float32 [N, C]."""
        rows, bits, size = np.asarray(rows), _bits(values), self._owners.size
        for number, own in enumerate(self.on_devices()):
            which = np.flatnonzero(rows % size == number) if size > 1 else np.arange(len(rows))
            if not len(which):
                continue
            slots = rows[which] // size
            lines, places = np.unique(slots // self._each, return_inverse=True)
            # One of few sizes, each of which a TPU compiles for: the last line is written several times.
            padded = np.pad(lines, (0, max(_FEW, 1 << (len(lines) - 1).bit_length()) - len(lines)), "edge")
            content = np.array(own.sparse_read(padded))
            columns = (slots % self._each)[:, np.newaxis] * self.columns + np.arange(self.columns)
            content[places[:, np.newaxis], columns] = bits[which]
            content[len(lines) :] = content[len(lines) - 1]
            own.scatter_update(tf.IndexedSlices(content, padded))

    def read(self, begin: int, end: int) -> np.ndarray:
        size = self._owners.size
        first, last = begin // size, -(-end // size)
        from_line, to_line = first // self._each, -(-last // self._each)
        parts = []
        for own in self.on_devices()[:size]:
            lines = own.sparse_read(tf.range(from_line, to_line)).numpy()
            slots = lines[:, : self._each * self.columns].reshape(-1, self.columns)
            parts.append(slots[first - from_line * self._each : last - from_line * self._each])
        together = parts[0] if size == 1 else np.stack(parts, axis=1).reshape(-1, self.columns)
        return np.ascontiguousarray(together[begin - first * size : end - first * size]).view(np.float32)

    def read_value(self) -> np.ndarray:
        return self.read(0, self.rows)

    def assign(self, values: np.ndarray) -> None:
        """Sets all rows, float32 [R, C]; raises ValueError where there are others than before and they do not grow."""
        values = np.asarray(values)
        if values.shape[1:] != (self.columns,) or not (self._grows or len(values) == self.rows):
            raise ValueError(f"{self.name} has the shape {self.shape}, not {list(values.shape)}")
        self.rows = len(values)
        for number, own in enumerate(self.on_devices()):
            own.assign(self.lines(values, number))

    def lines(self, values: np.ndarray, number: int) -> np.ndarray:
        """Returns the lines of a chip, int32, where the rows are ``values``."""
        held = values[number :: self._owners.size] if self.is_divided else values
        return self._pack(held, self._lines(len(values)))

    def _lines(self, rows: int) -> int:
        return max(1, -(-rows // (self._owners.size * self._each)))

    def _pack(self, values: np.ndarray, lines: int) -> np.ndarray:
        content = np.zeros([lines, self._line], np.int32)
        slots = np.zeros([lines * self._each, self.columns], np.int32)
        slots[: len(values)] = _bits(values)
        content[:, : self._each * self.columns] = slots.reshape(lines, -1)
        return content


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).view(np.int32)
