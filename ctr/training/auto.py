"""What a configuration leaves open, as the manifests of a log decide it.

Nothing here reads a label, nor what comes after a log's first partition: so a run over the whole log and one that
follows it from its beginning have the same configuration.
"""

from collections.abc import Sequence

from ctr.data.log import Manifest
from ctr.data.schema import Schema
from ctr.training.config import TrainConfig
from ctr.training.model_config import fitting_width


def resolve(config: TrainConfig, schema: Schema, manifests: Sequence[Manifest]) -> TrainConfig:
    """Returns the configuration with the embedding widths that it leaves open; see ``ModelConfig.widths``.

    Args:
        config: of a run.
        schema: the features of its log.
        manifests: the log's partitions, at least one.
    """
    open_widths = [f for f in schema.features if f.width is None and f.name not in config.model.widths]
    if not open_widths:
        return config
    first = next((manifest for manifest in manifests if manifest.rows), manifests[0])
    widths = {f.name: fitting_width(first.distinct.get(f.name, f.buckets)) for f in open_widths}
    model = config.model.model_copy(update={"widths": {**config.model.widths, **widths}})
    return config.model_copy(update={"model": model})
