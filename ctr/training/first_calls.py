"""What the first calls of a compiled function take, for the log of the program."""

import logging
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

log = logging.getLogger(__name__)


def timed(what: str, function: Callable[..., Any], jit: bool) -> Callable[..., Any]:
    """Returns the function, whose first call is logged with its time; under ``jit`` each first one with new shapes."""
    seen: set[tuple[Any, ...]] = set()

    def call(*arguments: Any) -> Any:
        if not log.isEnabledFor(logging.INFO):
            return function(*arguments)
        shapes = tuple(tuple(tensor.shape) for tensor in tf.nest.flatten(arguments)) if jit else ()
        if shapes in seen:
            return function(*arguments)
        begin = time.perf_counter()
        result = function(*arguments)
        seen.add(shapes)
        plans = arguments[1]
        log.info(
            "the step that %s: first run for %d rows and %d distinct ids, compilation included, %.1f s",
            what,
            plans[0]["single"].shape[-2],
            sum(plan["distinct"].shape[0] for plan in plans),
            time.perf_counter() - begin,
        )
        return result

    return call
