"""SOAP as options of Shampoo (Vyas et al., arXiv 2409.11321; PSO App. C)."""

from typing import Any

from ctr.optim.checked import refuse_unknown
from ctr.optim.first_order.options import Adam
from ctr.optim.shampoo.options import Roots, ShampooOptions

LEARNING_RATE = 3e-3


def soap(beta1: float = 0.95, beta2: float = 0.95, epsilon: float = 1e-8, **changed: Any) -> ShampooOptions:
    """Returns SOAP's options: Adam in the eigenbases of Shampoo's statistics, and Adam where there are none.

    Not step by step that of its authors, which takes no step with the first gradient, changes bases after the step
    and by one power iteration. Theirs come as often as with ``statistics={"frequency": 1}, precondition_frequency=10``.

    Args:
        beta1: decay of the average of gradients.
        beta2: decay of the second moments at each step, and of the statistics each time they are collected.
        epsilon: added to the root of the second moments.
        **changed: other options; TypeError where there is no such option.
    """
    refuse_unknown("Soap", changed, ShampooOptions.names())
    return ShampooOptions(
        method="eigenvalue_corrected",
        grafting=Adam(beta2=beta2, epsilon=epsilon, norm="none"),
        roots=Roots(damping="absolute"),
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
    ).changed(changed)
