"""Examples to train on, and their importance weights (FF 3.3).

Non-clicks are sampled at one constant rate. Uninformative examples, clicks or not, are sampled at another: their loss
under a teacher's recorded prediction is low, or the user is unlikely to have seen them. One that is uninformative
in both ways gets that rate once; the rate of non-clicks multiplies it. Instead of low loss, the size of the loss
gradient at that prediction may determine the rate. A sampled example is weighted by the inverse of its
keep-probability, so every weighted sum over sampled examples is an unbiased estimate of the sum over all.

The decision on an example depends on its example_id and a salt alone: all models train on the same data, in every log
and order, and a higher rate selects all examples that a lower one does. With ``Strata`` it depends instead on the
rows of the log up to the example.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from ctr.config import AnyPath, StrictModel
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError
from ctr.io.hashing import uniform_hash

Rate = Annotated[float, Field(gt=0, le=1)]
_Salt = Annotated[str, Field(min_length=1)]

# By rounding, a product of rates may be slightly below the floor that it should equal.
_ROUNDING = 1e-9

_UNIT = 2**32
_SHIFT, _FRACTION = np.uint64(32), np.uint64(_UNIT - 1)


class ByTeacher(StrictModel):
    """A sampling rule that uses a teacher's progressive predictions.

    Attributes:
        teacher: the sidecar with the teacher's recorded ``logit``.
        log: the log that this sidecar belongs to. Null: the log that is sampled.
    """

    teacher: str
    log: AnyPath | None = None

    @field_validator("log", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        # An empty path would mean the current folder.
        if value == "":
            raise ValueError("a folder or null is required")
        return value


class LowLoss(ByTeacher):
    """Examples on which a teacher's progressive prediction had a small logistic loss.

    Attributes:
        max_loss: the loss below which an example counts as low-loss, in nats.
    """

    max_loss: float = Field(gt=0)

    def holds(self, label: np.ndarray, logit: np.ndarray) -> np.ndarray:
        """Returns whether the loss is below the threshold, bool [N], without a logarithm for each row.

        The loss is log(1 + exp(z)) with z = -logit for a click and logit otherwise, which is below b where z is below
        log(exp(b) - 1). Logits are finite.
        """
        threshold = self.max_loss + math.log(-math.expm1(-self.max_loss))
        return np.where(label > 0, -logit, logit).astype(np.float64) < threshold


class Gradient(ByTeacher):
    """A rate for each example in proportion to |y - p|, the size of the loss gradient with respect to the logit.

    Among rates with the same expected sample size, rates proportional to the size of a sum's terms minimize the
    variance of the sum. ``teacher`` may be a run of the same model: it recorded its predictions before it learned from
    the examples.

    Attributes:
        threshold: examples with a gradient of at least this size have the rate 1; one of half this size has 0.5.
        lowest_rate: the rate of the smallest gradients.
    """

    threshold: float = Field(gt=0, lt=1)
    lowest_rate: Rate = 0.05

    def rates(self, label: np.ndarray, logit: np.ndarray) -> np.ndarray:
        """Computes the rates of N examples, float64 in (0, 1], from their labels and finite logits."""
        wrong_way = np.where(label > 0, -logit, logit).astype(np.float64)
        # |y - p| is 1 / (1 + exp(-z)), which does not overflow for logits of any size.
        size = np.exp(-np.logaddexp(0.0, -wrong_way))
        return np.clip(size / self.threshold, self.lowest_rate, 1.0)


class LowVisibility(StrictModel):
    """Examples that the user is unlikely to have seen, by a feature such as the position.

    Attributes:
        feature: a single-valued category or number of the log's schema.
        values: its raw values, null for missing. A number stands for its whole bucket, a hashed value for all values
            with the same id.
    """

    feature: str
    values: tuple[bool | int | float | str | None, ...] = Field(
        min_length=1, title="list of texts, numbers and null"
    )


class Uninformative(StrictModel):
    """One rate for every example that meets any of the conditions, at least one of which is required.

    Attributes:
        rate: the sampling rate of these examples.
        low_loss: examples on which a teacher's loss was small. Null: no such condition.
        low_visibility: examples that the user is unlikely to have seen. Null: no such condition.
    """

    rate: Rate
    low_loss: LowLoss | None = None
    low_visibility: LowVisibility | None = None

    @model_validator(mode="after")
    def _some_condition(self) -> Self:
        if self.low_loss is None and self.low_visibility is None:
            raise ValueError(
                "low_loss or low_visibility is required: the conditions to which the rate applies"
            )
        return self


class SamplingConfig(StrictModel):
    """Rules by which a log is sampled.

    Attributes:
        salt: names the random draw; another salt is an independent draw.
        non_click_rate: the sampling rate of non-clicks.
        uninformative: the sampling rate of low-loss and low-visibility examples. Null: no such rule.
        gradient: rates by the size of each example's gradient. Null: no such rule.
        stratify_by: a single-valued feature: sampling is systematic within each of its values, so that at any point of
            the log the number of sampled examples of a value differs from the sum of rates by less than one. Null:
            each example is decided independently.
        min_rate: the least allowed rate or product of rates; lower ones are refused, because large weights make
            training unstable.
        time_range: examples outside are dropped; the weights of the others do not change.
    """

    salt: _Salt = "1"
    non_click_rate: Rate = 1.0
    uninformative: Uninformative | None = None
    gradient: Gradient | None = None
    stratify_by: str | None = Field(default=None, min_length=1)
    min_rate: Rate = 0.01
    time_range: TimeRange = TimeRange()

    @field_validator("salt", mode="before", json_schema_input_type=_Salt | int)
    @classmethod
    def _text(cls, value: object) -> object:
        # In YAML and after --set, salt: 2 is a number.
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rates = {"non_click_rate": self.non_click_rate}
        if self.uninformative is not None:
            rates["uninformative.rate"] = self.uninformative.rate
            rates["non_click_rate x uninformative.rate"] = self.non_click_rate * self.uninformative.rate
        if self.gradient is not None:
            lowest = self.gradient.lowest_rate
            products = {f"{name} x gradient.lowest_rate": rate * lowest for name, rate in rates.items()}
            rates |= {"gradient.lowest_rate": lowest, **products}
        for name, rate in rates.items():
            if rate < self.min_rate * (1 - _ROUNDING):
                raise ValueError(
                    f"{name} is {rate:g}, below min_rate {self.min_rate:g}: "
                    f"a kept example would have the weight {1 / rate:.6g}"
                )
        rule = self.uninformative
        if self.gradient is not None and rule is not None and rule.low_loss is not None:
            raise ValueError("gradient and uninformative.low_loss: allowed is one of them")
        return self

    @property
    def by_teacher(self) -> tuple[str, ByTeacher] | None:
        """Returns the key of the rule that reads a teacher's predictions, and the rule, or None."""
        if self.gradient is not None:
            return "gradient", self.gradient
        if self.uninformative is not None and self.uninformative.low_loss is not None:
            return "uninformative.low_loss", self.uninformative.low_loss
        return None


@dataclass(frozen=True)
class Decisions:
    """Decisions on N examples: keep-probability, 0 outside the time range, and its inverse as weight if selected.

    ``conditions`` has for each of ``condition_names`` the examples inside the time range that meet it, bool [N].
    """

    keep_probability: np.ndarray
    kept: np.ndarray
    weight: np.ndarray
    conditions: Mapping[str, np.ndarray]


Keep = Callable[[np.ndarray], np.ndarray]  # maps rates, float64 [N], to decisions, bool [N]


def decide(
    config: SamplingConfig,
    example_id: np.ndarray,
    query_time: np.ndarray,
    label: np.ndarray,
    teacher_logit: np.ndarray | None = None,
    low_visibility: np.ndarray | None = None,
    keep: Keep | None = None,
) -> Decisions:
    """Decides which of N examples are selected, and their weights.

    ``teacher_logit`` is needed with ``uninformative.low_loss`` and with ``gradient``, ``low_visibility`` (bool [N])
    with the condition of this name, and ``keep`` (of ``Strata``) with ``stratify_by``. Raises InputError if the teacher
    has no finite logit for an example inside the time range.
    """
    inside = config.time_range.contains(query_time)
    clicks = inside & (label > 0)
    non_clicks = inside & ~clicks
    conditions = {"all": inside, "clicks": clicks, "non_clicks": non_clicks}
    probability = inside.astype(np.float64)
    probability[non_clicks] *= config.non_click_rate
    logit = None
    if config.by_teacher is not None:
        logit = _finite(*config.by_teacher, example_id, inside, teacher_logit)
    if config.uninformative is not None:
        met = _conditions_met(config.uninformative, label, inside, logit, low_visibility)
        probability[met["uninformative"]] *= config.uninformative.rate
        conditions |= met
    if config.gradient is not None:
        assert logit is not None
        rates = config.gradient.rates(label, logit)
        probability *= rates
        conditions["low_gradient"] = inside & (rates < 1)
    if config.stratify_by is None:
        selected = uniform_hash(example_id, config.salt) < probability
    else:
        if keep is None:
            raise ValueError("stratify_by requires keep")
        selected = keep(probability)
    weight = np.zeros(len(probability), np.float32)
    weight[selected] = 1 / probability[selected]
    return Decisions(probability, selected, weight, conditions)


def condition_names(config: SamplingConfig) -> tuple[str, ...]:
    """Returns the names of the conditions by which examples are counted.

    These are ``all``, ``clicks`` and ``non_clicks``; if configured, ``low_loss``, ``low_visibility``, ``both``, and
    their union ``uninformative``; and, if configured, ``low_gradient``, examples with a gradient below its threshold.
    """
    none = np.zeros(0)
    return tuple(decide(config, none, none, none, none, none > 0, lambda rates: rates > 0).conditions)


def _finite(
    key: str, rule: ByTeacher, example_id: np.ndarray, inside: np.ndarray, logit: np.ndarray | None
) -> np.ndarray:
    """Returns the teacher's logits, 0 outside the time range. Raises InputError if one inside it is not finite."""
    if logit is None:
        raise ValueError(f"{key} requires teacher_logit")
    # A comparison with NaN is false: without this, a missing prediction would count as a high loss.
    missing = np.flatnonzero(inside & ~np.isfinite(logit))
    if len(missing):
        raise InputError(
            f"teacher {rule.teacher} has no value for {len(missing)} of {np.count_nonzero(inside)} "
            f"rows, first: example_id {example_id[missing[0]]}"
        )
    return np.where(inside, logit, 0.0)


def _conditions_met(
    rule: Uninformative,
    label: np.ndarray,
    inside: np.ndarray,
    teacher_logit: np.ndarray | None,
    low_visibility: np.ndarray | None,
) -> dict[str, np.ndarray]:
    met: dict[str, np.ndarray] = {}
    if rule.low_loss is not None:
        assert teacher_logit is not None
        met["low_loss"] = inside & rule.low_loss.holds(label, teacher_logit)
    if rule.low_visibility is not None:
        if low_visibility is None:
            raise ValueError("uninformative.low_visibility requires low_visibility")
        met["low_visibility"] = inside & low_visibility
    if len(met) == 2:
        met["both"] = met["low_loss"] & met["low_visibility"]
    met["uninformative"] = np.logical_or.reduce([met[name] for name in met if name != "both"])
    return met


class Strata:
    """Systematic sampling within strata: the sample size of each is the sum of the rates of its rows.

    The rows of a stratum lie one after the other on a line, each as long as its rate, and the line begins at an offset
    u in [0, 1), a hash of the stratum. A row is selected if a whole number lies on it. So each is selected with a
    probability equal to its rate, but the number of selected rows in any run of consecutive rows of the stratum
    differs from the sum of their rates by less than one. Sums over the rows of one ad, from which its embedding learns,
    have far less noise (Madow, "On the Theory of Systematic Sampling, II", Annals of Mathematical Statistics 20, 1949).
    Offsets are whole multiples of 2^-32, so that they do not depend on how the rows are divided into calls.
    """

    def __init__(self, salt: str) -> None:
        self._salt = f"{salt} strata"
        self._places: dict[int, int] = {}

    def keep(self, stratum: np.ndarray, rate: np.ndarray) -> npt.NDArray[np.bool_]:
        """Decides on the next rows of the log, by stratum, int64 [N], and rate, float64 in [0, 1]: bool [N]."""
        # Loaded here: commands that need no tables start sooner.
        import pandas as pd

        codes, strata = pd.factorize(stratum)
        drawn = np.floor(uniform_hash(strata, self._salt) * _UNIT).astype(np.uint64)
        begins = [self._places.get(*both) for both in zip(strata.tolist(), drawn.tolist(), strict=True)]
        steps = np.rint(rate * _UNIT).astype(np.uint64)
        after = np.array(begins, np.uint64)[codes] + pd.Series(steps).groupby(codes).cumsum().to_numpy()
        # If a stratum has several rows, the last one is stored.
        self._places |= zip(stratum.tolist(), (after & _FRACTION).tolist(), strict=True)
        return (after >> _SHIFT) > ((after - steps) >> _SHIFT)
