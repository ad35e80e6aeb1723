"""Start of a new run from the state of a checkpoint's optimizer: `model.optimizer = true`.

Belongs here: finding, verifying and taking over Adam's moments. The weights are `model.path`'s own affair.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.core.errors import ConfigError, DataError
from hone.core.state import State, substate
from hone.learner.gradient import GradientLearner
from hone.models.language.token_policy import TokenPolicy
from hone.run.loop import Learner
from hone.run.saved_config import policy_folder
from hone.run.store.checkpoints import STATE, checkpoint_of, verify_checkpoint
from hone.run.store.codec import read_state
from hone.text.evaluate.open_policy import ModelSource
from hone.text.rows import TokenBatch


@dataclass
class TwoNetworkLearner:
    """A policy's learner, beside the learner of a second network."""

    actor: GradientLearner[TokenPolicy, TokenBatch]

    @property
    def policy(self) -> TokenPolicy:
        return self.actor.policy


def check_saved_optimizer(source: ModelSource) -> Path:
    """The state folder of the checkpoint that `source` names, verified. Raises DataError where there is none."""
    assert source.path is not None
    checkpoint = checkpoint_of(policy_folder(Path(source.path)))
    if checkpoint is None or not (checkpoint / STATE).is_dir():
        raise DataError(
            f"model.optimizer = true, but model.path = {source.path!r} is not a checkpoint or run of hone with its "
            f"{STATE}/ folder, which holds the optimizer's state; name one, or remove model.optimizer"
        )
    verify_checkpoint(checkpoint, inside=STATE)
    return checkpoint / STATE


def restore_optimizer(learner: Learner[Any], source: ModelSource) -> None:
    """Take over the optimizer's state of the checkpoint that `source` names; the learning-rate schedule begins anew.

    Raises ConfigError for a learner without such a state, DataError where the saved one does not fit.
    """
    folder = check_saved_optimizer(source)
    if isinstance(learner, TwoNetworkLearner):
        learner = learner.actor
    if not isinstance(learner, GradientLearner):
        raise ConfigError("model.optimizer = true: this recipe has no optimizer whose state could be taken over")
    try:
        phases: State = substate(substate(read_state(folder), "learner"), "phases")
        for phase in learner.phases:
            phase.optimizer.restore(substate(phases, phase.name))
    except DataError as fault:
        raise DataError(f"model.optimizer = true: {folder} does not fit this recipe's optimizer: {fault}") from None
