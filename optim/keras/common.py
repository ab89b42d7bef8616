"""Options, variables, steps and the callback of the optimizers for Keras 2 and Keras 3."""

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.checked import refuse_unknown
from ctr.optim.gradients import Gradient, RootSource, in_xla
from ctr.optim.protocol import Spectrum
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.variables import Create

Core = ShampooCore | AdafactorCore


class Kind(NamedTuple):
    """An optimizer that the adapters make: title in messages, options, and core (options, weights, tables, create)."""

    title: str
    options: type[Any]
    core: Callable[..., Any]


SHAMPOO = Kind("Shampoo", ShampooOptions, ShampooCore)
ADAFACTOR = Kind("Adafactor", AdafactorOptions, AdafactorCore)

KERAS_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
)

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
    **options: the fields of ``ctr.optim.shampoo.options.ShampooOptions``, and Keras' own ``clipnorm``, ``clipvalue``,
        ``global_clipnorm``, ``use_ema``, ``ema_momentum``, ``ema_overwrite_frequency`` and, with Keras 3,
        ``loss_scale_factor``, ``gradient_accumulation_steps``.

Under a ``tf.distribute`` strategy with several replicas, gradients are summed over the replicas, and all of them keep
all state and take the same steps. The loss of each replica must therefore be its share of the loss of the whole batch,
as ``fit`` makes it.

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

Example:
    >>> import tensorflow as tf
    >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
    >>> model.compile(optimizer=Adafactor(learning_rate=0.5), loss="mse")
    >>> history = model.fit(tf.eye(4), tf.ones([4, 1]), epochs=20, verbose=0)
    >>> history.history["loss"][-1] < history.history["loss"][0]
    True
"""


def documented(text: str, options: type[Any]) -> str:
    """Adds an optimizer's options, and their defaults, to its documentation."""
    meanings = inspect.cleandoc(options.__doc__ or "").partition("Attributes:\n")[2]
    defaults = "\n".join(f"    {field.name} = {field.default!r}" for field in dataclasses.fields(options))
    return f"{text}\nOptions:\n{meanings}\n\nTheir defaults:\n{defaults}\n"


def split_options(
    given: dict[str, Any], keras_options: Sequence[str], kind: Kind = SHAMPOO
) -> tuple[Any, dict[str, Any]]:
    """Separates an optimizer's options from those of Keras. Raises TypeError for what is neither."""
    names = kind.options.names()
    refuse_unknown(kind.title, given, [*names, *keras_options])
    options = kind.options(**{name: value for name, value in given.items() if name in names})
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


class OptimizerMixin:
    """Parts of an optimizer that both Keras have in common; stands before Keras' own class."""

    kind: Kind
    options: Any
    tables: str | None
    _names: list[str]
    _replicas: list[Core]

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
        if not hasattr(self, "_replicas"):
            raise ValueError("this optimizer has no variables yet: call build(variables), or train")
        return self._replicas[0]

    def describe(self) -> str:
        """Returns a table of the treatment of each variable, and its cost in memory and multiplications."""
        return str(self.core.describe(list(self._names)))

    def spectra(self) -> dict[str, Spectrum]:
        """Returns the singular values of each variable's statistics (``ShampooCore.spectra``)."""
        return self.core.spectra(list(self._names)) if isinstance(self.core, ShampooCore) else {}

    def _add_options(self, config: dict[str, Any]) -> dict[str, Any]:
        return {**config, **dataclasses.asdict(self.options), "tables": self.tables}


def make_core(
    kind: Kind,
    options: Any,
    weights: Sequence[tf.Variable],
    names: Sequence[str],
    tables: str | None,
    create: Create,
) -> Core:
    """Makes the core over a model's variables, whose ``tables`` are chosen by name."""
    rows = [
        index
        for index, (weight, name) in enumerate(zip(weights, names, strict=True))
        if tables is not None and len(weight.shape) == 2 and re.search(tables, name)
    ]
    core: Core = kind.core(options, weights, rows, create)
    return core


def make_replicas(core: Core) -> list[Core]:
    """Makes the optimizers of this process' replicas, each over its own components of mirrored variables.

    They keep all state and take the same steps, on gradients that were summed over them; the first one of each
    process has the roots computed, and the others copy them. Without several replicas that is the core itself.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        return [core]
    local = strategy.experimental_local_results
    replicas: list[Core] = []
    for number in range(len(local(core.step))):

        def create(
            name: str, shape: Sequence[int], dtype: tf.DType, value: float, number: int = number
        ) -> tf.Variable:
            return local(core.variables[name])[number]

        weights = [local(weight)[number] for weight in core.weights]
        replica: Any = type(core)
        replicas.append(replica(core.options, weights, core.tables, create))
    return replicas


def sum_over_replicas(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Sums gradients over all replicas, in one of them; leaves them as they are where there is only one."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(gradients)
    given = [gradient for gradient in gradients if gradient is not None]
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, given) if given else ())
    return [None if gradient is None else next(summed) for gradient in gradients]


def apply(
    replicas: Sequence[Core],
    gradients: dict[int, Gradient],
    learning_rate: tf.Tensor | float,
    decayed: Sequence[bool],
    driven: bool,
    after: Callable[[Callable[[Any], Any]], None] = lambda component: None,
) -> None:
    """Takes a step, on all replicas, and exchanges roots unless that is done between the steps (``driven``).

    Gradients are by index of the weight, and the same on all replicas. ``after`` is called after the step for each
    replica of this process, with a function that returns the replica's component of a mirrored variable.

    Raises:
        RuntimeError: XLA compiles the step of several replicas, or it was built for other replicas.
    """
    strategy = tf.distribute.get_strategy()
    roots: RootSource = "host"
    if in_xla():
        roots = "between_steps" if driven else "device"
    if strategy.num_replicas_in_sync == 1:
        _step(replicas[0], gradients, learning_rate, decayed, roots)
        after(lambda variable: variable)
        return
    if roots != "host":
        raise RuntimeError(
            f"Shampoo on {strategy.num_replicas_in_sync} replicas cannot be compiled by XLA; train without "
            "jit_compile=True"
        )
    here = len(strategy.extended.worker_devices)
    if len(replicas) != here:
        raise RuntimeError(
            f"the tf.distribute strategy has {here} replicas in this process, and Shampoo was built for "
            f"{len(replicas)}; make the model and the optimizer, and build them, inside strategy.scope()"
        )

    def update(
        strategy: tf.distribute.Strategy, gradients: dict[int, Gradient], learning_rate: tf.Tensor | float
    ) -> None:
        for number, core in enumerate(replicas):

            def component(value: Any, number: int = number) -> Any:
                found = strategy.experimental_local_results(value)
                return found[number] if len(found) > 1 else found[0]

            own = {index: component(gradient) for index, gradient in gradients.items()}
            with tf.device(core.step.device):
                _step(core, own, component(learning_rate), decayed, roots)
                after(component)

    # Where all replicas wait for each other, one of them can move the components of all.
    tf.distribute.get_replica_context().merge_call(update, args=(gradients, learning_rate))


def _step(
    core: Core,
    gradients: dict[int, Gradient],
    learning_rate: tf.Tensor | float,
    decayed: Sequence[bool],
    roots: RootSource,
) -> None:
    ordered = [gradients.get(index) for index in range(len(core.weights))]
    core.update_if_finite(ordered, learning_rate, decayed, roots)


class CallbackMixin:
    """Exchanges roots during ``fit``, and reports how they are doing.

    With ``jit_compile=True`` it has roots computed by the host, between the steps; without it they are
    computed on the device. In any case it adds Shampoo's counters (``ShampooCore.report``) to the logs of each
    epoch, where Keras' History and TensorBoard callbacks that come after it find them.

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
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if not hasattr(optimizer, "driven"):
            raise ValueError(
                f"ShampooCallback requires the optimizer Shampoo, not {type(optimizer).__name__}"
            )
        return optimizer

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
            optimizer.core.exchange()
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
