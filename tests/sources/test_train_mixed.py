"""Warm buffers and replay of successes: whose groups are whose, what is kept, ages, and resumed sources."""

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import NO_VALUES, Metrics
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.ragged import offsets_of
from hone.core.state import State, integer
from hone.credit.group import group_relative
from hone.credit.shaping import self_imitation
from hone.sources.logged import (
    LogSource,
    MixedSource,
    SuccessReplay,
    _group_means,
    _with_columns_of,
    informative_groups,
    of_live_groups,
)

Row = tuple[int, int, int, float | None]
"""Question, answer, group, score."""
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.sampled_from([None, 0.0, 0.5, 1.0])),
    min_size=1, max_size=12,
)  # fmt: skip


def episodes(rows: list[Row], *, version: int = 0) -> Episodes:
    """Episodes of a question of one token and an answer of one token and an end."""
    count = len(rows)
    tokens = np.array([[10 + question, answer, 9] for question, answer, _, _ in rows], np.int32).reshape(-1)
    at = (np.arange(count)[:, None] * 3 + [1, 2]).reshape(-1)
    missing = np.array([score is None for *_, score in rows])
    return plain_episodes(
        np.arange(count + 1) * 2,
        seen=Transcript(tokens=tokens, offsets=np.arange(count + 1) * 3, at=at),
        chosen=tokens[at],
        logp=np.full(2 * count, -1.0, np.float32),
        version=np.full(2 * count, version, np.int32),
        group=np.array([group for _, _, group, _ in rows], np.int64),
        score=np.array([np.nan if score is None else score for *_, score in rows]),
        status=np.where(missing, ScoreStatus.ERROR, ScoreStatus.SCORED).astype(np.uint8),
        components=np.zeros((count, 2)),
    )


@dataclass
class Batches:
    """A source of given batches, over and over."""

    batches: list[list[Row]]
    drawn: int = 0
    published: list[int] = field(default_factory=list[int])

    def collect(self) -> Episodes:
        self.drawn += 1
        return episodes(self.batches[(self.drawn - 1) % len(self.batches)], version=self.drawn - 1)

    def publish(self, policy: int) -> None:
        self.published.append(policy)

    def metrics(self) -> Metrics:
        return {"own": 1.0}

    def state(self) -> State:
        return {"drawn": self.drawn}

    def restore(self, state: State) -> None:
        self.drawn = integer(state, "drawn")


LIVE: list[list[Row]] = [[(0, 1, 0, 1.0), (0, 2, 0, 0.0)], [(1, 1, 1, 0.0), (1, 2, 1, 0.0)]]


def mixed() -> MixedSource[int]:
    log = replace(episodes([(2, n, n // 2, float(n % 2)) for n in range(8)]), components=None)
    return MixedSource(Batches(LIVE), log=LogSource[int](log=log, batch_size=2, seed=5, unit="group"))


def test_groups_of_the_log_stand_behind_live_ones_below_zero_and_their_age_is_told() -> None:
    source = mixed()
    seen: list[int] = []
    for step in range(6):
        source.publish(step)
        batch = source.collect()
        assert batch.group[:2].tolist() == [step % 2] * 2 and (batch.group[2:] < 0).all()
        assert len(np.unique(batch.group[2:])) == 2 and len(batch) == 6
        assert batch.components is not None and np.isnan(batch.components[2:]).all()
        told = source.metrics()
        assert told["own"] == 1.0 and told["warm/share"] == 4 / 6 and told["warm/groups"] == 2.0
        assert (told["warm/staleness"], told["warm/staleness_max"]) == (float(step), float(step))
        assert of_live_groups(batch).group.tolist() == batch.group[:2].tolist()
        seen += np.unique(batch.group[2:]).tolist()
    assert len(set(seen)) == 12, "a group that is drawn again in a later epoch has another number"


def test_a_resumed_mixture_is_the_same() -> None:
    straight, halfway = mixed(), mixed()
    for step in range(3):
        straight.publish(step)
        halfway.publish(step)
        straight.collect()
        halfway.collect()
    resumed = mixed()
    resumed.restore(halfway.state())
    resumed.publish(2)  # as the loop does with the restored policy
    for step in (3, 4):
        batches: list[Episodes] = []
        for source in (straight, resumed):
            source.publish(step)
            batches.append(source.collect())
        assert _same(*batches)
        assert straight.metrics() == resumed.metrics()


def _same(one: Episodes, other: Episodes) -> bool:
    columns = one.columns()
    return list(columns) == list(other.columns()) and all(
        np.array_equal(values, other.columns()[name], equal_nan=values.dtype.kind == "f")
        for name, values in columns.items()
    )


def test_columns_that_the_live_source_lacks_are_left_out() -> None:
    live, old = episodes([(0, 0, 0, 1.0)]), replace(episodes([(1, 0, 0, 1.0)]), baseline=np.zeros(1))
    assert _with_columns_of(live, old).baseline is None
    assert _with_columns_of(live, live) is live


@given(rows=ROWS)
def test_informative_groups_are_those_with_two_scores(rows: list[Row]) -> None:
    expected = [
        group
        for group in sorted({group for _, _, group, _ in rows})
        if len({score for _, _, own, score in rows if own == group and score is not None}) > 1
    ]
    assert list(informative_groups(episodes(rows))) == expected


class SlowSuccesses:
    """A plain list of successes, judged one by one, newest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.kept = capacity, list[tuple[int, int, float, float]]()

    def add(self, rows: list[Row]) -> None:
        scores = {
            group: [s for _, _, own, s in rows if own == group and s is not None]
            for group in {g for _, _, g, _ in rows}
        }
        latest: dict[int, float] = {}
        for question, _, group, _ in reversed(rows):
            if scores[group]:
                latest.setdefault(question, float(np.mean(scores[group])))
        found: list[tuple[int, int, float, float]] = []
        for question, answer, _, score in reversed(rows):
            if score is not None and score > latest[question]:
                found.append((question, answer, score, latest[question]))
        for question, answer, score, mean in reversed(self.kept):
            now = latest.get(question, mean)
            if score > now:
                found.append((question, answer, score, now))
        chosen: list[tuple[int, int, float, float]] = []
        for one in found:
            if not any(one[:2] == other[:2] for other in chosen):
                chosen.append(one)
        self.kept = chosen[: self.capacity][::-1]


@given(batches=st.lists(ROWS, min_size=1, max_size=5), capacity=st.integers(1, 6))
def test_successes_are_those_of_a_plain_list(batches: list[list[Row]], capacity: int) -> None:
    source = SuccessReplay[int](Batches(batches), capacity=capacity, sample_size=3, seed=1)
    slow = SlowSuccesses(capacity)
    for rows in batches:
        before = list(slow.kept)
        batch = source.collect()
        slow.add(rows)
        kept: list[tuple[int, int, float, float]] = []
        if source.kept is not None:
            found, means = source.kept, source.kept.baseline
            assert means is not None
            kept = [
                (int(found.transcript.tokens[3 * n]) - 10, int(found.chosen[2 * n]), float(found.score[n]), float(mean))
                for n, mean in enumerate(means)
            ]
        assert np.allclose(np.array(kept).reshape(-1, 4), np.array(slow.kept).reshape(-1, 4))
        old = batch.take(np.flatnonzero(batch.group < 0))
        assert len(old) == (3 if before else 0)
        drawn = {(int(old.transcript.tokens[3 * n]) - 10, int(old.chosen[2 * n])) for n in range(len(old))}
        assert drawn <= {one[:2] for one in before}


def test_better_successes_are_drawn_more_often_and_a_resume_draws_the_same() -> None:
    rows: list[Row] = [(0, 0, 0, 1.0), (0, 1, 0, 0.0), (1, 2, 1, 0.75), (1, 3, 1, 0.5)]  # 0.5 and 0.125 above the mean
    source = SuccessReplay[int](Batches([rows]), capacity=9, sample_size=500, seed=1)
    for step in range(3):
        source.publish(step)
        source.collect()
    resumed = SuccessReplay[int](Batches([rows]), capacity=9, sample_size=500, seed=1)
    resumed.restore(source.state())
    resumed.publish(2)  # as the loop does with the restored policy
    source.publish(3)
    resumed.publish(3)
    batch = source.collect()
    assert _same(batch, resumed.collect())
    old = batch.take(np.flatnonzero(batch.group < 0))
    share = float((old.chosen[::2] == 0).mean())
    assert abs(share - 0.8) < 0.07
    told = source.metrics()
    assert (told["successes/kept"], told["successes/staleness"]) == (2.0, 1.0)
    assert len(np.unique(old.group)) == 500


def test_a_question_without_a_score_keeps_its_successes() -> None:
    batches: list[list[Row]] = [[(0, 0, 0, 1.0), (0, 1, 0, 0.0)], [(0, 2, 1, None)], [(0, 2, 2, 1.0)]]
    source = SuccessReplay[int](Batches(batches), capacity=9, sample_size=1, seed=1)
    sizes: list[int] = []
    for _ in batches:
        source.collect()
        sizes.append(0 if source.kept is None else len(source.kept))
    assert sizes == [1, 1, 0], "asked again and always right: the policy has caught up"
    assert _group_means(episodes(batches[1])).tolist() == [np.inf]


def test_self_imitation_by_hand() -> None:
    live = replace(episodes([(0, 0, 0, 1.0), (0, 1, 0, 0.0)]), baseline=np.full(2, np.nan))
    old = replace(episodes([(1, 0, -1, 1.0), (2, 0, -2, 0.25)]), baseline=np.array([0.25, 0.5]))
    both = Episodes.from_columns(
        offsets_of(np.full(4, 2)),
        {
            "seen": Transcript(
                tokens=np.concatenate([live.transcript.tokens, old.transcript.tokens]),
                offsets=np.arange(5) * 3,
                at=np.concatenate([live.transcript.at, old.transcript.at + 6]),
            ),
            **{name: np.concatenate([values, old.columns()[name]]) for name, values in live.columns().items()},
        },
    )
    found = self_imitation(both, NO_VALUES, credit=lambda e, v: group_relative(e, v, scale="none"), weight=2.0)
    assert found.advantage.tolist() == [0.5, 0.5, -0.5, -0.5, 1.5, 1.5, 0.0, 0.0]
    assert found.metrics["successes/advantage_mean"] == 0.375
    alone = self_imitation(live, NO_VALUES, credit=lambda e, v: group_relative(e, v, scale="none"), weight=2.0)
    assert alone.advantage.tolist() == [0.5, 0.5, -0.5, -0.5]
