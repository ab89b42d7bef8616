"""What ``ctr score`` is given and what it prints; loads no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.errors import InputError

if TYPE_CHECKING:
    from ctr.serving.score import ScoreResult


def refuse_scores_at(out: Path, inputs: Sequence[Path]) -> None:
    """Raises InputError when writing ``out`` would fail in the end or would write over what is to be scored."""
    if out.is_dir():
        raise InputError(f"--out {out}: this is a folder; a Parquet file is to be written")
    for given in inputs:
        inside = given.is_dir() and given.resolve() in out.resolve().parents
        if out.exists() and (inside or (given.exists() and out.samefile(given))):
            raise InputError(f"--out {out}: this is a file of the input {given}: choose another name")


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
