"""The arguments of the command line. Whatever is read here loads no TensorFlow."""

import argparse
from pathlib import Path

from ctr import __version__

# Those beside table and mind are mapping files; all that ctr.data.mapping ships (tested).
FORMATS = ("table", "mind", "criteo", "avazu", "movielens", "open_bandit")


EVENTS = "events"


def make_parser() -> argparse.ArgumentParser:
    """What ``ctr`` takes; ``command`` of what is parsed names the command."""
    parser = argparse.ArgumentParser(
        prog="ctr", description="Trains click-through-rate models in a single pass over time-ordered logs."
    )
    parser.add_argument("--version", action="version", version=f"ctr {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, help_text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help_text, description=help_text)
        added.set_defaults(command=name)
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        return added

    demo = command("demo", "simulate a log, train two models on it, compare them and write a report")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for everything (runs/demo)")
    demo.add_argument("--examples", type=int, default=300_000, help="simulated examples (300000)")

    simulate = command("simulate", "write an example log of a simulated world with known click probabilities")
    length = simulate.add_mutually_exclusive_group(required=True)
    length.add_argument("--examples", type=int, help="how many examples to make")
    length.add_argument("--days", type=int, help="how many whole days to make")
    simulate.add_argument("--config", type=Path, help="YAML file with the world's settings")
    simulate.add_argument("--out", type=Path, required=True, help="folder of the log")
    simulate.add_argument(
        "--randomised", type=Path, metavar="OUT", help="a second log, of the randomised traffic alone"
    )
    simulate.add_argument(
        "--events", type=Path, metavar="OUT", help="the same traffic as raw impressions and clicks"
    )
    simulate.add_argument("--events-format", metavar="NAME", help="of these: parquet (default), jsonl or csv")
    simulate.add_argument(
        "--policy",
        type=Path,
        metavar="RUN",
        help="a run that serves the days after its log and learns from them",
    )
    simulate.add_argument("--log", type=Path, help="with --policy: the simulated log that it was trained on")
    simulate.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")

    ingest = command("ingest", "turn raw logs into an ordered example log")
    ingest.add_argument(
        "format",
        choices=(*FORMATS, EVENTS),
        help="a format that ships with the package, table, or events: impressions and clicks apart",
    )
    ingest.add_argument("input", type=Path, nargs="*", help="files or folders")
    ingest.add_argument(
        "--mapping", type=Path, help="for table and events: the file that names columns and features"
    )
    ingest.add_argument("--out", type=Path, required=True, help="folder of the log")
    ingest.add_argument(
        "--append",
        action="store_true",
        help="more files will follow: hold the rows of the last partition back until later rows come",
    )
    ingest.add_argument(
        "--allowed-lateness",
        metavar="DURATION",
        help="with --append: hold partitions open until a row is this much later than their end, such as 2h (0s)",
    )
    ingest.add_argument(
        "--follow",
        action="store_true",
        help="events: go on as files come, and publish each partition in time",
    )
    ingest.add_argument(
        "--stream", action="store_true", help="events: the same as a pipeline of a Beam runner such as Flink"
    )
    ingest.add_argument(
        "--drain", action="store_true", help="with either: publish everything and end when no file is new"
    )
    ingest.add_argument("--poll", type=float, metavar="SECONDS", help="with either: between two looks (0.5)")
    ingest.add_argument(
        "--idle-timeout",
        type=float,
        metavar="SECONDS",
        help="with either: after which nobody waits for a kind of events without a new file (never)",
    )
    ingest.add_argument("--kafka", metavar="HOST:PORT", help="with --stream: read topics instead of folders")
    ingest.add_argument(
        "--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="of Kafka's consumer"
    )
    ingest.add_argument(
        "--expansion-service",
        default="",
        metavar="HOST:PORT",
        help="with --kafka: a running one (Beam starts its own)",
    )
    ingest.add_argument(
        "--beam-options", default="", metavar="OPTIONS", help="events: of a Beam runner, in one word"
    )
    ingest.add_argument(
        "--max-reject-share",
        type=float,
        default=0.01,
        help="stop when more than this share of rows is malformed (0.01)",
    )

    sample = command("sample", "decide by hash which examples of a log to train on, with importance weights")
    sample.add_argument("log", type=Path, help="folder of the log")
    sample.add_argument("--name", required=True, help="of the sampling; the decisions become this sidecar")
    sample.add_argument("--config", type=Path, help="YAML file with rates and conditions")
    sample.add_argument(
        "--out",
        type=Path,
        help="write the kept examples as a smaller log to this folder instead of a sidecar",
    )
    sample.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, e.g. non_click_rate=0.25",
    )

    train = command("train", "train one pass over a log, or resume a run")
    train.add_argument("log", type=Path, help="folder of the log")
    train.add_argument("--config", type=Path, required=True, help="YAML file")
    train.add_argument("--out", type=Path, required=True, help="run directory")
    train.add_argument(
        "--init-from", type=Path, metavar="RUN", help="begin with the weights and at the place of another run"
    )
    train.add_argument(
        "--record", metavar="NAME", help="publish the predictions as the log's sidecar NAME, for students"
    )
    train.add_argument(
        "--follow", action="store_true", help="train on what is published as the log grows, until stopped"
    )
    train.add_argument(
        "--poll", type=float, metavar="SECONDS", help="with --follow: look for what is new so often (0.5)"
    )
    train.add_argument(
        "--stop-when-idle",
        type=float,
        metavar="SECONDS",
        help="with --follow: end when nothing new came for so long",
    )
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. seed=2"
    )

    export = command("export", "write a run's model as a SavedModel in TensorFlow Serving's layout")
    export.add_argument("run", type=Path, help="run directory")
    export.add_argument("--out", type=Path, required=True, help="folder of the model's versions")
    export.add_argument(
        "--checkpoint", type=int, metavar="P", help="the checkpoint at this position (the newest one)"
    )

    score = command("score", "predict the rows of a log or of raw tables with an exported model")
    score.add_argument("model", type=Path, help="folder of a model, or of its versions: the newest is taken")
    score.add_argument("input", type=Path, nargs="+", help="an example log, or files or folders of raw rows")
    score.add_argument("--out", type=Path, required=True, help="the Parquet file to write")
    read_as = score.add_mutually_exclusive_group()
    read_as.add_argument("--format", choices=FORMATS[1:], help="of raw rows in a format of the package")
    read_as.add_argument("--mapping", type=Path, help="the file that names the columns of raw rows")

    replay = command(
        "replay", "train the arms of an experiment on one log, and tell what each gains and costs"
    )
    replay.add_argument("experiment", type=Path, nargs="?", help="YAML file with the arms")
    replay.add_argument("--log", type=Path, help="folder of the log")
    replay.add_argument("--out", type=Path, required=True, help="folder for everything; again: goes on")
    replay.add_argument("--workers", type=int, metavar="N", help="runs side by side (one for each processor)")
    replay.add_argument(
        "--beam-options",
        default="",
        metavar="OPTIONS",
        help="of a Beam runner whose workers see the log and the folder under the same paths, in one word: "
        "--beam-options='--runner=FlinkRunner --flink_master=...'",
    )
    replay.add_argument("--no-timing", action="store_true", help="count operations, do not time steps")
    replay.add_argument("--report", action="store_true", help="train nothing, tell of what is in --out")

    compare = command("compare", "compare two runs metric by metric, with paired 95%% intervals")
    compare.add_argument("run_a", type=Path, help="run directory, or what ctr simulate --policy wrote")
    compare.add_argument("run_b", type=Path, help="likewise")

    evaluate = command("evaluate", "measure recorded predictions of any size, or compare two sets of them")
    evaluate.add_argument(
        "predictions", type=Path, nargs="+", help="run directories, folders or Parquet files"
    )
    evaluate.add_argument(
        "--against", type=Path, nargs="+", metavar="PREDICTIONS", help="predictions to compare them with"
    )
    evaluate.add_argument(
        "--beam-options",
        default="",
        metavar="OPTIONS",
        help='of a Beam runner: --beam-options="--runner=..."',
    )

    report = command("report", "write one HTML file with the plots of one or more runs")
    report.add_argument("run", type=Path, nargs="+", help="run directories")
    report.add_argument("--out", type=Path, help="the file to write (report.html in the first run directory)")
    return parser
