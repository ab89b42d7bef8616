"""The weights that a candidate of a supernet has when it stands alone."""

from collections.abc import Mapping, Sequence

import numpy as np

from ctr.search.architecture import Shape


def sliced(
    weights: Mapping[str, np.ndarray],
    candidate: Shape,
    kept: np.ndarray,
    kept_ui: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Slices the dense weights of a model of one component, by the names of ``ctr.models.initial_weights``.

    Args:
        weights: of the largest network.
        candidate: which one.
        kept: bool [m], the columns of the input of its Quality tower that the candidate has.
        kept_ui: of that of its UI tower; None: the model is not factorized.
    """
    small = {}
    rank = candidate.cross_rank
    for cross in range(candidate.crosses):
        name = f"quality/cross_{cross}"
        if f"{name}/w" in weights:
            small[f"{name}/w"] = weights[f"{name}/w"][kept][:, kept]
            small[f"{name}/w_bias"] = weights[f"{name}/w_bias"][kept]
        else:
            small[f"{name}/u"] = weights[f"{name}/u"][kept, :rank]
            small[f"{name}/v"] = weights[f"{name}/v"][:rank, kept]
            small[f"{name}/v_bias"] = weights[f"{name}/v_bias"][kept]
    outputs = candidate.factor_width or 1
    small |= _deep(weights, "quality", candidate.deep_units, candidate.deep_ranks, kept, outputs)
    if kept_ui is not None:
        small |= _deep(weights, "ui", candidate.ui_units, (), kept_ui, outputs)
        small["ui_head_bias"] = weights["ui_head_bias"][:outputs]
    whole = ("transfer", "experts/", "output_bias")
    return small | {name: one for name, one in weights.items() if name.startswith(whole)}


def _deep(
    weights: Mapping[str, np.ndarray],
    tower: str,
    units: Sequence[int],
    ranks: Sequence[int],
    kept: np.ndarray,
    outputs: int,
) -> dict[str, np.ndarray]:
    """The deep layers and the head of a tower."""
    small = {}
    source, rows = 0, kept
    for place, width in enumerate(units):
        if not width:
            continue
        to, own = f"{tower}/deep_{sum(map(bool, units[:place]))}", f"{tower}/deep_{place}"
        if f"{own}/u" in weights:
            first = f"{own}/u" if source == place else f"{tower}/deep_{place}_from_{source}"
            small[f"{to}/u"] = weights[first][rows, : ranks[place]]
            small[f"{to}/v"] = weights[f"{own}/v"][: ranks[place], :width]
            small[f"{to}/v_bias"] = weights[f"{own}/v_bias"][:width]
        else:
            first = f"{own}/w" if source == place else f"{tower}/deep_{place}_from_{source}"
            small[f"{to}/w"] = weights[first][rows, :width]
            small[f"{to}/w_bias"] = weights[f"{own}/w_bias"][:width]
        source, rows = place + 1, np.arange(width)
    first = f"{tower}_head" if source == len(units) else f"{tower}/head_from_{source}"
    small[f"{tower}_head"] = weights[first][rows, :outputs]
    return small
