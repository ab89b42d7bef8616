"""Groups of options of ``Shampoo``, for code that makes them by their classes.

from ctr.optim import Shampoo, options
Shampoo(0.02, method="diagonal", grafting=options.Adam(beta2=0.99), roots=options.Roots(asynchronous=False))
"""

from ctr.optim.first_order.options import LAMB, LARS, SGD, AdaGrad, Adam, RMSprop
from ctr.optim.shampoo.options import Blocking, Limits, Roots, ShampooOptions, Statistics

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdaGrad",
    "Adam",
    "Blocking",
    "Limits",
    "RMSprop",
    "Roots",
    "ShampooOptions",
    "Statistics",
]
