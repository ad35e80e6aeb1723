"""Whose turn it is: order by number, holes, fair shares. No thread, no clock."""

import itertools

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.text.training_service.turns import HOLE_S, RowOffer, Turns, Waiting, share_pass


def waiting(tenant: str, owner: str, seq: int, *, came_s: float = 0.0, kind: str = "forward_backward") -> Waiting:
    return Waiting(id=f"{owner}/{seq}", tenant=tenant, owner=owner, seq=seq, kind=kind, came_s=came_s)


@given(st.permutations(range(1, 7)))
def test_a_models_requests_begin_in_the_order_of_their_numbers(order: list[int]) -> None:
    turns = Turns()
    turns.open_model("m", 1)
    begun = []
    for seq in order:
        turns.add(waiting("a", "m", seq), ordered=True)
        while ready := list(turns.next_training()):
            turns.begin(ready[0])
            assert list(turns.next_training()) == [], "one at a time"
            turns.end(ready[0])
            begun.append(ready[0].seq)
    assert begun == [1, 2, 3, 4, 5, 6]


def test_requests_behind_a_hole_fail_with_its_number_and_the_model_goes_on() -> None:
    turns = Turns()
    turns.open_model("m", 1)
    for seq in (2, 3):
        turns.add(waiting("a", "m", seq, came_s=10.0), ordered=True)
    assert turns.behind_holes(10.0 + HOLE_S - 0.1) == []
    late = turns.behind_holes(10.0 + HOLE_S)
    assert [(one.seq, hole) for one, hole in late] == [(2, 1), (3, 1)]
    turns.add(waiting("a", "m", 4), ordered=True)
    assert [one.seq for one in turns.next_training()] == [4]


def shares(weights: dict[str, float], cost: dict[str, float], *, rounds: int = 4000) -> dict[str, float]:
    """Share of the work of tenants that always have something waiting, each of whose pieces costs as much as given."""
    turns, work = Turns(weights=weights), dict.fromkeys(weights, 0.0)
    numbers = {tenant: itertools.count(1) for tenant in weights}
    for tenant in weights:
        turns.open_model(tenant, 1)
        turns.add(waiting(tenant, tenant, next(numbers[tenant])), ordered=True)
    for _ in range(rounds):
        one = next(turns.next_training())
        turns.begin(one)
        turns.charge(one.tenant, cost[one.tenant])
        work[one.tenant] += cost[one.tenant]
        turns.add(waiting(one.tenant, one.tenant, next(numbers[one.tenant])), ordered=True)
        turns.end(one)
    return {tenant: seconds / sum(work.values()) for tenant, seconds in work.items()}


def test_shares_follow_the_weights_whatever_a_piece_costs() -> None:
    weights = dict(zip("abcdefgh", (1.0, 1.0, 2.0, 4.0, 1.0, 1.0, 2.0, 4.0), strict=True))
    result = shares(weights, {name: 0.1 + 0.3 * place for place, name in enumerate(weights)})
    for name, weight in weights.items():
        assert result[name] == pytest.approx(weight / 16, abs=0.015), name


def test_first_come_first_served_would_break_the_shares() -> None:
    """The negative control: pieces in the order in which they came give work by their cost."""
    cost = {"flood": 1.0, "calm": 0.1}
    assert shares({"flood": 1.0, "calm": 1.0}, cost)["flood"] == pytest.approx(0.5, abs=0.01)
    assert cost["flood"] / sum(cost.values()) > 0.9, "one piece each in turn"


def test_a_calm_tenant_waits_for_one_turn_and_saves_none_up() -> None:
    turns = Turns()
    turns.open_model("flood", 1)
    turns.open_model("calm", 1)
    for seq in range(1, 50):
        turns.add(waiting("flood", "flood", seq), ordered=True)
    for _ in range(20):  # the calm one was away meanwhile
        one = next(turns.next_training())
        turns.begin(one)
        turns.charge("flood", 1.0)
        turns.end(one)
    order, numbers = list[str](), itertools.count(2)
    turns.add(waiting("calm", "calm", 1, came_s=-1.0), ordered=True)
    for _ in range(10):
        one = next(turns.next_training())
        turns.begin(one)
        turns.charge(one.tenant, 1.0)
        order.append(one.tenant)
        if one.tenant == "calm":
            turns.add(waiting("calm", "calm", next(numbers), came_s=-1.0), ordered=True)
        turns.end(one)
    assert order[:2] == ["calm", "flood"]
    assert order.count("calm") == 5, "alternating, not twenty turns at once"


def test_samples_go_by_the_same_accounts() -> None:
    turns = Turns()
    for tenant, seq in (("a", 1), ("a", 2), ("b", 1)):
        turns.add(waiting(tenant, f"{tenant}:sample", seq, kind="sample"), ordered=False)
    first = turns.next_sample()
    assert first is not None and first.tenant == "a"
    turns.charge("a", 1.0)
    second = turns.next_sample()
    assert second is not None and second.tenant == "b"
    assert turns.drop_sample("a:sample/2") and not turns.drop_sample("a:sample/2")
    assert turns.next_sample() is None


def offer(tenant: str, tokens: list[int], *, weight: float = 1.0, spent_s: float = 0.0) -> RowOffer:
    return RowOffer(tenant=tenant, weight=weight, spent_s=spent_s, tokens=tokens)


def test_a_pass_is_shared_by_weight_and_full() -> None:
    double = [offer("a", [10] * 9, weight=2.0), offer("b", [10] * 9)]
    assert share_pass(double, 60, 1.0) == [0, 1, 0, 0, 1, 0], "twice the weight, twice the rows; 60 tokens fit exactly"
    assert share_pass(double, 59, 1.0) == [0, 1, 0, 0, 1]
    assert share_pass([offer("a", [500, 1])], 60, 1.0) == [0], "a longer row has a pass of its own"
    assert share_pass([offer("a", [60, 1])], 60, 1.0) == [0]
    assert share_pass([offer("a", [1, 1], spent_s=9.0), offer("b", [1])], 60, 1.0)[0] == 1, "the least work first"
    assert share_pass([offer("a", [7, 7]), offer("a", [7])], 60, 1.0) == [0, 0, 1], "two models of a tenant"


def test_others_fill_a_pass_up_to_their_share_of_one_ahead_of_who_has_no_more_rows() -> None:
    def beside(spent_s: float, weight: float = 1.0) -> list[int]:
        return share_pass([offer("few", [10]), offer("many", [10] * 9, spent_s=spent_s, weight=weight)], 60, 0.5)

    assert beside(0.0) == [0, 1, 1, 1, 1, 1], "a full pass is 30 s of work, half of it is 15"
    assert beside(20.0) == [0, 1], "15 s ahead of the 5 of `few`, and no row more"
    assert beside(20.5) == [0]
    assert beside(15.0, weight=2.0) == [0, 1] and beside(15.5, weight=2.0) == [0], "a third of a pass, by its weight"


@examples(50)
@given(
    weights=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=2, max_size=8),
    sizes=st.lists(st.integers(1, 40), min_size=8, max_size=8),
    rows=st.lists(st.integers(1, 4), min_size=8, max_size=8),
)
def test_shares_of_many_passes_follow_the_weights(weights: list[float], sizes: list[int], rows: list[int]) -> None:
    """Whatever rows a call has, and however long they are."""
    work = [0.0] * len(weights)
    for _ in range(400):
        offers = [
            offer(str(place), [sizes[place]] * rows[place], weight=weight, spent_s=work[place] / weight)
            for place, weight in enumerate(weights)
        ]
        chosen = share_pass(offers, 64, 1.0)
        assert all(chosen.count(place) <= rows[place] for place in range(len(weights)))
        assert len(chosen) == 1 or sum(sizes[place] for place in chosen) <= 64
        for place in chosen:
            work[place] += sizes[place]
    for place, weight in enumerate(weights):
        assert abs(work[place] - sum(work) * weight / sum(weights)) <= 64 + 2 * 40
