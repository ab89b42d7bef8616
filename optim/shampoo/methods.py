"""Methods of Shampoo's family: what is done with the statistics L and R of a block."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ctr.optim.checked import OneOf, Real

_Inner = Annotated[float, Real(0.0, 1.0, low_open=True, high_open=True)]


@dataclass(frozen=True, kw_only=True)
class RootMethod(OneOf):
    """Methods that multiply by inverse roots A^(-eta/p) of statistics.

    Attributes:
        exponent_multiplier: ``eta`` (PT 3.1.4).
    """

    exponent_multiplier: Annotated[float, Real(0.0, 4.0, low_open=True)] = 1.0


@dataclass(frozen=True, kw_only=True)
class Shampoo(RootMethod):
    """L^(-1/4) G R^(-1/4), and its like along every dimension (PSO 2).

    Attributes:
        left_share: ``1/p`` of PSO lemma 1, by which the exponents of a matrix are divided between its left and its
            right side, 1/p + 1/q = 1.
    """

    kind: Literal["shampoo"] = "shampoo"
    left_share: _Inner = 0.5


@dataclass(frozen=True, kw_only=True)
class Diagonal(RootMethod):
    """Shampoo in which dimensions above ``blocking.max_dimension`` have diagonals (PT 4.2.3; THESIS 4.1.3).

    Attributes:
        left_share: as of ``shampoo``.
    """

    kind: Literal["diagonal"] = "diagonal"
    left_share: _Inner = 0.5


@dataclass(frozen=True, kw_only=True)
class OneSided(RootMethod):
    """Shampoo with one side of matrices alone (PSO lemma 1 with p or q infinite).

    Attributes:
        side: the side that is left.
    """

    kind: Literal["one_sided"] = "one_sided"
    side: Literal["left", "right"] = "right"


@dataclass(frozen=True, kw_only=True)
class EigenvalueCorrected(OneOf):
    """Second moments in the eigenbases of the statistics in place of roots (PSO App. C; SOAP; eigenbasis.py).

    Attributes:
        basis_change: what becomes of second moments when the bases change: ``project`` moves them into the new bases,
            ``keep`` leaves them as they are.
        sides: the sides of matrices that are rotated.
    """

    kind: Literal["eigenvalue_corrected"] = "eigenvalue_corrected"
    basis_change: Literal["project", "keep"] = "project"
    sides: Literal["both", "left", "right"] = "both"


Method = Shampoo | Diagonal | OneSided | EigenvalueCorrected
