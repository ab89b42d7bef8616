"""Groups of options of ``Shampoo``, for code that makes them by their classes.

from ctr.optim import Shampoo, options
Shampoo(0.02, method=options.Diagonal(), grafting=options.Adam(beta2=0.99), roots=options.Roots(asynchronous=False))
"""

from ctr.optim.first_order.options import LAMB, LARS, SGD, AdaGrad, Adam, RMSprop
from ctr.optim.shampoo.methods import Diagonal, EigenvalueCorrected, OneSided, Shampoo
from ctr.optim.shampoo.options import (
    Blocking,
    Coupled,
    Eigh,
    GradientAverage,
    Limits,
    Roots,
    Rows,
    ShampooOptions,
    Statistics,
)

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdaGrad",
    "Adam",
    "Blocking",
    "Coupled",
    "Diagonal",
    "EigenvalueCorrected",
    "Eigh",
    "GradientAverage",
    "Limits",
    "OneSided",
    "RMSprop",
    "Roots",
    "Rows",
    "Shampoo",
    "ShampooOptions",
    "Statistics",
]
