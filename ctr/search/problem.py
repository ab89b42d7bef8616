"""A search whose parts are checked and fit each other, before anything is trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr import __version__
from ctr.config import differing_keys, dump_yaml, load_model, parse_model
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.experiments.run import Progress
from ctr.experiments.tasks import read_object
from ctr.io.errors import InputError, joined
from ctr.io.files import write_atomic_bytes
from ctr.search.config import SEARCH_FILE, SearchConfig
from ctr.search.cost import Cost, make_cost
from ctr.search.decisions import make_space, with_widths
from ctr.search.prefix import Prefix, find_prefixes
from ctr.search.record import BASELINE, SearchRecord
from ctr.search.space import Choice, Content, Space
from ctr.search.trials import Candidate
from ctr.training.config import TrainConfig
from ctr.training.run.directory import write_json


@dataclass(frozen=True)
class Problem:
    """A search, everything checked."""

    search: SearchConfig
    content: dict[str, Any]  # the baseline's configuration, as nested keys
    space: Space
    cost: Cost
    prefixes: list[Prefix]  # of the rungs; the last is what the search reads
    rows: int  # of the log, in the configuration's time range
    log_sha256: str

    def candidate(self, choice: Choice | None) -> Candidate:
        """Makes a candidate an arm; None, and whatever is configured like it, is the baseline."""
        if choice is None or self.space.apply(self.content, choice) == parse_model(
            TrainConfig, self.content, "base"
        ):
            return Candidate(BASELINE, {}, {}, 1.0)
        values = self.space.values(choice)
        changes = self.space.changes(self.content, values)
        return Candidate(f"c{self.space.index(choice)}", values, changes, self.cost.of(choice))

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
    """Makes the space of a search, and writes out all that candidates may change of the baseline.

    Raises InputError: the log has no rows, the configuration does not fit it, or a decision is not possible.
    """
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
    """Opens a search over a log; ``content`` as of ``open_space``, ``times`` as ``make_cost`` takes them.

    Raises InputError: a prefix of the log would be empty, or see ``make_cost``.
    """
    time_range = parse_model(TrainConfig, content, "config").time_range
    *prefixes, whole = find_prefixes(log, time_range, [*_shares(search), 1.0])
    cost = make_cost(search.cost, space, content, log, times, progress)
    sha256 = log_sha256(read_manifests(log))
    return Problem(search, content, space, cost, prefixes, whole.rows, sha256)


def adopt(out: Path, search: SearchConfig, content: dict[str, Any], log: Path) -> None:
    """Writes the search beside what comes of it.

    Raises InputError: another search has trained something there, or one of another log.
    """
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
