"""What a search leaves behind: OUT/search.json, from which its report is made, without TensorFlow."""

from typing import Any

from ctr.experiments.plan import Record

RECORD_FILE = "search.json"
BASELINE = "baseline"
"""The name of the configuration that candidates change."""
SEARCHED = "searched"
"""The name of the result among the arms of the last replay."""


class Tried(Record):
    """A candidate that was trained by itself.

    Attributes:
        name: of its arm: ``cN`` for candidate N of the space, or ``baseline``.
        values: its choices by the names of the decisions; empty for the baseline.
        cost: in units of the baseline's.
        logloss: progressive, over the prefix; None: its run failed.
        difference: of this logloss to the baseline's.
        low, high: the 95% interval of the difference, paired by query; None where it is undefined.
        failure: why its run failed; else empty.
    """

    name: str
    values: dict[str, Any]
    cost: float
    logloss: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    failure: str = ""


class Rung(Record):
    """Candidates that learned from the same prefix.

    Attributes:
        folder: of their experiment, relative to that of the search.
        end: the first query time after the prefix, ISO 8601; None: it is the whole log.
        rows: of the prefix.
        tried: the candidates, the best first; those that failed last.
        kept: the names of those that went on.
    """

    folder: str
    end: str | None
    rows: int
    tried: list[Tried]
    kept: list[str]


class JudgedMetric(Record):
    """A metric of the result against that of the baseline, the mean over seeds.

    Attributes:
        baseline: its value.
        searched: that of the result.
        difference: the latter minus the former, with the ends of its 95% interval, paired by query.
        percent: the difference in percent of the baseline's value.
        by_seed: the difference of each seed.
        significant: whether the interval excludes 0 and all seeds have one sign; None: there is no interval.
    """

    baseline: float | None
    searched: float | None
    difference: float | None
    low: float | None
    high: float | None
    percent: float | None
    by_seed: dict[str, float | None]
    significant: bool | None


class Judgement(Record):
    """How the result compares with the baseline on one part of the log.

    Attributes:
        part: ``rest``: rows that the search has not read. ``whole``: all rows.
        rows: how many there are.
        metrics: by name.
        missing: why it is not known; else empty.
    """

    part: str
    rows: int
    metrics: dict[str, JudgedMetric] = {}
    missing: str = ""


class SearchRecord(Record):
    """A search and what came of it.

    Attributes:
        title, note: of its file.
        method: supernet, halving or random.
        command: that repeats it.
        ctr_version: that made it.
        log: the folder of the log.
        log_sha256: identifies what the log holds.
        seed: of the search.
        target: the cost that the result may have.
        purpose, measure: what the cost is.
        space: for each decision its choices.
        size: how many candidates there are.
        baseline: the baseline's choices; None where the space does not have it.
        rows: of the log, in the configuration's time range.
        prefix_rows: how many of these the search reads.
        prefix_end: the first query time that it does not read; None: it reads all.
        rungs: of the methods halving and random.
        examples: that a supernet learned from; None for other methods.
        passes: what the search computed, in passes of the baseline over all rows.
        chosen: the result, ``baseline`` or ``cN``; empty until it is known.
        values: its choices.
        cost: its cost in units of the baseline's.
        judged: what the last replay showed; empty without one.
    """

    title: str
    note: str
    method: str
    command: str
    ctr_version: str
    log: str
    log_sha256: str
    seed: int
    target: float
    purpose: str
    measure: str
    space: dict[str, list[Any]]
    size: int
    baseline: dict[str, Any] | None
    rows: int
    prefix_rows: int
    prefix_end: str | None
    rungs: list[Rung] = []
    examples: int | None = None
    passes: float = 0.0
    chosen: str = ""
    values: dict[str, Any] = {}
    cost: float | None = None
    judged: list[Judgement] = []
