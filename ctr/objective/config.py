"""The configuration of everything in the objective besides the logistic loss. All of it is off by default."""

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from ctr.config import AnyPath, ShortModel, StrictModel
from ctr.config.plugins import LossPlugins
from ctr.data.features import LabelName, Name
from ctr.objective.schedules import Ramp, RampKey, ScheduleKey

if TYPE_CHECKING:
    import tensorflow as tf

RawValue = bool | int | float | str | None
"""A raw value of the input, before conversion to an id; null or the empty text: missing."""


def _one_kind(values: object) -> object:
    # Checked here: the error of a union would list each of its types.
    if values == "all":
        return values
    is_list = isinstance(values, list | tuple) and len(values) > 0
    if not is_list or not all(isinstance(value, RawValue) for value in values):  # type: ignore[attr-defined]
        raise ValueError('a list of at least one value (texts, numbers, null) or the word "all" is required')
    return values


AxisValues = Annotated[
    Annotated[tuple[RawValue, ...], Field(min_length=1, title="list of texts, numbers and null")]
    | Literal["all"],
    BeforeValidator(_one_kind),
]


MOST_SECONDS = 10 * 365 * 24 * 3600
"""The longest delay of a label."""


class Term(Protocol):
    """Configuration of a loss term other than the logistic loss."""

    @property
    def ramp(self) -> Ramp:
        """Returns the ramp that multiplies the term."""


class RankingConfig(StrictModel):
    """RankNet over the (clicked, not clicked) pairs of each query (FF 4.1.1). Null: no ranking loss.

    Attributes:
        weight: ``alpha1`` of alpha1 * L_rank + (1 - alpha1) * L_logistic. FF gives no value. The default did
            little harm in all trials; 0.03 was best on simulated queries of 3 to 8 rows, 0.5 on news queries
            of 2 to 283 rows.
        setup: ``multi_objective``: both losses use one logit. ``multi_task``: the ranking loss has a separate
            logit.
        trains: the weights that learn from the pairs. ``outside_embeddings``: linear weights, layers and
            heads, while embeddings learn from the other losses alone. The two losses are then
            L_logistic + alpha1 / (1 - alpha1) L_rank, so that the gradient of embeddings is that of a model
            without ranking, and each step has a second pass backward.
        max_pairs: maximum pairs of a query. From a query with more, this many are drawn and weighted so that
            the expected sum is unchanged. The default covers every pair of up to 128 impressions.
        query_exponent: the pairs of a query are divided by their number (the sum of their weights) to this
            power. 0: the sum of FF, in which long queries dominate. 1: every query counts the same, as in
            PerQueryAUC. On news, 0 lowered PerQueryAUC at every weight, 1 left it unchanged, and 0.5 raised it.
        ramp: multiplies alpha1, so that training begins with the logistic loss alone (FF 4.1.3).
    """

    weight: float = Field(default=0.1, gt=0, lt=1)
    setup: Literal["multi_objective", "multi_task"] = "multi_objective"
    trains: Literal["all", "outside_embeddings"] = "all"
    max_pairs: int = Field(default=4096, ge=1, le=2**20)
    query_exponent: float = Field(default=0.5, ge=0, le=1)
    ramp: RampKey = Ramp()


class DistillationConfig(StrictModel):
    """A teacher's recorded progressive predictions as soft labels (FF 4.1.2). Null: no teacher.

    Attributes:
        teacher: the sidecar with the teacher's logits.
        log: the log that the sidecar belongs to. Null: the training log.
        weight: the weight of the distillation loss; the logistic and rank losses share weight 1. FF gives no
            value; with 1, labels and teacher count the same.
        missing: what happens if the sidecar has no row for an example. ``refuse``: stop and name the example.
            ``train_without``: train it without the distillation loss.
        ramp: multiplies ``weight``.
    """

    teacher: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    log: str | None = Field(default=None, min_length=1)
    weight: float = Field(default=1.0, gt=0)
    missing: Literal["refuse", "train_without"] = "refuse"
    ramp: RampKey = Ramp()


class AntiDistillationConfig(StrictModel):
    """Push the components of an ensemble apart (FF 5), so that their predictions are less correlated.

    Attributes:
        weight: the weight of the mean squared correlation of their logits; the logistic and rank losses share
            weight 1. FF gives no value.
        ramp: multiplies ``weight``.
    """

    weight: float = Field(default=0.01, gt=0)
    ramp: RampKey = Ramp()


class ConstraintLog(StrictModel):
    """A second labeled log, such as one of randomized exposure, read together with the training log (FF 7.1).

    Attributes:
        name: the name by which families of slices refer to the log.
        path: the directory of the log.
        own_loss: whether its examples also train the weights by their logistic loss; if not, only by
            constraints.
    """

    name: Name
    path: AnyPath
    own_loss: bool = False


class SliceConfig(StrictModel):
    """A family of slices S_k: the product of its axes (FF 7.2, 7.3). Without axes, the whole log is one slice.

    Attributes:
        name: the name of the family.
        estimated_ctr: increasing boundaries within (0, 1); n of them make n + 1 buckets of the predicted
            probability. A prediction equal to a boundary is in the bucket above it. Null: no such axis.
        features: for each single-valued feature, the raw values that get a slice each; rows with another
            value are in no slice. ``all``: a slice for each id of the feature.
        log: the constraint log whose rows the family constrains. Null: the training log.
        learning_rate: the learning rate (eta) of this family. Null: the common rate. The fewer rows of
            the family a batch has, the noisier their mean, and the lower the rate should be.
    """

    name: Name
    estimated_ctr: tuple[Annotated[float, Field(gt=0, lt=1)], ...] | None = None
    features: dict[Name, AxisValues] = {}
    log: Name | None = None
    learning_rate: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _boundaries_rise(self) -> Self:
        bounds = self.estimated_ctr
        if bounds is not None and not bounds:
            raise ValueError("estimated_ctr is empty; null is no axis, and one boundary makes two buckets")
        if bounds is not None and any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(
                f"estimated_ctr {list(bounds)} does not rise; each boundary must be above the one before"
            )
        return self


class BiasConstraintsConfig(StrictModel):
    """Slices to be calibrated, each with a dual variable lambda_k (FF 7). Null: no constraints.

    Attributes:
        learning_rate: ``eta`` of lambda_k += eta * c_k * (mean of (y - p) over the batch's rows of S_k -
            alpha3 * lambda_k), where c_k is the weight of S_k in the batch relative to its running mean. 0.01
            was good for buckets of the estimated CTR, at batches of 64 and of 512, and 0.05 for slices with
            one or two rows per batch; at 0.3, lambda_k oscillated. FF advises lowering it first if training
            is unstable. 0 measures the slices and does not change the model.
        regularization: ``alpha3``. At equilibrium a slice keeps a bias of alpha3 * lambda_k. 0 removes all of
            the bias, but lambda_k then grows without limit if the weights cannot follow. FF tunes it by grid
            search.
        ramp: multiplies both the term and eta, so that lambda_k does not build up before it has an effect.
        schedule: how eta changes with the examples trained on, as ``schedule`` of ``optimizer.dense``; the term keeps
            its weight. With a decay to 0, lambda_k is constant once a run serves, and retrains agree more often.
        families: families of slices; an example may be in a slice of each.
        logs: constraint logs.
    """

    learning_rate: float = Field(default=0.01, ge=0)
    regularization: float = Field(default=0.01, ge=0)
    ramp: RampKey = Ramp()
    schedule: ScheduleKey = "constant"
    families: tuple[SliceConfig, ...]
    logs: tuple[ConstraintLog, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.families:
            raise ValueError("families is empty: at least one is required")
        if len(self.logs) > 127:
            raise ValueError(f"logs: {len(self.logs)} are too many; allowed: up to 127")
        for key, names in (
            ("families", [family.name for family in self.families]),
            ("logs", [log.name for log in self.logs]),
        ):
            repeated = [name for name in names if names.count(name) > 1]
            if repeated:
                raise ValueError(f"{key}: {repeated[0]} is named twice")
        log_names = [log.name for log in self.logs]
        for index, family in enumerate(self.families):
            if family.log is not None and family.log not in log_names:
                allowed = ", ".join(["null (the training log)", *log_names])
                raise ValueError(
                    f"families.{index}.log is {family.log!r}, which is not a constraint log; allowed: {allowed}"
                )
        for index, log in enumerate(self.logs):
            if not log.own_loss and all(family.log != log.name for family in self.families):
                raise ValueError(
                    f"logs.{index}: no family uses the log {log.name} and own_loss is false, so it would have no effect"
                )
        rate = max([self.learning_rate, *(family.learning_rate or 0 for family in self.families)])
        if rate * self.regularization > 1:
            raise ValueError(
                f"learning_rate {rate!r} times regularization {self.regularization!r} is above 1: "
                "a step would take lambda past 0"
            )
        return self


class ExtraLoss(StrictModel):
    """Base class of the losses of other packages: a subclass adds keys and computes the loss.

    Attributes:
        weight: the weight of the loss; the logistic and rank losses share weight 1.
        ramp: multiplies ``weight``.
    """

    weight: float = Field(default=1.0, gt=0)
    ramp: RampKey = Ramp()

    def loss(self, label: "tf.Tensor", logit: "tf.Tensor") -> "tf.Tensor":
        """Computes the loss of each row, float32 [B], from labels (0 or 1) and logits, float32 [B] each."""
        raise NotImplementedError


class LabelConfig(StrictModel):
    """A further label, such as a conversion, with a separate output on the layers that the click's output reads.

    The model learns the label together with the click, under the same ``label_delay``.

    Attributes:
        weight: the weight of its loss; the logistic and rank losses share weight 1.
        ramp: multiplies ``weight``.
        given: the rows that train and measure the label: clicked rows (``click``), so that its output is the
            probability given a click, or ``all``.
    """

    weight: float = Field(default=1.0, gt=0)
    ramp: RampKey = Ramp()
    given: Literal["click", "all"] = "click"


def _all_losses(losses: dict[str, StrictModel]) -> dict[str, StrictModel]:
    for name, loss in losses.items():
        if not isinstance(loss, ExtraLoss):
            raise ValueError(f"{name} is no subclass of ctr.objective.config.ExtraLoss")
    return losses


class ObjectiveConfig(ShortModel):
    """The terms of the objective besides the logistic loss.

    Attributes:
        extra: losses of other packages (entry points ``ctr.losses``), by their names, each with ``weight``, ``ramp``
            and the keys that the package defines.
        labels: further labels by name, as ``labels`` of the log's mapping names them.
        anti_distillation: pushes the components of an ensemble apart (FF 5). Null: not used.
    """

    left_out = ("extra", "labels")
    ranking: RankingConfig | None = None
    distillation: DistillationConfig | None = None
    extra: Annotated[LossPlugins, AfterValidator(_all_losses)] = {}
    anti_distillation: AntiDistillationConfig | None = None
    bias_constraints: BiasConstraintsConfig | None = None
    labels: dict[LabelName, LabelConfig] = {}

    @property
    def ranks_outside_embeddings(self) -> bool:
        """Returns whether embeddings ignore the rank loss that the other weights learn from."""
        return self.ranking is not None and self.ranking.trains == "outside_embeddings"

    @property
    def extra_terms(self) -> dict[str, ExtraLoss]:
        """Returns the losses of other packages by the names of their terms."""
        return {f"extra_{name}": loss for name, loss in self.extra.items() if isinstance(loss, ExtraLoss)}

    @property
    def label_terms(self) -> dict[str, LabelConfig]:
        """Returns the further labels by the names of their terms."""
        return {f"label_{name}": label for name, label in self.labels.items()}

    @property
    def terms(self) -> dict[str, Term]:
        """Returns the configurations of the active terms besides the logistic loss, by name, in the sum's order."""
        named: dict[str, Term | None] = {"ranking": self.ranking, "distillation": self.distillation}
        named |= self.extra_terms
        named |= {name: getattr(self, name) for name in TERMS if name not in named}
        named |= self.label_terms
        return {name: term for name, term in named.items() if term is not None}

    @property
    def scored_part(self) -> "ObjectiveConfig":
        """Returns the part of the objective that scoring needs: the constraints that assign rows to slices."""
        return ObjectiveConfig(bias_constraints=self.bias_constraints)


TERMS = tuple(name for name in ObjectiveConfig.model_fields if name not in ("extra", "labels"))
"""The names of the losses that are part of the core."""
