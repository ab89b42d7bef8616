"""State of ingests inside a log's folder: the files that are in the log, and the rows that are held back.

::

    LOG/.ingest/state.json            the files, the held rows, the manifests being published, and a hash of these
    LOG/.ingest/held-DIGEST.arrow     the rows of open partitions, as read: not sorted, not grouped

``state.json`` is replaced in one step, which commits an ingest: shards and held rows are complete before it, and the
manifests that it names are published after it, by the next ingest if this one is killed.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ctr.config import StrictModel, parse_model
from ctr.data.log import Manifest, check_log, list_partitions, parse_manifest, publish_manifest
from ctr.data.mapping import Mapping, input_patterns
from ctr.io.documents import read_sealed, sealed_bytes
from ctr.io.errors import InputError
from ctr.io.files import file_sha256, names_in, write_atomic_bytes
from ctr.pipelines.tables.input_files import SourceFile, find_files

FOLDER = ".ingest"
_STATE = "state.json"
REMEDY = (
    "restore it from a copy, or ingest all files of the log, in their order, into another output directory"
)


class InputFile(StrictModel):
    """File whose rows are in the log."""

    name: str
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rows: int = Field(ge=0)  # rejected ones included
    first_line: int = Field(ge=0)  # lines of the files before it; ``row_order`` makes times of them
    lines: int = Field(ge=0)


class HeldRows(StrictModel):
    """Rows of partitions that are not closed."""

    file: str = Field(pattern=r"^held-[0-9a-f]+\.arrow$")
    rows: int = Field(ge=1)
    inputs: dict[str, str]  # the names of their files, by the numbers in the column of files
    last_time: int  # the latest of any row so far (not of a query), in microseconds
    partitions: tuple[int, ...]  # the starts


class IngestState(StrictModel):
    """Content of ``state.json``."""

    format: int = Field(default=1, ge=1, le=1)
    inputs: tuple[InputFile, ...] = ()  # in the order in which they came
    held: HeldRows | None = None
    published: tuple[str, ...] = ()  # the names of the manifests that were published
    publishing: tuple[Manifest, ...] = ()  # have to be published before anything else
    rules: dict[str, str] = {}  # see ``rules_of``; empty before the first ingest

    @property
    def lines(self) -> int:
        return max((file.first_line + file.lines for file in self.inputs), default=0)


def rules_of(mapping: Mapping) -> dict[str, str]:
    """Returns the rules, other than features, that a log's files share; names of columns may differ between files."""
    grouped = "none" if mapping.query is None else "a column"
    if mapping.query is not None and mapping.query.session is not None:
        grouped = f"sessions of gap {mapping.query.session.gap_us / 1e6:.15g} s"
    # Without labels, the state is the same as without the key.
    rules = {f"labels.{name}": further.rule for name, further in mapping.labels.items()}
    if mapping.keep_values:
        rules["keep_values"] = ", ".join(sorted(mapping.keep_values))
    # Durations in seconds: 1d and 24h are the same.
    return rules | {
        "label": "none" if mapping.label is None else mapping.label.rule,
        "weight": "none" if mapping.weight is None else "a column",
        "query": grouped,
        "partition": f"{mapping.partition_us / 1e6:.15g} s",
    }


def check_rules(log: Path, state: IngestState, rules: dict[str, str]) -> None:
    """Raises InputError if the rows of a log were ingested under other rules."""
    for key in (state.rules | rules) if state.rules else ():
        before, now = state.rules.get(key, "none"), rules.get(key, "none")
        if before != now:
            raise InputError(
                f"{log}: its rows were ingested with {key}: {before}, and the mapping now has {key}: {now}; "
                "allowed: the same, or another output directory"
            )


def check_published(log: Path, state: IngestState) -> None:
    """Raises InputError if a published manifest is lost, but shards of its partition exist."""
    present = {name.removesuffix(".json") for name in names_in(log / "manifests", ".json")}
    for name in sorted(set(state.published) - present):
        if any(shard.startswith(name) for shard in names_in(log / "shards", ".parquet")):
            raise InputError(
                f"{log / 'manifests' / name}.json: missing, though it was published",
                f"{REMEDY}; or delete its shards if they should not be read",
            )


def begin_state(log: Path) -> None:
    """Writes an empty state, unless there is one, before a log is created: a log without one must then have lost it."""
    if not (log / FOLDER / _STATE).exists():
        _write_state(log, IngestState())


def read_state(log: Path) -> IngestState:
    """Reads the state, which is empty before the first ingest. Raises InputError when it is lost or damaged."""
    path = log / FOLDER / _STATE
    if path.exists():
        return parse_model(IngestState, read_sealed(path, f"{path}: no such file"), str(path))
    if (log / "schema.json").exists():
        raise InputError(
            f"{path}: missing, though {log} is a log: the file was lost, and with it the list of rows that are kept "
            "unpublished, or another command made the log",
            REMEDY,
        )
    return IngestState()


def input_files(log: Path, mapping: Mapping, inputs: Sequence[Path], append: bool) -> list[SourceFile]:
    """Returns the files of an ingest; none are required if rows are held back or an ingest is unfinished.

    Raises InputError for no files, or a log of other features.
    """
    check_log(log, mapping.feature_schema)
    if inputs:
        return find_files(inputs, input_patterns(mapping.input), [join.file for join in mapping.joins])
    state = read_state(log)
    if append or (state.held is None and not state.publishing):
        raise InputError(
            f"no input is given, files or directories are required: {log} holds no rows back that could be published"
        )
    return []


def finish_publishing(log: Path, state: IngestState) -> IngestState:
    """Publishes the manifests that were committed. Raises InputError if one was published with other content."""
    if not state.publishing:
        return state
    for manifest in state.publishing:
        publish_manifest(log, manifest)
    published = (*state.published, *(manifest.name for manifest in state.publishing))
    state = state.model_copy(update={"publishing": (), "published": published})
    _write_state(log, state)
    return state


def commit(log: Path, state: IngestState) -> IngestState:
    """Commits an ingest, publishes its partitions, and deletes the files of rows that are no longer held back."""
    _write_state(log, state)
    state = finish_publishing(log, state)
    named = {_STATE, *([] if state.held is None else [state.held.file])}
    for path in (log / FOLDER).iterdir():
        if path.name not in named:
            path.unlink(missing_ok=True)
    return state


def _write_state(log: Path, state: IngestState) -> None:
    write_atomic_bytes(log / FOLDER / _STATE, sealed_bytes(state.model_dump(mode="json")))


def digest_of(*parts: str) -> str:
    """Returns a digest, for use in a file's name, of the texts that the file's content depends on."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def last_time(log: Path, state: IngestState) -> int | None:
    """Returns the latest time of a row of the log, in microseconds, or None for a log without rows."""
    if state.held is not None:
        return state.held.last_time
    partitions = list_partitions(log)
    if not partitions:
        return None
    path = log / "manifests" / f"{partitions[-1][0]:019d}-{partitions[-1][1]:019d}.json"
    shards = parse_manifest(path.read_bytes(), str(path)).shards
    return shards[-1].last_query_time if shards else None


def is_ingested(state: IngestState, source: SourceFile) -> bool:
    """Returns whether a file was added to the log before, with the same content."""
    size = source.path.stat().st_size
    alike = {file.sha256 for file in state.inputs if (file.name, file.bytes) == (source.name, size)}
    return bool(alike) and file_sha256(source.path) in alike
