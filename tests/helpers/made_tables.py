"""Tables of a stranger, written as text, and what is inferred of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctr.data.mapping import Mapping, load_mapping
from ctr.pipelines.inference.columns import ColumnProfile, profile_column
from ctr.pipelines.inference.files import find_table
from ctr.pipelines.inference.infer import Inference, infer
from ctr.pipelines.inference.mapping_file import mapping_text
from ctr.pipelines.inference.roles import Options
from ctr.pipelines.inference.sample import read_sample
from ctr.pipelines.ingest.run import ingest


def write_table(path: Path, columns: dict[str, Any], delimiter: str = ",") -> Path:
    """Writes columns as text without quotes; None is empty."""
    lines = [delimiter.join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(delimiter.join("" if value is None else str(value) for value in row))
    path.write_text("\n".join(lines) + "\n")
    return path


def inferred(path: Path, **options: Any) -> Inference:
    """What is inferred of a file or a folder."""
    table = find_table(path)
    return infer(table, read_sample(table), Options(**options))


def becomes(found: Inference) -> dict[str, str]:
    """What each column becomes, by its name."""
    return {guess.column: guess.becomes for guess in found.guesses}


def reasons(found: Inference) -> dict[str, str]:
    """Why each column becomes what it does, by its name."""
    return {guess.column: guess.because for guess in found.guesses}


def ingested(found: Inference, path: Path) -> tuple[Mapping, Any]:
    """What the text of the mapping says, read again, and the result of an ingest by it, to ``log`` beside the file."""
    (path.parent / "mapping.yaml").write_text(mapping_text(found, path.name))
    mapping = load_mapping(path.parent / "mapping.yaml")
    assert mapping == found.mapping
    return mapping, ingest(mapping, [path], path.parent / "log")


def facts_of(values: Sequence[Any], name: str = "a") -> ColumnProfile:
    """The facts of a column of text, as a delimited file gives it."""
    return profile_column(
        name, pa.array([None if value is None else str(value) for value in values], pa.string())
    )
