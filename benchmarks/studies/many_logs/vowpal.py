"""Runs Vowpal Wabbit over a log so that each whole query is predicted before any of its rows is learned.

It reads a text file by itself, without Python for each row. It predicts a line without a label but does not learn from
it: so each query is written twice, first without its labels and then with them, and the predictions of the second lines
are dropped. A query of a single row is written once, since Vowpal Wabbit predicts a row before it learns from it. The
settings omit ``--link logistic``: predictions are then logits, with more digits than probabilities.
"""

import string
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr.io.files import write_atomic
from many_logs.logs import ExactLog

NAMESPACES = string.ascii_letters + string.digits
FEW_FEATURES = 8
ROWS_AT_ONCE = 100_000


def best_settings(features: int) -> tuple[str, ...]:
    """Returns the four settings of ``vw_best``. With few features, one setting has all their pairs.

    Args:
        features: number of features.
    """
    last = "-b 24 -q ::" if features <= FEW_FEATURES else "-b 24 -l 2"
    return ("-b 24", "-b 24 -l 0.1", "-b 24 --ftrl", last)


def write_text(log: ExactLog, path: Path) -> None:
    """Writes a log in Vowpal Wabbit's text format.

    Raises:
        ValueError: the log has more features than there are namespaces.
    """
    names = (*log.features, *log.multivalent)
    if len(names) > len(NAMESPACES):
        raise ValueError(f"{len(names)} features, of which {len(NAMESPACES)} can be distinguished")
    begins = log.query_begins

    def write(file: BinaryIO) -> None:
        for part in log.blocks(ROWS_AT_ONCE):
            lines = _lines(log, part.start, part.stop)
            labelled = pc.binary_join_element_wise(
                pa.array(["-1", "1"]).take(pa.array(log.label[part].astype(np.int8))), lines, " "
            )
            both = pa.concat_arrays([pc.binary_join_element_wise("", lines, " "), labelled])
            sizes = np.diff(begins[(begins >= part.start) & (begins <= part.stop)])
            ordered = both.take(pa.array(_order(sizes)))
            joined = pc.binary_join(pa.ListArray.from_arrays([0, len(ordered)], ordered), "\n")
            file.write(joined[0].as_buffer())
            file.write(b"\n")

    write_atomic(path, write)


def _order(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the order in which to write 2 N lines, of which the first N have no labels, and the others have.

    Args:
        sizes: int64 [Q], the number of rows of each query, N in total.
    """
    rows = int(sizes.sum())
    row = np.arange(rows)
    query = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((np.concatenate([row, row + rows]), np.concatenate([query, query])))
    alone = np.concatenate([sizes[query] == 1, np.zeros(rows, bool)])
    return order[~alone[order]]


def _lines(log: ExactLog, first: int, last: int) -> pa.Array:
    parts: list[pa.Array] = []
    for number in range(len(log.features)):
        ids = log.ids[first:last, number]
        parts.append(_tokens(ids))
    for values, offsets in log.multivalent.values():
        begin, end = int(offsets[first]), int(offsets[last])
        starts = pa.array(offsets[first : last + 1] - begin, pa.int32())
        parts.append(pc.binary_join(pa.ListArray.from_arrays(starts, _tokens(values[begin:end])), " "))
    headed = [pc.binary_join_element_wise(f"|{NAMESPACES[n]}", part, " ") for n, part in enumerate(parts)]
    return pc.binary_join_element_wise(*headed, " ")


def _tokens(ids: npt.NDArray[np.int32]) -> pa.Array:
    # With a letter: Vowpal Wabbit would use a bare number as an index in its table without hashing it.
    distinct, index = np.unique(ids, return_inverse=True)
    return pa.array([f"v{number}" for number in distinct], pa.string()).take(pa.array(index))


def predict(log: ExactLog, text: Path, settings: str) -> npt.NDArray[np.float64]:
    """Makes one pass; returns the logits, float64 [N].

    Args:
        log: the log from which the text was written.
        text: file written by ``write_text``.
        settings: command-line options besides ``--loss_function logistic``.
    """
    from vowpalwabbit import Workspace

    out = text.with_suffix(".predictions")
    workspace = Workspace(f"--loss_function logistic {settings} -d {text} -p {out} --quiet --no_stdin")
    workspace.finish()
    logits = np.fromstring(out.read_text(), np.float64, sep="\n")
    out.unlink()
    sizes = np.diff(log.query_begins)
    line_counts = np.where(sizes == 1, 1, 2 * sizes)
    if len(logits) != line_counts.sum():
        raise SystemExit(f"vowpalwabbit {settings}: {len(logits)} predictions for {line_counts.sum()} lines")
    begins = np.cumsum(line_counts) - line_counts
    return logits[np.repeat(begins - log.query_begins[:-1], sizes) + np.arange(log.rows)]
