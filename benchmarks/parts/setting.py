"""Settings of the parts of ``bench.py``."""

from dataclasses import dataclass

from reference import REFERENCE, TINY, Size


@dataclass(frozen=True)
class Setting:
    """Settings shared by all parts.

    Attributes:
        rounds: number of turns of each arm of a comparison.
        quick: whether to make a small run, whose numbers are meaningless.
        compile: whether PyTorch is also compiled.
    """

    rounds: int = 6
    quick: bool = False
    compile: bool = True

    @property
    def size(self) -> Size:
        return TINY if self.quick else REFERENCE
