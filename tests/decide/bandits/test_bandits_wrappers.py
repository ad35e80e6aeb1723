"""Wrappers transform the distribution: frequencies are the probabilities, replay is exact, estimates are unbiased."""

from dataclasses import replace

import numpy as np
import pytest
from bandit_policies import ACTIONS, ARMS, FEATURES, ModuloShield, learnt_model, stacks
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.decisions import Decision, decision_key, draw_action
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.greedy import BoltzmannPolicy, LinUcbPolicy
from hone.decide.bandits.policy import BanditPolicy, PolicyDistribution, numbered_actions, replay_decision
from hone.decide.bandits.wrappers import (
    ActionRange,
    Clipped,
    EpsilonFloor,
    Fallback,
    ForbiddenActions,
    Masked,
    Routed,
    Shielded,
)

DRAWS = 400


class FixedPolicy(BanditPolicy):
    """Policy with one distribution, and scores if it is given them."""

    kind = "fixed"

    def __init__(self, probabilities: list[float], scores: list[float] | None = None) -> None:
        with np.errstate(divide="ignore"):
            self.fixed = np.log(np.array(probabilities))
        self.scores = None if scores is None else np.array(scores)

    def distribution(self, context, actions):
        return PolicyDistribution(self.fixed, self.scores)

    def contents(self):
        raise DataError("it is a test's")

    from_contents = contents


def probabilities(policy, context=(0.0, 0.0, 0.0), arms: int = ARMS) -> list[float]:
    return np.exp(policy.logp(np.array(context), numbered_actions(arms))).tolist()


def decide(policy, context, draw_key: int) -> Decision:
    choice = policy.act(context, ACTIONS, draw_key)
    return Decision(
        id="d", tenant="t", unit="u", at_s=0.0, context=context, actions=ACTIONS, choice=choice, executed=choice.action,
        executed_logp=choice.logp, version="v", draw_key=draw_key, source="s", seq=0,
    )  # fmt: skip


@examples(25)
@given(policy=stacks(), seed=st.integers(0, 1000))
def test_a_stack_draws_as_it_says_and_replays_to_the_bit(policy: BanditPolicy, seed: int) -> None:
    context = np.random.default_rng(seed).normal(size=FEATURES)
    logp = policy.logp(context, ACTIONS)
    mass = np.exp(logp)
    assert abs(mass.sum() - 1.0) < 1e-9
    rows = policy.logp_rows(np.stack([context, -context]), ACTIONS)
    np.testing.assert_allclose(np.exp(rows[0]), mass, atol=1e-9)
    np.testing.assert_allclose(np.exp(rows[1]), np.exp(policy.logp(-context, ACTIONS)), atol=1e-9)
    counts = np.zeros(ARMS)
    for number in range(DRAWS):
        choice = policy.act(context, ACTIONS, decision_key(seed, "t", str(number)))
        assert choice.logp == min(0.0, logp[choice.action])
        counts[choice.action] += 1
    assert (np.abs(counts / DRAWS - mass) <= 4.5 * np.sqrt(mass * (1 - mass) / DRAWS) + 1e-12).all()
    decision = decide(policy, context, decision_key(seed, "t", "x"))
    assert replay_decision(policy, decision).logp == decision.executed_logp
    with pytest.raises(DataError, match="it is not the policy that decided"):
        replay_decision(policy, replace(decision, executed_logp=decision.executed_logp - 1e-12))


def test_each_wrapper_by_hand() -> None:
    inner = FixedPolicy([0.5, 0.25, 0.25, 0.0], scores=[0.1, 0.9, 0.4, 0.3])
    assert probabilities(EpsilonFloor(inner, 0.2)) == pytest.approx([0.45, 0.25, 0.25, 0.05])
    assert probabilities(Masked(inner, ForbiddenActions(("0",)))) == pytest.approx([0.0, 0.5, 0.5, 0.0])
    assert probabilities(Masked(FixedPolicy([1, 0, 0, 0]), ForbiddenActions(("0", "2")))) == pytest.approx(
        [0, 0.5, 0, 0.5]
    )
    assert probabilities(Clipped(inner, ActionRange(1, 2))) == pytest.approx([0.0, 0.75, 0.25, 0.0])
    # Scores below 0.35 are not trusted: actions 0 and 3, whose mass of a half the default gets.
    default = FixedPolicy([0.0, 0.0, 0.5, 0.5])
    assert probabilities(Fallback(inner, default, 0.35)) == pytest.approx([0.0, 0.25, 0.5, 0.25])
    assert probabilities(Routed([inner, default], [0.6, 0.4])) == pytest.approx([0.3, 0.15, 0.35, 0.2])
    # The first feature is 0: action 0 is unsafe.
    assert probabilities(Shielded(inner, ModuloShield())) == pytest.approx([0.0, 0.5, 0.5, 0.0])
    assert probabilities(Shielded(inner, ModuloShield(everything=True))) == pytest.approx([0, 1, 0, 0])


def test_a_failing_policy_is_replaced_by_the_default() -> None:
    broken, default = FixedPolicy([np.nan, 0.5, 0.5, 0.0]), FixedPolicy([0.0, 0.0, 0.0, 1.0])
    wrong_size = LinUcbPolicy(learnt_model(0), 1.0)
    assert probabilities(Fallback(broken, default)) == [0, 0, 0, 1]
    assert probabilities(Fallback(wrong_size, default), context=(1.0, 2.0)) == [0, 0, 0, 1]
    choice = Fallback(broken, default).act(np.zeros(3), ACTIONS, 1)
    assert (choice.action, choice.logp, choice.intervention) == (3, 0.0, "fallback: the policy failed")


def test_a_policy_that_is_not_confident_hands_over_and_at_equality_it_does_not() -> None:
    inner, default = FixedPolicy([0.5, 0.25, 0.25, 0.0]), FixedPolicy([0.0, 0.0, 0.5, 0.5])
    assert probabilities(Fallback(inner, default, min_confidence=0.5)) == pytest.approx([0.5, 0.25, 0.25, 0.0])
    assert probabilities(Fallback(inner, default, min_confidence=0.51)) == pytest.approx([0.0, 0.0, 0.5, 0.5])
    handed = Fallback(inner, default, min_confidence=0.51).act(np.zeros(3), ACTIONS, 5)
    assert handed.intervention == "fallback: low confidence" and handed.logp == pytest.approx(np.log(0.5))
    kept = Fallback(inner, default, min_confidence=0.5)
    assert {kept.act(np.zeros(3), ACTIONS, decision_key(0, "t", str(n))).intervention for n in range(20)} == {""}
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="min_confidence must be from 0 to 1"):
            Fallback(inner, default, min_confidence=wrong)


def test_interventions_are_told_and_others_are_not() -> None:
    sure = FixedPolicy([0.0, 1.0, 0.0, 0.0])
    assert Clipped(sure, ActionRange(2, 3)).act(np.zeros(3), ACTIONS, 5).intervention == "clip"
    assert Clipped(sure, ActionRange(0, 3)).act(np.zeros(3), ACTIONS, 5).intervention == ""
    unsafe = FixedPolicy([1.0, 0.0, 0.0, 0.0])
    assert Shielded(unsafe, ModuloShield()).act(np.zeros(3), ACTIONS, 5).intervention == "shield"
    assert Shielded(sure, ModuloShield()).act(np.zeros(3), ACTIONS, 5).intervention == ""
    chosen = Fallback(FixedPolicy([0, 1, 0, 0], scores=[0, 0, 0, 0]), sure, 0.5).act(np.zeros(3), ACTIONS, 5)
    assert chosen.intervention == "fallback: low score"


def test_a_floor_around_a_restriction_is_refused() -> None:
    inner = BoltzmannPolicy(learnt_model(0), 1.0)
    for restricted in (
        Masked(inner, ForbiddenActions(("1",))),
        Shielded(inner, ModuloShield()),
        Routed([inner, Clipped(inner, ActionRange(0, 1))], [0.5, 0.5]),
    ):
        with pytest.raises(ConfigError, match="put the floor inside"):
            EpsilonFloor(restricted, 0.1)
    with pytest.raises(DataError, match="allows none of the 4 actions"):
        Masked(inner, ActionRange(7, 9)).logp(np.zeros(3), ACTIONS)


@pytest.mark.parametrize("truthful", [True, False])
def test_the_choosers_probability_with_the_executed_action_biases_estimates(truthful: bool) -> None:
    """Exact expectation of importance weighting, by enumeration of the actions.

    A fifth of the decisions is overridden. The wrapper's probability gives the target's value; the negative control
    logs the executed action with the probability that the chooser gave it, and is off by more than a tenth.
    """
    rng = np.random.default_rng(1)
    contexts = rng.normal(size=(400, FEATURES))
    chooser = EpsilonFloor(BoltzmannPolicy(learnt_model(3), 0.7), 0.1)
    served, target = (
        Clipped(chooser, ActionRange(0, 2)),
        Masked(BoltzmannPolicy(learnt_model(4), 0.7), ForbiddenActions(("3",))),
    )
    worth = 0.5 + 0.3 * np.tanh(contexts @ rng.normal(size=(FEATURES, ARMS)))
    executed, chosen = np.exp(served.logp_rows(contexts, ACTIONS)), np.exp(chooser.logp_rows(contexts, ACTIONS))
    wanted = np.exp(target.logp_rows(contexts, ACTIONS))
    logged = executed if truthful else chosen
    estimate = (executed * np.divide(wanted, logged, out=np.zeros_like(wanted), where=logged > 0) * worth).sum(axis=1)
    bias = estimate.mean() / (wanted * worth).sum(axis=1).mean() - 1.0
    assert 0.1 < chosen[:, 3].mean() < 0.4
    assert abs(bias) < 1e-9 if truthful else bias > 0.1


def test_the_bias_by_hand() -> None:
    """A fifth of the decisions (0.185) is overridden by an action that pays 0.449 more. With the chooser's probability
    all weights of the chooser are 1, so its value 0.726 is estimated as that of the executed actions: 11.5% too high.
    With the wrapper's probability the served policy's own value, 0.809, is what comes out.
    """
    chooser, worth = FixedPolicy([0.5, 0.315, 0.185, 0.0]), np.array([0.809, 0.809, 0.360, 0.0])
    served = Clipped(chooser, ActionRange(0, 1))
    executed, chosen = np.array(probabilities(served)), np.array(probabilities(chooser))
    np.testing.assert_allclose(executed, [0.5, 0.5, 0.0, 0.0])
    taken = executed > 0
    wrong = (executed[taken] * chosen[taken] / chosen[taken] * worth[taken]).sum()  # executed action, chooser's logp
    assert wrong / (chosen @ worth) - 1.0 == pytest.approx(0.115, abs=0.001)
    right = (executed[taken] * executed[taken] / executed[taken] * worth[taken]).sum()
    assert right == pytest.approx(executed @ worth)


def test_the_draw_is_by_inversion_of_the_key() -> None:
    policy = FixedPolicy([0.25, 0.0, 0.5, 0.25])
    for number in range(50):
        one = decision_key(0, "t", str(number))
        assert policy.act(np.zeros(3), ACTIONS, one).action == draw_action(policy.fixed, one)
