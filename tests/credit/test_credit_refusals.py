"""Credits that refuse their data name the column or the function, and every credit returns float32."""

from collections.abc import Callable

import numpy as np
import pytest
from credit_batches import answers, column, nan

from hone.core.credit import NO_VALUES, Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.credit import kl_reward, reinforce, returns
from hone.credit.moments import with_novelty
from hone.credit.returns import v_trace
from hone.credit.shaping import with_imitation_reward
from hone.credit.turns import implicit_reward, prime

TWO = answers([1.0, 0.0], lengths=[2, 1])
VALUES = Values(value=np.ones(3, np.float32), final=np.ones(2, np.float32))
PAID = returns.reward_as_advantage
WHOLE, SHORT = column([0.1, 0.2, 0.3]), column([0.1])


def with_kl(episodes: Episodes, **columns: object) -> Credits:
    controller = kl_reward.FixedKlController(0.1)
    credit = kl_reward.KlRewardCredit(returns.reward_as_advantage, controller=controller, **columns)  # type: ignore[arg-type]
    return credit(episodes, NO_VALUES)


def distillation(**columns: object) -> Credits:
    return kl_reward.distillation_credit(TWO, NO_VALUES, **columns)  # type: ignore[arg-type]


def collided(**columns: object) -> Credits:
    return reinforce.optimal_token_baseline(TWO, NO_VALUES, **columns)  # type: ignore[arg-type]


COLUMNS: list[tuple[str, Callable[[], object]]] = [
    ("likeness", lambda: with_imitation_reward(TWO, NO_VALUES, imitation_reward=SHORT, credit=PAID)),
    ("the policy's log-probability", lambda: with_kl(TWO, reference=WHOLE, current=SHORT)),
    ("the reference's log-probability", lambda: with_kl(TWO, reference=SHORT)),
    ("the policy's log-probability", lambda: distillation(teacher=WHOLE, current=SHORT)),
    ("the teacher's log-probability", lambda: distillation(teacher=SHORT)),
    ("the reward policy's log-probability", lambda: implicit_reward(TWO, policy=SHORT, reference=WHOLE)),
    ("the reference's log-probability", lambda: implicit_reward(TWO, policy=WHOLE, reference=SHORT)),
    ("the implicit reward", lambda: prime(TWO, NO_VALUES, implicit=SHORT)),
    ("the current log-probability", lambda: v_trace(TWO, VALUES, current=SHORT, discount=0.9)),
    ("the log-probability", lambda: collided(collision=WHOLE, current=SHORT)),
    ("the collision probability", lambda: collided(collision=SHORT)),
    ("the importance ratio", lambda: collided(collision=WHOLE, ratio=SHORT)),
]


@pytest.mark.parametrize("case", range(len(COLUMNS)))
def test_a_column_that_does_not_fit_is_named(case: int) -> None:
    name, credit = COLUMNS[case]
    with pytest.raises(DataError, match=f"^{name} has shape"):
        credit()


def test_a_missing_recorded_log_probability_is_named() -> None:
    episodes = answers([1.0, 0.0], lengths=[2, 1], logp=[0.0, nan, 0.0])
    with pytest.raises(DataError, match=r"^the recorded log-probability is not finite for 1 of 3"):
        v_trace(episodes, VALUES, current=WHOLE, discount=0.9)


@pytest.mark.parametrize(
    ("name", "credit"),
    [
        ("gae", lambda: returns.gae(TWO, NO_VALUES, discount=0.9, gae_lambda=0.9)),
        ("td_lambda", lambda: returns.td_lambda(TWO, NO_VALUES, discount=0.9, trace_lambda=0.9)),
        ("n_step", lambda: returns.n_step(TWO, NO_VALUES, discount=0.9, steps=2)),
        ("v_trace", lambda: v_trace(TWO, NO_VALUES, current=WHOLE, discount=0.9)),
    ],
)
def test_what_needs_a_critic_says_its_name(name: str, credit: Callable[[], Credits]) -> None:
    with pytest.raises(ConfigError, match=f"^{name} needs a critic"):
        credit()


@pytest.mark.parametrize("trace_cap", [0.0, -1.0, 1.5])
def test_v_trace_refuses_caps_out_of_order(trace_cap: float) -> None:
    with pytest.raises(ConfigError, match="trace_cap"):
        v_trace(TWO, VALUES, current=WHOLE, discount=0.9, trace_cap=trace_cap)


def test_credits_are_float32() -> None:
    graded = answers([1.0, 0.0], lengths=[2, 1], baseline=[0.5, 0.5])
    seen: list[Episodes] = []

    def spy(episodes: Episodes, values: Values) -> Credits:
        seen.append(episodes)
        return returns.reward_as_advantage(episodes, values)

    kept = kl_reward.KlRewardCredit(spy, reference=WHOLE, controller=kl_reward.FixedKlController(0.1))
    found = [
        kept(graded, NO_VALUES),
        with_imitation_reward(graded, NO_VALUES, imitation_reward=WHOLE, credit=spy),
        kl_reward.distillation_credit(graded, NO_VALUES, teacher=WHOLE),
        reinforce.remax(graded, NO_VALUES),
        returns.one_step_target(graded, NO_VALUES, discount=0.9),
        v_trace(graded, VALUES, current=WHOLE, discount=0.9),
    ]
    both = with_novelty(found[0], np.ones(3), np.ones(3), extrinsic_weight=2.0, intrinsic_weight=1.0)
    columns = [array for one in (*found, both) for array in (one.advantage, one.target, one.discount)]
    columns += [both.novelty_target, *(episodes.reward for episodes in seen)]
    assert {array.dtype for array in columns if array is not None} == {np.dtype(np.float32)}
