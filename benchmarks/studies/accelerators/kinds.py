"""The kinds of training step that are compiled: models, optimizers, objectives and dtypes, for any model size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from ctr_model import SETTLED
from reference import (
    ADAGRAD,
    Size,
    batch_of,
    reference_batches,
    reference_config,
    reference_schema,
    with_lists,
)

from accelerators.lowering import Lowered, lower
from ctr.config import parse_model
from ctr.data.batches import Batch
from ctr.data.stream import TEACHER_LOGIT
from ctr.experiments.config import merged
from ctr.objective.bias_constraints import resolve_families
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.training.compiled_step import CompiledStep
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic
from ctr.training.feed import Feed, make_feed
from ctr.training.flops import Flops, Touched, count_flops
from ctr.training.state import TrainState, dense_weights

OBJECTIVES = {
    "objective": {
        "ranking": {},
        "distillation": {"teacher": "teacher"},
        "bias_constraints": {"families": [{"name": "ctr", "estimated_ctr": [0.01, 0.04, 0.16, 0.32]}]},
    }
}
SMALL = {"model": {"crosses": {"layers": 2, "rank": 8}, "deep": {"units": [64, 32]}}}
"""Changes for a small model, which compiles in seconds instead of minutes."""
SMALL_ROOTS = {"model": {"crosses": {"layers": 0}, "deep": {"units": [32]}}}
"""Further changes for roots on the device, whose float64 becomes a very long program."""
DAMPED = {"optimizer": {"dense": {"shampoo": {"epsilon": 1e-2}}}}
"""Larger damping: with the default of 1e-6, a step of Shampoo amplifies rounding differences a thousand times."""
FACTORIZED = {"model": {"factorized": {"width": 16, "ui_units": [32], "ui_features": ["f0", "f1"]}}}
ATTENTION = {"model": {"pooling": {"recent": {"kind": "target", "of": "f0"}}}}
ENSEMBLE = {"model": {"ensemble": {"components": 2}}}


@dataclass(frozen=True)
class Kind:
    """A kind of training step to compile.

    Attributes:
        changes: changes to the configuration of the reference model.
        dtype: dtype of the matrix products.
        is_reference: whether the changes are to the reference model; else they are to an empty configuration, as in
            ``ctr train LOG``.
        device_roots: whether Shampoo's roots are computed in the step instead of by the host between two steps.
        lists: number of values of a list feature that each row has besides the reference model's features.
    """

    changes: Mapping[str, Any]
    dtype: str = "float32"
    is_reference: bool = True
    device_roots: bool = False
    lists: int = 0


KINDS = {
    "AdaGrad": Kind(ADAGRAD),
    "AdaGrad, bfloat16": Kind(ADAGRAD, "bfloat16"),
    "Shampoo": Kind({}),
    "Shampoo, bfloat16": Kind({}, "bfloat16"),
    "Shampoo, roots on the device": Kind({}, device_roots=True),
    "defaults": Kind({}, is_reference=False),
    "defaults, bfloat16": Kind({}, "bfloat16", is_reference=False),
    "factorized": Kind(merged(ADAGRAD, FACTORIZED)),
    "ensemble": Kind(merged(ADAGRAD, ENSEMBLE)),
    "attention": Kind(merged(ADAGRAD, ATTENTION), lists=50),
    "ranking, distillation, constraints": Kind(merged(ADAGRAD, OBJECTIVES)),
    "all of these, Shampoo, bfloat16": Kind(merged(merged(FACTORIZED, ENSEMBLE), OBJECTIVES), "bfloat16"),
}


class DeviceShampoo(DenseShampoo):
    """Shampoo with roots computed in the step, as in a Keras model under ``jit_compile`` without a callback."""

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, preconditions: bool) -> None:
        self.core.update(gradients, rate, self._decayed, on_device=True)

    def exchange(self) -> None:
        pass


@dataclass(frozen=True)
class Built:
    """A fresh model of a kind, with its compiled step and its feeds."""

    config: TrainConfig
    state: TrainState
    step: CompiledStep
    feeds: list[Feed]

    @property
    def ramps(self) -> dict[str, float]:
        return self.config.ramps_at(SETTLED)

    @property
    def rates(self) -> dict[str, float]:
        return self.config.rates_at(SETTLED)

    def lowered(self) -> Lowered:
        # With room for the rows of any of the batches.
        widest = max(self.feeds, key=lambda feed: sum(len(plan.distinct) for plan in feed.plans))
        return lower(self.step, widest, self.ramps, self.rates)

    def flops(self) -> Flops:
        """Returns the model's flops per example by its formulas, with rows and values counted with their padding."""
        feed = self.feeds[0]
        rows = len(feed.targets["label"])
        touched = {
            layout.name: Touched(
                len(layout.single),
                len(plan.values) / rows,
                len(layout.multivalent),
                len(plan.distinct) / rows,
            )
            for layout, plan in zip(feed.layouts, feed.plans, strict=True)
        }
        return count_flops(self.config, self.state.layouts, touched, rows)


def build(kind: Kind, size: Size, changes: Mapping[str, Any] = MappingProxyType({})) -> Built:
    """Creates a model of a kind and size, with changes to its configuration."""
    content = merged(merged({"compute_dtype": kind.dtype}, kind.changes), changes)
    if kind.is_reference:
        content = reference_config(content, size.batch)
    else:
        content, size = merged({"batch": batch_of(size.batch)}, content), replace(size, growing=True)
    config = parse_model(TrainConfig, content, "a kind of step")
    make_deterministic(config.seed)
    schema, batches = (
        with_lists(size, kind.lists) if kind.lists else (reference_schema(size), reference_batches(size))
    )
    constraints = config.objective.bias_constraints
    families = () if constraints is None else resolve_families(constraints, schema)
    state = TrainState(config.table_layouts(schema), config, kind.dtype, families)
    feeds = [
        make_feed(_with_teacher(batch), state.layouts, size.batch, config.objective, families, ids=config.ids)
        for batch in batches
    ]
    if kind.device_roots:
        state.dense_optimizer = DeviceShampoo(config.optimizer.dense.shampoo)
        state.dense_optimizer.build(dense_weights(state.weights))
    return Built(config, state, CompiledStep(state, config, jit=True), feeds)


def _with_teacher(batch: Batch) -> Batch:
    logits = np.linspace(-3, 0, len(batch.rows), dtype=np.float32)
    return replace(batch, rows=replace(batch.rows, joined={**batch.rows.joined, TEACHER_LOGIT: logits}))
