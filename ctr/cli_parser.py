"""Arguments of the command line. Nothing that is imported here loads TensorFlow."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ctr import __version__
from ctr.io.errors import InputError
from ctr.io.paths import local_path
from ctr.io.words import did_you_mean

# The mappings that the package ships, each with the files that it reads.
FORMATS = {
    "mind": "the Microsoft News Dataset: behaviors.tsv, with news.tsv beside it",
    "criteo": "Criteo display ads: train.txt, tab-separated, without a header",
    "avazu": "Avazu mobile ads: train.csv, compressed or not",
    "movielens": "MovieLens ratings with RecBole's column names: *.inter, *.item and *.user",
    "open_bandit": "Open Bandit, one campaign of one policy: its CSV file, and item_context.csv beside it",
}
TABLE, EVENTS = "table", "events"
SHELLS = ("bash", "zsh", "fish")

# The files that ``ctr config`` describes, with the module and the name of each one's model.
CONFIGS = {
    "train": ("ctr.training.config", "TrainConfig"),
    "mapping": ("ctr.data.mapping", "Mapping"),
    "events": ("ctr.data.event_mapping", "EventMapping"),
    "sampling": ("ctr.data.sampling", "SamplingConfig"),
    "simulator": ("ctr.simulator.config", "SimulatorConfig"),
    "experiment": ("ctr.experiments.config", "ExperimentConfig"),
    "search": ("ctr.search.config", "SearchConfig"),
}

_Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class _Parser(argparse.ArgumentParser):
    # Says which word may have been meant by one that is not known.

    _given: Sequence[str] = ()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action,
                f"invalid choice: {value!r} (choose from {', '.join(known)}){did_you_mean(str(value), known)}",
            )

    def error(self, message: str) -> NoReturn:
        options = [name for action in self._actions for name in action.option_strings]
        if message.startswith("the following arguments are required"):
            # A misspelled option is the likely cause.
            names = [word.partition("=")[0] for word in self._given if word[:2] == "--" != word]
            unknown = [name for name in names if not any(option.startswith(name) for option in options)]
            if unknown:
                self._given = ()
                self._refuse_unknown(unknown)
        super().error(message)

    def _refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        given = words[0].partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        # A single dash in place of two is forgiven only here.
        meant = did_you_mean(f"--{given.lstrip('-')}", known) if given.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{meant}")


class _CommandParser(_Parser):
    # Takes options and words in any order: ``ctr ingest --out LOG mind FILE`` is ``ctr ingest mind FILE --out LOG``.

    _splits = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        below = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        if below:
            return super().parse_known_args(_name_first(args, below[0]), namespace)
        self._given = list(args or ())
        # argparse gives an argument that may be absent nothing at all when an option stands before its words.
        if self._splits and any(action.nargs == "*" for action in self._actions):
            self._splits = False
            try:
                found, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._splits = True
        else:
            found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._splits:
            # Here, where the options of the command are known.
            self._refuse_unknown(unknown)
        return found, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except InputError as error:
            name = action.option_strings[-1] if action.option_strings else action.metavar
            raise InputError(f"{name} {error}") from None


def _name_first(given: Sequence[str], below: _Commands) -> Sequence[str]:
    """Moves the first word that is neither an option nor the value of one to the front.

    Without one only help can be asked for, and argparse says what is missing.
    """
    options = [action for parser in below.choices.values() for action in parser._actions]
    with_value = [name for action in options if action.nargs != 0 for name in action.option_strings]
    is_value = False
    for place, word in enumerate(given):
        if word == "--":
            break
        if not is_value and not word.startswith("-"):
            return [word, *given[:place], *given[place + 1 :]]
        # argparse takes the beginning of an option's name for the option.
        is_value = not is_value and any(name.startswith(word) for name in with_value)
    return [word for word in given if word in ("-h", "--help")]


def _add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Adds ``-v`` and ``-q``, which may stand before a command and behind it."""
    choice = parser.add_mutually_exclusive_group()
    for flags, value, text in (
        (("-v", "--verbose"), 1, "report files, devices, compilations and times on standard error"),
        (("-q", "--quiet"), -1, "print the result and errors only: no progress, no warnings"),
    ):
        # Where a command has no such flag, what stands before the command holds.
        choice.add_argument(
            *flags, dest="verbosity", action="store_const", const=value, default=argparse.SUPPRESS, help=text
        )


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of ``ctr``: ``command`` of the arguments names the command, ``format`` that of an ingest."""
    parser = _Parser(
        prog="ctr", description="Train click-through-rate models in a single pass over time-ordered logs."
    )
    parser.add_argument("--version", action="version", version=f"ctr {__version__}")
    _add_verbosity(parser)
    parser.set_defaults(verbosity=0)
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=_CommandParser
    )
    for add in (
        *(_demo, _quickstart, _simulate, _ingest, _sample, _train, _export, _score, _replay, _search),
        *(_compare, _evaluate, _report, _inspect, _vocabulary, _config, _completion),
    ):
        add(commands)
    return parser


def _command(commands: _Commands, name: str, does: str, command: str = "") -> argparse.ArgumentParser:
    added = _add_parser(commands, name, does)
    added.set_defaults(command=command or name)
    added.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_verbosity(added)
    return added


def _add_parser(commands: _Commands, name: str, does: str) -> argparse.ArgumentParser:
    # argparse formats `help` with %, but not `description`.
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=does.replace("%", "%%"), description=f"{does[0].upper()}{does[1:]}."
    )
    return added


def _path(parser: "argparse._ActionsContainer", name: str, metavar: str, text: str, **more: Any) -> None:
    parser.add_argument(name, type=local_path, metavar=metavar, help=text, **more)


def _flag(parser: "argparse._ActionsContainer", name: str, text: str) -> None:
    parser.add_argument(name, action="store_true", help=text)


def _repeatable(parser: "argparse._ActionsContainer", name: str, metavar: str, text: str) -> None:
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def _add_settings(parser: argparse.ArgumentParser, example: str) -> None:
    text = f"change a setting, e.g. {example}; may be given several times"
    _repeatable(parser, "--set", "KEY=VALUE", text)


def _add_log(parser: argparse.ArgumentParser) -> None:
    _path(parser, "log", "LOG", "directory of the log")


def _add_log_out(parser: argparse.ArgumentParser) -> None:
    _path(parser, "--out", "LOG", "output directory of the log", required=True)


def _demo(commands: _Commands) -> None:
    demo = _command(
        commands, "demo", "simulate a log, train two models on it, compare them and write a report"
    )
    _path(demo, "--out", "DIR", "output directory (runs/demo)", default=Path("runs/demo"))
    demo.add_argument(
        "--examples", type=int, default=300_000, metavar="N", help="examples to simulate (300000)"
    )


def _quickstart(commands: _Commands) -> None:
    quickstart = _command(
        commands,
        "quickstart",
        "infer how to read a table, write that down as a mapping file, ingest the table, train and write a report",
    )
    _path(quickstart, "input", "FILE", "CSV, TSV, JSON lines or Parquet file, or a directory of them")
    text = "output directory (NAME-quickstart beside the file); rerun to resume"
    _path(quickstart, "--out", "DIR", text)
    _flag(quickstart, "--dry-run", "write the mapping file and nothing else, to be read and edited")
    roles = quickstart.add_argument_group("what the columns are, where the guess is not certain or not right")
    for option, metavar, text in (
        ("--label", "RULE", "column of the label, or a rule such as 'rating>=4'"),
        ("--query", "COLUMN", "column whose values are queries; none: each row is its own query"),
        ("--session-gap", "DURATION", "with --query: a longer pause, e.g. 30m, begins a new query"),
        (
            "--time",
            "COLUMN[=FORM]",
            "column of the time, read as s, ms, us, ns, serial, iso8601 or a format: 'when=%%d.%%m.%%y %%H:%%M'; none: "
            "the order of the rows is the order of time",
        ),
        ("--weight", "COLUMN", "column of importance weights; none: each row counts once"),
    ):
        roles.add_argument(option, metavar=metavar, help=text)
    _repeatable(roles, "--drop", "COLUMN", "column that must be no feature; may be given several times")
    text = "column that is a feature although it was excluded; may be given several times"
    _repeatable(roles, "--keep", "COLUMN", text)


def _simulate(commands: _Commands) -> None:
    simulate = _command(
        commands, "simulate", "write an example log of a simulated world with known click probabilities"
    )
    length = simulate.add_mutually_exclusive_group(required=True)
    length.add_argument("--examples", type=int, metavar="N", help="examples to simulate")
    length.add_argument("--days", type=int, metavar="N", help="whole days to simulate")
    _path(simulate, "--config", "FILE", "YAML file with the world's settings")
    _add_log_out(simulate)
    _path(simulate, "--randomized", "LOG", "also write the randomized traffic to a log of its own")
    _path(simulate, "--events", "DIR", "also write the same traffic as raw impressions and clicks")
    simulate.add_argument(
        "--events-format", metavar="NAME", help="format of --events: parquet (default), jsonl or csv"
    )
    text = "let the model of this run choose the ads of the days after its log, and train on them"
    _path(simulate, "--policy", "RUN", text)
    _path(simulate, "--log", "LOG", "with --policy: the simulated log that the run was trained on")
    _add_settings(simulate, "events.format=csv")


def _ingest(commands: _Commands) -> None:
    ingest = _add_parser(commands, "ingest", "turn raw logs into an ordered example log")
    ingest.epilog = "ctr ingest FORMAT --help lists the options of a format."
    formats = ingest.add_subparsers(title="formats", required=True, dest="format", metavar="FORMAT")
    for name, files in FORMATS.items():
        _add_append(_add_ingest_format(formats, name, f"ingest {files}"))
    text = "ingest CSV, TSV, JSON lines or Parquet files with your own mapping"
    table = _add_ingest_format(formats, TABLE, text)
    _add_append(table)
    _path(table, "--mapping", "FILE", "YAML file that names columns and features", required=True)
    _add_events(
        _add_ingest_format(formats, EVENTS, "join impressions and clicks that come as separate events")
    )


def _add_ingest_format(formats: _Commands, name: str, does: str) -> argparse.ArgumentParser:
    added = _command(formats, name, does, command="ingest")
    # Events may come from Kafka instead, and rows that are held back may be published without others.
    _path(added, "input", "INPUT", "files or directories", nargs="*")
    _add_log_out(added)
    text = "stop when more than this share of the rows is malformed (0.01)"
    added.add_argument("--max-reject-share", type=float, default=0.01, metavar="SHARE", help=text)
    text = (
        "keep the raw values of these features beside the log, e.g. user,item, or all (default: the mapping's "
        "keep_values)"
    )
    added.add_argument("--keep-values", metavar="NAMES", help=text)
    return added


def _add_append(table: argparse.ArgumentParser) -> None:
    growing = table.add_argument_group("logs that grow")
    text = "more files will follow: keep the rows of the last partition unpublished until later rows come"
    _flag(growing, "--append", text)
    text = "with --append: keep a partition unpublished until a row is this much later than its end, e.g. 2h (0s)"
    growing.add_argument("--allowed-lateness", metavar="DURATION", help=text)


def _add_events(events: argparse.ArgumentParser) -> None:
    _path(events, "--mapping", "FILE", "YAML file that names columns and features", required=True)
    growing = events.add_argument_group("logs that grow")
    _flag(growing, "--follow", "keep reading files as they come, and publish as time goes on")
    _flag(growing, "--stream", "join as a streaming pipeline of a Beam runner such as Flink")
    _flag(growing, "--drain", "publish everything and end as soon as no file is new")
    text = "seconds between scans for files (0.5)"
    growing.add_argument("--poll", type=float, metavar="SECONDS", help=text)
    text = "stop waiting for impressions or clicks that had no new file for so long (never)"
    growing.add_argument("--idle-timeout", type=float, metavar="SECONDS", help=text)
    runner = events.add_argument_group("Beam runners and Kafka")
    _add_beam_options(runner)
    runner.add_argument("--kafka", metavar="HOST:PORT", help="with --stream: read topics instead of files")
    _repeatable(runner, "--kafka-option", "KEY=VALUE", "setting of Kafka's consumer")
    text = "with --kafka: a running expansion service (Beam starts its own)"
    runner.add_argument("--expansion-service", default="", metavar="HOST:PORT", help=text)


def _add_beam_options(parser: "argparse._ActionsContainer", more: str = "") -> None:
    text = f"options of a Beam runner{more}, in one word: --beam-options='--runner=FlinkRunner ...'"
    parser.add_argument("--beam-options", default="", metavar="OPTIONS", help=text)


def _sample(commands: _Commands) -> None:
    sample = _command(
        commands, "sample", "choose by hash which examples of a log to train on, with importance weights"
    )
    _add_log(sample)
    text = "name of the sampling and of the sidecar that it writes"
    sample.add_argument("--name", required=True, help=text)
    _path(sample, "--config", "FILE", "YAML file with rates and conditions")
    _path(sample, "--out", "LOG", "write the kept examples to a log of their own instead of a sidecar")
    _add_settings(sample, "non_click_rate=0.25")


def _train(commands: _Commands) -> None:
    train = _command(commands, "train", "train in one pass over a log, or resume a run")
    _add_log(train)
    _path(train, "--config", "FILE", "YAML file with settings (without it: the defaults)")
    _path(train, "--out", "RUN", "run directory; rerun to resume", required=True)
    text = "warm start: begin with the weights of another run, where it stopped"
    _path(train, "--init-from", "RUN", text)
    text = "publish the predictions as the log's sidecar NAME, from which other runs can distill"
    train.add_argument("--record", metavar="NAME", help=text)
    _add_settings(train, "seed=2")
    workers = train.add_argument_group(
        "many workers",
        "Where the environment variable TF_CONFIG describes a cluster, this is one worker of it. The first worker "
        "prints progress and result; each worker that --workers starts has its output in RUN/workers. A command that "
        "has lost a worker ends with status 75: rerun it to resume.",
    )
    text = "start N workers on this machine and look after them (1)"
    workers.add_argument("--workers", type=int, metavar="N", help=text)
    text = "how long workers wait for another one within a step before it counts as lost (60)"
    workers.add_argument("--worker-timeout", type=float, metavar="SECONDS", help=text)
    text = "how often --workers restarts all workers after one is lost, without a checkpoint between (3)"
    workers.add_argument("--max-restarts", type=int, metavar="N", help=text)
    text = "train on all chips of this host's TPU: tpu; or on N logical devices of its processor, to try it: cpu:N"
    train.add_argument("--device", metavar="DEVICE", help=text)
    follow = train.add_argument_group("logs that grow")
    _flag(follow, "--follow", "train on new partitions as they are published, until stopped")
    text = "seconds between scans for new partitions (0.5)"
    follow.add_argument("--poll", type=float, metavar="SECONDS", help=text)
    text = "end when nothing new came for so long (never)"
    follow.add_argument("--stop-when-idle", type=float, metavar="SECONDS", help=text)


def _export(commands: _Commands) -> None:
    export = _command(
        commands, "export", "write a run's model as a SavedModel in TensorFlow Serving's layout"
    )
    text = "run directory, or a model that a run exported as a delta, to write it as a whole"
    _path(export, "run", "RUN", text)
    _path(export, "--out", "DIR", "output directory of the model's versions", required=True)
    text = "export the checkpoint at position P (the newest one)"
    export.add_argument("--checkpoint", type=int, metavar="P", help=text)


def _score(commands: _Commands) -> None:
    score = _command(commands, "score", "predict the clicks of a log or of raw rows with an exported model")
    _path(score, "model", "MODEL", "directory of a model, or of its versions: the newest is used")
    _path(score, "input", "INPUT", "an example log, or files or directories of raw rows", nargs="+")
    _path(score, "--out", "FILE", "Parquet file to write the predictions to", required=True)
    for name, which in (("start", "from this one on"), ("end", "before this one")):
        text = f"score the query times {which} of an example log: an ISO date, or date and time, in UTC"
        score.add_argument(f"--{name}", metavar="TIME", help=text)
    text = "with --format or --mapping: write labels, weights and queries too, for ctr evaluate"
    _flag(score, "--labels", text)
    read_as = score.add_mutually_exclusive_group()
    read_as.add_argument("--format", choices=tuple(FORMATS), help="format of the raw rows")
    _path(read_as, "--mapping", "FILE", "YAML file that names the columns of the raw rows")


def _replay(commands: _Commands) -> None:
    replay = _command(
        commands, "replay", "train the arms of an experiment on one log, and report what each gains and costs"
    )
    _path(replay, "experiment", "EXPERIMENT", "YAML file with the arms", nargs="?")
    _add_runs(replay)


def _search(commands: _Commands) -> None:
    text = (
        "search for the configuration that is most accurate at a cost, and evaluate it on the held-out half"
    )
    search = _command(commands, "search", text)
    _path(search, "search", "SEARCH", "YAML file with the space and the method", nargs="?")
    _add_runs(search)
    _flag(search, "--no-replay", "do not train the result alone beside the baseline")


def _add_runs(parser: argparse.ArgumentParser) -> None:
    _path(parser, "--log", "LOG", "directory of the log")
    _path(parser, "--out", "DIR", "output directory; rerun to resume", required=True)
    _add_settings(parser, "'seeds=[1, 2, 3]'")
    text = "runs to train side by side (one per processor)"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    _add_beam_options(parser, " whose workers see the log and the output directory under the same paths")
    _flag(parser, "--no-timing", "count operations, but do not time steps")
    _flag(parser, "--report", "train nothing; write the report of what is in --out")


def _compare(commands: _Commands) -> None:
    compare = _command(commands, "compare", "compare two runs metric by metric, with paired 95% intervals")
    _path(compare, "run_a", "RUN_A", "run directory, or what ctr simulate --policy wrote")
    text = "second run directory, of the same kind; differences are RUN_B - RUN_A"
    _path(compare, "run_b", "RUN_B", text)


def _evaluate(commands: _Commands) -> None:
    evaluate = _command(
        commands, "evaluate", "measure recorded predictions of any size, or compare two sets of them"
    )
    text = "run directories, directories of Parquet files, or Parquet files"
    _path(evaluate, "predictions", "PREDICTIONS", text, nargs="+")
    text = "predictions to compare with them; the first ones are a, the baseline, as in ctr compare"
    _path(evaluate, "--against", "PREDICTIONS", text, nargs="+")
    _add_beam_options(evaluate)


def _report(commands: _Commands) -> None:
    report = _command(commands, "report", "write one HTML file with the plots of one or more runs")
    _path(report, "run", "RUN", "run directories", nargs="+")
    _path(report, "--out", "FILE", "HTML file to write (report.html in the first run directory)")


def _inspect(commands: _Commands) -> None:
    text = "describe a log: rows, clicks, times, gaps, partitions, features and their ids"
    _add_log(_command(commands, "inspect", text))


def _vocabulary(commands: _Commands) -> None:
    text = "list the ids that have a row of their own in a run: use, age, norm and value"
    vocabulary = _command(commands, "vocabulary", text)
    _path(vocabulary, "run", "RUN", "run directory")
    vocabulary.add_argument("--feature", metavar="NAME", help="list this feature (all whose ids grow)")
    vocabulary.add_argument(
        "--sort",
        choices=("uses", "age", "last_seen", "norm"),
        default="uses",
        help="what comes first: the most used, the oldest, the last seen or the longest embedding (uses)",
    )
    vocabulary.add_argument("--limit", type=int, default=50, metavar="N", help="ids to list (50)")
    text = "log with the raw values (the one that the run was trained on)"
    _path(vocabulary, "--log", "LOG", text)


def _config(commands: _Commands) -> None:
    text = "print every key of a configuration file with its default, bounds and meaning"
    config = _command(commands, "config", text)
    text = "print this key and those below it only, e.g. model.crosses"
    config.add_argument("key", nargs="?", metavar="KEY", help=text)
    text = "which file the keys are of (train)"
    config.add_argument("--kind", choices=tuple(CONFIGS), default="train", help=text)


def _completion(commands: _Commands) -> None:
    text = "print a script with which a shell completes commands, flags and keys"
    completion = _command(commands, "completion", text)
    completion.add_argument("shell", choices=SHELLS, help="for instance: source <(ctr completion bash)")


def completion_script(shell: str) -> str:
    """Makes what a shell reads to complete ``ctr``: commands, flags, files, choices and the keys after ``--set``."""
    import shtab

    parser = make_parser()
    _complete_arguments(parser, shtab.FILE)
    script: str = shtab.complete(parser, shell)
    return script + _NO_SPACE_BEHIND_KEYS if shell == "bash" else script


# The function of shtab calls others in processes of their own, which cannot change how words are completed.
_NO_SPACE_BEHIND_KEYS = """
_ctr() {
  _shtab_ctr
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null || :; fi
}
complete -o bashdefault -F _ctr ctr
"""

_SET_KINDS = {
    "train": "train",
    "sample": "sampling",
    "simulate": "simulator",
    "replay": "experiment",
    "search": "search",
}


def _complete_arguments(parser: argparse.ArgumentParser, files: object, command: str = "") -> None:
    """Says for each argument of a parser, and of those below it, what shtab shall complete it with."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                _complete_arguments(below, files, command or name)
        elif "--set" in action.option_strings:
            keys = config_keys(_SET_KINDS[command])
            action.complete = _words(f"_ctr_{command}_keys", [f"{key}=" for key in keys])  # type: ignore[attr-defined]
        elif (command, action.dest) == ("config", "key"):
            action.complete = _words("_ctr_config_keys", config_keys("train"))  # type: ignore[attr-defined]
        elif action.type is local_path:
            action.complete = files  # type: ignore[attr-defined]


def config_keys(kind: str) -> list[str]:
    """Lists the dotted keys of a configuration that ``--set`` takes."""
    from ctr.config.reference import describe, settable_keys

    module, name = CONFIGS[kind]
    return settable_keys(describe(getattr(importlib.import_module(module), name)))


def _words(function: str, words: Sequence[str]) -> dict[str, Any]:
    text = " ".join(words)
    bash = f"{function}() {{ compgen -W '{text}' -- \"$1\"; }}"
    return {"bash": function, "zsh": f"({text})", "fish": text, "preamble": {"bash": bash}}
