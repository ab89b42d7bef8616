"""Configuration of a search: its space, the target cost, and the controller that learns which is best (FF 3.2).

Published values of the controller's options are from TuNAS (Bender et al., "Can weight sharing outperform
random architecture search?", CVPR 2020), on which FF's search is built, and from TabNAS (Yang et al., NeurIPS
2022).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ctr.config import AnyPath, StrictModel, load_model
from ctr.experiments.config import Seed, Seeds, alike_in_arms, training_content
from ctr.io.files import check_output_folder

SEARCH_FILE = "search.yaml"  # in the output directory: the search with its whole training configuration

Share = Annotated[float, Field(gt=0, le=1)]


class ControllerConfig(StrictModel):
    """The controller of the supernet: a softmax for each decision, which learns by REINFORCE (FF 3.2).

    Attributes:
        mode: how the target limits the cost. ``penalty``: the reward is accuracy plus gamma |cost / target - 1|.
            ``rejection``: candidates above the target are drawn again, and gradients corrected for it (TabNAS).
        gamma: the factor of the cost's distance from the target.
        baseline_decay: decay of the moving average of rewards.
        learning_rate: the controller's learning rate, roughly the largest change of a logit per step. Null: 0.0048
            as in TuNAS or, if larger, 20 divided by the number of steps after the warm-up, but at most 0.1.
        warmup_fraction: the share of the search, at its beginning, in which the controller does not learn; at first
            all parts of the supernet are trained.
        candidates_per_batch: the number of candidates that score each batch before training on it.
        rejection_samples: the number of candidates sampled to estimate the probability that a candidate is within the
            target, if the space has more candidates than this.
        learners: the number of candidates drawn to be trained on each batch, with the mean of their gradients.
        extremes: candidates trained on every batch in addition to the drawn ones. ``largest``: the largest network.
            ``sandwich``: also the smallest (Yu, Huang, ICCV 2019).
    """

    mode: Literal["penalty", "rejection"] = "penalty"
    gamma: float = Field(default=-0.1, lt=0)
    baseline_decay: float = Field(default=0.95, ge=0, lt=1)
    learning_rate: float | None = Field(default=None, gt=0)
    warmup_fraction: float = Field(default=0.25, ge=0, lt=1)
    candidates_per_batch: int = Field(default=4, ge=2, le=64)
    rejection_samples: int = Field(default=1024, ge=1, le=2**20)
    learners: int = Field(default=1, ge=1, le=16)
    extremes: Literal["none", "largest", "sandwich"] = "largest"


class SearchConfig(StrictModel):
    """A search for the architecture that is most accurate at a target cost.

    A supernet holds all candidates and is trained once, while a controller learns which to prefer.

    Attributes:
        title: the title of the report.
        note: the text below the title.
        base: the file of a training configuration, relative to the search's file. Null: ``config`` is the complete
            configuration.
        config: changes to the training configuration as nested keys; without ``base``, the complete configuration.
            The result is the baseline.
        space: for each decision its choices; see ``ctr.search.architecture`` for their names.
        target: the maximum cost of the result, as a share of the baseline's.
        prefix: the share of the rows in the time range that the search reads; the result is evaluated on the rest.
        seed: seed of all draws, and of the runs of the search.
        seeds: the result and the baseline are finally trained with each of these.
        cost: the operations of a candidate that count, of learning from an example (``training``) or of scoring it
            (``serving``).
        controller: options of the supernet's controller.
    """

    title: str = "Search"
    note: str = ""
    base: AnyPath | None = None
    config: dict[str, Any] = {}
    space: dict[str, tuple[Any, ...]] = Field(min_length=1, examples=[{"model.deep.units.0": [32, 64]}])
    target: float = Field(default=1.0, gt=0, le=1000)
    prefix: Share = 0.5
    seed: Seed = 1
    seeds: Seeds = (1, 2, 3)
    cost: Literal["training", "serving"] = "training"
    controller: ControllerConfig = ControllerConfig()


def read_search(path: Path, settings: Sequence[str] = ()) -> tuple[SearchConfig, dict[str, Any]]:
    """Reads a search from a YAML file; returns it and its base training configuration. Raises InputError if invalid."""
    where = f"search {path}"
    search = load_model(SearchConfig, path, "search", settings)
    return search, alike_in_arms(training_content(path, where, search.base, search.config))


def check_search_folder(out: Path) -> None:
    """Raises InputError if a directory is not empty and was not written by ``ctr search``."""
    check_output_folder(out, "a search of ctr search", lambda folder: (folder / SEARCH_FILE).is_file())
