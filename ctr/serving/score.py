"""Scores whole logs with an exported model, into a Parquet file and a JSON Lines file of rejected rows.

Importing this module loads no TensorFlow.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr.data.log import read_manifests, read_schema
from ctr.data.reader import FAULTS, Rows, add_query_size, read_rows
from ctr.data.time_range import TimeRange
from ctr.data.times import format_time
from ctr.io.errors import InputError
from ctr.io.files import check_output_file, write_atomic, write_atomic_bytes
from ctr.serving.metadata import LEARNED, is_learned, learned_until

if TYPE_CHECKING:
    from ctr.serving.scorer import Scorer

Progress = Callable[[int], None]
Batch = tuple[pa.Table, dict[str, np.ndarray], list[dict[str, Any]]]
"""Keys and scores of N rows, and rejected rows."""

_BATCH_ROWS = 4096
_GROUP_ROWS = 64 * 1024
_LOG_KEYS = ("query_time", "query_id", "example_id")
_LOG_WEIGHTS = [pa.field(name, pa.float32()) for name in ("train_weight", "metric_weight")]
_LOG_LABELS = [pa.field("label", pa.int8()), *_LOG_WEIGHTS]
_SCORES = [pa.field("logit", pa.float32()), pa.field("p", pa.float32())]


@dataclass(frozen=True)
class ScoreResult:
    """Counts of rows of a scored log."""

    rows: int
    scored: int
    rejected: int
    reject_reasons: dict[str, int]
    rejects_file: Path | None
    seconds: float
    learned: int  # rows that the model has learned from
    learned_until: int | None  # query time of the last row learned from, in microseconds; None: there is none


def check_scores_file(out: Path, log: Path) -> None:
    """Raises InputError when ``out`` cannot be written, or would replace a file of the log that is scored."""
    if out.is_file() and log.resolve() in out.resolve().parents:
        raise InputError(f"--out {out}: this is a file of {log}, which is scored: choose another name")
    _check_out(out)


def _check_out(out: Path) -> None:
    check_output_file(out, "predictions of ctr score", _is_scores)
    check_output_file(_rejects_file(out), "rejects of ctr score", _is_rejects)


def _rejects_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.rejects.jsonl")


def _is_scores(path: Path) -> bool:
    try:
        return pq.read_schema(path).names[-2:] == ["logit", "p"]
    except pa.ArrowException:
        return False


def _is_rejects(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            return "reason" in json.loads(file.readline())
        except (ValueError, TypeError):
            return False


def score_log(
    scorer: "Scorer",
    log: Path,
    out: Path,
    progress: Progress | None = None,
    time_range: TimeRange | None = None,
) -> ScoreResult:
    """Scores an example log by its ids, and adds the columns that ``ctr evaluate`` reads.

    A log without labels yields neither labels nor weights. Raises InputError if its features are not the model's, no
    partition is in ``time_range``, or a file is damaged or cannot be written.
    """
    times = time_range or TimeRange()
    schema = read_schema(log)
    model_version = scorer.schema.stored.version
    if schema.version != model_version:
        raise InputError(
            f"{log}: the log has the features of schema {schema.version}, the model {scorer.path} those of "
            f"{model_version}: both must have the same"
        )

    until = learned_until(scorer.metadata)
    manifests = read_manifests(log, needs_labels=False)
    labels = _LOG_LABELS if all(manifest.labeled for manifest in manifests) else []
    if manifests and not any(times.selects(manifest) for manifest in manifests):
        first, last = format_time(manifests[0].start), format_time(manifests[-1].end)
        raise InputError(
            f"{log}: no partition of the log overlaps --start and --end; it has {first} to {last}"
        )

    def batches() -> Iterator[Batch]:
        for shard in read_rows(log, scorer.schema, manifests, times=(times.start_us, times.end_us)):
            for begin in range(0, len(shard), _BATCH_ROWS):
                rows = shard.slice(begin, min(begin + _BATCH_ROWS, len(shard)))
                good = rows.fault == 0
                rejects = [_describe(rows, index) for index in np.flatnonzero(~good).tolist()]
                valid = rows if good.all() else rows.keep(good)
                columns = {name: getattr(valid, name) for name in _LOG_KEYS}
                for field in labels:
                    columns[field.name] = getattr(valid, field.name).astype(field.type.to_pandas_dtype())
                keys = pa.table({**columns, LEARNED: is_learned(until, valid.query_time, valid.query_id)})
                scores = scorer.score_ids(_packed(valid)) if len(valid) else {}
                yield keys, scores, rejects

    fields = [pa.field(name, pa.int64()) for name in _LOG_KEYS]
    # Scores of further labels first, the click scores last.
    scores = [*(pa.field(f"p_{name}", pa.float32()) for name in scorer.labels), *_SCORES]
    schema_out = pa.schema([*fields, *labels, pa.field(LEARNED, pa.bool_()), *scores])
    return _write(out, schema_out, batches(), progress, until)


def score_rows(scorer: "Scorer", rows: Rows) -> np.ndarray:
    """Computes the logits, float32 [N], of valid rows of a log with the model's features; queries must be whole."""
    rows = add_query_size(rows, scorer.schema)
    begins = range(0, len(rows), _BATCH_ROWS)
    batches = (rows.slice(begin, min(begin + _BATCH_ROWS, len(rows))) for begin in begins)
    parts = [scorer.score_ids(_packed(batch))["logit"] for batch in batches]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _packed(rows: Rows) -> dict[str, np.ndarray]:
    packed = {"ids": rows.ids}
    for name, (values, offsets) in rows.multivalent.items():
        packed |= {f"{name}.values": values, f"{name}.lengths": np.diff(offsets).astype(np.int32)}
    return packed


def _describe(rows: Rows, index: int) -> dict[str, Any]:
    keys = {name: int(getattr(rows, name)[index]) for name in _LOG_KEYS}
    return {"row": int(rows.position[index]), **keys, "reason": FAULTS[rows.fault[index]]}


def _write(
    out: Path,
    schema: pa.Schema,
    batches: Iterable[Batch],
    progress: Progress | None,
    until: tuple[int, int] | None,
) -> ScoreResult:
    _check_out(out)
    begun = time.perf_counter()
    rejected: list[dict[str, Any]] = []
    scored = learned = 0

    def write(file: BinaryIO) -> None:
        nonlocal scored, learned
        waiting: list[pa.Table] = []
        with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            for keys, scores, rejects in batches:
                rejected.extend(rejects)
                scored += keys.num_rows
                learned += pc.sum(keys.column(LEARNED)).as_py() or 0
                if keys.num_rows:
                    names = schema.names[keys.num_columns :]
                    columns = [*keys.columns, *(pa.array(scores[name]) for name in names)]
                    waiting.append(pa.table(columns, schema=schema))
                if sum(table.num_rows for table in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
                if progress is not None:
                    progress(keys.num_rows + len(rejects))
            writer.write_table(pa.concat_tables([schema.empty_table(), *waiting]))

    write_atomic(out, write)
    rejects_file = _rejects_file(out)
    if rejected:
        lines = "".join(json.dumps(reject, ensure_ascii=False) + "\n" for reject in rejected)
        write_atomic_bytes(rejects_file, lines.encode("utf-8", errors="backslashreplace"))
    else:
        rejects_file.unlink(missing_ok=True)
    reasons = Counter(reject["reason"] for reject in rejected)
    return ScoreResult(
        rows=scored + len(rejected),
        scored=scored,
        rejected=len(rejected),
        reject_reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        rejects_file=rejects_file if rejected else None,
        seconds=time.perf_counter() - begun,
        learned=learned,
        learned_until=None if until is None else until[0],
    )


def score_text(out: Path, result: ScoreResult) -> str:
    """Formats the result as ``ctr score`` prints it."""
    text = f"{out}: {result.scored} predictions, {result.seconds:.1f} s"
    if result.learned and result.learned_until is not None:
        text += (
            f"\nthe model was trained on {result.learned} of these rows (column {LEARNED}): they are not later than "
            f"{format_time(result.learned_until)}, and say nothing about rows that are new"
        )
    if result.rejected:
        text += f"\n{result.rejected} of {result.rows} rows rejected, see {result.rejects_file}:"
        text += "".join(f"\n  {count} x {reason}" for reason, count in result.reject_reasons.items())
    return text
