"""Options, variables, steps and the callback of the optimizers for Keras 2 and Keras 3."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import tensorflow as tf

from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.gradients import Gradient, in_xla
from ctr.optim.keras.keywords import AdafactorKeywords, ShampooKeywords
from ctr.optim.keras.replicas import Replicas
from ctr.optim.option_types import check_names, names_of
from ctr.optim.protocol import Spectrum
from ctr.optim.shampoo.division import Group
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions, soap
from ctr.optim.variables import Create
from ctr.workers.collectives import ALONE

Core = ShampooCore | AdafactorCore

_SHARED = ("clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum", "ema_overwrite_frequency")
"""Names of options that Keras 2 and 3 share."""

_ARGUMENTS = ("learning_rate", "tables", "name", "num_replicas_per_group")

TABLES = r"(?<![^/])(tpu_)?embedding(?(1)(_\d+)?/[^/]+)s?(_weights)?(:\d+)?$"
"""Names of the tables of Keras' Embedding, of feature columns, and of the layer TPUEmbedding."""


def _check_tables(tables: Any) -> None:
    """Raises ValueError where ``tables`` is neither a regular expression nor None."""
    try:
        is_pattern = tables is None or (isinstance(tables, str) and bool(re.compile(tables)))
        reason = "" if is_pattern else f": {type(tables).__name__}"
    except re.error as error:
        reason = f": {error}"
    if reason:
        allowed = "a regular expression for names of variables, or None"
        raise ValueError(f"tables is {tables!r}{reason}; allowed: {allowed}")


def check_variables(title: str, variables: Sequence[Any], names: Sequence[str]) -> None:
    """Raises ValueError for a variable whose dtype is not floating."""
    for variable, name in zip(variables, names, strict=True):
        dtype = tf.as_dtype(variable.dtype)
        if not dtype.is_floating:
            allowed = f"{title} trains variables of a floating type"
            raise ValueError(f"variable {name} is of dtype {dtype.name}; allowed: {allowed}")


def differences(options: Any, defaults: Any) -> dict[str, Any]:
    """Returns the options that differ from ``defaults``; for a group of the same kind, a mapping of its differences."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value, default = getattr(options, field.name), getattr(defaults, field.name)
        if value != default:
            same_kind = dataclasses.is_dataclass(value) and type(value) is type(default)
            changed[field.name] = differences(value, default) if same_kind else value
    return changed


class OptimizerMixin:
    """Parts of an optimizer that Keras 2 and 3 share; precedes Keras' base class among the bases.

    Attributes:
        title: the optimizer's name in messages.
        option_type: the class of its ``options``.
        keras_options: names of the options that only this Keras has.
        schedule_type: the type of this Keras' learning-rate schedules.
    """

    title: str
    option_type: type[Any]
    keras_options: tuple[str, ...]
    schedule_type: Any
    options: Any
    tables: str | None
    _variables: list[Any]
    driven: bool
    num_replicas_per_group: int | None = None
    _names: list[str]
    _core: Core
    _replicas: Replicas | None

    def __init__(
        self, learning_rate: Any, *, tables: str | None = TABLES, name: str | None = None, **keywords: Any
    ) -> None:
        _check_tables(tables)
        keras_names = [*_SHARED, *self.keras_options]
        keras_options = {option: keywords.pop(option) for option in keras_names if option in keywords}
        check_names(self.title, keywords, [*names_of(self.option_type), *keras_names, *_ARGUMENTS])
        options = self.option_type(**keywords)
        self._init_keras(self._checked(learning_rate), name=name or self.title.lower(), **keras_options)
        self.options, self.tables, self.driven = options, tables, False

    def _init_keras(self, learning_rate: Any, **options: Any) -> None:
        """Calls the constructor of Keras' base class."""
        raise NotImplementedError

    def _checked(self, rate: Any) -> Any:
        """Returns a schedule unchanged, a number as a float. Raises ValueError for a rate that no step can use."""
        # In a graph a tensor has no value yet.
        if isinstance(rate, self.schedule_type) or (tf.is_tensor(rate) and not hasattr(rate, "numpy")):
            return rate
        try:
            # Also variables and tensors.
            number = math.nan if isinstance(rate, bool | str | bytes) else float(rate)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number <= float(tf.float32.max):
            raise ValueError(f"learning_rate is {rate!r}; allowed: a finite number from 0 up, or a schedule")
        return number

    @property
    def learning_rate(self) -> Any:
        return super().learning_rate  # type: ignore[misc]

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        super(OptimizerMixin, type(self)).learning_rate.fset(self, self._checked(rate))  # type: ignore[misc]

    @property
    def core(self) -> Any:
        """Returns the optimizer's core. Raises ValueError before the first step or ``build``."""
        if not hasattr(self, "_core"):
            raise ValueError("this optimizer has no variables yet: call build(variables), or train")
        return self._core

    def exchange(self) -> None:
        """Exchanges roots with the host if due; call it between steps that XLA compiles."""
        if self._replicas is None:
            self.core.exchange()

    def describe(self) -> str:
        """Returns a table of the treatment of each variable, and its cost in memory and multiplications."""
        return str(self.core.describe(list(self._names)))

    def spectra(self) -> dict[str, Spectrum]:
        """Returns the singular values of each variable's statistics (``ShampooCore.spectra``)."""
        return self.core.spectra(list(self._names)) if isinstance(self.core, ShampooCore) else {}

    def __repr__(self) -> str:
        """Returns the constructor call, with the options that differ from the defaults."""
        rate = self._learning_rate  # type: ignore[attr-defined]
        defaults = soap() if isinstance(self, SoapArguments) else self.option_type()
        options = differences(self.options, defaults)
        if self.tables != TABLES:
            options["tables"] = self.tables
        arguments = [repr(rate) if callable(rate) else f"{float(rate):g}"]
        arguments += [f"{name}={value!r}" for name, value in options.items()]
        return f"{self.title}({', '.join(arguments)})"

    def _add_options(self, config: dict[str, Any]) -> dict[str, Any]:
        added: dict[str, Any] = {"tables": self.tables}
        if isinstance(self, ShampooArguments):
            added["num_replicas_per_group"] = self.num_replicas_per_group
        # Keras' weight decay is never on, and not an option of each kind.
        plain = {name: value for name, value in config.items() if name != "weight_decay"}
        return {**plain, **dataclasses.asdict(self.options), **added}

    def _make_core(self, weights: Sequence[tf.Variable], names: Sequence[str], create: Create) -> None:
        """Creates the core for a model's variables, with tables chosen by name, or a core for each local replica."""
        self._names = list(names)
        tables = [
            index
            for index, (weight, name) in enumerate(zip(weights, names, strict=True))
            if self.tables is not None and len(weight.shape) == 2 and re.search(self.tables, name)
        ]

        def make(weights: Sequence[tf.Variable], create: Create, group: Group) -> Core:
            if isinstance(self.options, AdafactorOptions):
                # Each replica keeps all state.
                return AdafactorCore(self.options, weights, tables, create)
            return ShampooCore(self.options, weights, tables, create, group=group)

        self._replicas = None
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            self._core = make(weights, create, ALONE)
            return
        self._replicas = Replicas(make, weights, self.num_replicas_per_group)
        self._core = self._replicas.cores[0]
        # Keras saves the variables in this list.
        self._variables.extend(self._replicas.variables)

    def _take_step(
        self,
        gradients: dict[int, Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool],
        after: Callable[[Callable[[Any], Any]], None] = lambda component: None,
    ) -> None:
        """Takes a step on all replicas, and exchanges roots unless that is done between the steps (``driven``).

        Gradients are keyed by the weight's index, and equal on all replicas. ``after`` is called after the step for
        each replica of this process, with a function that returns the replica's component of a mirrored variable.

        Raises:
            RuntimeError: XLA compiles the step of several replicas, or it was built for other replicas.
        """
        count = tf.distribute.get_strategy().num_replicas_in_sync
        built = 1 if self._replicas is None else self._replicas.count
        if in_xla() and count > 1:
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
        self._core.update_if_finite(ordered, learning_rate, decayed, in_xla() and not self.driven)
        after(lambda variable: variable)


class ShampooArguments:
    """Distributed Shampoo: second-order preconditioning with a first-order optimizer's step sizes.

    Matrices and tensors of higher order are preconditioned by blocks; vectors and scalars use the grafted
    optimizer; embedding tables are trained on the rows that a batch touches. By default the last two learn by AdaGrad.

    Args:
        learning_rate: a number or a schedule; the learning rate of the grafted optimizer.
        tables: regular expression for the names of matrices that are trained row by row; by default tables of Keras'
            Embedding, of feature columns and of tensorflow-recommenders' TPUEmbedding; None: no such variables. A
            sparse gradient of any other variable is converted to a dense one.
        name: name of the optimizer.
        num_replicas_per_group: number of replicas of a ``tf.distribute`` strategy that divide the blocks (PT 4.1.2);
            None: all of them; 1: each keeps all. It divides the number of replicas; without a strategy it has no
            effect.
        **options: the fields of ``ctr.optim.shampoo.options.ShampooOptions``, and Keras' ``clipnorm``,
            ``clipvalue``, ``global_clipnorm``, ``use_ema``, ``ema_momentum``, ``ema_overwrite_frequency`` and, with
            Keras 3, ``loss_scale_factor``, ``gradient_accumulation_steps``.

    Under a ``tf.distribute`` strategy with several replicas, gradients are summed over the replicas, each of which
    holds the state of some blocks and computes their directions. The loss of each replica must therefore be its
    share of the loss of the whole batch, as in ``fit``. A checkpoint does not depend on the number of replicas;
    with several processes, all of them must save.

    Raises:
        ValueError: an option has an invalid value.
        TypeError: an option is unknown.
        RuntimeError: XLA compiles the step of several replicas.

    Example:
        >>> import tensorflow as tf
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
        >>> model.compile(optimizer=Shampoo(learning_rate=0.5), loss="mse")
        >>> history = model.fit(tf.eye(4), tf.ones([4, 1]), epochs=20, verbose=0)
        >>> history.history["loss"][-1] < history.history["loss"][0]
        True
    """

    title, option_type = "Shampoo", ShampooOptions

    def __init__(self, learning_rate: Any = 0.02, **options: Unpack[ShampooKeywords]) -> None:
        group = options.pop("num_replicas_per_group", None)
        if group is not None and (not isinstance(group, int) or isinstance(group, bool) or group < 1):
            allowed = "a whole number from 1 up, or None"
            raise ValueError(f"num_replicas_per_group is {group!r}; allowed: {allowed}")
        super().__init__(learning_rate, **options)  # type: ignore[call-arg, misc]
        self.num_replicas_per_group = group


class SoapArguments:
    """SOAP: Adam in the eigenbases of Shampoo's statistics, and Adam for vectors and scalars.

        >>> Soap(learning_rate=3e-3, precondition_frequency=10)
        Soap(0.003, precondition_frequency=10)

    ``Shampoo`` with other defaults (Vyas et al., 2024; PSO appendix C). The rows of embedding tables
    are trained by AdaGrad at the same rate; ``keras.optimizers.MultiOptimizer`` gives them another optimizer.

    Args:
        learning_rate: a number or a schedule, on the same scale as Adam's.
        beta1: decay of the average of gradients.
        beta2: decay of the second moments, and of the statistics each time they are collected.
        epsilon: added to the root of the second moments.
        precondition_frequency: steps between two computations of the eigenbases.
        **options: all other options of ``Shampoo``, including ``tables`` and ``name``.

    Raises:
        ValueError: an option has an invalid value.
        TypeError: an option is unknown.
        RuntimeError: XLA compiles the step of several replicas.
    """

    title = "Soap"

    def __init__(self, learning_rate: Any = 3e-3, **options: Unpack[ShampooKeywords]) -> None:
        keywords: dict[str, Any] = {**options}
        names = names_of(ShampooOptions)
        defaults = soap(**{name: keywords.pop(name) for name in names if name in keywords})
        super().__init__(learning_rate, **vars(defaults), **keywords)  # type: ignore[call-arg]


class AdafactorArguments:
    """Adafactor as printed in its paper (Shazeer and Stern, 2018, algorithms 4-6).

        >>> Adafactor(beta1=0.9)
        Adafactor(0.01, beta1=0.9)

    Second moments of matrices are factored into rows and columns. Embedding tables are trained row by row, with
    factored moments of the rows that batches touched (``ctr.optim.adafactor.core``).

    Args:
        learning_rate: a number or a schedule; the largest relative step size rho.
        tables: regular expression for the names of matrices that are trained row by row; None: no such variables.
        name: name of the optimizer.
        **options: fields of ``ctr.optim.adafactor.options.AdafactorOptions``, and the Keras options of ``Shampoo``.

    Raises:
        ValueError: an option has an invalid value.
        TypeError: an option is unknown.
    """

    title, option_type = "Adafactor", AdafactorOptions

    def __init__(self, learning_rate: Any = 0.01, **options: Unpack[AdafactorKeywords]) -> None:
        super().__init__(learning_rate, **options)  # type: ignore[call-arg, misc]


class CallbackMixin:
    """Exchanges roots during ``fit``, and logs counters of roots.

    With this callback and ``jit_compile=True`` the host computes roots between the steps; without the callback the
    device computes them. It always adds Shampoo's counters (``ShampooCore.report``) to the logs of each epoch, for
    Keras' History and TensorBoard callbacks that come after it. The model's optimizer must be
    Shampoo, or a ``MultiOptimizer`` of Keras 3 with one Shampoo in it.

        >>> import tensorflow as tf
        >>> model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
        >>> model.compile(optimizer="shampoo", loss="mse")
        >>> history = model.fit(tf.eye(4), tf.ones([4, 2]), verbose=0, callbacks=[ShampooCallback()])
        >>> history.history["shampoo/layers"], history.history["shampoo/failed"]
        ([1], [0])
    """

    model: Any

    def _optimizer(self) -> Any:
        whole = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        parts = getattr(whole, "optimizers", [whole])
        shampoos = [part for part in parts if isinstance(part, ShampooArguments)]
        if len(shampoos) != 1:
            names = ", ".join(type(part).__name__ for part in parts)
            unbuilt = "a MultiOptimizer before optimizer.build(model.trainable_variables)"
            raise ValueError(f"ShampooCallback requires one optimizer Shampoo, not {names or unbuilt}")
        return shampoos[0]

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

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            core = self._optimizer().core
            values = {**core.report(), **core.timing()}
            logs.update({f"shampoo/{name}": value for name, value in values.items()})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # The next `fit` decides anew where roots are computed.
        self.model.train_function = None
