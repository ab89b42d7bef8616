"""Options, variables, steps and the callback of the optimizers for Keras 2 and Keras 3."""

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import tensorflow as tf

from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.gradients import Gradient, RootSource, in_xla
from ctr.optim.keras.keywords import AdafactorKeywords, ShampooKeywords
from ctr.optim.keras.replicas import Replicas
from ctr.optim.option_types import make_options
from ctr.optim.protocol import Spectrum
from ctr.optim.shampoo.division import Group
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions, soap
from ctr.optim.variables import Create
from ctr.workers.collectives import ALONE

Core = ShampooCore | AdafactorCore


class Kind(NamedTuple):
    """An optimizer of the adapters.

    Attributes:
        title: its name in messages.
        learning_rate: the default.
        options: the default options, of the class that all of its options are of.
    """

    title: str
    learning_rate: float
    options: Any


SHAMPOO = Kind("Shampoo", 0.02, ShampooOptions())
SOAP = Kind("Soap", 3e-3, soap())
ADAFACTOR = Kind("Adafactor", 0.01, AdafactorOptions())

KERAS_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
)

_ARGUMENTS = ("learning_rate", "tables", "name", "num_replicas_per_group")

TABLES = r"(?<![^/])(tpu_)?embedding(?(1)(_\d+)?/[^/]+)s?(_weights)?(:\d+)?$"
"""What Keras' Embedding, feature columns, and the layer TPUEmbedding, by its own name, call their tables."""

DOCUMENTATION = """Distributed Shampoo: second-order preconditioning with a first-order optimizer's step sizes.

    model.compile(optimizer=Shampoo(learning_rate=0.02), loss=...)

Matrices and tensors of higher order are preconditioned by blocks; vectors and scalars follow the grafted
optimizer (AdaGrad); the rows of embedding tables learn by AdaGrad on the rows that a batch touches.

Args:
    learning_rate: a number or a schedule; that of the grafted optimizer.
    tables: regular expression for the names of matrices whose rows learn by themselves; by default those of Keras'
        Embedding, of feature columns and of tensorflow-recommenders' TPUEmbedding; None: no such variables. A sparse
        gradient of any other variable is made dense.
    name: of the optimizer.
    num_replicas_per_group: of a ``tf.distribute`` strategy, the replicas that divide blocks among them (PT 4.1.2);
        None: all of them; 1: each keeps all. It divides the number of replicas. Without a strategy it has no effect.
    **options: the fields of ``ctr.optim.shampoo.options.ShampooOptions``, and Keras' own ``clipnorm``, ``clipvalue``,
        ``global_clipnorm``, ``use_ema``, ``ema_momentum``, ``ema_overwrite_frequency`` and, with Keras 3,
        ``loss_scale_factor``, ``gradient_accumulation_steps``.

Under a ``tf.distribute`` strategy with several replicas, gradients are summed over the replicas, each of which keeps
the state of its own blocks and computes their directions. The loss of each replica must therefore be its share of the
loss of the whole batch, as ``fit`` makes it. What is saved does not depend on the number of replicas; of several
processes, all must save.

Raises:
    ValueError: an option has a value that is not allowed.
    TypeError: there is no such option.
    RuntimeError: XLA compiles the step of several replicas.

Example:
    >>> import tensorflow as tf
    >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
    >>> model.compile(optimizer=Shampoo(learning_rate=0.5), loss="mse")
    >>> history = model.fit(tf.eye(4), tf.ones([4, 1]), epochs=20, verbose=0)
    >>> history.history["loss"][-1] < history.history["loss"][0]
    True
"""


SOAP_DOCUMENTATION = """SOAP: Adam in the eigenbases of Shampoo's statistics, and Adam for vectors and scalars.

    model.compile(optimizer=Soap(learning_rate=3e-3), loss=...)

``Shampoo`` with other defaults (Vyas et al., 2024; PSO appendix C). The rows of embedding
tables learn by AdaGrad at the same rate; ``keras.optimizers.MultiOptimizer`` gives them another optimizer.

Args:
    learning_rate: a number or a schedule; on Adam's scale.
    beta1: decay of the average of gradients.
    beta2: decay of the second moments, and of the statistics each time they are collected.
    epsilon: added to the root of the second moments.
    precondition_frequency: steps between two computations of the eigenbases.
    **options: all others of ``Shampoo``, and ``tables`` and ``name``.

Raises:
    ValueError: an option has a value that is not allowed.
    TypeError: there is no such option.
    RuntimeError: XLA compiles the step of several replicas.
"""


ADAFACTOR_DOCUMENTATION = """Adafactor as its paper prints it (Shazeer and Stern, 2018, algorithms 4-6).

    model.compile(optimizer=Adafactor(), loss=...)

Second moments of matrices are kept by rows and columns. The rows of embedding tables learn by themselves, by factored
moments of the rows that batches touched (``ctr.optim.adafactor.core``).

Args:
    learning_rate: a number or a schedule; the largest relative step size rho.
    tables: regular expression for the names of matrices whose rows learn by themselves; None: no such variables.
    name: of the optimizer.
    **options: the fields of ``ctr.optim.adafactor.options.AdafactorOptions``, and Keras' own, as those of ``Shampoo``.

Raises:
    ValueError: an option has a value that is not allowed.
    TypeError: there is no such option.
"""


def document(*optimizers: type[Any]) -> None:
    """Gives optimizers their signature, and their documentation with all options and the defaults of these."""
    for optimizer in optimizers:
        kind: Kind = optimizer.kind
        defaults = {
            field.name: getattr(kind.options, field.name) for field in dataclasses.fields(kind.options)
        }
        meanings = [
            inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2]
            for one in reversed(type(kind.options).__mro__)
            if dataclasses.is_dataclass(one)
        ]
        values = "\n".join(f"    {name}: {value!r}" for name, value in defaults.items())
        text = _DOCUMENTATION[kind.title]
        optimizer.__doc__ = f"{text}\nOptions:\n{chr(10).join(meanings)}\n\nTheir defaults:\n{values}\n"
        first = inspect.Parameter(
            "learning_rate", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=kind.learning_rate
        )
        others = {"tables": TABLES, "name": None, **defaults}
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in others.items()
        ]
        optimizer.__signature__ = inspect.Signature([first, *keywords])


_DOCUMENTATION = {"Shampoo": DOCUMENTATION, "Soap": SOAP_DOCUMENTATION, "Adafactor": ADAFACTOR_DOCUMENTATION}


def differences(options: Any, defaults: Any) -> dict[str, Any]:
    """Returns the options that are not those of ``defaults``, of a group of the same kind as a mapping of these."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value, default = getattr(options, field.name), getattr(defaults, field.name)
        if value != default:
            same_kind = dataclasses.is_dataclass(value) and type(value) is type(default)
            found[field.name] = differences(value, default) if same_kind else value
    return found


def split_options(
    given: dict[str, Any], keras_options: Sequence[str], kind: Kind = SHAMPOO
) -> tuple[Any, dict[str, Any]]:
    """Separates an optimizer's options from those of Keras. Raises TypeError for what is neither."""
    own = {name: value for name, value in given.items() if name not in keras_options}
    options = make_options(type(kind.options), kind.title, own, [*keras_options, *_ARGUMENTS])
    return options, {name: value for name, value in given.items() if name in keras_options}


def checked_learning_rate(rate: Any, is_schedule: bool) -> Any:
    """Returns a schedule as it is, a number as a float; raises ValueError for what no step can be taken with."""
    if is_schedule or (tf.is_tensor(rate) and not hasattr(rate, "numpy")):
        # In a graph a tensor has no value yet.
        return rate
    try:
        # Variables and tensors, too.
        number = math.nan if isinstance(rate, bool | str | bytes) else float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= float(tf.float32.max):
        raise ValueError(f"learning_rate is {rate!r}; allowed: a finite number from 0 up, or a schedule")
    return number


def check_tables(tables: Any) -> None:
    """Raises ValueError where ``tables`` is no regular expression."""
    if tables is None:
        return
    reason = "" if isinstance(tables, str) else f": {type(tables).__name__}"
    try:
        re.compile(str(tables))
    except re.error as error:
        reason = f": {error}"
    if reason:
        raise ValueError(
            f"tables is {tables!r}{reason}; allowed: a regular expression for names of variables, or None"
        )


def check_variables(kind: Kind, variables: Sequence[Any], names: Sequence[str]) -> None:
    """Raises ValueError where a variable is of whole or complex numbers."""
    for variable, name in zip(variables, names, strict=True):
        dtype = tf.as_dtype(variable.dtype)
        if not dtype.is_floating:
            raise ValueError(
                f"variable {name} is of dtype {dtype.name}; allowed: {kind.title} trains variables of a floating type"
            )


def check_group(number: Any) -> int | None:
    """Returns a number of replicas, or None; raises ValueError for what is neither."""
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 1):
        return number
    raise ValueError(f"num_replicas_per_group is {number!r}; allowed: a whole number from 1 up, or None")


class OptimizerMixin:
    """Parts of an optimizer that both Keras have in common; stands before Keras' own class."""

    kind: Kind
    options: Any
    tables: str | None
    _variables: list[Any]
    driven: bool
    num_replicas_per_group: int | None = None
    _names: list[str]
    _core: Core
    _replicas: Replicas | None

    @staticmethod
    def _checked(rate: Any) -> Any:
        raise NotImplementedError

    @property
    def learning_rate(self) -> Any:
        return super().learning_rate  # type: ignore[misc]

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        super(OptimizerMixin, type(self)).learning_rate.fset(self, self._checked(rate))  # type: ignore[misc]

    @property
    def core(self) -> Any:
        """The optimizer itself, from the first step, or ``build``, on."""
        if not hasattr(self, "_core"):
            raise ValueError("this optimizer has no variables yet: call build(variables), or train")
        return self._core

    @property
    def cores(self) -> list[Any]:
        """The optimizers of this process' replicas, each with its part of the state; the first is ``core``."""
        return [self.core] if self._replicas is None else self._replicas.cores

    def exchange(self) -> None:
        """Exchanges roots, if that is due, where steps that XLA compiles leave it to the time between them."""
        if self._replicas is None:
            self.core.exchange()

    def describe(self) -> str:
        """Returns a table of the treatment of each variable, and its cost in memory and multiplications."""
        return str(self.core.describe(list(self._names)))

    def spectra(self) -> dict[str, Spectrum]:
        """Returns the singular values of each variable's statistics (``ShampooCore.spectra``)."""
        return self.core.spectra(list(self._names)) if isinstance(self.core, ShampooCore) else {}

    def __repr__(self) -> str:
        """Returns the call that makes such an optimizer, with what differs from the defaults."""
        rate = self._learning_rate  # type: ignore[attr-defined]
        given = differences(self.options, self.kind.options)
        if self.tables != TABLES:
            given["tables"] = self.tables
        shown = [repr(rate) if callable(rate) else f"{float(rate):g}"]
        return (
            f"{self.kind.title}({', '.join(shown + [f'{name}={value!r}' for name, value in given.items()])})"
        )

    def _add_options(self, config: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {"tables": self.tables}
        if self.kind is SHAMPOO:
            own["num_replicas_per_group"] = self.num_replicas_per_group
        # Keras' own decay is never on, and not an option of each kind.
        plain = {name: value for name, value in config.items() if name != "weight_decay"}
        return {**plain, **dataclasses.asdict(self.options), **own}

    def _make_core(self, weights: Sequence[tf.Variable], names: Sequence[str], create: Create) -> None:
        """Makes the core over a model's variables, whose tables are chosen by name, or one for each replica here."""
        self._names = list(names)
        tables = [
            index
            for index, (weight, name) in enumerate(zip(weights, names, strict=True))
            if self.tables is not None and len(weight.shape) == 2 and re.search(self.tables, name)
        ]

        def make(weights: Sequence[tf.Variable], create: Create, group: Group) -> Core:
            if self.kind is ADAFACTOR:
                # Each replica keeps all.
                return AdafactorCore(self.options, weights, tables, create)
            return ShampooCore(self.options, weights, tables, create, group=group)

        self._replicas = None
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            self._core = make(weights, create, ALONE)
            return
        self._replicas = Replicas(make, weights, self.num_replicas_per_group)
        self._core = self._replicas.cores[0]
        # Keras saves what is in this list.
        self._variables.extend(self._replicas.variables)

    def _take_step(
        self,
        gradients: dict[int, Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool],
        after: Callable[[Callable[[Any], Any]], None] = lambda component: None,
    ) -> None:
        """Takes a step, on all replicas, and exchanges roots unless that is done between the steps (``driven``).

        Gradients are by index of the weight, and the same on all replicas. ``after`` is called after the step for
        each replica of this process, with a function that returns the replica's component of a mirrored variable.

        Raises:
            RuntimeError: XLA compiles the step of several replicas, or it was built for other replicas.
        """
        count = tf.distribute.get_strategy().num_replicas_in_sync
        built = 1 if self._replicas is None else self._replicas.count
        roots: RootSource = "host"
        if in_xla():
            roots = "between_steps" if self.driven else "device"
            if count > 1:
                raise RuntimeError(
                    f"Shampoo on {count} replicas cannot be compiled by XLA; train without jit_compile=True"
                )
        if count != built:
            raise RuntimeError(
                f"the tf.distribute strategy has {count} replicas, and Shampoo was built for {built}; make the model "
                "and the optimizer, build them, and train, inside strategy.scope()"
            )
        if self._replicas is not None:
            self._replicas.step(gradients, learning_rate, decayed, after)
            return
        ordered = [gradients.get(index) for index in range(len(self._core.weights))]
        self._core.update_if_finite(ordered, learning_rate, decayed, roots)
        after(lambda variable: variable)


class ShampooArguments:
    """Arguments of ``Shampoo``; stands before the optimizer of either Keras, as do the next two."""

    kind = SHAMPOO

    def __init__(
        self, learning_rate: Any = SHAMPOO.learning_rate, **options: Unpack[ShampooKeywords]
    ) -> None:
        group = check_group(options.pop("num_replicas_per_group", None))
        super().__init__(learning_rate, **options)  # type: ignore[call-arg, misc]
        self.num_replicas_per_group = group


class SoapArguments:
    """Arguments of ``Soap``, which is ``Shampoo`` with other defaults."""

    kind = SOAP

    def __init__(self, learning_rate: Any = SOAP.learning_rate, **options: Unpack[ShampooKeywords]) -> None:
        given: dict[str, Any] = {**options}
        names = [field.name for field in dataclasses.fields(ShampooOptions)]
        own = soap(**{name: given.pop(name) for name in names if name in given})
        super().__init__(learning_rate, **vars(own), **given)  # type: ignore[call-arg]


class AdafactorArguments:
    """Arguments of ``Adafactor``."""

    kind = ADAFACTOR

    def __init__(
        self, learning_rate: Any = ADAFACTOR.learning_rate, **options: Unpack[AdafactorKeywords]
    ) -> None:
        super().__init__(learning_rate, **options)  # type: ignore[call-arg, misc]


class CallbackMixin:
    """Exchanges roots during ``fit``, and reports how they are doing.

    With ``jit_compile=True`` it has roots computed by the host, between the steps; without it they are
    computed on the device. In any case it adds Shampoo's counters (``ShampooCore.report``) to the logs of each
    epoch, where Keras' History and TensorBoard callbacks that come after it find them. The model's optimizer is
    Shampoo, or a ``MultiOptimizer`` of Keras 3 with one Shampoo in it.

    Args:
        log_dir: a folder for TensorBoard events of its own, written every ``every`` batches.
        every: how often.
    """

    model: Any

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, every: int = 100) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every is {every}; allowed: 1 or more")
        self._log_dir = None if log_dir is None else os.fspath(log_dir)
        self._every = every
        self._writer: Any = None
        self._written = 0

    def _optimizer(self) -> Any:
        whole = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        parts = getattr(whole, "optimizers", [whole])
        found = [part for part in parts if getattr(part, "kind", None) in (SHAMPOO, SOAP)]
        if len(found) != 1:
            names = ", ".join(type(part).__name__ for part in parts)
            unbuilt = "a MultiOptimizer before optimizer.build(model.trainable_variables)"
            raise ValueError(f"ShampooCallback requires one optimizer Shampoo, not {names or unbuilt}")
        return found[0]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer, model = self._optimizer(), self.model
        # A step that was compiled without this callback computes roots itself: compile another.
        model.make_train_function(force=True)
        train = model.train_function

        def train_and_exchange(iterator: Any) -> Any:
            # Only steps that are compiled in here leave roots to this function, and they run only by it: also after
            # a training that an exception ended, roots are exchanged.
            optimizer.driven = True
            try:
                logs = train(iterator)
            finally:
                optimizer.driven = False
            optimizer.exchange()
            return logs

        model.train_function = train_and_exchange
        self._written = 0
        if self._log_dir is not None:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._writer is None:
            return
        optimizer = self._optimizer()
        core = optimizer.core
        step = int(core.step.numpy())
        # A batch may be several steps, or, with a gradient that is not finite, none.
        if step // self._every == self._written:
            return
        self._written = step // self._every
        with self._writer.as_default(step=step):
            for name, value in {**core.report(), **core.timing()}.items():
                tf.summary.scalar(f"shampoo/{name}", value)
            for name, spectrum in optimizer.spectra().items():
                tf.summary.scalar(f"shampoo/singular_value_min/{name}", spectrum.smallest)
                tf.summary.scalar(f"shampoo/singular_value_max/{name}", spectrum.largest)
                tf.summary.scalar(f"shampoo/condition/{name}", spectrum.condition)
                tf.summary.scalar(f"shampoo/condition_damped/{name}", spectrum.damped)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            core = self._optimizer().core
            values = {**core.report(), **core.timing()}
            logs.update({f"shampoo/{name}": value for name, value in values.items()})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # The next `fit` decides anew who computes roots.
        self.model.train_function = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
