"""Options of Shampoo in a configuration: all but ``rows``, with the default values of a preset."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import BeforeValidator, PlainSerializer
from pydantic.json_schema import SkipJsonSchema

from ctr.optim.contrib.presets import FF, PRESETS, preset_values
from ctr.optim.option_types import STRICT, Decay, Steps, Switch, merged
from ctr.optim.shampoo.options import Roots, ShampooOptions, Statistics

DEFAULT_SHAMPOO = FF
"""Default options of dense weights: the paper's."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class _ShampooKeys(ShampooOptions):
    """Options of Shampoo in a file.

    Attributes:
        preset: the preset whose values the other keys override.
    """

    preset: Literal["ff", "pso", "pt"] | None = None
    momentum: Decay = DEFAULT_SHAMPOO.momentum
    nesterov: Switch = DEFAULT_SHAMPOO.nesterov
    start_preconditioning_step: Steps | None = DEFAULT_SHAMPOO.start_preconditioning_step
    statistics: Statistics = DEFAULT_SHAMPOO.statistics
    roots: Roots = DEFAULT_SHAMPOO.roots
    rows: SkipJsonSchema[Literal["adagrad"]] = "adagrad"


def _shampoo_options(content: Any) -> Any:
    """Completes a file's options with its preset's; ``nesterov`` is off by default without momentum."""
    if not isinstance(content, Mapping):
        return content
    values = dict(content)
    preset = values.pop("preset", None)
    if preset is not None and preset not in (*PRESETS,):
        raise ValueError(f"preset is {preset!r}; allowed: {', '.join(PRESETS)} or null")
    if "rows" in values:
        raise ValueError("unknown key rows: embeddings learn by optimizer.embeddings.rule")
    if not values.get("momentum", True):
        values = {"nesterov": False, **values}
    return merged(asdict(DEFAULT_SHAMPOO), values) if preset is None else preset_values(preset, values)


def _written(options: ShampooOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if name != "rows"}


ShampooKey = Annotated[
    ShampooOptions,
    BeforeValidator(_shampoo_options, json_schema_input_type=_ShampooKeys),
    PlainSerializer(_written),
]
"""Type of the configuration key ``optimizer.dense.shampoo``."""
