"""Off-policy evaluation on tables of decisions: catalogue, segments, comparisons, drills of broken logs, evidence."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hone.core.decisions import ActionSet, DecisionTable, Floats
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.decide.evaluate.off_policy import (
    LOGGED,
    estimate_policies,
    logged_feedback,
    segment_labels,
)
from hone.decide.joins.view import take_decisions
from hone.decide.simulators.logged_choices import LinearChoicePolicy, LoggedChoiceWorld, logged_choice_world

WORLD = logged_choice_world(1)
LOG = WORLD.log(3000, seed=7)


def spoiled(table: DecisionTable, column: str, row: int, value: float) -> DecisionTable:
    values: Floats = np.array(table.logp if column == "logp" else table.reward)
    values[row] = value
    return replace(table, **{column: values})


def test_a_report_holds_the_true_values_and_orders_the_candidates() -> None:
    worse = LinearChoicePolicy(weights=-WORLD.target.weights, floor=0.1)
    report = estimate_policies(LOG, {"worse": worse, "new": WORLD.target, "same": WORLD.behaviour})
    for name, policy in (("worse", worse), ("new", WORLD.target), ("same", WORLD.behaviour)):
        found = report.of(name).deciding
        assert abs(found.value - WORLD.value(policy)) < 3.5 * found.standard_error
        assert [one.estimator for one in report.of(name).estimates] == ["dr", "snips", "ips", "dm"]
    assert report.ranking == ("new", "same", "worse")
    assert report.logged.value == pytest.approx(LOG.reward.mean())
    assert report.of("same").deciding.ess == pytest.approx(3000)
    words = {(one.first, one.second): one.words for one in report.differences}
    assert words[LOGGED, "new"].startswith(f"new is better than {LOGGED} by +0.1")
    assert words["worse", "new"].startswith("new is better than worse by +")
    assert words[LOGGED, "same"].startswith(f"no difference shown between same and {LOGGED}")
    assert sum(report.propensity_counts) == report.used == 3000
    assert report.of("new").verdict_words(report).startswith("new is better")


def test_a_policy_compared_with_itself_differs_by_exactly_nothing() -> None:
    report = estimate_policies(LOG, {"one": WORLD.target, "other": WORLD.target}, estimators=["dr"])
    pair = report.differences[-1].estimate
    assert (pair.value, pair.low, pair.high) == (0.0, 0.0, 0.0)


def test_evidence_for_the_registry_says_what_was_found() -> None:
    report = estimate_policies(LOG, {"runs/new": WORLD.target}, estimators=["snips"])
    evidence = report.policies[0].evidence(report, made_by="hone estimate log.db", at_s=12.0)
    found = report.policies[0].deciding
    assert (evidence.kind, evidence.verdict, evidence.count, evidence.at_s) == ("offline", "ok", 3000, 12.0)
    assert (evidence.value, evidence.low, evidence.high) == (found.value, found.low, found.high)
    assert "runs/new is better" in evidence.words


def test_actions_of_several_sets_are_matched_by_their_names() -> None:
    """Set b offers two of set a's actions in another order, and one of its own."""

    class UniformChoice(LinearChoicePolicy):
        pass

    sets = (ActionSet(names=("x", "y")), ActionSet(names=("z", "y")))
    table = replace(
        take_decisions(LOG, np.arange(4)), action_sets=sets, action_set=np.array([0, 0, 1, 1]),
        executed=np.array([0, 1, 0, 1]), logp=np.log(np.full(4, 0.5)), contexts=np.ones((4, 1)),
    )  # fmt: skip
    tilted = UniformChoice(weights=np.log(np.array([[1.0, 3.0]])))
    logged = logged_feedback(table, tilted)
    assert logged.action.tolist() == [0, 1, 2, 1]  # columns x, y, z
    assert logged.target[0] == pytest.approx([0.25, 0.75, 0])
    assert logged.target[2] == pytest.approx([0, 0.75, 0.25])
    assert logged.weight == pytest.approx([0.5, 1.5, 0.5, 1.5])


def test_rows_of_one_unit_are_clustered() -> None:
    twice = replace(LOG, units=tuple(f"u{number // 2}" for number in range(3000)))
    logged = logged_feedback(twice, WORLD.target)
    assert logged.unit[:4].tolist() == [0, 0, 1, 1]
    assert estimate_policies(twice, {"new": WORLD.target}).policies[0].deciding.units == 1500


@pytest.mark.parametrize(
    ("segment", "first"), [("choice", "offer "), ("version", "behaviour"), ("route", ""), ("feature:0", "")]
)
def test_segments_cover_every_row(segment: str, first: str) -> None:
    report = estimate_policies(LOG, {"new": WORLD.target}, estimators=["dr"], segment=segment)
    segments = report.policies[0].segments
    assert sum(one.estimate.n for one in segments) == 3000
    assert all(one.segment.startswith(first) for one in segments)
    total = sum(one.estimate.n * one.estimate.value for one in segments) / 3000
    assert total == pytest.approx(report.policies[0].deciding.value)


def test_a_feature_of_few_values_is_a_segment_each_and_an_unknown_segment_is_named() -> None:
    few = replace(LOG, contexts=np.column_stack([np.arange(3000) % 3, LOG.contexts[:, 1:]]))
    logged = logged_feedback(few, WORLD.target)
    assert set(segment_labels("feature:0", few, logged)) == {"0", "1", "2"}
    assert len(set(segment_labels("feature:1", few, logged))) == 4
    with pytest.raises(ConfigError, match=r"no segment 'feature:9'.* the contexts have 5 features"):
        segment_labels("feature:9", few, logged)
    with pytest.raises(ConfigError, match="did you mean version"):
        segment_labels("versoin", few, logged)


# ----------------------------------------------------------------------------------------------------- drills


@pytest.mark.parametrize(
    ("table", "rule", "used"),
    [
        (spoiled(LOG, "logp", 5, -math.inf), "propensities", 2999),
        (spoiled(LOG, "logp", 5, 0.5), "propensities", 2999),
        (spoiled(LOG, "reward", 5, math.nan), "rewards", 2999),
        (replace(LOG, ids=("d1", *LOG.ids[1:])), "duplicates", 3000),
        (replace(LOG, schemas=("old",) * 1000 + ("new",) * 2000), "schemas", 3000),
        (replace(LOG, known=np.arange(3000) < 2400), "open windows", 2400),
        (replace(LOG, reward=LOG.reward + (np.arange(3000) > 1500)), "drift", 3000),
    ],
    ids=["p is 0", "p above 1", "no reward", "duplicates", "mixed schemas", "open windows", "drift inside"],
)
def test_a_broken_log_is_refused_by_name_and_its_sound_rows_are_still_shown(
    table: DecisionTable, rule: str, used: int
) -> None:
    report = estimate_policies(table, {"new": WORLD.target}, estimators=["dr"])
    found = report.policies[0].deciding
    assert found.verdict == report.verdict == "refuse"
    assert [reason.rule for reason in found.reasons if reason.verdict == "refuse"] == [rule]
    assert report.used == used
    assert math.isfinite(found.value)
    assert report.policies[0].verdict_words(report) == "this log cannot tell the value of new"
    assert "cannot be compared" in report.differences[0].words


def mixed_versions(world: LoggedChoiceWorld, *, lie: float) -> DecisionTable:
    """Every fourth row is of another version; `lie`: nats that its logged probabilities are too high."""
    other = world.log(1000, seed=8, policy=LinearChoicePolicy(weights=0 * world.target.weights))
    place = np.repeat(np.arange(1000), 4) * 4 + np.tile(np.arange(4), 1000)
    order = np.argsort(np.concatenate([place[place % 4 > 0], place[place % 4 == 0]]), kind="stable")
    table = DecisionTable(
        contexts=np.concatenate([LOG.contexts, other.contexts]),
        action_sets=LOG.action_sets,
        action_set=np.zeros(4000, np.int64),
        executed=np.concatenate([LOG.executed, other.executed]),
        logp=np.concatenate([LOG.logp, other.logp + lie]),
        reward=np.concatenate([LOG.reward, other.reward]),
        known=np.ones(4000, np.bool_),
        at_s=np.zeros(4000),
        ids=LOG.ids + tuple(f"o{number}" for number in range(1000)),
        units=tuple(f"u{number}" for number in range(4000)),
        versions=LOG.versions + ("other",) * 1000,
    )
    return replace(take_decisions(table, order), at_s=np.arange(4000.0))


def test_mixed_versions_are_estimated_by_each_rows_own_propensity() -> None:
    report = estimate_policies(mixed_versions(WORLD, lie=0.0), {"new": WORLD.target}, estimators=["dr"])
    found = report.policies[0].deciding
    assert report.versions == ("behaviour", "other")
    assert found.verdict == "ok"
    assert abs(found.value - WORLD.value(WORLD.target)) < 3 * found.standard_error


def test_a_version_that_logs_wrong_propensities_is_found() -> None:
    report = estimate_policies(mixed_versions(WORLD, lie=1.0), {"new": WORLD.target}, estimators=["dr"])
    assert report.verdict == "refuse"
    assert any(reason.rule == "support" for reason in report.policies[0].deciding.reasons)


def test_a_greedy_log_without_a_floor_is_refused_and_a_floored_one_is_not() -> None:
    greedy = LinearChoicePolicy(weights=WORLD.behaviour.weights, temperature=1e-3)
    refused = estimate_policies(WORLD.log(3000, seed=9, policy=greedy), {"new": WORLD.target}, estimators=["dr"])
    assert "support" in {reason.rule for reason in refused.policies[0].deciding.reasons}
    assert refused.verdict == "refuse"
    floored = LinearChoicePolicy(weights=WORLD.behaviour.weights, temperature=1e-3, floor=0.3)
    kept = estimate_policies(WORLD.log(3000, seed=9, policy=floored), {"new": floored}, estimators=["dr"])
    assert kept.verdict == "ok"


def test_a_known_behaviour_policy_makes_support_exact() -> None:
    report = estimate_policies(LOG, {"new": WORLD.target}, behaviour=WORLD.behaviour, estimators=["dr"])
    assert report.policies[0].deciding.overlap == 1.0


def test_a_wrapped_bandit_is_a_candidate_like_any_other() -> None:
    wrapped = EpsilonFloor(WORLD.target, 0.5)
    found = estimate_policies(LOG, {"wrapped": wrapped}, estimators=["dr"]).policies[0].deciding
    uniform = WORLD.mean_reward.mean()
    assert found.value == pytest.approx(0.5 * WORLD.value(WORLD.target) + 0.5 * uniform, abs=0.07)


def test_what_cannot_be_estimated_is_told_with_the_rows_and_names() -> None:
    with pytest.raises(ConfigError, match="no estimator 'drr'; did you mean dr"):
        estimate_policies(LOG, {"new": WORLD.target}, estimators=["drr"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="at least one policy"):
        estimate_policies(LOG, {})
    with pytest.raises(ConfigError, match="name of the policy that wrote the log"):
        estimate_policies(LOG, {LOGGED: WORLD.target})
    with pytest.raises(DataError, match="none of the 3000 rows can be used"):
        estimate_policies(replace(LOG, known=np.zeros(3000, np.bool_)), {"new": WORLD.target})


def test_a_policy_that_gives_no_distribution_is_named_with_the_decision() -> None:
    class HalfPolicy(LinearChoicePolicy):
        def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
            return np.log(np.full((len(contexts), len(actions)), 0.5))

    with pytest.raises(UserCodeError, match=r"new: the probabilities of 3000 rows .* decision 'd0' add up to 4"):
        estimate_policies(LOG, {"new": HalfPolicy(weights=WORLD.target.weights)})
    narrow = LinearChoicePolicy(weights=np.zeros((3, 8)))
    with pytest.raises(UserCodeError, match="new failed on 3000 contexts of 5 features and 8 actions"):
        estimate_policies(LOG, {"new": narrow})
