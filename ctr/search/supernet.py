"""Search by weight sharing (FF 3.2): one network that holds all candidates is trained in one pass of the trainer.

In a single pass over a log each batch is new, and can evaluate candidates without held-out data
(``ctr.search.shared_weights``). The run's checkpoints have the controller's state, so that a killed search resumes
with the same bits.

::

    OUT/run/                the run of the supernet
    OUT/controller.jsonl    records of the controller
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.experiments.measure import Operations
from ctr.io.errors import InputError
from ctr.io.files import make_folder
from ctr.io.signals import stop_signals
from ctr.search.config import SearchConfig
from ctr.search.controller import Policy, entropy, new_controller
from ctr.search.problem import Cost
from ctr.search.shared_weights import Plan, SharedState, SharedStep, progress_of
from ctr.search.space import Choice, Space, described, without_pairs
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs
from ctr.training.session import Process, open_session


@dataclass(frozen=True)
class SupernetResult:
    """Result of a search by weight sharing: the most likely candidate, and the cost of the search.

    ``passes`` is the cost of the search in passes of the baseline over the same rows, by counted operations: the steps
    of the supernet, and the predictions of candidates, which cost as much as the largest network's.
    """

    choice: Choice
    examples: int
    passes: float


def search_supernet(
    config: SearchConfig,
    space: Space,
    cost: Cost,
    base: TrainConfig,
    log: Path,
    out: Path,
    progress: Callable[[str], None],
) -> SupernetResult:
    """Trains a supernet, or resumes it, and returns the candidate that the controller prefers.

    The search reads the time range of ``base``. Raises InputError if ``base`` has settings that a search does not
    support, no candidate is within the target, or as ``ctr.training.session.open_session`` does.
    """
    schema = read_schema(log)
    base, note = without_pairs(base, schema)
    if note:
        progress(f"supernet: {note}")
    largest = check_supernet(space, base, config.controller.extremes != "none")
    if base.preconditions and not largest.preconditions:
        progress(
            "supernet: optimizer.dense.preconditioned_from_rows is null, as controller.extremes is none: roots would "
            "move what masks leave out"
        )
    policy = Policy(space, cost, config.target, config.controller, config.seed)
    policy.most_likely(new_controller(policy.sizes).logits)
    make_folder(out)
    blocks = read_selection(log, schema, read_manifests(log), Selection(time_range=base.time_range))
    rows = sum(len(block) for block in blocks)
    plan = Plan(config, space, base, policy, max(1, rows), out / "controller.jsonl")
    arrays = _one_pass(plan, largest, log, out / "run", rows, progress)
    state = progress_of(arrays["search"], policy.sizes)
    count, learned = Operations(log), state.examples * (plan.drawn + len(plan.always))
    flops = count(largest)
    operations = learned * flops["train_flops"] + state.scored * flops["inference_flops"]
    whole = count(base)["train_flops"] * rows
    return SupernetResult(policy.most_likely(state.controller.logits), state.examples, operations / whole)


def check_supernet(space: Space, base: TrainConfig, largest_learns: bool) -> TrainConfig:
    """Returns the configuration of the largest network. Raises InputError for settings that a search does not support.

    Shampoo is used only if the largest network learns from every batch: a root mixes all units of a layer, so that
    the gradient of a candidate alone would change units that its masks exclude.
    """
    model, optimizer = base.model, base.optimizer
    if model.ensemble.components > 1:
        raise InputError(
            "config: model.ensemble.components above 1 is not allowed in a search: components are alike and "
            "learn by themselves, so search for one, and train as many of it as are wanted"
        )
    attention = [name for name, pooling in model.pooling.items() if pooling.kind != "mean"]
    if attention:
        raise InputError(
            f"config: model.pooling.{attention[0]} is not allowed in a search: no mask is on attention; "
            "allowed: mean"
        )
    ranking = base.objective.ranking
    if ranking is not None and ranking.setup == "multi_task":
        raise InputError(
            "config: objective.ranking.setup multi_task is not allowed in a search: candidates are judged by "
            "the prediction, and no mask is on the head that ranks; allowed: multi_objective"
        )
    if base.objective.labels:
        raise InputError(
            "config: objective.labels is not allowed in a search: no mask is on the outputs of labels"
        )
    dense = optimizer.dense
    if not largest_learns:
        dense = dense.model_copy(update={"preconditioned_from_rows": None})
    if optimizer.embeddings.rule != "adagrad":
        raise InputError(
            f"config: optimizer.embeddings.rule is {optimizer.embeddings.rule}; allowed in a search: adagrad"
        )
    quiet = {
        "record_predictions": False,
        "export": None,
        "optimizer": optimizer.model_copy(update={"dense": dense}),
    }
    return space.apply(base, space.largest).model_copy(update=quiet)


def _one_pass(
    plan: Plan,
    config: TrainConfig,
    log: Path,
    run_dir: Path,
    rows: int,
    progress: Callable[[str], None],
) -> dict[str, np.ndarray]:
    """Runs the pass, or the rest of it; returns the arrays of the final state by name."""
    sizes = plan.policy.sizes
    begun: list[SharedState] = []

    def begin(inputs: Inputs, process: Process) -> SharedStep:
        state = SharedState(plan, inputs.config, inputs.schema, inputs.families)
        begun.append(state)
        return SharedStep(plan, state, inputs.config, process.phase)

    def is_done() -> bool:
        return begun[0].remembered(sizes).examples >= rows

    def report(*_: Any) -> None:
        state = begun[0].remembered(sizes)
        percent = 100 * state.examples // plan.examples
        if not reported or percent > reported[-1]:
            reported.append(percent)
            best = described(plan.space.values(plan.policy.most_likely(state.controller.logits)))
            progress(f"supernet {percent}%: entropy {entropy(state.controller.logits):.3f}, now {best}")

    reported: list[int] = []
    with stop_signals() as stop, open_session(log, config, run_dir, report, begin=begin) as session:
        if not is_done():
            session.advance(partial=True, stop=lambda: is_done() or stop() is not None)
            if (reason := stop()) is not None:
                session.interrupt(reason)
            session.save()
        return {name: np.array(array) for name, array in session.run.state.arrays().items()}
