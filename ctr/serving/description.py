"""What the metadata of an exported model says of its network and tables, for those that compute without its graph.

Under ``network`` of ``ctr.json``::

    architecture    of ``ctr.models.architecture``, key by key
    tables          name, tower, width, copies, and features: name, buckets, single, growing, salt
    variables       what each variable of the SavedModel is, in its order: ``rows/TABLE``, ``keys/TABLE``, ``alpha2``,
                    or the readable name of a dense weight, ``quality/deep_0/w``

The weights themselves are only in the SavedModel's own files.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ctr.models.rows import TableLayout
from ctr.training.run.snapshot import Snapshot
from ctr.training.state import dense_weights


def describe_network(snapshot: Snapshot, variables: Sequence[str]) -> dict[str, Any]:
    """Describes a model.

    Args:
        variables: the names of its variables, in their order, as deltas have them.
    """
    readable = dict(zip(dense_weights(snapshot.weights), snapshot.weights, strict=True))
    return {
        "architecture": dataclasses.asdict(snapshot.architecture),
        "tables": [_describe_table(layout) for layout in snapshot.layouts],
        "variables": [readable.get(name, name) for name in variables],
    }


def _describe_table(layout: TableLayout) -> Mapping[str, Any]:
    features = [
        {
            "name": feature.name,
            "buckets": feature.buckets,
            "single": feature.single is not None,
            "growing": feature.growing,
            "salt": int(feature.salt),
        }
        for feature in layout.features
    ]
    return {
        "name": layout.name,
        "tower": layout.tower,
        "width": layout.width,
        "copies": layout.copies,
        "features": features,
    }
