"""The tables of an experiment, for a terminal and for its report alike."""

from collections.abc import Sequence

from ctr.eval import display
from ctr.eval.intervals import Estimate
from ctr.experiments.report.arms import MetricChange, PairChange, prediction_difference_of
from ctr.experiments.report.cells import (
    NOTHING,
    PAPER,
    ArmTable,
    Cell,
    bounds,
    decimals_within,
    paper_cell,
    span,
    without_empty_columns,
)
from ctr.experiments.report.costs import Multiple
from ctr.experiments.report.results import ACCURACY, ArmResult, Experiment, Tuning
from ctr.experiments.report.system_tables import loop_table, slice_table
from ctr.experiments.report.tuning_points import TuningPoint
from ctr.experiments.report.write_json import spread

TABLE_WIDTH = 120
"""Of a terminal, in characters."""

_FIRST_WIDTH, _FIRST_LEAST = 30, 12
_WIDTHS = {PAPER: 14, "slice": 36}
"""Of columns of words."""
_COSTS = {"flops": "FLOPs", "time": "time"}


def experiment_tables(experiment: Experiment) -> list[ArmTable]:
    """Accuracy always; the others where anything is known of what they tell."""
    arms = experiment.arms
    tables = [_accuracy_table(arms)]
    if any(result.costs is not None for result in arms):
        tables.append(_cost_table(arms, experiment.costs.rounds))
    if any(prediction_difference_of(result.arm, "whole") is not None for result in arms):
        tables.append(_prediction_table(arms))
    if any(result.tuning for result in arms):
        tables.append(_tuning_table(arms))
    system = loop_table(arms, experiment.plan.loop_days), slice_table(arms)
    tables += [table for table in system if table is not None]
    return [without_empty_columns(table) for table in tables]


def page_tables(experiment: Experiment) -> list[ArmTable]:
    """`experiment_tables`, and those that would be too long for a terminal."""
    every = slice_table(experiment.arms, every=True)
    return experiment_tables(experiment) + ([] if every is None else [without_empty_columns(every)])


def missing_lines(experiment: Experiment) -> list[str]:
    """The runs and loops that are not finished and the arms that are not compared, each with its reason."""
    lines = [f"{name} failed: {reason}" for name, reason in experiment.failures.items()]
    lines += [
        f"{result.arm.plan.name} seed {outcome.seed} {outcome.state}: {outcome.reason}"
        for result in experiment.arms
        for outcome in result.arm.outcomes
        if outcome.state != "finished"
    ]
    lines += [
        f"{result.arm.plan.name} seed {outcome.seed} loop {outcome.state}: {outcome.reason}"
        for result in experiment.arms
        if result.loops is not None
        for outcome in result.loops.loops.outcomes
        if outcome.state != "finished"
    ]
    return lines + [
        f"{result.arm.plan.name} not compared: {result.refusal}"
        for result in experiment.arms
        # An arm without any run is among the lines above.
        if result.refusal and result.arm.estimates
    ]


def as_text(experiment: Experiment) -> str:
    """The tables for a terminal of `TABLE_WIDTH`, which only reasons may exceed."""
    plan = experiment.plan
    others = [
        f"{result.arm.plan.name} against {result.reference}"
        for result in experiment.arms
        if result.reference not in (None, plan.baseline)
    ]
    log = f"log {plan.log_sha256[:12]}, " if plan.log_sha256 else ""
    lines = [
        " ".join(plan.title.split()),
        f"{log}ctr {plan.ctr_version}; arms against {plan.baseline}{', but' if others else ''}",
        *others,
    ]
    for table in experiment_tables(experiment):
        lines += ["", table.title, *_fitted(table), *table.notes]
    missing = missing_lines(experiment)
    if missing:
        lines += ["", "Not in the tables", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def _fitted(table: ArmTable) -> list[str]:
    """The lines of a table, its first column and words of others cut short where they do not fit."""
    limits = {place: _WIDTHS[column] for place, column in enumerate(table.columns) if column in _WIDTHS}
    rows = [["", *table.columns]]
    for name, cells in table.rows:
        texts = [cell.text for cell in cells]
        for place, width in limits.items():
            texts[place] = _cut(texts[place], width)
        rows.append([_cut(name, _FIRST_WIDTH), *texts])
    lines = display.aligned(rows)
    excess = max(map(len, lines)) - TABLE_WIDTH
    if excess > 0:
        width = max(max(len(row[0]) for row in rows) - excess, _FIRST_LEAST)
        lines = display.aligned([[_cut(row[0], width), *row[1:]] for row in rows])
    return lines


def _cut(text: str, width: int) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= width else f"{plain[: width - 1]}…"


def _accuracy_table(arms: Sequence[ArmResult]) -> ArmTable:
    rows = []
    for result in arms:
        value = result.arm.metric(ACCURACY)
        changes = result.changes
        cells = [
            NOTHING if value is None else Cell(display.fixed(float(value.point)), bounds(value, 5)),
            *(NOTHING for _ in range(2)),
            paper_cell(result, "accuracy"),
            *(NOTHING for _ in range(2)),
        ]
        if changes:
            cells[1] = _change_cell(ACCURACY, changes[ACCURACY], with_interval=True)
            cells[2] = _seeds_cell(changes[ACCURACY])
            cells[4] = _change_cell("auc", changes["auc"])
            cells[5] = _change_cell("logloss", changes["logloss"])
        rows.append((result.arm.plan.name, cells))
    return ArmTable(
        name="accuracy",
        title="Accuracy: changes in percent of the reference's",
        columns=("PerQueryAUC", "change, % [95%]", "by seed ± sd", PAPER, "AUC, %", "logloss, %"),
        rows=rows,
        notes=(
            "[95%] over queries, paired. * the interval excludes 0 and the changes of all seeds have one sign;",
            "with one seed the interval alone decides.",
        ),
    )


def _cost_table(arms: Sequence[ArmResult], rounds: int | None) -> ArmTable:
    rows = []
    for result in arms:
        change, costs = result.cost_change, result.costs
        learned = None if costs is None else costs.learned_share
        cells = [
            _multiple_cell(change.train_time, _milliseconds(None if costs is None else costs.step_ms)),
            _multiple_cell(change.train_flops, _flops(None if costs is None else costs.train_flops)),
            paper_cell(result, "training_cost"),
            _multiple_cell(
                change.inference_time, _milliseconds(None if costs is None else costs.inference_ms)
            ),
            _multiple_cell(change.inference_flops, _flops(None if costs is None else costs.inference_flops)),
            paper_cell(result, "inference_cost"),
            NOTHING if learned is None else Cell(display.fixed(100 * learned, 1)),
        ]
        rows.append((result.arm.plan.name, cells))
    timed = f" over {rounds} rounds" if rounds else ""
    return ArmTable(
        name="costs",
        title="Costs: changes in percent of the reference's",
        columns=("training, %", "FLOPs, %", PAPER, "inference, %", "FLOPs, %", PAPER, "rows, %"),
        rows=rows,
        notes=(
            "training: time of a step per row, times the rows learned from (rows, % of the log); the same for FLOPs.",
            f"inference: per row scored. [quartiles{timed}, alternating with the baseline], absent against other arms.",
        ),
    )


def _prediction_table(arms: Sequence[ArmResult]) -> ArmTable:
    rows = []
    for result in arms:
        if result.arm.plan.of is not None and not result.arm.prediction_pairs.pairs["whole"]:
            # Points of a sweep rarely have two seeds.
            continue
        late = prediction_difference_of(result.arm, "late")
        whole = prediction_difference_of(result.arm, "whole")
        unavailable = result.arm.prediction_pairs.unavailable
        cells = [
            Cell(display.ABSENT, unavailable) if late is None else Cell(_percent_with_bounds(late)),
            _pairs_cell(result, "late"),
            *_ratio_cells(result.prediction_changes["late"]),
            NOTHING if whole is None else Cell(_fixed_percent(float(whole.point)), _percent_bounds(whole)),
            paper_cell(result, "pd"),
        ]
        rows.append((result.arm.plan.name, cells))
    return ArmTable(
        name="prediction-difference",
        title="Prediction difference of an arm's runs, in percent: mean over pairs of seeds",
        columns=("last half, % [95%]", "pairs", "of reference's [95%]", "pairs", "whole, %", PAPER),
        rows=rows,
        notes=(
            "last half: of the queries' span of time. [95%] over queries; pairs: smallest to largest over the pairs.",
        ),
    )


def _tuning_table(arms: Sequence[ArmResult]) -> ArmTable:
    rows = [
        (
            result.arm.plan.name,
            [
                Cell(_COSTS[kind]),
                Cell(_tuned(tuning.accuracy, 3), tuning.unavailable),
                Cell(_tuned(tuning.cost, 1), tuning.unavailable),
                Cell(_points(tuning), _left_out(tuning)),
            ],
        )
        for result in arms
        for kind, tuning in result.tuning.items()
    ]
    return ArmTable(
        name="tuning",
        title="Tuning points, read from the sweep's curve of accuracy over cost",
        columns=("cost by", "accuracy at neutral cost, %", "cost at neutral accuracy, %", "points"),
        rows=rows,
        notes=(
            "What an arm gains at the reference's cost, and saves at the reference's accuracy. Linear between points",
            "in the logarithm of cost, at the sweep's seeds; < and > are bounds where the answer lies beyond the",
            "sweep, if accuracy does not fall as cost grows. [95%] over queries.",
        ),
    )


def _change_cell(metric: str, change: MetricChange, *, with_interval: bool = False) -> Cell:
    low, high = (float(end) for end in change.percent.interval())
    decimals = decimals_within(low, high)
    value = float(change.percent.point)
    text = display.fixed(value, decimals, signed=True)
    ends = display.interval(low, high, decimals, signed=True)
    if with_interval:
        text = f"{text} {ends}"
    verdict = display.verdict(metric, value, change.significant) if change.significant else ""
    absolute = display.fixed(float(change.difference.point), 5, signed=True)
    ends = ends if ends != display.ABSENT else f"no interval ({change.percent.no_interval()})"
    detail = f"{absolute} absolute" if with_interval else f"{ends}, {absolute} absolute"
    return Cell(f"{text}{'*' if change.significant else ' '}", detail, verdict)


def _seeds_cell(change: MetricChange) -> Cell:
    low, high, deviation = spread(change.percent_by_seed.values())
    if deviation is None:
        return Cell("one seed")
    decimals = decimals_within(low, high)
    ends = f"{display.fixed(low, decimals, signed=True)}..{display.fixed(high, decimals, signed=True)}"
    each = ", ".join(
        f"{seed}: {display.fixed(value, decimals, signed=True)}"
        for seed, value in change.percent_by_seed.items()
    )
    return Cell(f"{ends} ± {display.fixed(deviation, decimals)}", f"by seed {each}")


def _multiple_cell(multiple: Multiple | None, detail: str = "") -> Cell:
    if multiple is None:
        return Cell(display.ABSENT, detail)
    text = display.fixed(100 * (multiple.value - 1), 1, signed=True)
    if multiple.low is not None and multiple.high is not None:
        ends = display.interval(100 * (multiple.low - 1), 100 * (multiple.high - 1), 1, signed=True)
        text = f"{text} {ends}"
    return Cell(text, detail)


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{display.amount(value)} ms per batch"


def _flops(value: float | None) -> str:
    return "" if value is None else f"{display.amount(value)} per example"


def _pairs_cell(result: ArmResult, part: str) -> Cell:
    pairs = result.arm.prediction_pairs.pairs[part].values()
    return Cell(span((100 * float(one.point) for one in pairs), 2))


def _ratio_cells(change: PairChange | None) -> tuple[Cell, Cell]:
    if change is None:
        return NOTHING, NOTHING
    text = f"{display.fixed(float(change.ratio.point), 3)} {bounds(change.ratio, 3)}"
    return Cell(text), Cell(span(change.by_pair.values(), 3))


def _tuned(point: TuningPoint | None, decimals: int) -> str:
    if point is None:
        return display.ABSENT
    text = display.fixed(100 * point.value, decimals, signed=True)
    if point.bound:
        return f"{point.bound} {text}, beyond the sweep"
    if point.low is None or point.high is None:
        return text
    return f"{text} {display.interval(100 * point.low, 100 * point.high, decimals, signed=True)}"


def _points(tuning: Tuning) -> str:
    asked = len(tuning.points) + len(tuning.left_out)
    return str(asked) if not tuning.left_out else f"{len(tuning.points)} of {asked}"


def _left_out(tuning: Tuning) -> str:
    words = f"{', '.join(tuning.points)}; seeds {', '.join(map(str, tuning.seeds))}"
    return words + (f"; without {', '.join(tuning.left_out)}" if tuning.left_out else "")


def _percent_with_bounds(estimate: Estimate) -> str:
    return f"{_fixed_percent(float(estimate.point))} {_percent_bounds(estimate)}"


def _fixed_percent(share: float) -> str:
    return display.fixed(100 * share, 2)


def _percent_bounds(estimate: Estimate) -> str:
    low, high = (100 * float(end) for end in estimate.interval())
    return display.interval(low, high, 2)
