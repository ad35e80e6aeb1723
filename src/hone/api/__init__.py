"""Public Python API: the commands as functions.

`train(config)` trains a config file or a dictionary, `train_seeds(config, seeds)` trains it once per seed,
`compare(runs)` compares runs, `evaluate(policy)` evaluates a checkpoint, `sample(policy)` generates answers,
`load(policy)` opens a control policy to act with.
`estimate_decisions(log, policies)` estimates policies from a log of decisions.
`serve_decisions(file)` opens the service of a service file in this process, `ship(policy, to=file)`
rolls a policy out there in stages.
`fleet` is the library of robots, and `match` pairs players, keeps their ratings and chooses their levels;
`from hone.api import fleet, match` loads no torch. `warehouse` opens dispatchers and versions of skills.

Names are imported at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hone.api.commands import compare, evaluate, load, sample, train, train_seeds
    from hone.api.decisions import estimate_decisions, serve_decisions, ship
    from hone.api.python_config import ConfigInput
    from hone.api.results import (
        AnswerTable,
        MultiSeedResult,
        SampledAnswer,
        TrainingResult,
        comparison_table,
        read_result,
    )
    from hone.run.callbacks import CheckpointEvent, EvaluationEvent, StepEvent

__all__ = [
    "AnswerTable",
    "CheckpointEvent",
    "ConfigInput",
    "EvaluationEvent",
    "MultiSeedResult",
    "SampledAnswer",
    "StepEvent",
    "TrainingResult",
    "compare",
    "comparison_table",
    "estimate_decisions",
    "evaluate",
    "load",
    "read_result",
    "sample",
    "serve_decisions",
    "ship",
    "train",
    "train_seeds",
]

_MODULES: Final = {
    "hone.api.commands": ("compare", "evaluate", "load", "sample", "train", "train_seeds"),
    "hone.api.decisions": ("estimate_decisions", "serve_decisions", "ship"),
    "hone.api.python_config": ("ConfigInput",),
    "hone.api.results": (
        "AnswerTable", "MultiSeedResult", "SampledAnswer", "TrainingResult", "comparison_table", "read_result",
    ),
    "hone.run.callbacks": ("CheckpointEvent", "EvaluationEvent", "StepEvent"),
}  # fmt: skip


def __getattr__(name: str) -> object:
    """A public name, from its module. Raises AttributeError."""
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = vars(import_module(module))[name]
    globals()[name] = value
    return value
