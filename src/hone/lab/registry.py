"""Experiments by name. A file `no_clipping.py` under `experiments/` is the experiment `no-clipping`."""

import importlib
import pkgutil

from hone.core.errors import ConfigError, did_you_mean
from hone.lab import experiments
from hone.lab.finding import Experiment


def experiment_names() -> list[str]:
    """Names of all experiments, without importing them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(experiments.__path__))


def load_experiment(name: str) -> Experiment:
    """Experiment by name. Raises ConfigError for an unknown one."""
    if name not in experiment_names():
        raise ConfigError(f"no experiment {name!r}{did_you_mean(name, experiment_names())}")
    experiment = importlib.import_module(f"{experiments.__name__}.{name.replace('-', '_')}").EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment
