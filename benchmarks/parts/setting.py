"""How the parts of ``bench.py`` are run."""

from dataclasses import dataclass

from reference import REFERENCE, TINY, Size


@dataclass(frozen=True)
class Setting:
    """Of all parts.

    Attributes:
        rounds: turns of each arm of a comparison.
        quick: a small run, whose numbers mean nothing.
        compile: whether PyTorch is also compiled.
    """

    rounds: int = 6
    quick: bool = False
    compile: bool = True

    @property
    def size(self) -> Size:
        return TINY if self.quick else REFERENCE
