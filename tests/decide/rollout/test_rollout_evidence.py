"""Exposures from the log, evidence from exposures, plans with their detectable effects, and configs."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rollout_shop import ListLog, decision, outcome

from hone.decide.joins.view import JoinConfig
from hone.decide.rollout.controller import begin, no_evidence
from hone.decide.rollout.driver import plan_from_json, plan_to_json, state_entry, state_from_json
from hone.decide.rollout.plan import (
    GuardrailConfig,
    GuardrailHistory,
    RolloutGuardrail,
    RolloutPlan,
    StagedRolloutConfig,
    stage_name,
)
from hone.decide.rollout.router import ExposureBatch, ExposureFeed
from hone.run.store.durable import to_json

PLAN = RolloutPlan(name="r1", service="shop", version="new", control="old")
TWO = replace(
    PLAN, guardrails=(RolloutGuardrail(), RolloutGuardrail(kind="cost", low=-2, high=6, higher_is_better=False))
)


def feed_of(*records, plan=PLAN, **join) -> ExposureFeed:
    log, feed = ListLog(), ExposureFeed(plan, JoinConfig(**{"window_s": 10.0} | join))
    log.append(records)
    feed.read(log)
    return feed


def test_a_unit_counts_once_with_the_outcomes_in_its_window() -> None:
    feed = feed_of(
        decision(0, "a", 100.0, route="r1:canary:1%"),
        decision(1, "b", 101.0, route="r1:control:1%"),
        outcome(0, 0.5, 105.0, seq=0),
        outcome(0, 0.25, 109.0, seq=1),
        outcome(0, 9.0, 111.0, seq=2),  # too late
        decision(2, "a", 102.0, route="r1:canary:5%"),  # the unit again
        decision(3, "c", 102.0, route="r2:canary:1%"),  # another rollout
        decision(4, "d", 102.0, route=""),
        decision(5, "e", 102.0, route="r1:canary:100%"),  # nothing to compare with
    )
    assert len(feed.due("1%", 99.0)) == 0
    batch = feed.due("1%", 101.0)
    assert batch.is_new.tolist() == [True, False]
    assert batch.values.tolist() == [[0.75], [0.0]]  # the sum; the join's default
    assert (batch.in_stage, batch.both_arms) == (2, 0)
    assert len(feed.due("1%", 1e9)) == 0


@pytest.mark.parametrize(("rule", "value"), [("sum", 6.0), ("first", 1.0), ("last", 2.0), ("max", 3.0)])
def test_the_rule_of_the_join_holds_in_any_order_of_arrival(rule: str, value: float) -> None:
    outcomes = [outcome(0, 1.0, 101.0, seq=0), outcome(0, 3.0, 102.0, seq=1), outcome(0, 2.0, 103.0, seq=2)]
    exposed = decision(0, "a", 100.0, route="r1:canary:1%")
    for records in ([exposed, *outcomes], [*reversed(outcomes), exposed], [outcomes[1], exposed, *outcomes[::2]]):
        assert feed_of(*records, rule=rule).due("1%", 100.0).values.tolist() == [[value]]


def test_an_outcome_of_another_kind_has_no_default_but_its_own() -> None:
    feed = feed_of(decision(0, "a", 100.0, route="r1:canary:1%"), plan=TWO)
    assert np.isnan(feed.due("1%", 100.0).values).tolist() == [[False, True]]
    with_default = replace(TWO, guardrails=(TWO.guardrails[0], replace(TWO.guardrails[1], default=1.5)))
    feed = feed_of(decision(0, "a", 100.0, route="r1:canary:1%"), plan=with_default)
    assert feed.due("1%", 100.0).values.tolist() == [[0.0, 1.5]]
    feed = feed_of(decision(0, "a", 100.0, route="r1:canary:1%"), outcome(0, 3.0, 101.0, kind="cost"), plan=TWO)
    assert feed.due("1%", 100.0).values.tolist() == [[0.0, 3.0]]


def test_the_shadow_counts_requests_and_scores_none() -> None:
    feed = feed_of(*(decision(k, "a", 100.0, route="r1:control:shadow") for k in range(7)))
    assert (feed.due("shadow", 1e9).in_stage, len(feed.due("shadow", 1e9))) == (7, 0)


def test_a_shadows_choice_is_no_outcome_of_an_exposure(monkeypatch) -> None:
    monkeypatch.setattr("hone.decide.rollout.router._MOST_EARLY", 1)
    early = [outcome(0, 0.5, 101.0, seq=0), outcome(1, -0.3, 101.0, kind="shadow:v:1", seq=1)]
    feed = feed_of(*early, decision(0, "a", 100.0, route="r1:canary:1%"))
    assert feed.due("1%", 100.0).values.tolist() == [[0.5]]  # the reward was not pushed out


@examples(40)
@given(st.data())
def test_read_again_after_a_restart_the_same_units_are_still_to_come(data) -> None:
    """Looks at random moments; after each a second feed takes the log again, as a restarted driver does."""
    log, feed = ListLog(), ExposureFeed(PLAN, JoinConfig(window_s=10.0))
    until_s = 0.0
    for number in range(data.draw(st.integers(1, 12))):
        arm = data.draw(st.sampled_from(["canary", "control"]))
        unit, at_s = data.draw(st.sampled_from("abcdef")), data.draw(st.floats(0, 100))
        log.append([decision(number, unit, at_s, route=f"r1:{arm}:1%"), outcome(number, 0.5, at_s + 1)])
        if data.draw(st.booleans()):
            feed.read(log)
            until_s = max(until_s, data.draw(st.floats(0, 100)))
            feed.due("1%", until_s)
            again = ExposureFeed(PLAN, JoinConfig(window_s=10.0))
            again.reread(log, feed.position)
            again.due("1%", until_s)
            assert again._open == feed._open
            assert again._arms == feed._arms
            assert again.position == feed.position


def batch(new: list[bool], *columns: list[float]) -> ExposureBatch:
    return ExposureBatch(is_new=np.array(new), values=np.array(columns, dtype=np.float64).T, in_stage=len(new))


def test_effects_are_told_in_units_of_the_value() -> None:
    random = np.random.default_rng(3)
    new = random.random(4000) < 0.5
    rewards = np.where(new, 0.5, 0.25) + random.uniform(-0.1, 0.1, 4000)
    costs = np.where(new, 1.0, 3.0) + random.uniform(-1, 1, 4000)
    evidence = no_evidence(TWO).observe(TWO, batch(list(new), list(rewards), list(costs)))
    reward, cost = evidence.effects(TWO)
    assert (reward.new_mean, reward.control_mean) == pytest.approx((0.5, 0.25), abs=0.01)
    assert (cost.new_mean, cost.control_mean) == pytest.approx((1.0, 3.0), abs=0.1)
    assert reward.low < 0.25 < reward.high
    assert cost.low < -2.0 < cost.high
    assert reward.bounded_low < 0.25 < reward.bounded_high
    assert cost.bounded_low < -2.0 < cost.bounded_high
    assert reward.bounded_high - reward.bounded_low < 0.5
    assert max(reward.log_e, cost.log_e) < 0  # better in both
    assert evidence.ratio.counts == (int((~new).sum()), int(new.sum()))


def test_values_beyond_their_bounds_are_clipped_and_counted_and_missing_ones_stake_nothing() -> None:
    evidence = no_evidence(PLAN).observe(PLAN, batch([True, False, True], [1.5, math.nan, -1.0]))
    (one,) = evidence.guardrails
    assert (one.clipped, one.missing, one.arms.count, one.process.count, evidence.count) == (2, 1, 2, 3, 3)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1) | st.just(math.nan)), min_size=1, max_size=25), st.data())
def test_batches_of_looks_make_no_difference(rows, data) -> None:
    new, values = [row[0] for row in rows], [row[1] for row in rows]
    cut = data.draw(st.integers(0, len(rows)))
    whole = no_evidence(PLAN).observe(PLAN, batch(new, values))
    parts = no_evidence(PLAN)
    for piece in (slice(0, cut), slice(cut, None)):
        if new[piece]:
            parts = parts.observe(PLAN, batch(new[piece], values[piece]))
    assert parts.log_e == pytest.approx(whole.log_e, abs=1e-9)
    assert parts.peak == pytest.approx(whole.peak, abs=1e-9)
    assert parts.ratio.counts == whole.ratio.counts


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(-5, 9)), max_size=20))
def test_plans_and_states_are_kept_to_the_bit(rows) -> None:
    state = begin(TWO, 12.5, position=7)
    if rows:
        columns = ([row[1] for row in rows], [row[2] for row in rows])
        state = state.look(TWO, batch([row[0] for row in rows], *columns), 0.1 + 0.2, 10**25)
    entry = json.loads(to_json(state_entry(state, 1.0, None)))
    assert state_from_json(entry, "x") == state
    assert plan_from_json(json.loads(to_json(plan_to_json(TWO, 1.0))), "x") == TWO


def explained(units: int, *, seed: int, change: float = 0.0) -> ExposureBatch:
    """Units whose first feature explains a part of their conversions of 30%, as the feed gives them."""
    random = np.random.default_rng(seed)
    records = []
    for number in range(units):
        new, feature = bool(random.random() < 0.5), float(random.normal())
        rate = (1 + change * new) / (1 + math.exp(1.3 + 2 * feature))
        one = decision(number, f"u{number}", float(number), route=f"r1:{'canary' if new else 'control'}:50%")
        records.append(replace(one, context=np.array([feature, 7.0])))
        records.append(outcome(number, float(random.random() < rate), number + 1.0))
    return feed_of(*records).due("50%", 1e9)


def test_features_of_the_first_context_are_covariates_and_kept_to_the_bit() -> None:
    batch_of = explained(300, seed=1)
    assert batch_of.covariates is not None and batch_of.covariates.shape == (300, 12)
    assert batch_of.covariates[:, 1].tolist() == [7.0] * 300
    assert not batch_of.covariates[:, 2:].any()  # fewer features than covariates
    state = begin(PLAN, 0.0).look(PLAN, batch_of, 1.0, 3)
    assert state_from_json(json.loads(to_json(state_entry(state, 1.0, None))), "x") == state
    (one,) = state.evidence.guardrails
    assert one.arms.regression.coefficients[1] < -0.1
    assert one.process.deadline is not None
    assert (one.process.deadline.horizon, one.process.deadline.seen) == (8100, 300)
    plain = no_evidence(PLAN).observe(PLAN, replace(batch_of, covariates=None)).guardrails[0]
    spread = [float(np.sqrt(side.effect.squares / side.effect.count)) for side in (one, plain)]
    assert spread[0] < 0.9 * spread[1]  # the effect is known better
    assert (one.arms.new_count, one.arms.new_sum) == (plain.arms.new_count, plain.arms.new_sum)


def test_a_journal_of_before_goes_on_with_fixed_stakes_alone() -> None:
    entry = json.loads(to_json(state_entry(begin(PLAN, 0.0), 1.0, None)))
    (one,) = entry["state"]["evidence"]["guardrails"]
    del one["process"]["deadline"], one["arms"]["regression"]
    state = state_from_json(entry, "x")
    assert state.evidence.guardrails[0].process.deadline is None
    after = state.look(PLAN, batch([True] * 80 + [False] * 80, [0.0] * 80 + [1.0] * 80), 1.0, 1)
    assert after.evidence.peak > 3


# ---------------------------------------------------------------------------------------------- plans


def test_the_ladder_and_its_units_by_hand() -> None:
    assert PLAN.ladder == ("candidate", "1%", "5%", "25%", "50%", "100%")
    assert replace(PLAN, shadow_requests=9).ladder[1] == "shadow"
    assert [PLAN.units_needed(stage) for stage in PLAN.ladder] == [0, 100, 500, 2500, 5000, 0]
    assert PLAN.guardrail_alpha + PLAN.ratio_alpha == pytest.approx(0.05)
    assert stage_name(0.005) == "0.5%"


def test_the_preview_says_what_each_stage_can_find() -> None:
    rows = PLAN.preview(GuardrailHistory(kind="reward", mean=0.3, sd=0.458))
    assert [row.exposed for row in rows] == [100, 600, 3100, 8100]
    assert [row.requests for row in rows] == [5000, 10_000, 15_000, 20_000]
    falls = [row.detectable for row in rows]
    assert falls[0] is None or falls[0] > 0.5
    assert 0.085 < falls[-1] < 0.1  # a loss of 10% is found in 84% of the runs
    assert falls[-2] > 1.5 * falls[-1]  # the deadline is the end of the last stage
    assert falls[1] > falls[2] > falls[3]


def test_a_loss_that_nobody_can_find_is_said_with_the_requests_that_would() -> None:
    history = GuardrailHistory(kind="reward", mean=0.02, sd=0.14, worth=0.1)
    (sentence,) = PLAN.warnings(history)
    assert "a loss of 10% of 0.02 is found with probability" in sentence
    assert "within 20,000 requests" in sentence
    a_stage = int(sentence.split("; ")[1].split(" ")[0].replace(",", ""))
    assert replace(PLAN, requests=a_stage).warnings(history) == []
    assert replace(PLAN, requests=a_stage - a_stage // 20).warnings(history) != []
    assert PLAN.warnings(replace(history, worth=None)) == []
    tolerant = replace(PLAN, guardrails=(RolloutGuardrail(tolerance=0.01),))
    assert "within the tolerance of 0.01" in tolerant.warnings(history)[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": [0.5, 0.1]}, "stages rise"),
        ({"stages": [0.1, 0.6]}, "at most 0.5"),
        ({"stages": []}, "at least 1 item"),
        ({"range": [0.5, 0.5]}, "range is a part of 0 to 1"),
        ({"guardrails": [GuardrailConfig(), GuardrailConfig(low=-1)]}, "two guardrails have one kind"),
        ({"alpha": 0.0}, "greater than 0"),
    ],
)
def test_configs_that_make_no_rollout_are_refused(changes, message) -> None:
    with pytest.raises(ValidationError, match=message):
        StagedRolloutConfig(**changes)


def test_guardrails_without_a_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="low must be below high"):
        GuardrailConfig(low=1.0, high=1.0)
    with pytest.raises(ValidationError, match="wider than the values' range"):
        GuardrailConfig(tolerance=2.0)
