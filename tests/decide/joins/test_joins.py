"""The join of delayed outcomes: a function of the log alone, without a look into the future."""

import random
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.decisions import ActionSet, DecisionRecord, Outcome
from hone.core.errors import DataError
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import view_bytes
from hone.decide.joins.view import JoinConfig
from support.decision_records import ARMS, decision, outcome, slow_join

TEN = JoinConfig(window_s=10.0)
RULES = ("sum", "first", "last", "max")


@st.composite
def logs(draw: st.DrawFn) -> list[DecisionRecord]:
    """Decisions with none to three outcomes each, orphans, records that are there twice, and ids that are used again.

    Times are whole: ties of records and of window ends occur.
    """
    times = st.integers(0, 40).map(float)
    records: list[DecisionRecord] = []
    for number in range(draw(st.integers(0, 6))):
        name = f"d{draw(st.integers(0, 5))}"
        at_s = draw(times)
        arm, source = draw(st.integers(0, 2)), draw(st.sampled_from(["a", "b"]))
        records.append(decision(name, at_s, seq=number, executed=arm, source=source, unit=f"u{number % 2}"))
    for number in range(draw(st.integers(0, 8))):
        name, value = f"d{draw(st.integers(0, 7))}", draw(st.sampled_from([-1.0, 0.5, 2.0]))
        kind, source = draw(st.sampled_from(["reward", "reward", "view"])), draw(st.sampled_from(["a", "clicks"]))
        records.append(outcome(name, draw(times), value, seq=100 + number, kind=kind, source=source))
    repeated = draw(st.lists(st.sampled_from(records), max_size=3)) if records else []
    return records + repeated


@given(logs(), st.randoms(use_true_random=False), st.integers(0, 50))
@examples(25)
def test_any_order_of_arrival_gives_the_same_bytes(
    log: list[DecisionRecord], chance: random.Random, moment: int
) -> None:
    shuffled = list(log)
    chance.shuffle(shuffled)
    views = [build_view(records, as_of_s=float(moment), join=TEN, tenant="shop") for records in (log, shuffled)]
    assert view_bytes(views[0]) == view_bytes(views[1])


@given(logs(), logs(), st.integers(0, 40))
@examples(25)
def test_records_after_the_moment_change_nothing(
    log: list[DecisionRecord], later: list[DecisionRecord], moment: int
) -> None:
    after = [
        replace(one, at_s=one.at_s + moment + 1.0, seq=one.seq + 1000, **_other_arms(number, one))
        for number, one in enumerate(later)
    ]
    before = view_bytes(build_view(log, as_of_s=float(moment), join=TEN, tenant="shop"))
    assert view_bytes(build_view([*after, *log], as_of_s=float(moment), join=TEN, tenant="shop")) == before


def _other_arms(number: int, one: DecisionRecord) -> dict[str, object]:
    """New actions, schemas and widths of contexts: what comes later must not be looked at."""
    if isinstance(one, Outcome) or number % 2:
        return {}
    return {"actions": ActionSet(names=("a", "b", "c")), "schema": "new", "context": np.zeros(5)}


@given(logs(), st.integers(0, 50), st.sampled_from(RULES), st.sampled_from([0.0, -0.25]))
@examples(40)
def test_rewards_are_those_of_the_slow_join(log: list[DecisionRecord], moment: int, rule: str, default: float) -> None:
    join = JoinConfig.model_validate({"window_s": 10.0, "rule": rule, "default": default})
    view = build_view(log, as_of_s=float(moment), join=join, tenant="shop")
    slow = slow_join(log, as_of_s=float(moment), window_s=10.0, default=default, rule=rule)
    assert view.table.ids == tuple(row.id for row in slow)
    assert view.table.known.tolist() == [row.known for row in slow]
    assert np.array_equal(view.table.reward, [row.reward for row in slow], equal_nan=True)
    counts = view.counts
    assert counts.joined + counts.defaulted + counts.censored == counts.decisions == len(slow)


@given(logs(), st.integers(0, 40), st.integers(0, 20))
@examples(25)
def test_a_final_reward_is_the_same_in_every_later_view(log: list[DecisionRecord], moment: int, more: int) -> None:
    older = build_view(log, as_of_s=float(moment), join=TEN, tenant="shop")
    newer = build_view(log, as_of_s=float(moment + more), join=TEN, tenant="shop")
    assert older.changes_to(newer) == ()
    after = dict(zip(newer.table.ids, newer.table.reward.tolist(), strict=True))
    assert [after[name] for name in older.closed().ids] == older.closed().reward.tolist()


def test_states_of_rows_worked_out_by_hand() -> None:
    log = [
        outcome("d0", 5.0, seq=0), outcome("d0", 7.0, 2.0, seq=1), outcome("d9", 3.0, seq=2),  # d9: an orphan
        decision("d0", 0.0, seq=0), decision("d1", 1.0, seq=1), decision("d2", 95.0, seq=2, executed=1, p=0.25),
        outcome("d1", 30.0, 4.0, seq=3), outcome("d2", 96.0, seq=4), outcome("d0", 6.0, seq=5, kind="seen"),
        outcome("d0", 6.5, float("nan"), seq=6), decision("d0", 0.0, seq=0), outcome("d1", 0.5, 1.0, seq=7),
    ]  # fmt: skip
    view = build_view(log, as_of_s=100.0, join=TEN)
    assert view.table.reward.tolist()[:2] == [3.0, 1.0]
    assert np.isnan(view.table.reward[2])
    assert view.table.known.tolist() == [True, True, False]
    counts = view.counts
    assert (counts.decisions, counts.joined, counts.defaulted, counts.censored) == (3, 2, 0, 1)
    assert (counts.outcomes, counts.late, counts.early, counts.orphans) == (5, 1, 1, 1)
    assert (counts.duplicates, counts.other_kinds, counts.not_finite) == (1, 1, 1)
    assert view.corrections.tolist() == [1]
    assert view.corrected[1] == 5.0
    assert view.with_corrections().reward[1] == 5.0
    assert view.table.reward[1] == 1.0
    assert view.first_delay_s.tolist() == [5.0, 0.0, 1.0]
    assert view.open_share == pytest.approx(1 / 3)


def test_outcomes_beyond_the_declared_range_are_left_out_or_clipped_and_counted() -> None:
    log = [
        decision("d0", 0.0, seq=0), outcome("d0", 1.0, 1e6, seq=0), outcome("d0", 2.0, 0.25, seq=1),
        decision("d1", 1.0, seq=1), outcome("d1", 3.0, -7.0, seq=2),
        decision("d2", 2.0, seq=2), outcome("d2", 30.0, 9.0, seq=3), outcome("d2", 4.0, 9.0, seq=4, kind="seen"),
    ]  # fmt: skip
    for beyond, rewards, corrected, joined in (
        ("refuse", [0.25, 0.0, 0.0], [np.nan] * 3, 1), ("clip", [1.25, -0.5, 0.0], [np.nan, np.nan, 1.0], 2),
    ):  # fmt: skip
        view = build_view(log, as_of_s=100.0, join=JoinConfig(window_s=10.0, low=-0.5, high=1.0, beyond=beyond))
        assert view.table.reward.tolist() == rewards
        np.testing.assert_equal(view.corrected, corrected)
        assert (view.counts.out_of_range, view.counts.joined, view.counts.other_kinds) == (3, joined, 1)


def test_an_outcome_before_its_decision_joins_when_the_decision_arrives() -> None:
    early = [outcome("d0", 2.0, seq=0)]
    assert build_view(early, as_of_s=50.0, join=TEN).counts.orphans == 1
    view = build_view([*early, decision("d0", 1.0, seq=0)], as_of_s=50.0, join=TEN)
    assert (view.counts.orphans, view.table.reward.tolist()) == (0, [1.0])


def test_an_outcome_that_was_delivered_late_is_a_change_between_two_views() -> None:
    log: list[DecisionRecord] = [decision("d0", 0.0, seq=0)]
    older = build_view(log, as_of_s=20.0, join=TEN)
    newer = build_view([*log, outcome("d0", 3.0, seq=0)], as_of_s=20.0, join=TEN)
    (change,) = older.changes_to(newer)
    assert (change.id, change.before, change.after) == ("d0", 0.0, 1.0)


def test_of_two_decisions_with_one_id_the_earlier_counts() -> None:
    log = [decision("d0", 4.0, seq=1, executed=2), decision("d0", 3.0, seq=0, executed=1)]
    view = build_view(log, as_of_s=20.0, join=TEN)
    assert (view.table.executed.tolist(), view.counts.duplicates) == ([1], 1)


def test_one_of_several_schemas_is_joined_by_its_hash() -> None:
    log = [decision("d0", 0.0, seq=0, schema="aa"), decision("d1", 1.0, seq=1, schema="bb", context=(1.0,))]
    view = build_view([*log, outcome("d0", 1.0, seq=0)], as_of_s=50.0, join=TEN, schema="bb")
    assert (view.table.ids, view.table.schemas, view.counts.orphans) == (("d1",), ("bb",), 0)


def test_two_tenants_with_the_same_unit_and_id_do_not_meet() -> None:
    log = [
        decision("d0", 0.0, seq=0, tenant="a"), decision("d0", 0.0, seq=0, tenant="b", executed=1),
        outcome("d0", 1.0, 7.0, seq=0, tenant="b"),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"2 tenants in one log \(a, b\): a view holds one; name the tenant"):
        build_view(log, as_of_s=50.0, join=TEN)
    views = [build_view(log, as_of_s=50.0, join=TEN, tenant=name) for name in ("a", "b")]
    assert [view.table.reward.tolist() for view in views] == [[0.0], [7.0]]
    assert [view.table.executed.tolist() for view in views] == [[0], [1]]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([decision("d0", 0.0, seq=0), decision("d1", 0.0, seq=0)], r"under the same \(source, seq\): \(gateway, 0\)"),
        ([outcome("d0", 0.0, 1.0, seq=3), outcome("d0", 0.0, 2.0, seq=3)], r"\(clicks, 3\)"),
        ([decision("d0", 0.0, seq=0, schema="aa"), decision("d1", 1.0, seq=1, schema="bb")],
         r"2 schemas of features in one view: aa from decision 'd0' at 0; bb from decision 'd1' at 1"),
        ([decision("d0", 0.0, seq=0), decision("d1", 1.0, seq=1, context=(1.0,))],
         r"decision 'd1' has 1 features and 'd0' has 2"),
        ([decision("d0", 0.0, seq=0, executed=3)], r"decision 'd0' executed action 3, and it had 3 actions"),
        ([decision("d0", 0.0, seq=0, actions=ActionSet(names=()))], r"decision 'd0' executed action 0, and it had 0"),
    ],
)  # fmt: skip
def test_faults_are_named(records: list[DecisionRecord], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_view(records, as_of_s=50.0, join=TEN)


def test_contexts_that_differ_by_their_last_bit_are_a_conflict_and_equal_nans_are_none() -> None:
    one = decision("d0", 0.0, seq=0, context=(1.0, float("nan")))
    assert build_view([one, one], as_of_s=1.0).counts.duplicates == 1
    with pytest.raises(DataError, match="differ from another"):
        build_view([one, replace(one, context=np.array([np.nextafter(1.0, 2.0), np.nan]))], as_of_s=1.0)


def test_an_empty_log_gives_an_empty_view() -> None:
    view = build_view([], as_of_s=0.0)
    assert (len(view.table), view.counts.decisions, view.open_share) == (0, 0, 0.0)
    with pytest.raises(DataError, match="no reward is final"):
        view.episodes()


def test_episodes_hold_the_behaviour_policys_probability_and_one_decision_each() -> None:
    log = [
        decision("d0", 0.0, seq=0, executed=1, p=0.25), decision("d1", 1.0, seq=1, version="v2", p=1.0),
        outcome("d1", 2.0, 3.0, seq=0), decision("d2", 30.0, seq=2),
    ]  # fmt: skip
    episodes = build_view(log, as_of_s=32.0, join=TEN).episodes()
    assert (len(episodes), episodes.decisions) == (2, 2)
    assert episodes.logp.tolist() == [np.float32(np.log(0.25)), 0.0]
    assert (episodes.reward.tolist(), episodes.chosen.tolist()) == ([0.0, 3.0], [1, 0])
    assert episodes.version.tolist() == [0, 1]
    assert episodes.terminated.all()


def test_a_learner_gets_one_set_of_actions() -> None:
    log: list[DecisionRecord] = [
        decision("d0", 0.0, seq=0),
        decision("d1", 0.0, seq=1, actions=ActionSet(names=("x",))),
    ]
    with pytest.raises(DataError, match="2 sets of actions in one view"):
        build_view(log, as_of_s=32.0, join=TEN).episodes()


def test_sets_of_actions_with_equal_names_and_other_features_stay_apart() -> None:
    sets = [replace(ARMS, features=np.full((3, 1), value)) for value in (2.0, 1.0)]
    log = [decision(f"d{row}", float(row), seq=row, actions=one) for row, one in enumerate(sets)]
    view = build_view(log, as_of_s=32.0, join=TEN)
    assert len(view.table.action_sets) == 2
    chosen = [view.table.action_sets[place].features for place in view.table.action_set]
    assert [float(one[0, 0]) for one in chosen if one is not None] == [2.0, 1.0]
