"""Steps of ``ctr quickstart``: from a table to a trained model, without a mapping or configuration by the user.

::

    OUT/quickstart.json    the command's input, and the mapping of the log
    OUT/mapping.yaml       the mapping of the table, to be read and edited
    OUT/log                the example log
    OUT/run                the training run, with report.html

Each step is done once: the same command continues an interrupted one.
"""

import dataclasses
import hashlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctr.config import StrictModel, parse_model
from ctr.data.log import list_partitions
from ctr.data.mapping import Mapping, load_mapping
from ctr.io.documents import json_bytes, read_json_object
from ctr.io.errors import InputError, joined
from ctr.io.files import check_output_folder, write_atomic_bytes
from ctr.io.signals import stop_signals
from ctr.pipelines.infer.columns import SHOWN, strongest_text
from ctr.pipelines.infer.dialect import TableFiles, find_table, read_sample
from ctr.pipelines.infer.draft import Draft, decision_table, draft_mapping, list_labels, mapping_text
from ctr.pipelines.infer.roles import Options
from ctr.training.config import TrainConfig
from ctr.training.run.summary import summary_text, train_result
from ctr.training.validate import validate

RECORD, MAPPING, LOG, RUN = "quickstart.json", "mapping.yaml", "log", "run"


class Record(StrictModel):
    """Content of ``quickstart.json``."""

    input: str  # the table, as an absolute path
    files: dict[str, int]  # sizes in bytes
    options: dict[str, Any]  # the options of the command
    columns: tuple[dict[str, str], ...]  # the use of each column that the command prints, with the reason
    strongest: tuple[tuple[str, float], ...] = ()  # see ``strongest_columns``
    mapping_sha256: str | None = None  # of the mapping file that the log was begun with; null before
    ingested: dict[str, Any] | None = None  # counts of the ingest; null until it is complete


@dataclasses.dataclass(frozen=True)
class Tools:
    """Functions of the command line for the steps: messages, progress bars, and the import of TensorFlow."""

    say: Callable[[str], None]
    width: int  # characters of a line
    bar: Callable[..., Any]  # makes a progress bar from a total and a unit
    load_tensorflow: Callable[[], None]  # called before the first step that requires it


def default_out(path: Path) -> Path:
    """Returns the default output directory: beside the table, named after it."""
    whole = path.resolve()
    # The parent of `.` and of `..` is not beside them.
    parent = whole.parent if path.name in ("", "..") else path.parent
    return parent / f"{whole.name.split('.')[0] or whole.name}-quickstart"


def run_quickstart(
    path: Path, out: Path, options: Options, tools: Tools, dry_run: bool = False
) -> dict[str, Any]:
    """Writes a mapping, ingests, trains and writes the report; skips steps whose results exist.

    Returns the paths ``mapping``, ``log``, ``run``, ``report``; ``columns``: the use of each; ``strongest``: ``column``
    and ``auc`` of the strongest columns; ``ingest``, ``summary``: the results of the two steps; ``commands``: the
    same steps as commands. With ``dry_run`` it stops at the mapping; returns ``mapping``, ``columns`` and ``commands``.
    Raises InputError for an unreadable table, a missing or impossible role, an output directory of another
    table, or as ``ctr ingest`` and ``ctr train`` do.
    """
    check_output_folder(out, "a quickstart", lambda path: (path / RECORD).is_file())
    record = _begin(path, out, options, tools)
    log, run = out / LOG, out / RUN
    steps = (
        ("ctr", "ingest", "table", path, "--mapping", out / MAPPING, "--out", log),
        ("ctr", "train", log, "--out", run),
        ("ctr", "report", run),
    )
    commands = [shlex.join(map(str, step)) for step in steps]
    result = {"mapping": str(out / MAPPING), "columns": list(record.columns), "commands": commands}
    if dry_run:
        return result
    mapping = load_mapping(out / MAPPING)
    record = _check_mapping(out, record)
    if record.ingested is None:
        record = _ingest(path, out, mapping, record, tools)
    else:
        tools.say(f"{log} is complete already")
    summary = _train(log, run, tools)
    from ctr.eval.report import write_report

    return {
        **result,
        "log": str(log),
        "run": str(run),
        "report": str(write_report([run], None)),
        "strongest": [{"column": name, "auc": auc} for name, auc in record.strongest],
        "ingest": record.ingested,
        "summary": summary,
    }


def result_text(out: Path, result: dict[str, Any]) -> str:
    """Formats the final output of the command: metrics, the commands that repeat each step, and the report."""
    lines = [summary_text(out / RUN, result["summary"])]
    strongest = strongest_text([(column["column"], column["auc"]) for column in result["strongest"]])
    lines += [strongest] if strongest else []
    lines += [f"\nHow the table is read is in {result['mapping']}. By hand:"]
    lines += [f"  {command}" for command in result["commands"]]
    return "\n".join([*lines, f"\nThe report: {result['report']}"])


def _begin(path: Path, out: Path, options: Options, tools: Tools) -> Record:
    table = find_table(path, options.label)
    files = {file.name: file.path.stat().st_size for file in table.files}
    named = {name: value for name, value in dataclasses.asdict(options).items() if value}
    if (out / RECORD).is_file():
        name = str(out / RECORD)
        record = parse_model(Record, dict(read_json_object(out / RECORD, f"{name}: no such file")), name)
        begun = " ".join(
            f"--{name.replace('_', '-')} {shlex.quote(value)}"
            for name, values in record.options.items()
            for value in (values if isinstance(values, tuple) else [values])
        )
        for recorded, now, was in (
            (record.input, str(path.resolve()), f"is the quickstart of {record.input}:"),
            (record.files, files, f"was begun when the files of {path} had other names or sizes:"),
            (record.options, named, f"was begun with {begun}: give the same, or"),
        ):
            if recorded != now:
                raise InputError(f"{out} {was} use another --out")
        if (out / MAPPING).is_file():
            tools.say(f"{out / MAPPING} is there already and is used as it is")
            return record
    draft = draft_table(path, table, options, tools.say)
    lines = [f"{path}:", decision_table(draft.columns, tools.width), *(f"- {note}" for note in draft.notes)]
    tools.say("\n".join(lines))
    record = Record(
        input=str(path.resolve()),
        files=files,
        options=named,
        columns=tuple(
            {"column": name, "becomes": decision.becomes, "because": decision.because}
            for name, decision in draft.columns.items()
        ),
        strongest=tuple(draft.strongest[:SHOWN]),
    )
    _write_record(out, record)
    write_atomic_bytes(out / MAPPING, mapping_text(draft, path.name).encode())
    tools.say(f"Wrote {out / MAPPING}")
    return record


def draft_table(
    path: Path, table: TableFiles, options: Options, say: Callable[[str], None] = lambda text: None
) -> Draft:
    """Drafts the mapping of a table. Without a label, shows the possible columns and raises InputError."""
    sample = read_sample(table)
    if options.label is not None:
        return draft_mapping(table, sample, options)
    choices = list_labels(table, sample)
    labels = [f"--label {shlex.quote(choice)} ({why})" for choice, why in choices]
    say("\n".join([f"{path}: the label can be", *(f"  {line}" for line in labels)]))
    other = "a rule such as --label 'COLUMN>=4' or 'COLUMN==sold' makes a label of other values"
    required = f"{path}: --label is required: the column that says which rows are positive"
    raise InputError(required, joined(labels) or other)


def _write_record(out: Path, record: Record) -> None:
    write_atomic_bytes(out / RECORD, json_bytes(record.model_dump(mode="json")))


def _check_mapping(out: Path, record: Record) -> Record:
    """Returns the record with the mapping's hash. Raises InputError if the log was ingested with another one."""
    sha256 = hashlib.sha256((out / MAPPING).read_bytes()).hexdigest()
    begun = (out / LOG / "manifests").is_dir() and bool(list_partitions(out / LOG))
    if begun and record.mapping_sha256 not in (None, sha256):
        raise InputError(
            f"{out / MAPPING} was edited after {out / LOG} was made from it",
            f"remove {out / LOG} and {out / RUN} to make them anew, or ingest it into another directory with ctr "
            "ingest table",
        )
    if record.mapping_sha256 != sha256 or not begun:
        record = record.model_copy(update={"mapping_sha256": sha256, "ingested": None})
        _write_record(out, record)
    return record


def _ingest(path: Path, out: Path, mapping: Mapping, record: Record, tools: Tools) -> Record:
    tools.load_tensorflow()
    from ctr.pipelines.tables.ingest import IngestSettings, ingest

    tools.say(f"Ingesting {path} -> {out / LOG}")
    bar = tools.bar(None, "rows")
    try:
        result = ingest(mapping, [path], out / LOG, IngestSettings(progress=bar.advance))
    except InputError as error:
        raise InputError(str(error), f"edit {out / MAPPING}, and run the same command again") from None
    finally:
        bar.close()
    tools.say(result.as_text())
    record = record.model_copy(update={"ingested": result.as_dict()})
    _write_record(out, record)
    return record


def _train(log: Path, run: Path, tools: Tools) -> dict[str, Any]:
    config = TrainConfig()
    finished = validate(config, log, run)
    if finished is not None:
        tools.say(f"{run} is complete already")
        return train_result(log, run, finished, None)
    tools.load_tensorflow()
    from ctr.data.log import read_manifests
    from ctr.training.session import Process, train

    tools.say(f"Training in one pass -> {run}")
    bar = tools.bar(sum(manifest.rows for manifest in read_manifests(log)), "examples")
    try:
        with stop_signals() as stop:
            return train(log, config, run, bar, process=Process(stop=stop, phase=bar.phase))
    finally:
        bar.close()
