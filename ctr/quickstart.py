"""Steps of ``ctr quickstart``: from a table to a trained model without a mapping and a configuration.

::

    OUT/quickstart.json    what the command was given, and the mapping that the log was made with
    OUT/mapping.yaml       the mapping that was inferred, to be read and edited
    OUT/log                the example log
    OUT/run                the training run, with report.html

Each step is done once: the same command goes on where it was interrupted.
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
from ctr.io.errors import LONGEST_LINE, InputError, one_line
from ctr.io.files import check_output_folder, write_atomic_bytes
from ctr.io.signals import stop_signals
from ctr.pipelines.inference.files import find_table
from ctr.pipelines.inference.infer import Inference, guess_table, infer, mapping_text
from ctr.pipelines.inference.leaks import is_suspicious, strongest_text
from ctr.pipelines.inference.roles import Doubt, Options
from ctr.pipelines.inference.sample import read_sample
from ctr.training.config import TrainConfig
from ctr.training.run.summary import summary_text, train_result
from ctr.training.validate import validate

RECORD, MAPPING, LOG, RUN = "quickstart.json", "mapping.yaml", "log", "run"

# Asks a person to decide, and says why the answer before was refused; returns the value of the option.
Ask = Callable[[Doubt, str], str]


class Record(StrictModel):
    """Content of ``quickstart.json``."""

    input: str  # the table, as an absolute path
    files: dict[str, int]  # sizes in bytes
    options: dict[str, Any]  # those that were given
    guesses: tuple[dict[str, str], ...]  # of each column, as they were shown
    strongest: tuple[tuple[str, float, int], ...] = ()  # see ``strongest_columns``
    mapping_sha256: str | None = None  # of the mapping file that the log was begun with; null before
    ingested: dict[str, Any] | None = None  # what the ingest counted; null until it is complete


@dataclasses.dataclass(frozen=True)
class Tools:
    """Output and questions of the command line."""

    say: Callable[[str], None]
    width: int  # characters of a line
    ask: Ask | None  # None where there is no terminal
    bar: Callable[..., Any]  # makes a progress bar from a total and a unit (see ``ctr.demo.run_demo``)
    load_tensorflow: Callable[[], None]  # called before the first step that requires it


def default_out(given: Path) -> Path:
    """Returns the output directory where none is given: beside the table, named after it."""
    whole = given.resolve()
    # The parent of `.` and of `..` is not beside them.
    parent = whole.parent if given.name in ("", "..") else given.parent
    return parent / f"{whole.name.split('.')[0] or whole.name}-quickstart"


def check_quickstart_folder(out: Path) -> None:
    """Raises InputError where a directory is neither empty nor one of ``ctr quickstart``."""
    check_output_folder(out, "a quickstart", lambda found: (found / RECORD).is_file())


def run_quickstart(given: Path, out: Path, options: Options, tools: Tools) -> dict[str, Any]:
    """Infers a mapping, ingests, trains and writes the report; what is there already is not done again.

    Returns the paths ``mapping``, ``log``, ``run``, ``report``; ``columns``: what became of each; ``strongest``: of the
    strongest columns ``column``, ``auc`` and ``suspicious``; ``ingest``, ``summary``: the results of the two steps;
    ``commands``: the same by hand. Raises InputError: a table that cannot be read, a guess that is not certain without
    a terminal, an output directory of another table, or what ``ctr ingest`` and ``ctr train`` refuse.
    """
    check_quickstart_folder(out)
    record = _begin(given, out, options, tools)
    mapping = load_mapping(out / MAPPING)
    record = _check_mapping(out, record)
    log, run = out / LOG, out / RUN
    commands = _commands(given, out)
    if record.ingested is None:
        record = _ingest(given, out, mapping, record, tools)
    else:
        tools.say(f"{log} is complete already")
    summary = _train(log, run, tools)
    from ctr.eval.report import write_report

    report = write_report([run], None)
    return {
        "mapping": str(out / MAPPING),
        "log": str(log),
        "run": str(run),
        "report": str(report),
        "columns": list(record.guesses),
        "strongest": [
            {"column": name, "auc": auc, "suspicious": is_suspicious(auc, values, summary["auc"])}
            for name, auc, values in record.strongest
        ],
        "ingest": record.ingested,
        "summary": summary,
        "commands": commands,
    }


def infer_mapping(given: Path, out: Path, options: Options, tools: Tools) -> dict[str, Any]:
    """Infers a mapping and writes it, and nothing else; the same command goes on from there.

    Returns ``mapping``, ``columns`` and ``commands`` as ``run_quickstart`` does.
    """
    check_quickstart_folder(out)
    record = _begin(given, out, options, tools)
    commands = _commands(given, out)
    return {"mapping": str(out / MAPPING), "columns": list(record.guesses), "commands": commands}


def result_text(out: Path, result: dict[str, Any]) -> str:
    """Formats the end of the command for people: metrics, how to repeat each step, and the report."""
    lines = [
        summary_text(out / RUN, result["summary"]),
        *strongest_text(result["strongest"]).splitlines(),
        "",
        f"The guesses are in {result['mapping']}. By hand:",
    ]
    lines += [f"  {command}" for command in result["commands"]]
    return "\n".join([*lines, "", f"The report: {result['report']}"])


def _commands(given: Path, out: Path) -> list[str]:
    log, run = out / LOG, out / RUN
    steps = (
        ("ctr", "ingest", "table", given, "--mapping", out / MAPPING, "--out", log),
        ("ctr", "train", log, "--out", run),
        ("ctr", "report", run),
    )
    return [shlex.join(map(str, step)) for step in steps]


def _begin(given: Path, out: Path, options: Options, tools: Tools) -> Record:
    """Infers the mapping and writes it, unless that was done for the same table and options."""
    table = find_table(given)
    files = {file.name: file.path.stat().st_size for file in table.files}
    asked = {name: value for name, value in dataclasses.asdict(options).items() if value}
    asked = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    if (out / RECORD).is_file():
        path = out / RECORD
        record = parse_model(Record, dict(read_json_object(path, f"{path}: no such file")), str(path))
        expected = {"input": str(given.resolve()), "files": files, "options": asked}
        for key, value in expected.items():
            if getattr(record, key) != value:
                shown = " ".join(f"--{name} {_words(text)}" for name, text in record.options.items())
                was = {
                    "input": f"is the quickstart of {record.input}:",
                    "files": f"was begun when the files of {given} had other names or sizes:",
                    "options": f"was begun with {shown or 'no options that decide'}: give the same, or",
                }[key]
                raise InputError(f"{out} {was} use another --out")
        if (out / MAPPING).is_file():
            tools.say(f"{out / MAPPING} is there already and is used as it is")
            return record
    sample = read_sample(table)
    inferred = _decide(given, lambda chosen: infer(table, sample, chosen), options, tools)
    record = Record(
        input=str(given.resolve()),
        files=files,
        options=asked,
        guesses=tuple(dataclasses.asdict(guess) for guess in inferred.guesses),
        strongest=tuple(inferred.strongest),
    )
    _write_record(out, record)
    write_atomic_bytes(out / MAPPING, mapping_text(inferred, given.name).encode())
    tools.say(f"Wrote {out / MAPPING}")
    return record


def _words(value: object) -> str:
    return shlex.join(value if isinstance(value, list) else [str(value)])


def _decide(given: Path, guess: Callable[[Options], Inference], options: Options, tools: Tools) -> Inference:
    """Infers, and asks until nothing is doubtful; without a terminal the InputError has the choices."""
    doubt: Doubt | None = None
    before = options
    while True:
        try:
            inferred = guess(options)
        except InputError as error:
            if doubt is None or tools.ask is None:
                raise
            # What was answered cannot be.
            refused = one_line(error)
        else:
            lines = [guess_table(inferred.guesses, tools.width), *(f"- {note}" for note in inferred.notes)]
            tools.say("\n".join([f"{given}:", *lines]))
            if not inferred.doubts:
                return inferred
            if tools.ask is None:
                raise _refusal(given, inferred)
            # What is decided may settle the others.
            doubt, before, refused = inferred.doubts[0], options, ""
        answers: dict[str, Any] = {doubt.option.removeprefix("--"): tools.ask(doubt, refused)}
        options = dataclasses.replace(before, **answers)


def _refusal(given: Path, inferred: Inference) -> InputError:
    questions = "; ".join(doubt.question for doubt in inferred.doubts)
    deciding = [_choices(doubt) for doubt in inferred.doubts]
    deciding += [note for note in inferred.notes if note.startswith("ctr ingest ")]
    return InputError(f"{given}: it is not certain {questions}", "; ".join(deciding))


def _choices(doubt: Doubt) -> str:
    """The choices of a doubt as options to be pasted: as many as a line has room for, and at least one."""
    shown = [f"{doubt.option} {shlex.quote(choice.value)} ({choice.because})" for choice in doubt.choices]
    while len(shown) > 1 and len(", ".join(shown)) > LONGEST_LINE:
        shown.pop()
    rest = len(doubt.choices) - len(shown)
    more = f", or one of {rest} others" if rest else ""
    return f"choose with {', '.join(shown) or doubt.option}{more}"


def _write_record(out: Path, record: Record) -> None:
    write_atomic_bytes(out / RECORD, json_bytes(record.model_dump(mode="json")))


def _check_mapping(out: Path, record: Record) -> Record:
    """Refuses a log that was made with another mapping; returns the record with the present one's hash."""
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


def _ingest(given: Path, out: Path, mapping: Mapping, record: Record, tools: Tools) -> Record:
    tools.load_tensorflow()
    from ctr.pipelines.ingest.run import ingest

    tools.say(f"Ingesting {given} -> {out / LOG}")
    bar = tools.bar(None, "rows")
    try:
        result = ingest(mapping, [given], out / LOG, progress=bar.advance)
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
    from ctr.training.loop import train

    tools.say(f"Training in one pass -> {run}")
    bar = tools.bar(sum(manifest.rows for manifest in read_manifests(log)), "examples", config.batch.sizes())
    try:
        with stop_signals() as stop:
            return train(log, config, run, bar, phase=bar.phase, stop=stop)
    finally:
        bar.close()
