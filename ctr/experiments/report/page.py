"""An experiment as one HTML file, which needs nothing beside it. All text of plans and runs is escaped."""

import json
from dataclasses import dataclass
from pathlib import Path

from ctr.eval.report.page import render_page
from ctr.eval.report.plot_style import COLORS
from ctr.eval.report.shown_run import SIGNS
from ctr.experiments.report.figures import arm_places, bias_figures, frontier_figure, prediction_figure
from ctr.experiments.report.results import ArmResult, Experiment
from ctr.experiments.report.tables import missing_lines, page_tables

_TEMPLATE = Path(__file__).with_name("experiment.html.j2")


@dataclass(frozen=True)
class _ShownArm:
    """An arm as the page shows it: its mark, and its settings as text."""

    name: str
    color: str
    sign: str
    result: ArmResult
    settings: list[tuple[str, str]]


def render_experiment(experiment: Experiment) -> str:
    """The report as HTML; the same experiment gives the same bytes."""
    places = arm_places(experiment)
    arms = {
        result.arm.plan.name: _ShownArm(
            name=result.arm.plan.name,
            color=f"var(--run-{places[result.arm.plan.name] % len(COLORS)})",
            sign=SIGNS[places[result.arm.plan.name] % len(SIGNS)],
            result=result,
            settings=[(key, _text(value)) for key, value in result.arm.plan.changes.items()],
        )
        for result in experiment.arms
    }
    environments = _environments(experiment)
    return render_page(
        _TEMPLATE,
        plan=experiment.plan,
        arms=arms,
        legend=[arm for arm in arms.values() if arm.result.arm.plan.of is None],
        tables=page_tables(experiment),
        missing=missing_lines(experiment),
        frontier=frontier_figure(experiment),
        predictions=prediction_figure(experiment),
        biases=[(arms[result.arm.plan.name], figure) for result, _, figure in bias_figures(experiment)],
        samplings={one.name: _text(one.config) for one in experiment.plan.samplings},
        environments=environments,
        environment_keys=list(dict.fromkeys(key for entries in environments for key in entries)),
        environment_of={
            outcome.folder: environments.index(_as_texts(outcome.environment)) + 1
            for result in experiment.arms
            for outcome in result.arm.outcomes
            if outcome.environment
        },
        teacher_flops=None
        if experiment.costs.teacher_flops is None
        else {name: _text(flops) for name, flops in experiment.costs.teacher_flops.items()},
    )


def _environments(experiment: Experiment) -> list[dict[str, str]]:
    """The environments that runs were made in, each once, in the order of the runs."""
    found: list[dict[str, str]] = []
    for result in experiment.arms:
        for outcome in result.arm.outcomes:
            texts = _as_texts(outcome.environment)
            if texts and texts not in found:
                found.append(texts)
    return found


def _as_texts(environment: dict[str, object]) -> dict[str, str]:
    return {key: _text(value) for key, value in environment.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
