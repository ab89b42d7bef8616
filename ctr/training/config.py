"""The configuration of a training run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ctr.config import StrictModel
from ctr.data.schema import Tower
from ctr.data.time_range import TimeRange
from ctr.objective.config import ObjectiveConfig
from ctr.optim.options import ShampooOptions
from ctr.training.model_config import ModelConfig


class BatchConfig(StrictModel):
    """Whole queries up to ``rows`` rows; a query of up to ``max_query_rows`` rows is a batch of its own.

    With ``within_partitions`` no batch has rows of two partitions of the log, so that none of them waits for the
    next one to be published.
    """

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "largest_query": "max_query_rows",
        "within_intervals": "within_partitions",
    }

    rows: int = Field(default=4096, ge=1, le=2**20)
    max_query_rows: int = Field(default=65536, ge=1, le=2**22)
    within_partitions: bool = False

    @model_validator(mode="after")
    def _largest_at_least_rows(self) -> Self:
        if self.max_query_rows < self.rows:
            raise ValueError(f"max_query_rows ({self.max_query_rows}) must be at least rows ({self.rows})")
        return self


class EmbeddingOptimizerConfig(StrictModel):
    """Element-wise AdaGrad for embedding rows and linear weights.

    ``gradient: sum`` takes the gradient of the loss summed over the batch, ``mean`` that of its mean;
    the initial accumulators are on that scale. ``tower_rates`` multiply both rates. With ``update_limit_absolute``
    a above 0 no step moves a touched weight w of a table by more than r |w| + a, r being ``update_limit_relative``:
    all of its step is scaled down by one factor.
    """

    learning_rate: float = Field(default=0.1, ge=0)
    initial_accumulator: float = Field(default=0.1, ge=0)
    linear_learning_rate: float = Field(default=0.1, ge=0)
    linear_initial_accumulator: float = Field(default=0.1, ge=0)
    gradient: Literal["sum", "mean"] = "sum"
    tower_rates: dict[Tower, Annotated[float, Field(ge=0)]] = {"quality": 1.0, "ui": 1.0}
    update_limit_relative: float = Field(default=0, ge=0)
    update_limit_absolute: float = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _rows_can_move(self) -> Self:
        if self.update_limit_relative and not self.update_limit_absolute:
            raise ValueError(
                "update_limit_relative needs an update_limit_absolute above 0: without, a weight of 0 would never move"
            )
        return self

    @property
    def update_limit(self) -> tuple[float, float] | None:
        """Relative and absolute; None: none."""
        absolute = self.update_limit_absolute
        return (self.update_limit_relative, absolute) if absolute else None


TRAINER_SHAMPOO = ShampooOptions(exponent_override=2, momentum=0.9, nesterov=True)
"""Shampoo's options where a configuration says nothing; better than its own defaults on simulated logs."""


def _read_shampoo(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    unknown = sorted(set(map(str, content)) - set(ShampooOptions.names()))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}; allowed: {', '.join(sorted(ShampooOptions.names()))}")
    if content.get("sparse", TRAINER_SHAMPOO.sparse) != TRAINER_SHAMPOO.sparse:
        raise ValueError("sparse is not allowed here: see optimizer.embeddings")
    if not content.get("momentum", True):
        content = {"nesterov": False, **content}
    # Checks everything itself; pydantic would first read "5" and true as numbers.
    return replace(TRAINER_SHAMPOO, **content)


class DenseOptimizerConfig(StrictModel):
    """Shampoo with AdaGrad's step sizes for dense weights, on the gradient of the mean loss.

    ``shampoo.start_preconditioning_step: null`` leaves AdaGrad with momentum. ``shampoo.weight_decay`` is for
    matrices, not for biases. ``clip_norm`` bounds the norm of the gradient of all dense weights together, of
    each component of an ensemble by itself.
    """

    learning_rate: float = Field(default=0.02, ge=0)
    clip_norm: float | None = Field(default=None, gt=0)
    shampoo: Annotated[ShampooOptions, BeforeValidator(_read_shampoo)] = TRAINER_SHAMPOO


class OptimizerConfig(StrictModel):
    """How weights learn: the rows of embedding tables, and everything else."""

    renamed_keys: ClassVar[Mapping[str, str]] = {"rows": "embeddings"}

    embeddings: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    dense: DenseOptimizerConfig = DenseOptimizerConfig()


class MetricsConfig(StrictModel):
    """A line of metrics.jsonl every ``window_examples``; calibration by id of the features ``slices``."""

    window_examples: int = Field(default=50_000, ge=1)
    slices: tuple[str, ...] = ()


class TensorBoardConfig(StrictModel):
    """What RUN/tensorboard has beside metrics, configuration and hyperparameters.

    ``histograms``: of all dense weights, of the embeddings of each window's last batch, and of their gradients on it.
    They cost a forward and a backward pass a window, and change no result.
    """

    histograms: bool = False


class CheckpointConfig(StrictModel):
    """A checkpoint every ``every_examples``, the newest ``keep`` of them on disk.

    ``disk_limit_gb``, in units of 10^9 bytes: fewer are kept where they would take more, but always the newest one.
    """

    every_examples: int = Field(default=1_000_000, ge=1)
    keep: int = Field(default=2, ge=1)
    disk_limit_gb: float | None = Field(default=None, gt=0)

    @property
    def disk_limit(self) -> int | None:
        """In bytes."""
        return None if self.disk_limit_gb is None else int(self.disk_limit_gb * 1e9)


class RollbackConfig(StrictModel):
    """So many steps in a row that are skipped, as loss or gradients are not finite, and the run goes back.

    To its last checkpoint, from where it goes on without some of the rows (``ctr.training.rollback``). ``null``: it
    skips such steps, however many there are, and never goes back.
    """

    after_skipped_steps: int | None = Field(default=10, ge=1, le=10_000)


class ExportConfig(StrictModel):
    """A servable model in the run directory every ``every_examples``, the newest ``keep`` of them on disk."""

    every_examples: int = Field(ge=1)
    keep: int = Field(default=2, ge=1)


class SampleConfig(StrictModel):
    """A sample of the log, as ``ctr sample`` wrote it beside the log under ``name``.

    ``score: all`` scores every row and learns from those that were kept: the metrics are those of full traffic.
    ``kept`` reads the kept rows alone: faster, with importance-weighted metrics of examples, while PerQueryAUC
    is that of the queries as the sample left them.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    score: Literal["all", "kept"] = "all"


class TrainConfig(StrictModel):
    """Everything that decides what a run computes.

    ``label_delay`` is a number of seconds: an example is scored at its query's time, and learned from once a
    query that is so much later is to be scored.
    """

    seed: int = Field(default=1, ge=0, lt=2**31)
    time_range: TimeRange = TimeRange()
    sampling: SampleConfig | None = None
    label_delay: float = Field(default=0, ge=0, le=10 * 365 * 24 * 3600)
    objective: ObjectiveConfig = ObjectiveConfig()
    batch: BatchConfig = BatchConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    jit: Literal["auto", True, False] = "auto"
    metrics: MetricsConfig = MetricsConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    rollback: RollbackConfig = RollbackConfig()
    export: ExportConfig | None = None
    record_predictions: bool = True
    max_rejected_share: float = Field(default=0.001, ge=0, le=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        ranking = self.objective.ranking
        if ranking is not None and ranking.setup == "multi_task" and not self.model.has_network:
            raise ValueError(
                "objective.ranking.setup multi_task needs crosses or deep layers for the two heads to share; "
                "without them only multi_objective is allowed"
            )
        if self.objective.anti_distillation is not None and self.model.ensemble.components < 2:
            raise ValueError(
                "objective.anti_distillation needs model.ensemble.components of at least 2 to push apart"
            )
        return self

    def ramps_at(self, examples: int, before: Mapping[str, int] | None = None) -> dict[str, float]:
        """What every ramp has reached when ``examples`` examples were trained on; 0 for what is off.

        Args:
            before: by a ramp's name, how many examples were trained on before these (``ctr.training.launch``).
        """
        objective, before = self.objective, before or {}
        parts: dict[str, Any] = {
            "alpha2": self.model.crosses,
            "ranking": objective.ranking,
            "distillation": objective.distillation,
            "anti_distillation": objective.anti_distillation,
            "bias_constraints": objective.bias_constraints,
        }
        return {
            name: part.ramp.at(examples + before.get(name, 0)) if part is not None else 0.0
            for name, part in parts.items()
        }

    def sha256(self) -> str:
        """A hash of the meaning of the configuration."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()
