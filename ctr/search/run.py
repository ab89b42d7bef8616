"""A search from its file to its result: the method, the result trained alone, and the judgement of it.

::

    OUT/search.yaml      the search with its whole training configuration
    OUT/rungs/N          experiments of the methods halving and random
    OUT/supernet         the supernet's run
    OUT/times.json       times of layers, where costs are measured times
    OUT/best.yaml        the configuration of the result
    OUT/replay.yaml      the experiment that compares it with the baseline
    OUT/replay           that experiment
    OUT/search.json      what came of it, see ``ctr.search.record``

What is there already is not made again, so the same command goes on after an interruption.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import differing_keys, dump_yaml, load_model, parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.experiments.config import ArmConfig, ExperimentConfig
from ctr.experiments.report.write import write_experiment
from ctr.experiments.run import Progress
from ctr.experiments.tasks import read_object
from ctr.io.errors import InputError, joined
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.search import trials
from ctr.search.config import SEARCH_FILE, SearchConfig, check_search_folder, read_search
from ctr.search.cost import Cost, Operations, make_cost
from ctr.search.decisions import make_space, with_widths
from ctr.search.judge import judge
from ctr.search.record import BASELINE, RECORD_FILE, SEARCHED, Rung, SearchRecord
from ctr.search.space import Choice, Content, Space
from ctr.training.config import TrainConfig
from ctr.training.run.directory import only_process, write_json


@dataclass(frozen=True)
class Problem:
    """A search, everything checked."""

    search: SearchConfig
    content: dict[str, Any]  # the baseline's configuration, as nested keys
    space: Space
    cost: Cost
    prefixes: list[trials.Prefix]  # of the rungs; the last is what the search reads
    rows: int  # of the log, in the configuration's time range
    log_sha256: str

    def candidate(self, choice: Choice | None) -> trials.Candidate:
        """Makes a candidate an arm; None, and whatever is configured like it, is the baseline."""
        if choice is None or self.space.apply(self.content, choice) == parse_model(
            TrainConfig, self.content, "base"
        ):
            return trials.Candidate(BASELINE, {}, {}, 1.0)
        values = self.space.values(choice)
        changes = self.space.changes(self.content, values)
        return trials.Candidate(f"c{self.space.index(choice)}", values, changes, self.cost.of(choice))

    def record(self, log: Path, command: str) -> SearchRecord:
        """Record of the search before it begins; ``command`` repeats it."""
        search, space, prefix = self.search, self.space, self.prefixes[-1]
        baseline = space.baseline(self.content)
        return SearchRecord(
            title=search.title,
            note=search.note,
            method=search.method,
            command=command,
            ctr_version=__version__,
            log=str(log.resolve()),
            log_sha256=self.log_sha256,
            seed=search.seed,
            target=search.target,
            purpose=search.cost.purpose,
            measure=search.cost.measure,
            space={decision.name: list(decision.choices) for decision in space.decisions},
            size=space.size,
            baseline=None if baseline is None else space.values(baseline),
            rows=self.rows,
            prefix_rows=prefix.rows,
            prefix_end=None if prefix.end is None else prefix.end.isoformat(),
        )


def open_space(search: SearchConfig, content: Content, log: Path, where: str) -> tuple[Space, dict[str, Any]]:
    """Returns the space of a search, and the baseline's configuration with all that candidates may change."""
    manifests, schema = read_manifests(log), read_schema(log)
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    whole = with_widths(content, search, schema, manifests, where)
    return make_space(search, whole, schema, where), whole


def open_problem(
    search: SearchConfig,
    content: dict[str, Any],
    space: Space,
    log: Path,
    times: Path,
    progress: Progress | None,
) -> Problem:
    """Opens a search over a log; ``content`` is what ``open_space`` returns, ``times`` as in ``make_cost``."""
    time_range = parse_model(TrainConfig, content, "config").time_range
    *prefixes, whole = trials.find_prefixes(log, time_range, [*_shares(search), 1.0])
    cost = make_cost(search.cost, space, content, log, times, progress)
    sha256 = log_sha256(read_manifests(log))
    return Problem(search, content, space, cost, prefixes, whole.rows, sha256)


def adopt(out: Path, search: SearchConfig, content: dict[str, Any], log: Path) -> None:
    """Writes the search beside what comes of it; raises InputError where another one has trained."""
    sha256 = log_sha256(read_manifests(log))
    whole = search.model_copy(update={"base": None, "config": content})
    path, seen = out / SEARCH_FILE, out / "log.json"
    if any((out / name).exists() for name in ("rungs", "supernet")):
        before = _comparable(load_model(SearchConfig, path, "search"), str(path))
        ours = _comparable(whole, str(path))
        # These change nothing of what was searched.
        for words in ("title", "note", "seeds"):
            before[words] = ours[words]
        differences = differing_keys(before, ours)
        if differences:
            raise InputError(f"{out}: holds another search: {joined(differences)}; use another directory")
        if read_object(seen).get("log_sha256") != sha256:
            raise InputError(
                f"{out}: holds a search of another log, or of this one before it grew; use another directory"
            )
    write_atomic_bytes(path, dump_yaml(whole).encode())
    write_json(seen, {"log_sha256": sha256})


def _comparable(search: SearchConfig, where: str) -> dict[str, Any]:
    """Converts a search to plain data, its training configuration with all keys."""
    config = parse_model(TrainConfig, dict(search.config), where, "config.")
    return {**search.model_dump(mode="json"), "config": config.model_dump(mode="json")}


def _shares(search: SearchConfig) -> list[float]:
    """Shares of the log that the rungs read."""
    if search.method != "halving":
        return [search.prefix]
    rungs, eta = search.halving.rungs, search.halving.eta
    return [search.prefix / eta ** (rungs - 1 - number) for number in range(rungs)]


@dataclass(frozen=True)
class Options:
    """Options of a run of a search, which change nothing of what comes out, and changes of its file."""

    command: str  # that repeats the search
    workers: int | None = None  # runs side by side; None: one for each processor
    beam_options: str = ""
    timing: bool = True  # whether steps of the result and the baseline are timed in the end
    replay: bool = True  # whether the result is trained alone and compared with the baseline
    progress: Progress | None = None  # called with a line for each run that ends, and as the supernet goes on
    settings: Sequence[str] = ()  # changes of the file, ``key=value``


def run_search(file: Path, log: Path, out: Path, options: Options) -> tuple[SearchRecord, dict[str, str]]:
    """Searches, writes OUT/best.yaml, and compares the result with the baseline.

    Returns what came of it, which is in OUT/search.json too, and what failed of the comparison, by name.
    Raises InputError: a wrong search or log, another search or process in ``out``, or no candidate could be
    trained.
    """
    search, content = read_search(file, options.settings)
    check_search_folder(out)
    space, content = open_space(search, content, log, f"search {file}")
    make_folder(out)
    with only_process(out):
        adopt(out, search, content, log)
        times = out / "times.json" if search.cost.times is None else file.parent / search.cost.times
        problem = open_problem(search, content, space, log, times, options.progress)
        record = problem.record(log, options.command)
        runner = trials.Runner(
            log, out.resolve(), options.command, options.workers, options.beam_options, options.progress
        )
        record, chosen = _METHODS[search.method](problem, record, runner)
        record = record.model_copy(
            update={"chosen": chosen.name, "values": dict(chosen.values), "cost": chosen.cost}
        )
        best = space.apply_values(content, chosen.values)
        write_atomic_bytes(out / "best.yaml", dump_yaml(best).encode())
        failures = {}
        if options.replay and chosen.name != BASELINE:
            failures = _replay(problem, chosen, runner, options.timing)
            write_experiment(out / "replay")
            record = record.model_copy(update={"judged": judge(out / "replay", problem.prefixes[-1].end_us)})
        write_json(out / RECORD_FILE, record.model_dump())
    return record, failures


def _by_trials(
    problem: Problem, record: SearchRecord, runner: trials.Runner
) -> tuple[SearchRecord, trials.Candidate]:
    """Successive halving; random search has one rung."""
    search, space, content = problem.search, problem.space, problem.content
    is_halving = search.method == "halving"
    count = search.halving.candidates if is_halving else search.random.candidates
    drawn = trials.draw_candidates(space, content, problem.cost, search.target, count, search.seed)
    candidates = [problem.candidate(choice) for choice in drawn]
    if search.target >= 1:
        candidates.insert(0, problem.candidate(None))

    def run(number: int, tried: Sequence[trials.Candidate]) -> Rung:
        folder = f"rungs/{number + 1}"
        return trials.run_rung(runner, folder, content, problem.prefixes[number], search.seed, tried)

    rungs = trials.halve(candidates, len(problem.prefixes), search.halving.eta, run)
    (name,) = rungs[-1].kept
    chosen = next(one for one in candidates if one.name == name)
    passes = _passes(problem, candidates, rungs, runner.log)
    return record.model_copy(update={"rungs": rungs, "passes": passes}), chosen


def _passes(
    problem: Problem, candidates: Sequence[trials.Candidate], rungs: Sequence[Rung], log: Path
) -> float:
    """Operations of all trainings of a search, in passes of the baseline over all rows."""
    count = Operations(log, "training")
    whole = count(problem.space.apply_values(problem.content, {}))
    shares = {BASELINE: 1.0}
    for one in candidates:
        shares[one.name] = count(problem.space.apply_values(problem.content, one.values)) / whole
    return sum(shares[one.name] * rung.rows for rung in rungs for one in rung.tried) / problem.rows


def _by_supernet(
    problem: Problem, record: SearchRecord, runner: trials.Runner
) -> tuple[SearchRecord, trials.Candidate]:
    from ctr.search.supernet import search_supernet

    content = {**trials.on_prefix(problem.content, problem.prefixes[-1]), "seed": problem.search.seed}
    base = parse_model(TrainConfig, content, "base")
    found = search_supernet(
        problem.search,
        problem.space,
        problem.cost,
        base,
        runner.log,
        runner.out / "supernet",
        runner.progress or (lambda _: None),
    )
    passes = found.passes * record.prefix_rows / record.rows
    record = record.model_copy(update={"examples": found.examples, "passes": passes})
    return record, problem.candidate(found.choice)


_METHODS = {"halving": _by_trials, "random": _by_trials, "supernet": _by_supernet}


def _replay(
    problem: Problem, chosen: trials.Candidate, runner: trials.Runner, timing: bool
) -> dict[str, str]:
    """Trains the result and the baseline from the log's beginning, by a replay; returns what failed."""
    search, last = problem.search, problem.prefixes[-1]
    read = "all rows" if last.end is None else f"the rows before {last.end.isoformat()}"
    experiment = ExperimentConfig(
        title=search.title,
        note=f"The result of a search that read {read}: it was chosen on these, and only the others are held out.",
        config={**problem.content, "record_predictions": True},
        seeds=search.seeds,
        arms={
            SEARCHED: ArmConfig(
                title="Searched",
                note=", ".join(f"{name} {value}" for name, value in chosen.values.items()),
                set=chosen.changes,
            )
        },
    )
    return runner.run("replay", experiment, timing)
