"""A run that follows a live log ends in the bits of one pass over it, however it came and however often it stopped."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ctr.cli import main
from ctr.config import dump_yaml, parse_model
from ctr.data.log import read_manifests, read_schema
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.io.errors import InputError
from ctr.io.signals import stop_signals
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate
from ctr.training.config import TrainConfig
from ctr.training.follow import Followed, Polling, follow
from ctr.training.inputs import PublishedInputs, open_inputs
from ctr.training.logs import resolve
from ctr.training.session import Process, open_session, train
from ctr.training.validate import validate
from ctr.workers.collectives import Workers
from growing_logs import ENDS, ROOTS, STANDS, Growing, assert_same, constrained, lines_of
from small_runs import make_config, write_teacher
from thread_group import together

# Of 12 to 130 rows, some of them smaller than a batch, two without any.
SHORT = (
    *(0, 10_000, 12_000, 37_000, 60_000, 60_500, 61_000),
    *(90_000, 115_000, 150_000, 185_000, 220_000, 240_000),
)
INTERVALS = len(SHORT) - 1
WITHIN = {"batch": {"within_partitions": True}}


class Script:
    """Asked whether to stop, does the next thing every few times instead: between batches and between looks alike.

    What a thing returns is the answer from then on, if it is a text.
    """

    answer: str | None = None

    def __init__(self, *actions: Callable[[], Any], every: int = 3) -> None:
        self.actions, self.every, self.asked = list(actions), every, 0

    def __call__(self) -> str | None:
        self.asked += 1
        if self.actions and self.asked % self.every == 0:
            done = self.actions.pop(0)()
            self.answer = done if isinstance(done, str) else self.answer
        return self.answer


@pytest.fixture
def short(growing) -> Any:
    """The rows of ``growing``, to be published in short partitions; not there yet."""
    return Growing(growing.folder, growing.schema, growing.table, SHORT)


def followed(
    log: Path, config, run: Path, script: Callable[[], str | None], idle: float = 1.5, exporter=None
) -> Followed:
    return follow(log, config, run, Polling(0.001, idle), exporter=exporter, process=Process(stop=script))


def assert_one_pass(
    run: Path, log: Path, config, heard: Callable[..., None] | None = None, exporter=None
) -> None:
    """Finishes ``run`` and compares all that it computed with a run that was never stopped."""
    train(log, config, run, exporter=exporter)
    whole = run.with_name(f"{run.name}-whole")
    train(log, config, whole, heard, exporter=exporter)
    assert_same(run, whole, *STANDS)


def assert_reported(run: Path, log: Growing, stopped: Followed) -> None:
    """Each partition with rows is listed once, in the line of the batch in which its last row is trained on."""
    reported, manifests = lines_of(run, "follow.jsonl"), read_manifests(log.folder)
    assert sum(line["rows"] for line in reported) == reported[-1]["position"] == stopped.position
    assert reported[-1]["waiting"] == stopped.waiting and reported[-1]["published_through"] == 240_000
    times = log.table.column("query_time").to_numpy()
    last_rows = {(one.start, one.end): int(times[times < one.end].max()) for one in manifests if one.rows}
    listed: list[tuple[int, int]] = []
    for line in reported:
        listed += [tuple(one[:2]) for one in line["partitions"]]
        # A process that goes on has not learned anything yet.
        if (through := line["trained_through"]) is not None:
            assert listed == [one for one, last in last_rows.items() if last <= through]
    assert 6 < len(listed) < INTERVALS
    assert all(second >= 0 for line in reported for _, _, second in line["partitions"])


@pytest.mark.parametrize("delay", [0.02, pytest.param(0, marks=pytest.mark.slow)])
def test_each_interval_is_reported_when_its_last_row_is_trained_on(short, tmp_path, delay):
    config = make_config({**WITHIN, "label_delay": delay, "max_rejected_share": 0.01}, logistic=True)
    script = Script(*[short.grow] * 4, lambda: short.grow(3), *[short.grow] * 5, every=4)
    stopped = followed(short.folder, config, tmp_path / "run", script)
    assert (stopped.reason, stopped.position, stopped.waiting) == ("idle", len(short.table), 0)
    assert_reported(tmp_path / "run", short, stopped)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("is_linear", [True, False])
def test_a_log_that_appears_and_grows_gives_the_bits_of_one_pass(short, exposure, tmp_path, is_linear):
    """Stopped twice, once amid rows that are published.

    A linear model under a label delay whose batches end with partitions; and a network, whose batches do not, with a
    constraint log that is there later than the log.
    """
    changes = {**WITHIN, "label_delay": 0.02, "max_rejected_share": 0.01}
    if not is_linear:
        changes = {**ROOTS, **constrained(exposure.folder)}
    config = make_config({**changes, "export": {"every_examples": 300}}, logistic=is_linear)
    run, rows = tmp_path / "run", len(short.table)
    exported: dict[Path, list[int]] = {}

    def export(snapshot) -> None:
        exported.setdefault(snapshot.run_dir, []).append(snapshot.examples)

    def stop() -> str:
        return "stop"

    begin = [*[short.grow] * 5, *[exposure.grow] * 2, short.grow, stop, short.grow]
    script = Script(*begin, exposure.grow, lambda: short.grow(INTERVALS - 7), stop)
    for _ in range(2):
        stopped = followed(short.folder, config, run, script, exporter=export)
        saved = max(int(path.name) for path in (run / "checkpoints").iterdir())
        assert (stopped.reason, stopped.position) == ("stop", saved)
        script.answer = None
    assert not script.actions and stopped.position < rows - 100
    stopped = followed(short.folder, config, run, script, exporter=export)
    assert stopped.reason == "idle" and stopped.position + stopped.waiting == rows and stopped.awaited is None
    # All that is published is scored, but for a batch that is not full.
    assert stopped.waiting == 0 if is_linear else 0 < stopped.waiting < 50
    ends: set[int] = set()
    exported_live = [*exported[run]]
    assert_one_pass(run, short.folder, config, lambda position, _: ends.add(position), exporter=export)
    once, *_ = [exported[folder] for folder in exported if folder != run]
    assert exported[run] == once
    assert exported_live == once[:4]
    manifests = read_manifests(short.folder)
    interval_ends = set(np.cumsum([manifest.rows for manifest in manifests]).tolist()) - {0}
    assert (interval_ends <= ends) == is_linear
    assert_reported(run, short, stopped)


@pytest.mark.slow
def test_an_interval_waits_for_its_sidecars(short, tmp_path):
    """Kept rows alone, in a time range: rows that nothing is done with lie at the ends of partitions too."""
    sampling = parse_model(SamplingConfig, {"non_click_rate": 0.4, "salt": "test"}, "test")
    times = {"start": "1970-01-01T00:00:00.011", "end": "1970-01-01T00:00:00.200"}
    teacher = {"objective": {"distillation": {"teacher": "teacher"}}}
    sample = {"sampling": {"name": "part", "score": "kept"}, "time_range": times}
    config = make_config({"max_rejected_share": 0.01, **WITHIN, **teacher, **sample}, logistic=True)
    rng = np.random.default_rng(3)

    def decide() -> None:
        write_decisions(short.folder, "part", sampling)

    def teach() -> None:
        done = len(list((short.folder / "sidecars" / "teacher").glob("*-*.json")))
        write_teacher(short.folder, "teacher", lambda ids: rng.normal(size=len(ids)), slice(done, None))

    run = tmp_path / "run"
    stopped = followed(short.folder, config, run, Script(*[short.grow] * 4, decide))
    assert stopped.position == 0 and stopped.waiting == len(short.table.slice(0, stopped.waiting)) > 200
    assert stopped.awaited is not None and "sidecars/teacher/" in stopped.awaited
    with pytest.raises(InputError, match="has no sidecar teacher"):
        train(short.folder, config, tmp_path / "plain")
    script = Script(teach, short.grow, teach, short.grow, short.grow, decide, short.grow)
    stopped = followed(short.folder, config, run, script)
    # The partition after the one that is taught and not decided on is the first one that waits.
    manifests = read_manifests(short.folder)
    assert stopped.awaited is not None and "sidecars/" in stopped.awaited
    behind = sum(manifest.rows for manifest in manifests) - stopped.waiting
    assert behind in np.cumsum([manifest.rows for manifest in manifests]) and 0 < stopped.position <= behind
    script = Script(
        decide, teach, short.grow, decide, short.grow, teach, short.grow, short.grow, teach, decide
    )
    stopped = followed(short.folder, config, run, script)
    assert (stopped.waiting, stopped.awaited, short.partitions) == (0, None, INTERVALS)
    assert_one_pass(run, short.folder, config)


def test_an_interval_that_comes_late_vanishes_or_changes_is_refused_by_name(growing, exposure, tmp_path):
    """As where a clock steps back: it is never left out in silence, and never trained on after its time."""
    config = make_config({"max_rejected_share": 0.01, **constrained(exposure.grow(3))}, logistic=True)
    log, run = growing.folder, tmp_path / "run"

    def publish(number: int, of: Growing = growing) -> None:
        of.partitions = number
        of.grow()

    def remove(number: int, log: Path = log) -> None:
        stem = "-".join(f"{time:019d}" for time in ENDS[number : number + 2])
        for path in (log / "manifests" / f"{stem}.json", *(log / "shards").glob(f"{stem}-*")):
            path.unlink()

    publish(0)
    publish(2)
    named = "its first 2 partitions differ \\(\\[{}, {}\\) {}\\)"
    with open_session(log, config, run) as session:
        session.advance(partial=True)
        session.save()
        passed = session.run.position.examples
        assert passed == sum(manifest.rows for manifest in read_manifests(log))
        remove(0, exposure.folder)
        with pytest.raises(InputError, match=r"the constraint log exposure is not the one .* differ"):
            session.refresh()
        publish(0, exposure)
        publish(1)
        with pytest.raises(InputError, match=named.format(*ENDS[1:3], "came late")):
            session.advance()
        assert session.run.position.examples == passed
        remove(1)
        remove(0)
        with pytest.raises(InputError, match=named.format(*ENDS[:2], "is gone")):
            session.refresh()
        growing.table = growing.table.slice(1)
        publish(0)
        with pytest.raises(InputError, match=named.format(*ENDS[:2], "has other content")):
            session.refresh()
    # Nor is it taken in by whoever goes on later.
    with pytest.raises(InputError, match=r"its first 2 partitions differ;"):
        train(log, config, run)


def test_a_log_that_never_comes_is_waited_for_until_idle(short, tmp_path):
    begun = time.monotonic()
    stopped = followed(short.folder, make_config(), tmp_path / "run", lambda: None, idle=0.3)
    assert 0.3 <= time.monotonic() - begun < 5
    assert stopped == Followed("idle", 0, 0, str(short.folder / "schema.json"))
    assert not (tmp_path / "run").exists()
    assert followed(short.folder, make_config(), tmp_path / "run", lambda: "SIGTERM").reason == "SIGTERM"
    short.grow()
    manifest = next((short.folder / "manifests").iterdir())
    manifest.rename(short.folder / "aside")
    stopped = followed(short.folder, make_config(), tmp_path / "run", lambda: None, idle=0)
    assert "with a partition that has rows" in str(stopped.awaited)


def test_a_log_that_begins_anew_is_waited_for_where_the_run_is(tmp_path):
    log, run = tmp_path / "log", tmp_path / "run"
    simulate(SimulatorConfig(examples=300), log)
    run.mkdir()
    config = resolve(TrainConfig(), read_schema(log), read_manifests(log))
    (run / "config.yaml").write_text(dump_yaml(config))
    (run / "schema.json").write_bytes((log / "schema.json").read_bytes())
    for manifest in (log / "manifests").iterdir():
        manifest.unlink()
    validate(TrainConfig(), log, run, follows=True)


def test_arguments_that_make_no_sense_are_refused(short, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(dump_yaml(make_config()))
    given = f"train {short.folder} --config {tmp_path / 'config.yaml'} --out {tmp_path / 'run'}".split()
    for more, error in (
        ("--stop-when-idle 1", "--poll and --stop-when-idle go with --follow"),
        ("--follow --record teacher", "--record does not go with --follow"),
        ("--follow --poll 0", "poll: 0 seconds; a number above 0 is required"),
        ("--follow --stop-when-idle -1", "stop when idle: -1 seconds; a number of at least 0 is required"),
    ):
        assert main([*given, *more.split()]) == 1
        complaint = capsys.readouterr().err
        assert error in complaint and complaint.count("\n") == 1


def test_a_signal_is_noted_and_who_ignored_one_before_ignores_it_again():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_signals() as stop:
            assert stop() is None
            signal.raise_signal(signal.SIGTERM)
            assert stop() == "SIGTERM"
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def eagerly() -> Iterator[None]:
    """Lets workers that are threads exchange outside of graphs."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def test_workers_see_the_partitions_that_the_first_one_finds(short, tmp_path, eagerly):
    """Another one, which looks later, finds more; or for a moment fewer, as in a folder of another machine."""
    logs = [Growing(tmp_path / f"log-{rank}", short.schema, short.table, SHORT) for rank in range(2)]
    logs[0].grow(3)
    logs[1].grow(5)

    def see(workers: Workers) -> list[int]:
        log = logs[workers.rank]
        inputs = open_inputs(log.folder, make_config(), workers)
        published, seen = PublishedInputs(inputs, True, workers), [len(inputs.log.manifests)]
        for first, other in ((2, 0), (0, 1), (3, 1)):
            log.grow((first, other)[workers.rank])
            workers.wait_for_all()
            if (workers.rank, first) == (1, 3):
                threading.Timer(0.3, log.grow).start()
            is_more = published.refresh()
            assert is_more == (first > 0)
            seen.append(len(published.readable.log.manifests))
        return seen

    assert together(2, see) == [[3, 5, 5, 8]] * 2


def test_workers_end_together_whichever_of_them_is_to_stop(short, tmp_path, eagerly):
    def end(workers: Workers) -> Followed:
        asked = 0

        def stop() -> str | None:
            nonlocal asked
            asked += 1
            return "SIGTERM" if workers.rank == 1 and asked > 3 else None

        # Long beyond the time that a worker waits for another one.
        polling = Polling(seconds=10_000)
        return follow(short.folder, make_config(), tmp_path / "run", polling, process=Process(workers, stop))

    stopped = Followed("SIGTERM", 0, 0, str(short.folder / "schema.json"))
    assert together(2, end) == [stopped] * 2
