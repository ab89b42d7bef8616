"""The part of a model that a step computes with."""

from ctr.models.dcn import Weights
from ctr.models.embeddings import LookedUp
from ctr.models.row_curvature import RowCurvature
from ctr.models.rows import TableLayout


class Part:
    """All of a model; a search steps with other parts, of its candidates."""

    def weights(self, weights: Weights) -> Weights:
        """The dense weights that are computed with."""
        return weights

    def looked_up(self, layout: TableLayout, looked_up: LookedUp) -> LookedUp:
        """Returns what is computed with of what a table gives."""
        return looked_up

    def curvature(self, layout: TableLayout, curvature: RowCurvature) -> RowCurvature:
        """The curvature of the rows of a table by their own linear weights."""
        return curvature


WHOLE = Part()
