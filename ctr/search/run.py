"""A search from its file to its result: the method, the result trained alone, and the judgement of it.

::

    OUT/search.yaml      the search with its whole training configuration
    OUT/trials           the experiment of the method random
    OUT/supernet         the supernet's run
    OUT/best.yaml        the configuration of the result
    OUT/replay.yaml      the experiment that compares it with the baseline
    OUT/replay           that experiment
    OUT/search.json      what came of it, see ``ctr.search.record``

What is there already is not made again, so the same command goes on after an interruption.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctr.config import differing_keys, dump_yaml, load_model, parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.experiments.config import ExperimentConfig
from ctr.experiments.jobs import Failure
from ctr.experiments.report.write import write_experiment
from ctr.experiments.run import Options
from ctr.experiments.tasks import read_object
from ctr.io.errors import INPUT, InputError, joined
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.search.config import SEARCH_FILE, SearchConfig, check_search_folder, read_search
from ctr.search.judge import judge
from ctr.search.problem import Problem, cost_of, counted, find_prefix
from ctr.search.record import BASELINE, RECORD_FILE, SEARCHED, TRIALS, SearchRecord, Tried
from ctr.search.space import described, make_space, with_widths
from ctr.search.trials import draw_candidates, run_trials
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve
from ctr.training.run.directory import only_process, write_json


def run_search(
    file: Path, log: Path, out: Path, options: Options, settings: Sequence[str] = (), is_judged: bool = True
) -> tuple[SearchRecord, dict[str, Failure]]:
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
    schema = resolve(parse_model(TrainConfig, content, where), schema, manifests).model.features(schema)
    content = with_widths(content, search, schema, manifests, where)
    space = make_space(search, content, schema, where)
    make_folder(out)
    with only_process(out):
        _adopt(out, search, content, log_sha256(manifests))
        time_range = parse_model(TrainConfig, content, "config").time_range
        prefix, rows = find_prefix(log, time_range, search.prefix)
        cost = cost_of(space, content, counted(log, search.cost))
        problem = Problem(search, content, space, cost, prefix, rows, log, out.resolve(), options)
        chosen, found = _METHODS[search.method](problem)
        best = space.apply_values(content, chosen.values)
        write_atomic_bytes(out / "best.yaml", dump_yaml(best).encode())
        failures = {}
        if is_judged and chosen.name != BASELINE:
            failures = _replay(problem, chosen)
            write_experiment(out / "replay")
            found["judged"] = judge(out / "replay", prefix.end_us)
        record = problem.record(chosen, found)
        write_json(out / RECORD_FILE, record.model_dump())
    return record, failures


def _adopt(out: Path, search: SearchConfig, content: dict[str, Any], sha256: str) -> None:
    """Writes the search beside what comes of it; raises InputError where another one has trained."""
    whole = search.model_copy(update={"base": None, "config": content})
    path, seen = out / SEARCH_FILE, out / "log.json"
    if any((out / name).exists() for name in (TRIALS, "supernet")):
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


def _by_trials(problem: Problem) -> tuple[Tried, dict[str, Any]]:
    """Random search. Returns the result, and what else the record has of it."""
    search, space, content = problem.search, problem.space, problem.content
    drawn = draw_candidates(space, content, problem.cost, search.target, search.candidates, search.seed)
    candidates = [problem.candidate(choice) for choice in drawn]
    if search.target >= 1:
        candidates.insert(0, problem.candidate(None))
    names = {candidate.name for candidate in candidates}
    tried = run_trials(problem, candidates)
    chosen = next((one for one in tried if one.name in names and one.logloss is not None), None)
    if chosen is None:
        failures = joined([f"{one.name}: {one.failure}" for one in tried if one.failure])
        text = f"{problem.out / TRIALS}: no candidate of the search could be trained: {failures}"
        statuses = [one.failure.status for one in tried if isinstance(one.failure, Failure)]
        raise InputError(text).ending_with(max(statuses, default=INPUT))
    # Operations of all trainings, in passes of the baseline over all rows.
    operations = counted(problem.log, "training")
    whole = operations(space.apply_values(content, {}))
    shares = sum(operations(space.apply_values(content, one.values)) / whole for one in tried)
    return chosen, {"tried": tried, "passes": shares * problem.prefix.rows / problem.rows}


def _by_supernet(problem: Problem) -> tuple[Tried, dict[str, Any]]:
    from ctr.search.supernet import search_supernet

    search, space = problem.search, problem.space
    content = {**problem.on_prefix(), "seed": search.seed}
    base = parse_model(TrainConfig, content, "base")
    progress = problem.options.progress or (lambda _: None)
    out = problem.out / "supernet"
    found = search_supernet(search, space, problem.cost, base, problem.log, out, progress)
    passes = found.passes * problem.prefix.rows / problem.rows
    return problem.candidate(found.choice), {"examples": found.examples, "passes": passes}


_METHODS = {"random": _by_trials, "supernet": _by_supernet}


def _replay(problem: Problem, chosen: Tried) -> dict[str, Failure]:
    """Trains the result and the baseline from the log's beginning, by a replay; returns what failed."""
    end = problem.prefix.end
    read = "all rows" if end is None else f"the rows before {end}"
    experiment = ExperimentConfig(
        title=problem.search.title,
        note=f"The result of a search that read {read}: it was chosen on these, and only the others are held out.",
        config={**problem.content, "record_predictions": True},
        seeds=problem.search.seeds,
        arms={SEARCHED: problem.arm(chosen, "Searched", described(chosen.values))},
    )
    return problem.replay("replay", experiment, costs=True)
