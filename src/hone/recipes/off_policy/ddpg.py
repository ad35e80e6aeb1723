"""Deep deterministic policy gradient (Lillicrap et al., 2016): a policy that climbs the value of its own action.

One critic with a slow copy, a slow copy of the policy, replay. It overestimates where its critic errs upwards; TD3 is
the same with the mends for that.
"""

from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.credit.returns import one_step
from hone.models.control.deterministic import DeterministicActorCritic
from hone.objectives.td import deterministic_policy, td_target
from hone.objectives.terms import Terms
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.train.control.deterministic import DeterministicRun, Method, check, chosen_worth, derive, deterministic_job
from hone.train.control.rows import TransitionRows
from hone.train.job import Entry, Job, Parts


class DdpgAlgorithm(Config):
    """The numbers of the paper, with the rates that suit short tasks."""

    discount: float = Field(default=0.98, ge=0, le=1)
    """Of a reward one step later."""
    target_rate: float = Field(default=0.005, gt=0, le=1)
    """Share of the networks that their slow copies take on per update."""


class DdpgConfig(DeterministicRun):
    """A deterministic policy with one critic on Gymnasium environments with a box of actions."""

    algorithm: DdpgAlgorithm = DdpgAlgorithm()
    """Targets."""


def target_of(policy: DeterministicActorCritic, rows: TransitionRows) -> Tensor:
    """`[n]` by the slow critic's value of the slow policy's action."""
    (worth,) = policy.slow_worth(rows.after, policy.slow_act(rows.after))
    return td_target(rows.reward, rows.discount, worth)


def critic_objective(policy: DeterministicActorCritic, rows: TransitionRows) -> Terms:
    """Squared error against that target."""
    (value,) = chosen_worth(policy, rows)
    return squared(value, target_of(policy, rows))


def build(config: DdpgConfig) -> Job[DeterministicActorCritic]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    algorithm = config.algorithm
    return deterministic_job(
        config,
        Method(
            critics=1,
            critic_objective=critic_objective,
            discount=algorithm.discount,
            target_rate=algorithm.target_rate,
        ),
    )


ENTRY = Entry(
    summary="off-policy control of continuous actions: deterministic policy, one critic, replay",
    source="Lillicrap et al., Continuous Control with Deep Reinforcement Learning, 2016",
    config=DdpgConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Replay(Live(Gymnasium))",
        credit=(one_step,),
        loss=(squared, td_target, deterministic_policy),
        weights=(token_mean,),
    ),
    limitation="boxes of actions only; one critic that errs upwards misleads the policy, which TD3 mends.",
)
