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

What is there already is not made again, so the same command goes on after an interruption. A rung is an
experiment of ``ctr replay`` over a prefix of the log: its runs go side by side or on a cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import differing_keys, dump_yaml, load_model, parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.eval.compare import compare, same_examples
from ctr.eval.run_files import read_run
from ctr.experiments.config import ArmConfig, ExperimentConfig, changed
from ctr.experiments.plan import read_plan
from ctr.experiments.report.write import write_experiment
from ctr.experiments.run import Options, run_experiment
from ctr.experiments.tasks import read_object
from ctr.io.documents import json_number
from ctr.io.errors import InputError, joined
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.search.config import SEARCH_FILE, SearchConfig, check_search_folder, read_search
from ctr.search.cost import Cost, counted, make_cost
from ctr.search.judge import judge
from ctr.search.record import BASELINE, RECORD_FILE, SEARCHED, Rung, SearchRecord, Tried
from ctr.search.space import Choice, Space, described, make_space, with_widths
from ctr.search.trials import Prefix, draw_candidates, find_prefixes, halve
from ctr.training.config import TrainConfig
from ctr.training.run.directory import only_process, write_json


@dataclass(frozen=True)
class Problem:
    """A search, everything checked, and where and how its runs are made."""

    search: SearchConfig
    content: dict[str, Any]  # the baseline's configuration, as nested keys
    space: Space
    cost: Cost
    prefixes: list[Prefix]  # of the rungs; the last is what the search reads
    rows: int  # of the log, in the configuration's time range
    log: Path
    out: Path
    options: Options

    def candidate(self, choice: Choice | None) -> Tried:
        """Makes a candidate an arm; None, and whatever is configured like it, is the baseline."""
        if choice is None or self.space.apply(self.content, choice) == self.space.apply_values(
            self.content, {}
        ):
            return Tried(name=BASELINE, values={}, cost=1.0)
        values = self.space.values(choice)
        return Tried(name=f"c{self.space.index(choice)}", values=values, cost=self.cost.of(choice))

    def arm(self, candidate: Tried, title: str, note: str = "") -> ArmConfig:
        changes = self.space.changes(self.content, candidate.values)
        return ArmConfig(title=title, note=note, set=changes)

    def on_prefix(self, prefix: Prefix) -> dict[str, Any]:
        """Configuration of the baseline that reads a prefix alone, and keeps no predictions."""
        ended = {} if prefix.end is None else {"time_range.end": prefix.end}
        return changed(self.content, {**ended, "record_predictions": False})

    def replay(self, name: str, experiment: ExperimentConfig, costs: bool) -> dict[str, str]:
        """Makes the missing runs of an experiment in OUT/NAME, and writes OUT/NAME.yaml; returns what failed."""
        file = self.out / f"{name}.yaml"
        make_folder(file.parent)
        write_atomic_bytes(file, dump_yaml(experiment).encode())
        return run_experiment(file, self.log, self.out / name, replace(self.options, costs=costs))


def run_search(
    file: Path, log: Path, out: Path, options: Options, settings: Sequence[str] = (), is_judged: bool = True
) -> tuple[SearchRecord, dict[str, str]]:
    """Searches, writes OUT/best.yaml, and compares the result with the baseline.

    Args:
        settings: changes of the file, ``key=value``.
        is_judged: whether the result is trained alone and compared with the baseline.

    Returns what came of it, which is in OUT/search.json too, and what failed of the comparison, by name.
    Raises InputError: a wrong search or log, another search or process in ``out``, or no candidate could be
    trained.
    """
    search, content = read_search(file, settings)
    check_search_folder(out)
    manifests, schema, where = read_manifests(log), read_schema(log), f"search {file}"
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    content = with_widths(content, search, schema, manifests, where)
    space = make_space(search, content, schema, where)
    make_folder(out)
    with only_process(out):
        _adopt(out, search, content, log_sha256(manifests))
        times = out / "times.json" if search.cost.times is None else file.parent / search.cost.times
        time_range = parse_model(TrainConfig, content, "config").time_range
        *prefixes, whole = find_prefixes(log, time_range, [*_shares(search), 1.0])
        cost = make_cost(search.cost, space, content, log, times, options.progress)
        problem = Problem(search, content, space, cost, prefixes, whole.rows, log, out.resolve(), options)
        record, chosen = _METHODS[search.method](problem, _record(problem))
        record = record.model_copy(
            update={"chosen": chosen.name, "values": chosen.values, "cost": chosen.cost}
        )
        best = space.apply_values(content, chosen.values)
        write_atomic_bytes(out / "best.yaml", dump_yaml(best).encode())
        failures = {}
        if is_judged and chosen.name != BASELINE:
            failures = _replay(problem, chosen)
            write_experiment(out / "replay")
            record = record.model_copy(update={"judged": judge(out / "replay", prefixes[-1].end_us)})
        write_json(out / RECORD_FILE, record.model_dump())
    return record, failures


def _adopt(out: Path, search: SearchConfig, content: dict[str, Any], sha256: str) -> None:
    """Writes the search beside what comes of it; raises InputError where another one has trained."""
    whole = search.model_copy(update={"base": None, "config": content})
    path, seen = out / SEARCH_FILE, out / "log.json"
    if any((out / name).exists() for name in ("rungs", "supernet")):
        # Words and the seeds of the judgement change nothing of what was searched.
        words = {key: getattr(whole, key) for key in ("title", "note", "seeds")}
        before = load_model(SearchConfig, path, "search").model_copy(update=words)
        differences = differing_keys(_comparable(before, str(path)), _comparable(whole, str(path)))
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


def _record(problem: Problem) -> SearchRecord:
    """Record of a search before it begins."""
    search, space, prefix = problem.search, problem.space, problem.prefixes[-1]
    baseline = space.baseline(problem.content)
    return SearchRecord(
        title=search.title,
        note=search.note,
        method=search.method,
        command=problem.options.command,
        ctr_version=__version__,
        log=str(problem.log.resolve()),
        log_sha256=log_sha256(read_manifests(problem.log)),
        seed=search.seed,
        target=search.target,
        purpose=search.cost.purpose,
        measure=search.cost.measure,
        space={decision.name: list(decision.choices) for decision in space.decisions},
        size=space.size,
        baseline=None if baseline is None else space.values(baseline),
        rows=problem.rows,
        prefix_rows=prefix.rows,
        prefix_end=prefix.end,
    )


def _by_trials(problem: Problem, record: SearchRecord) -> tuple[SearchRecord, Tried]:
    """Successive halving; random search has one rung."""
    search, space, content = problem.search, problem.space, problem.content
    count = (search.halving if search.method == "halving" else search.random).candidates
    drawn = draw_candidates(space, content, problem.cost, search.target, count, search.seed)
    candidates = [problem.candidate(choice) for choice in drawn]
    if search.target >= 1:
        candidates.insert(0, problem.candidate(None))
    rungs = halve(
        candidates,
        len(problem.prefixes),
        search.halving.eta,
        lambda number, tried: _run_rung(problem, number, tried),
    )
    chosen = next(one for one in candidates if one.name == rungs[-1].kept[0])
    # Operations of all trainings, in passes of the baseline over all rows.
    operations = counted(problem.log, "training")
    whole = operations(space.apply_values(content, {}))
    shares = {one.name: operations(space.apply_values(content, one.values)) / whole for one in candidates}
    passes = sum(shares.get(one.name, 1.0) * rung.rows for rung in rungs for one in rung.tried) / problem.rows
    return record.model_copy(update={"rungs": rungs, "passes": passes}), chosen


def _run_rung(problem: Problem, number: int, candidates: Sequence[Tried]) -> Rung:
    """Trains candidates, and the baseline, on a prefix of the log, and ranks them by progressive logloss.

    Losses of two runs over the same rows are paired, query by query. Raises InputError: a configuration is
    not possible, or the baseline failed.
    """
    folder, prefix, seed = f"rungs/{number + 1}", problem.prefixes[number], problem.search.seed
    others = [one for one in candidates if one.name != BASELINE]
    experiment = ExperimentConfig(
        title=folder,
        config=problem.on_prefix(prefix),
        seeds=(seed,),
        arms={one.name: problem.arm(one, described(one.values)) for one in others},
    )
    failures = problem.replay(folder, experiment, costs=False)
    if failed := failures.get(f"{BASELINE} seed {seed}"):
        raise InputError(f"{problem.out / folder}: the baseline could not be trained: {failed}")
    arms = read_plan(problem.out / folder).arms
    runs = {arm.name: problem.out / folder / arm.runs[0].folder for arm in arms}
    tried = []
    for one in [problem.candidate(None), *others]:
        failure = failures.get(f"{one.name} seed {seed}")
        found = {"failure": failure} if failure else _compared(runs[BASELINE], runs[one.name])
        tried.append(one.model_copy(update=found))
    tried.sort(key=lambda one: (float("inf") if one.difference is None else one.difference, one.cost))
    return Rung(folder=folder, end=prefix.end, rows=prefix.rows, tried=tried, kept=[])


def _compared(baseline: Path, run: Path) -> dict[str, Any]:
    """What ``Tried`` holds of the progressive logloss of a run, against that of the baseline."""
    ours, theirs = read_run(run).metrics, read_run(baseline).metrics
    if not same_examples(theirs, ours):
        raise InputError(f"{run}: scored other rows than {baseline}; candidates must score the same")
    row = compare(theirs, ours).loc["logloss"]
    columns = {"logloss": "b", "difference": "difference", "low": "ci95_low", "high": "ci95_high"}
    found: dict[str, Any] = {key: json_number(row[column]) for key, column in columns.items()}
    return found if found["difference"] is not None else {**found, "failure": "its logloss is undefined"}


def _by_supernet(problem: Problem, record: SearchRecord) -> tuple[SearchRecord, Tried]:
    from ctr.search.supernet import search_supernet

    search, space = problem.search, problem.space
    content = {**problem.on_prefix(problem.prefixes[-1]), "seed": search.seed}
    base = parse_model(TrainConfig, content, "base")
    progress = problem.options.progress or (lambda _: None)
    out = problem.out / "supernet"
    found = search_supernet(search, space, problem.cost, base, problem.log, out, progress)
    passes = found.passes * record.prefix_rows / record.rows
    record = record.model_copy(update={"examples": found.examples, "passes": passes})
    return record, problem.candidate(found.choice)


_METHODS = {"halving": _by_trials, "random": _by_trials, "supernet": _by_supernet}


def _replay(problem: Problem, chosen: Tried) -> dict[str, str]:
    """Trains the result and the baseline from the log's beginning, by a replay; returns what failed."""
    end = problem.prefixes[-1].end
    read = "all rows" if end is None else f"the rows before {end}"
    experiment = ExperimentConfig(
        title=problem.search.title,
        note=f"The result of a search that read {read}: it was chosen on these, and only the others are held out.",
        config={**problem.content, "record_predictions": True},
        seeds=problem.search.seeds,
        arms={SEARCHED: problem.arm(chosen, "Searched", described(chosen.values))},
    )
    return problem.replay("replay", experiment, costs=True)
