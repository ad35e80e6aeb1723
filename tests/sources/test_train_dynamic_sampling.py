"""Dynamic sampling: full batches of groups that say something, at a price that is told."""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.state import State, integer
from hone.credit.group import has_score_variance
from hone.text.recipe import DynamicSampling
from hone.text.tasks.world import supervised_episodes


@dataclass
class Scripted:
    """Hands out one round after another: for each group, whether its two answers differ in score."""

    rounds: list[list[bool]]
    place: int = 0
    published: int = 0

    def collect(self) -> Episodes:
        differs = self.rounds[self.place]
        first = sum(map(len, self.rounds[: self.place]))
        self.place += 1
        token = np.ones(1, np.int32)
        episodes = supervised_episodes([token] * 2 * len(differs), [token] * 2 * len(differs))
        score = np.array([[1.0, 0.0] if one else [1.0, 1.0] for one in differs]).reshape(-1)
        return replace(episodes, group=np.repeat(first + np.arange(len(differs)), 2), score=score)

    def publish(self, policy: None) -> None:
        self.published += 1

    def metrics(self) -> Metrics:
        return {"reward/mean": 0.5}

    def state(self) -> State:
        return {"place": self.place}

    def restore(self, state: State) -> None:
        self.place = integer(state, "place")


def refill(rounds: list[list[bool]], most: int = 10) -> DynamicSampling[None]:
    return DynamicSampling(Scripted(rounds), has_score_variance, max_rounds=most)


def test_it_asks_until_the_batch_is_full_and_tells_the_price() -> None:
    source = refill([[True, False, False], [False, True, False], [True, True, True]])
    batch = source.collect()
    assert batch.group.tolist() == [0, 0, 4, 4, 6, 6]
    assert source.metrics() == {
        "reward/mean": 0.5,
        "dynamic_sampling/rounds": 3.0,
        "dynamic_sampling/informative_groups": 5 / 9,
        "dynamic_sampling/filled_up_groups": 0.0,
        "dynamic_sampling/decisions_per_used": 3.0,
    }
    assert source.metrics() == {"reward/mean": 0.5}, "told once"


def test_a_full_first_round_costs_nothing() -> None:
    source = refill([[True, True]])
    assert source.collect().group.tolist() == [0, 0, 1, 1]
    assert source.metrics()["dynamic_sampling/decisions_per_used"] == 1.0


def test_when_rounds_run_out_the_batch_keeps_its_size() -> None:
    source = refill([[False, True, False], [False, False, False]], most=2)
    assert source.collect().group.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.metrics()["dynamic_sampling/filled_up_groups"] == 2.0


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=6, max_size=6), st.integers(1, 6))
def test_every_batch_is_whole_and_has_the_first_informative_groups(rounds: list[list[bool]], most: int) -> None:
    batch = refill(rounds, most).collect()
    asked = [one for round_ in rounds[:most] for one in round_]
    found = [place for place, one in enumerate(asked) if one][:3]
    groups = batch.group[::2].tolist()
    assert len(groups) == 3
    assert [group for group in groups if asked[group]] == found


def test_a_resume_goes_on_where_the_source_is() -> None:
    rounds = [[True, False], [True, True], [False, True], [True, True]]
    straight = refill(rounds)
    straight.collect()
    state = straight.state()
    expected = straight.collect().group.tolist()
    resumed = refill(rounds)
    resumed.restore(state)
    assert resumed.collect().group.tolist() == expected
