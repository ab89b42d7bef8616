"""Runs a search: trains the supernet, then trains the result alone and compares it with the baseline.

::

    OUT/search.yaml      the search with its whole training configuration
    OUT/supernet         the supernet's run
    OUT/best.yaml        the configuration of the result
    OUT/replay.yaml      the experiment that compares the result with the baseline
    OUT/replay           the output of that experiment
    OUT/search.json      the result, see ``ctr.search.record``

Existing results are not recomputed, so the same command continues after an interruption.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import differing_keys, dump_yaml, load_model, parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.data.time_range import TimeRange
from ctr.experiments.calls import read_object
from ctr.experiments.config import ArmConfig, ExperimentConfig, changed
from ctr.experiments.jobs import Outcome
from ctr.experiments.report.write import write_experiment
from ctr.experiments.run import Options, run_experiment
from ctr.io.errors import InputError, joined
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.search.config import SEARCH_FILE, SearchConfig, check_search_folder, read_search
from ctr.search.problem import cost_of, counted, find_prefix
from ctr.search.record import BASELINE, RECORD_FILE, SEARCHED, SearchRecord
from ctr.search.space import described, make_space, with_widths
from ctr.search.supernet import search_supernet
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve
from ctr.training.run.directory import only_process, write_json


def run_search(
    file: Path, log: Path, out: Path, options: Options, settings: Sequence[str] = (), is_judged: bool = True
) -> tuple[SearchRecord, dict[str, Outcome]]:
    """Searches, writes OUT/best.yaml, and compares the result with the baseline.

    Args:
        settings: changes to the file, as ``key=value``.
        is_judged: whether to train the result alone and compare it with the baseline, unless it is the baseline.

    Returns the result, which is also in OUT/search.json, and the failed runs of the comparison, by name.
    Raises InputError for an invalid search or log, another search or process in ``out``, or no candidate within the
    target.
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
    out = out.resolve()
    with only_process(out):
        _adopt(out, search, content, log_sha256(manifests))
        time_range = parse_model(TrainConfig, content, "config").time_range
        prefix, rows = find_prefix(log, time_range, search.prefix)
        cost = cost_of(space, content, counted(log, search.cost))
        # Reads the prefix alone, and keeps no predictions.
        ended = {} if prefix.end is None else {"time_range.end": prefix.end}
        reads = changed(content, {**ended, "record_predictions": False, "seed": search.seed})
        base, progress = parse_model(TrainConfig, reads, "base"), options.progress or (lambda _: None)
        result = search_supernet(search, space, cost, base, log, out / "supernet", progress)
        best, baseline = space.apply(content, result.choice), space.baseline(content)
        is_baseline = best == space.apply_values(content, {})
        values = {} if is_baseline else space.values(result.choice)
        write_atomic_bytes(out / "best.yaml", dump_yaml(best).encode())
        record = SearchRecord(
            **search.model_dump(include={"title", "note", "seed", "target"}),
            command=options.command,
            ctr_version=__version__,
            log=str(log.resolve()),
            log_sha256=log_sha256(manifests),
            purpose=search.cost,
            space={decision.name: list(decision.choices) for decision in space.decisions},
            size=space.size,
            baseline=None if baseline is None else space.values(baseline),
            rows=rows,
            prefix_rows=prefix.rows,
            prefix_end=prefix.end,
            examples=result.examples,
            passes=result.passes * prefix.rows / rows,
            chosen=BASELINE if is_baseline else f"c{space.index(result.choice)}",
            values=values,
            cost=1.0 if is_baseline else cost(result.choice),
        )
        failures: dict[str, Outcome] = {}
        if is_judged and not is_baseline:
            read = "all rows" if prefix.end is None else f"the rows before {prefix.end}"
            arm = ArmConfig(title="Searched", note=described(values), set=space.changes(content, values))
            experiment = ExperimentConfig(
                title=search.title,
                note=f"The result of a search that read {read}; only the others are held out, and count here.",
                config={**content, "record_predictions": True},
                seeds=search.seeds,
                arms={SEARCHED: arm},
                scored=TimeRange() if prefix.end is None else TimeRange.model_validate({"start": prefix.end}),
            )
            replay = out / "replay.yaml"
            write_atomic_bytes(replay, dump_yaml(experiment).encode())
            failures = run_experiment(replay, log, out / "replay", options)
            write_experiment(out / "replay")
        write_json(out / RECORD_FILE, record.model_dump())
    return record, failures


def _adopt(out: Path, search: SearchConfig, content: dict[str, Any], sha256: str) -> None:
    """Writes search.yaml; raises InputError if ``out`` has the supernet of another search or log."""
    whole = search.model_copy(update={"base": None, "config": content})
    path, seen = out / SEARCH_FILE, out / "log.json"
    if (out / "supernet").exists():
        # Titles, notes and the seeds of the final comparison do not change the search.
        described = {key: getattr(whole, key) for key in ("title", "note", "seeds")}
        before = load_model(SearchConfig, path, "search").model_copy(update=described)
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
    """Converts a search to plain data, with all keys of its training configuration."""
    config = parse_model(TrainConfig, dict(search.config), where, "config.")
    return {**search.model_dump(mode="json"), "config": config.model_dump(mode="json")}
