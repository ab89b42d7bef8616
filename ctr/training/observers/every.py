"""All observers of a run, in the order of their calls."""

from ctr.training.observers.features import Features
from ctr.training.observers.importance import Importance
from ctr.training.observers.metrics import Metrics
from ctr.training.observers.observer import Observer, ProgressCall
from ctr.training.observers.predictions import Predictions
from ctr.training.observers.progress import Progress
from ctr.training.observers.slices import Slices
from ctr.training.observers.tensorboard import TensorBoard


def make_observers(progress: ProgressCall | None = None) -> list[Observer]:
    """Makes the observers of one run; ``progress``: see ``ctr.training.session.open_session``."""
    metrics = Metrics()
    return [
        metrics,
        Features(),
        Slices(),
        Predictions(),
        Importance(),
        TensorBoard(),
        Progress(progress, metrics),
    ]
