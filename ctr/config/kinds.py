"""Kinds of configuration files, and the model of each."""

import importlib
from typing import Any

# The files that ``ctr config`` describes, with the module and the name of each one's model.
CONFIGS = {
    "train": ("ctr.training.config", "TrainConfig"),
    "mapping": ("ctr.data.mapping", "Mapping"),
    "events": ("ctr.data.event_mapping", "EventMapping"),
    "sampling": ("ctr.data.sampling", "SamplingConfig"),
    "simulator": ("ctr.simulator.config", "SimulatorConfig"),
    "experiment": ("ctr.experiments.config", "ExperimentConfig"),
    "search": ("ctr.search.config", "SearchConfig"),
}


def config_keys(kind: str) -> list[str]:
    """Lists the dotted keys of a configuration that ``--set`` takes."""
    from ctr.config.schema import settable_keys

    return settable_keys(config_model(kind))


def config_model(kind: str) -> Any:
    """Imports the model of a configuration's file."""
    module, name = CONFIGS[kind]
    return getattr(importlib.import_module(module), name)
