"""The weights that a candidate of a supernet has when it stands alone."""

from collections.abc import Mapping

import numpy as np

from ctr.models.supernet import Candidate


def sliced(
    weights: Mapping[str, np.ndarray], candidate: Candidate, kept: np.ndarray
) -> dict[str, np.ndarray]:
    """Slices the dense weights of a plain model, by the names of ``ClickModel.weights``.

    Args:
        weights: of the largest network.
        candidate: which one.
        kept: bool [m], the columns of its input that the candidate has.
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
    source, rows = 0, kept
    for place, units in enumerate([*candidate.deep_units, 1]):
        if not units:
            continue
        is_head = place == len(candidate.deep_units)
        to = f"quality/deep_{sum(map(bool, candidate.deep_units[:place]))}"
        own = f"quality/deep_{place}"
        if is_head:
            first = "quality_head" if source == place else f"head_from_{source}"
            small["quality_head"] = weights[first][rows]
            break
        if f"{own}/u" in weights:
            first = f"{own}/u" if source == place else f"deep_{place}_from_{source}"
            small[f"{to}/u"] = weights[first][rows, : candidate.deep_ranks[place]]
            small[f"{to}/v"] = weights[f"{own}/v"][: candidate.deep_ranks[place], :units]
            small[f"{to}/v_bias"] = weights[f"{own}/v_bias"][:units]
        else:
            first = f"{own}/w" if source == place else f"deep_{place}_from_{source}"
            small[f"{to}/w"] = weights[first][rows, :units]
            small[f"{to}/w_bias"] = weights[f"{own}/w_bias"][:units]
        source, rows = place + 1, np.arange(units)
    others = ("output_bias", "network_bias", "gate", "offset")
    return small | {name: weights[name] for name in others if name in weights}
