"""What ``ctr score`` is given and what it prints; loads no TensorFlow."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ctr.io.errors import InputError
from ctr.io.files import check_output_file

if TYPE_CHECKING:
    from ctr.serving.score import ScoreResult


def refuse_scores_at(out: Path, inputs: Sequence[Path]) -> None:
    """Raises InputError when ``out`` could not be written, or would replace what is to be scored."""
    for given in inputs:
        inside = given.is_dir() and given.resolve() in out.resolve().parents
        if out.is_file() and (inside or (given.exists() and out.samefile(given))):
            raise InputError(f"--out {out}: this is a file of the input {given}: choose another name")
    check_scores(out)


def check_scores(out: Path) -> None:
    """Refuses to write predictions, and the rejects beside them, over anything but earlier ones.

    Raises:
        InputError: what is there, and what is allowed.
    """
    check_output_file(out, "predictions of ctr score", _is_scores)
    check_output_file(rejects_of(out), "rejects of ctr score", _is_rejects)


def rejects_of(out: Path) -> Path:
    """Where the rows without a prediction are described."""
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


def score_text(out: Path, result: "ScoreResult") -> str:
    """What ``ctr score`` prints."""
    text = f"{out}: {result.scored} predictions, {result.seconds:.1f} s"
    if result.rejected:
        text += f"\n{result.rejected} of {result.rows} rows rejected, see {result.rejects_file}:"
        text += "".join(f"\n  {count} x {reason}" for reason, count in result.reject_reasons.items())
    return text


def is_log_alone(inputs: Sequence[Path]) -> bool:
    """Whether an example log is to be scored. Raises InputError when there are other inputs beside it."""
    logs = [path for path in inputs if (path / "schema.json").is_file()]
    if logs and len(inputs) > 1:
        raise InputError(f"input {logs[0]}: an example log is scored alone, without other inputs")
    return bool(logs)
