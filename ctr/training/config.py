"""The configuration of a training run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ctr.config import StrictModel
from ctr.config.shampoo import DEFAULT_SHAMPOO, ShampooKey
from ctr.data.features import Tower
from ctr.data.schema import Schema
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError, listed
from ctr.models.rows import TableLayout
from ctr.objective.config import MOST_SECONDS, TERMS, ObjectiveConfig
from ctr.objective.schedules import CONSTANT, RateSchedule, ScheduleKey, parse_schedule
from ctr.training.experts.names import has_linear_inside
from ctr.training.experts.pairs import with_pair_table
from ctr.training.ids.config import IdsConfig
from ctr.training.model_config import ModelConfig
from ctr.training.retrain import RetrainConfig

if TYPE_CHECKING:
    from ctr.data.batches import BatchSize

GROWTH, GROWTH_FUSED = 1 / 1024, 1 / 4096
"""Batch size as a share of the rows before the batch; the second where one call learns from many batches."""
_OPEN = frozenset(("growth", "least"))
_FUSED_TOGETHER = 2**14
"""Maximum padded rows of all batches of one call, which bounds its memory."""


class BatchConfig(StrictModel):
    """Packing of rows into batches: whole queries, up to a number of rows.

    Attributes:
        rows: maximum rows of a batch; whole queries are packed until the next one no longer fits.
        growth: the share of the n rows before it that a batch may have, rounded down to a power of two, up to ``rows``
            and at least ``least``; or (n / 11585)^2 up to 1,024, rounded down to a power of four, if that is more.
            So a short log has many steps, and a long one large batches: of 256 rows after 185,360 and of 1,024 after
            370,720 at the latest. ``auto``: null if ``rows`` is set; 1/4096, or 1/1024 where no call may take many
            batches: ranking, further labels, a label delay, constraint logs, one-sided Shampoo of embeddings, ``shapes:
            few``. Null: batches have ``rows`` from the start.
        least: rows that a batch may have whatever ``growth`` says. ``auto``: 1, or 8 if ``growth`` is set, and
            where ``auto`` takes 1/1024.
        max_query_rows: maximum rows of a query. A query with more rows than ``rows`` is a separate batch; one with
            more than this is set aside, counted and named; if all of these except the largest are more than a tenth of
            the rows read so far, the run stops.
        within_partitions: end a batch where a partition of the log ends, so that a partition is trained on
            without waiting for the next one.
        shapes: the sizes that batches are padded to, for each of which XLA compiles the step. ``many``: of rows, ids,
            values and pairs one of several sizes each, so that little is padding. ``few``: at most four sets of sizes,
            whatever the log has (``ctr.training.sizes``), where a compilation takes minutes; tables whose ids grow
            have all rows from the start that ``ids.capacity`` allows. ``auto``: few on a TPU. Results change by
            rounding only.
        steps_per_execution: how many batches of up to 256 rows, together up to 16,384 rows, one compiled call scores
            and learns from, one after the other, if the host has no work between two of them
            (``ctr.training.fused_steps``). 1, or ``jit`` false: a call for each batch. Results change by
            rounding only.
    """

    rows: int = Field(default=4096, ge=1, le=2**20)
    growth: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] | None = GROWTH_FUSED
    least: Annotated[int, Field(ge=1, le=2**20)] | Literal["auto"] = 1
    max_query_rows: int = Field(default=65536, ge=1, le=2**22)
    within_partitions: bool = False
    shapes: Literal["auto", "few", "many"] = "auto"
    steps_per_execution: int = Field(default=256, ge=1, le=1024)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        settings = {name: value for name, value in content.items() if name not in _OPEN or value != "auto"}
        if "growth" in settings:
            return {"least": 8, **settings}
        return {"growth": None, **settings} if "rows" in settings else settings

    def most_fused(self, rows: int) -> int:
        """Returns the maximum number of batches in one call if each has ``rows`` rows, padding included."""
        return max(1, min(self.steps_per_execution, _FUSED_TOGETHER // rows))

    def sizes(self, origin: int = 0) -> "BatchSize":
        """Returns the maximum batch size as a function of the position; ``origin`` is the first batch's position."""
        from ctr.data.batches import BatchSize

        growth = self.growth if isinstance(self.growth, float) else None
        return BatchSize(self.rows, growth, first=int(self.least), origin=origin)

    @model_validator(mode="after")
    def _largest_at_least_rows(self) -> Self:
        if self.max_query_rows < self.rows:
            raise ValueError(f"max_query_rows ({self.max_query_rows}) must be at least rows ({self.rows})")
        return self


class EmbeddingOptimizerConfig(StrictModel):
    """AdaGrad or one-sided Shampoo for embeddings; Newton's steps or AdaGrad for linear weights.

    Attributes:
        rule: how embeddings learn: ``adagrad``, element by element; or ``one_sided``, Shampoo with the right side alone
            and AdaGrad's step sizes, its options at their defaults, which needs ``linear_rule`` adagrad.
        learning_rate: the learning rate of embeddings.
        initial_accumulator: initial value of AdaGrad's sums of squares of embeddings, on the scale of
            ``gradient``.
        linear_rule: how linear weights learn. ``newton``: by steps on the logistic loss without a rate, under a
            learned prior of each feature (``ctr.optim.rows.newton``). ``adagrad``: with the next two keys. ``auto``:
            adagrad if one of these is set, if ``gradient`` is ``mean``, if ``rule`` is not adagrad or if the model is
            factorized without the expert ``linear``; otherwise newton.
        linear_learning_rate: AdaGrad's learning rate of linear weights.
        linear_initial_accumulator: initial value of AdaGrad's sums of squares of linear weights.
        gradient: train on the gradient of the loss summed over the batch, or of its mean.
        tower_rates: factors of both learning rates, by tower.
        update_limit_relative: ``r`` in the rule of ``update_limit_absolute``.
        update_limit_absolute: ``a``: no step moves a weight w by more than r |w| + a. If one would, the whole
            step of its table is scaled down. 0: no limit.
        schedule: how both learning rates change with the examples trained on, as ``schedule`` of ``optimizer.dense``.
    """

    rule: Literal["adagrad", "one_sided"] = "adagrad"
    learning_rate: float = Field(default=0.2, ge=0)
    initial_accumulator: float = Field(default=0.1, ge=0)
    linear_rule: Literal["auto", "newton", "adagrad"] = "auto"
    linear_learning_rate: float = Field(default=0.1, ge=0)
    linear_initial_accumulator: float = Field(default=0.1, ge=0)
    gradient: Literal["sum", "mean"] = "sum"
    tower_rates: dict[Tower, Annotated[float, Field(ge=0)]] = {"quality": 1.0, "ui": 1.0}
    update_limit_relative: float = Field(default=0, ge=0)
    update_limit_absolute: float = Field(default=0, ge=0)
    schedule: ScheduleKey = "constant"

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("linear_rule", "auto") == "auto":
            is_old = (
                content.get("gradient") == "mean"
                or content.get("rule", "adagrad") != "adagrad"
                or any(key in content for key in ("linear_learning_rate", "linear_initial_accumulator"))
            )
            return {**content, "linear_rule": "adagrad" if is_old else "newton"}
        return content

    @model_validator(mode="after")
    def _rows_can_move(self) -> Self:
        if self.update_limit_relative and not self.update_limit_absolute:
            raise ValueError(
                "update_limit_relative needs an update_limit_absolute above 0: without, a weight of 0 would never move"
            )
        if self.linear_rule == "newton" and self.gradient == "mean":
            raise ValueError("linear_rule newton needs gradient sum")
        if self.linear_rule == "newton" and self.rule != "adagrad":
            raise ValueError(f"rule {self.rule} needs linear_rule adagrad")
        return self

    @property
    def update_limit(self) -> tuple[float, float] | None:
        """Returns the relative and the absolute limit of an update, or None if there is none."""
        absolute = self.update_limit_absolute
        return (self.update_limit_relative, absolute) if absolute else None


class DenseOptimizerConfig(StrictModel):
    """How dense weights learn: by Shampoo, from the gradient of the mean loss.

    Attributes:
        learning_rate: the learning rate of dense weights.
        clip_norm: maximum norm of the gradient of all dense weights together, for each component of an
            ensemble separately. Null: no limit.
        preconditioned_from_rows: Shampoo begins with the first batch that may have this many rows: until then
            dense weights use ``shampoo.grafting`` alone, AdaGrad by default, and its steps count from there on.
            Where batches stay smaller it never begins, and costs nothing. 1: with the first batch. Null: never.
        shampoo: options of Shampoo. ``start_preconditioning_step: null`` leaves AdaGrad with momentum; ``weight_decay``
            applies to matrices, not to biases. ``preset`` begins with a paper's options: ``ff`` (FF 4.2), ``pso`` (PSO
            algorithm II) or ``pt`` (PT algorithm 2). Without a preset they equal ``ff``, but AdaGrad's sums begin at
            0.001.
        schedule: how the learning rate changes with the examples trained on: ``constant``, or as ``warmup 10000, cosine
            1000000 to 0.1``: it grows linearly from 0 over 10,000 examples, then falls over 1,000,000 to a tenth. Each
            half may stand alone. ``warmup 10000 power 2`` grows quadratically. Other decays are ``polynomial EXAMPLES
            power P to SHARE`` and ``inverse_sqrt EXAMPLES``: the root of EXAMPLES over the examples trained on so far.
    """

    learning_rate: float = Field(default=0.01, ge=0)
    clip_norm: float | None = Field(default=None, gt=0)
    preconditioned_from_rows: int | None = Field(default=256, ge=1, le=2**20)
    shampoo: ShampooKey = DEFAULT_SHAMPOO
    schedule: ScheduleKey = "constant"


class OptimizerConfig(StrictModel):
    """How weights learn: embeddings and linear weights, and everything else."""

    embeddings: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    dense: DenseOptimizerConfig = DenseOptimizerConfig()


class MetricsConfig(StrictModel):
    """Metrics while training.

    Attributes:
        window_examples: examples per window; each window is a line of ``metrics.jsonl``. ``auto``: 50,000, but parts of
            the first 50,000 are separate windows, of 64 examples and later of a sixteenth of the rows so far: even
            a short log has some tens of windows. A log's windows do not depend on its later rows.
        slices: single-valued features of the log; calibration is reported for each of their ids. Those of
            ``query_size`` are always reported, where the model has it.
        importance_rows: the number of rows that are scored to measure the importance of features, the increase of the
            logloss without a feature (``ctr.training.observers.importance``): at most this number, a quarter of
            the log, and fewer where it has more than 32 features. They are scored before they are learned from, at
            eight positions of the second half, and once more for each feature; a run that follows a log measures none.
            It changes no other result. 0: it is not measured. In experiments and searches the default is 0.
    """

    window_examples: Annotated[int, Field(ge=1, lt=2**63)] | Literal["auto"] = "auto"
    slices: tuple[str, ...] = ()
    importance_rows: int = Field(default=20_000, ge=0, le=2**31)


class CheckpointConfig(StrictModel):
    """Checkpoints in the run directory.

    Attributes:
        every_examples: examples between two checkpoints.
        every_minutes: a checkpoint is also written after this many minutes without one. It changes no result. Null: by
            examples alone.
        keep: number of checkpoints to keep on disk, the newest ones.
    """

    every_examples: int = Field(default=1_000_000, ge=1)
    every_minutes: float | None = Field(default=10.0, gt=0)
    keep: int = Field(default=2, ge=1)


class ExportConfig(StrictModel):
    """Servable models in the run directory while training. Null: none.

    Attributes:
        every_examples: examples between two exports.
        keep: number of exports to keep on disk, the newest ones.
    """

    every_examples: int = Field(ge=1, examples=[1_000_000])
    keep: int = Field(default=2, ge=1)


class SampleConfig(StrictModel):
    """A sample of the log, as ``ctr sample`` wrote it beside the log. Null: every row is trained on.

    Attributes:
        name: the name of the sampling.
        score: ``all``: score every row and train on the sampled ones; the metrics are those of full
            traffic. ``kept``: read only the sampled rows; faster, and the metrics of examples are
            importance-weighted, but PerQueryAUC is measured on the queries after sampling.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    score: Literal["all", "kept"] = "all"


class WorkersConfig(StrictModel):
    """Settings of several workers that train together.

    Attributes:
        divided_from_mb: tables of embeddings of at least this many megabytes (10^6 bytes) are divided by rows, among
            the workers; every worker has all rows of a smaller one. The size of a table whose ids grow is that of all
            rows that it may get. A table that begins with fewer rows than there are workers is not divided. Results
            change by rounding only.
    """

    divided_from_mb: float = Field(default=32, ge=0)


class TrainConfig(StrictModel):
    """All settings that determine the result of a run.

    Attributes:
        seed: the seed of all random initial values.
        time_range: the query times to train on.
        label_delay: seconds until the label of an example is available. The example is scored at the time of its
            query, and trained on when the next query to be scored is at least this much later.
        compute_dtype: the type of matrix products; weights are always float32. ``auto``: bfloat16 on a
            TPU, or if the processor has instructions for it.
        jit: compile the step with XLA. ``auto``: with an accelerator and a single worker.
        record_predictions: write the prediction of every example to the run directory.
        max_rejected_share: stop when more than this share of the rows is faulty.
        max_skipped_steps: stop when this many steps in a row are skipped, because the loss or a gradient is not finite,
            or when the weights are broken. Null: never stop.
        skip: ranges of rows of the log, [first, end], the end excluded, to score without learning: nothing is learned
            from a batch with any of these rows. Extended by ``ctr train --skip``.
    """

    seed: int = Field(default=1, ge=0, lt=2**31)
    time_range: TimeRange = TimeRange()
    sampling: SampleConfig | None = None
    label_delay: float = Field(default=0, ge=0, le=MOST_SECONDS)
    objective: ObjectiveConfig = ObjectiveConfig()
    batch: BatchConfig = BatchConfig()
    model: ModelConfig = ModelConfig()
    ids: IdsConfig = IdsConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    jit: Literal["auto", True, False] = "auto"
    metrics: MetricsConfig = MetricsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    workers: WorkersConfig = WorkersConfig()
    export: ExportConfig | None = None
    retrain: RetrainConfig | None = None
    record_predictions: bool = True
    max_rejected_share: float = Field(default=0.001, ge=0, le=1)
    max_skipped_steps: int | None = Field(default=10, ge=1, le=10_000)
    skip: tuple[tuple[int, int], ...] = ()

    @field_validator("skip")
    @classmethod
    def _is_ranges(cls, skip: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        for begin, end in skip:
            if not 0 <= begin < end:
                raise ValueError(f"[{begin}, {end}] is not a range of rows; allowed: 0 <= first < end")
        return skip

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, content: Any) -> Any:
        """Resolves ``auto`` values that depend on other sections."""
        model = content.get("model") if isinstance(content, dict) else None
        if not isinstance(model, dict) or model.get("factorized") is None:
            return content
        try:
            is_inside = has_linear_inside(ModelConfig.model_validate(model))
        except ValueError:
            # A wrong value is refused where the field itself is validated.
            return content
        return (
            _with_auto(content, ("optimizer", "embeddings", "linear_rule"), "adagrad")
            if is_inside
            else content
        )

    @model_validator(mode="after")
    def _resolve_growth(self) -> Self:
        if not self.fuses_steps and "growth" not in self.batch.model_fields_set:
            least = self.batch.least if "least" in self.batch.model_fields_set else 8
            self.__dict__["batch"] = self.batch.model_copy(update={"growth": GROWTH, "least": least})
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        is_newton = self.optimizer.embeddings.linear_rule == "newton"
        if self.model.factorized is not None and is_newton and has_linear_inside(self.model):
            raise ValueError(
                "optimizer.embeddings.linear_rule newton is not possible with model.factorized, which has the linear "
                "weights inside; allowed: adagrad, or linear among model.experts"
            )
        ranking = self.objective.ranking
        if ranking is not None and ranking.setup == "multi_task" and not self.model.has_network:
            raise ValueError(
                "objective.ranking.setup multi_task needs crosses or deep layers for the two heads to share; "
                "without them only multi_objective is allowed"
            )
        for name in self.objective.labels:
            if self.model.factorized is not None or not self.model.has_network:
                raise ValueError(
                    f"objective.labels.{name} needs crosses or deep layers that its output shares with the click's, "
                    "and is not possible with model.factorized"
                )
        if self.objective.anti_distillation is not None and self.model.ensemble.components < 2:
            raise ValueError(
                "objective.anti_distillation needs model.ensemble.components of at least 2 to push apart"
            )
        return self

    @property
    def fuses_steps(self) -> bool:
        """Returns whether one call can learn from many batches: true if the host has no work between them."""
        objective, uses_host = self.objective, self.optimizer.embeddings.rule == "one_sided"
        constraints = objective.bias_constraints
        has_more_rows = bool(self.label_delay or objective.labels) or (
            constraints is not None and bool(constraints.logs)
        )
        return (
            not uses_host and not has_more_rows and objective.ranking is None and self.batch.shapes != "few"
        )

    def leaves_out(self, begin: int, end: int) -> bool:
        """Returns whether rows [begin, end) are not learned from because ``skip`` contains at least one of them."""
        return any(first < end and begin < last for first, last in self.skip)

    @property
    def notes(self) -> list[str]:
        """Returns one line for each ``auto`` value that another key has changed, with the reason."""
        embeddings = self.optimizer.embeddings
        causes = {
            "gradient is mean": embeddings.gradient == "mean",
            f"rule is {embeddings.rule}": embeddings.rule != "adagrad",
        }
        return [
            f"optimizer.embeddings.linear_rule is adagrad, as {cause}"
            for cause, is_so in causes.items()
            if is_so
        ]

    @property
    def preconditions(self) -> bool:
        """Returns whether any batch may have enough rows for Shampoo to be used."""
        return self.preconditions_at(self.batch.rows)

    def preconditions_at(self, rows: int) -> bool:
        """Returns whether Shampoo is used when batches may have this number of rows (``BatchSize.at``)."""
        least = self.optimizer.dense.preconditioned_from_rows
        return least is not None and rows >= least

    @property
    def schedules(self) -> dict[str, RateSchedule]:
        """Returns the learning rate schedules that are not constant, by group of variables."""
        constraints = self.objective.bias_constraints
        texts = {
            "embeddings": self.optimizer.embeddings.schedule,
            "dense": self.optimizer.dense.schedule,
            "duals": "constant" if constraints is None else constraints.schedule,
        }
        schedules = {group: parse_schedule(text) for group, text in texts.items()}
        return {group: schedule for group, schedule in schedules.items() if schedule != CONSTANT}

    def table_layouts(self, schema: Schema) -> tuple[TableLayout, ...]:
        """Lays out the embedding tables for a log's features.

        Raises:
            InputError: the configuration does not fit the features, or no feature has a table.
        """
        unknown = sorted(set(self.ids.capacities) - set(schema.growing))
        if unknown:
            raise InputError(
                f"config: ids.capacities names {unknown[0]}, which is not a feature whose ids grow; "
                f"allowed: {listed(schema.growing, unknown[0])}"
            )
        layouts = self.model.table_layouts(schema, self.ids.shared_rows)
        columns = len(self.model.features(schema).single_valued)
        return with_pair_table(layouts, self.model, columns, self.ids.shared_rows)

    def ramps_at(self, examples: int, before: Mapping[str, int] | None = None) -> dict[str, float]:
        """Returns the value of every ramp after ``examples`` trained examples; 0 for terms that are off.

        Args:
            before: by a ramp's name, the number of examples trained on earlier; see ``ctr.training.warm_start``.
        """
        return {name: ramp for name, (ramp,) in self.ramps_of([examples], before).items()}

    def ramps_of(
        self, examples: Sequence[int], before: Mapping[str, int] | None = None
    ) -> dict[str, list[float]]:
        """Returns the values of ``ramps_at`` for each of several numbers of examples, as lists by ramp name."""
        before, off = before or {}, dict.fromkeys(TERMS, [0.0] * len(examples))
        ramps = {"alpha2": self.model.crosses.ramp}
        ramps |= {name: term.ramp for name, term in self.objective.terms.items()}
        return off | {
            name: [ramp.at(count + before.get(name, 0)) for count in examples] for name, ramp in ramps.items()
        }

    def rates_at(self, examples: int, before: Mapping[str, int] | None = None) -> dict[str, float]:
        """Returns the rates of the step after ``examples`` trained examples.

        Args:
            before: as in ``ramps_at``, by the names ``rate_embeddings``, ``rate_dense`` and ``rate_duals``.

        Returns:
            ``dense``: the learning rate of dense weights; ``embeddings``: a factor of the learning rates of embeddings
            and linear weights; ``duals``: a factor of the rates of bias constraints' duals, their ramp included.
        """
        return {group: rate for group, (rate,) in self.rates_of([examples], before).items()}

    def rates_of(
        self, examples: Sequence[int], before: Mapping[str, int] | None = None
    ) -> dict[str, list[float]]:
        """Returns the values of ``rates_at`` for each of several numbers of examples, as lists by group."""
        before, rates = before or {}, dict.fromkeys(("embeddings", "dense", "duals"), [1.0] * len(examples))
        for group, schedule in self.schedules.items():
            rates[group] = [schedule.at(count + before.get(f"rate_{group}", 0)) for count in examples]
        ramps = self.ramps_of(examples, before)["bias_constraints"]
        rates["duals"] = [rate * ramp for rate, ramp in zip(rates["duals"], ramps, strict=True)]
        return {**rates, "dense": [self.optimizer.dense.learning_rate * rate for rate in rates["dense"]]}

    def sha256(self) -> str:
        """Returns the SHA-256 of the whole configuration, in hexadecimal."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def _with_auto(content: Any, path: Sequence[str], value: str) -> Any:
    """Copies nested sections and sets a key where it is ``auto`` or missing."""
    content = {} if content is None else content
    if not isinstance(content, dict):
        return content
    name, *rest = path
    if rest:
        return {**content, name: _with_auto(content.get(name), rest, value)}
    return {**content, name: value} if content.get(name, "auto") == "auto" else content
