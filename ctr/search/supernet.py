"""Search by weight sharing (FF 3.2): one network that holds all candidates is trained once, in the trainer's own pass.

A batch of one pass over a log is unseen when it comes, so that it judges candidates for nothing
(``ctr.search.shared_weights``). What the controller has learned is in the run's checkpoints, so that a search goes on
where it was killed, to the same bits.

::

    OUT/pass-1/             the run of the first pass, OUT/pass-2 that of another one over the same examples, ...
    OUT/controller.jsonl    the controller over time
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.log import read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.experiments.measure import Operations
from ctr.io.errors import InputError
from ctr.io.files import make_folder
from ctr.io.signals import stop_signals
from ctr.objective.schedules import Ramp
from ctr.search.config import SearchConfig
from ctr.search.controller import Policy, entropy, new_controller
from ctr.search.problem import Cost
from ctr.search.shared_weights import Plan, SharedState, SharedStep, progress_of
from ctr.search.space import Choice, Space, described, without_pairs
from ctr.training.config import DenseOptimizerConfig, TrainConfig
from ctr.training.inputs import Inputs
from ctr.training.loop import Process, open_session


@dataclass(frozen=True)
class SupernetResult:
    """Result of a search by weight sharing: the most likely candidate that may be drawn, and its cost.

    ``passes`` is the cost in passes of the baseline over the same rows, by counted operations: the steps of
    the largest network, and the predictions of candidates, which cost as much as its own.
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
    """Trains a supernet, or goes on with it, and returns the candidate that the controller prefers.

    The time range of ``base`` is what the search reads. Raises InputError: the base learns otherwise than by
    AdaGrad, no candidate keeps to the target, or what ``ctr.training.loop.open_session`` raises.
    """
    schema = read_schema(log)
    base, note = without_pairs(base, schema)
    if note:
        progress(f"supernet: {note}")
    largest = check_supernet(space, base)
    if base.preconditions:
        progress(
            "the weights that all candidates share learn by AdaGrad alone: the supernet has "
            "optimizer.dense.preconditioned_from_rows null"
        )
    policy = Policy(space, cost, config.target, config.controller, config.seed)
    policy.most_likely(new_controller(policy.sizes).logits)
    make_folder(out)
    blocks = read_selection(log, schema, read_manifests(log), Selection(time_range=base.time_range))
    rows, passes = sum(len(block) for block in blocks), config.controller.passes
    plan = Plan(config, space, base, policy, max(1, round(passes * rows)), out / "controller.jsonl")
    arrays: Mapping[str, np.ndarray] | None = None
    for number in range(math.ceil(passes)):
        limit = round(min(1.0, passes - number) * rows)
        run = out / f"pass-{number + 1}"
        arrays = _one_pass(plan, _of_pass(largest, number), log, run, limit, arrays, progress)
    assert arrays is not None
    own = progress_of(arrays["search"], policy.sizes)
    count, learned = Operations(log), own.examples * (plan.drawn + len(plan.always))
    flops = count(largest)
    operations = learned * flops["train_flops"] + own.scored * flops["inference_flops"]
    whole = count(base)["train_flops"] * rows
    return SupernetResult(policy.most_likely(own.controller.logits), own.examples, operations / whole)


def check_supernet(space: Space, base: TrainConfig) -> TrainConfig:
    """Returns the configuration of the largest network. Raises InputError: see ``search_supernet``."""
    model, optimizer = base.model, base.optimizer
    if model.ensemble.components > 1:
        raise InputError(
            "config: model.ensemble.components above 1 is not allowed with method supernet: components are alike and "
            "learn by themselves, so search for one, and train as many of it as are wanted"
        )
    attention = [name for name, pooling in model.pooling.items() if pooling.kind != "mean"]
    if attention:
        raise InputError(
            f"config: model.pooling.{attention[0]} is not allowed with method supernet: no mask is on attention; "
            "allowed: mean, or method random"
        )
    ranking = base.objective.ranking
    if ranking is not None and ranking.setup == "multi_task":
        raise InputError(
            "config: objective.ranking.setup multi_task is not allowed with method supernet: candidates are judged by "
            "the prediction, and no mask is on the head that ranks; allowed: multi_objective"
        )
    if base.objective.labels:
        raise InputError(
            "config: objective.labels is not allowed with method supernet: no mask is on the outputs of labels; "
            "allowed: method random"
        )
    dense = optimizer.dense
    initial = getattr(dense.shampoo.grafting, "initial_accumulator", 0.0)
    plain = DenseOptimizerConfig().shampoo.changed({"grafting": {"initial_accumulator": initial}})
    is_open = dense.preconditioned_from_rows in (None, DenseOptimizerConfig().preconditioned_from_rows)
    if dense.rule != "shampoo" or dense.shampoo != plain or not is_open:
        raise InputError(
            "config: optimizer.dense: a supernet learns by AdaGrad, not by Shampoo or Adafactor, whose "
            "statistics are of all candidates and would move what is masked; allowed with method supernet: "
            "optimizer.dense.shampoo.grafting.initial_accumulator alone"
        )
    if optimizer.embeddings.rule != "adagrad":
        raise InputError(
            f"config: optimizer.embeddings.rule is {optimizer.embeddings.rule}; allowed with method supernet: adagrad"
        )
    alone = dense.model_copy(update={"preconditioned_from_rows": None})
    quiet = {
        "record_predictions": False,
        "export": None,
        "optimizer": optimizer.model_copy(update={"dense": alone}),
    }
    return space.apply(base, space.largest).model_copy(update=quiet)


def _of_pass(largest: TrainConfig, number: int) -> TrainConfig:
    """Configuration of a pass; ramps and batches that grow are of the first one alone."""
    if not number:
        return largest
    crosses = largest.model.crosses
    model = largest.model.model_copy(update={"crosses": crosses.model_copy(update={"ramp": Ramp()})})
    batch = largest.batch.model_copy(update={"growth": None})
    return largest.model_copy(update={"model": model, "batch": batch})


def _one_pass(
    plan: Plan,
    config: TrainConfig,
    log: Path,
    run_dir: Path,
    limit: int,
    before: Mapping[str, np.ndarray] | None,
    progress: Callable[[str], None],
) -> dict[str, np.ndarray]:
    """Makes a pass, or what is left of it, up to ``limit`` rows.

    ``before``, and what is returned, is everything that a pass came to, by the names of the state's
    variables.
    """
    sizes = plan.policy.sizes
    begun: list[SharedState] = []

    def begin(inputs: Inputs, process: Process) -> SharedStep:
        state = SharedState(plan, inputs.config, inputs.schema, inputs.families)
        if before is not None:
            start = replace(progress_of(before["search"], sizes), rows=0)
            state.restore({**before, "search": start.to_array()})
        begun.append(state)
        return SharedStep(plan, state, inputs.config, process.phase)

    def is_done() -> bool:
        return begun[0].remembered(sizes).rows >= limit

    def report(*_: Any) -> None:
        own = begun[0].remembered(sizes)
        percent = 100 * own.examples // plan.examples
        if not shown or percent > shown[-1]:
            shown.append(percent)
            best = described(plan.space.values(plan.policy.most_likely(own.controller.logits)))
            progress(f"supernet {percent}%: entropy {entropy(own.controller.logits):.3f}, now {best}")

    shown: list[int] = []
    with stop_signals() as stop, open_session(log, config, run_dir, report, begin=begin) as session:
        if not is_done():
            session.advance(partial=True, stop=lambda: is_done() or stop() is not None)
            if (reason := stop()) is not None:
                session.interrupt(reason)
            session.save()
        return {name: np.array(array) for name, array in session.run.state.arrays().items()}
