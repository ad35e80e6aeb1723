"""Sources and the loop: every row once an epoch, versions that count publications, a memory that warms up."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from scripted_episodes import episodes_of

from hone.control.replay.mixed import ReplaySource
from hone.control.replay.ring import RingBuffer
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.state import State, integer
from hone.learner.config import LearnerConfig, learning_rate_schedule
from hone.recipes.registry import recipe_names
from hone.run.loop import Recipe, train
from hone.run.reporter import Stopwatch, timed
from hone.sources.live import EpisodeStats, LiveSource
from hone.sources.logged import LogSource

SOURCE = Path(__file__).resolve().parents[2] / "src" / "hone"


@dataclass
class CountingWorld:
    """Two episodes of two decisions each, numbered on; decided by whatever version acts."""

    told: int = 0

    def rollout(self, actor: "Actor") -> Episodes:
        episodes = episodes_of([2, 2], first=self.told, version=actor.version)
        self.told += 2
        return episodes

    def state(self) -> State:
        return {"told": self.told}

    def restore(self, state: State) -> None:
        self.told = integer(state, "told")


@dataclass
class Actor:
    version: int = -7
    published: list[tuple[str, int]] = field(default_factory=list)

    def publish(self, policy: str, version: int) -> None:
        self.version = version
        self.published.append((policy, version))


@given(rows=st.integers(1, 12), batch=st.integers(1, 30), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_log_is_read_once_an_epoch(rows: int, batch: int, epochs: int, seed: int) -> None:
    source = LogSource[str](log=episodes_of([1] * rows), batch_size=batch, seed=seed)
    read: list[float] = []
    while len(read) < rows * epochs:
        episodes = source.collect()
        assert len(episodes) == batch
        read.extend(episodes.score.tolist())
    for epoch in range(epochs):
        assert sorted(read[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6), batch=st.integers(1, 12), seed=st.integers(0, 99))
def test_groups_of_a_log_are_drawn_whole_and_never_merged(sizes: list[int], batch: int, seed: int) -> None:
    group = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 2, sizes))
    log = replace(episodes_of([1] * len(group)), group=group)
    source = LogSource[str](log=log, batch_size=batch, seed=seed, unit="group")
    first = source.first_units(batch)
    members = {number: sorted(log.score[group == number].tolist()) for number in group.tolist()}
    read: list[int] = []
    for _ in range(4):
        episodes = source.collect()
        drawn = list(dict.fromkeys(episodes.group.tolist()))
        assert len(drawn) == batch
        for number in drawn:
            mine = int(number) % (int(group.max()) + 1)
            assert sorted(episodes.score[episodes.group == number].tolist()) == members[mine]
        read += [int(number) for number in drawn]
    assert len(set(read)) == len(read)
    assert read[: len(first)] == np.unique(group)[first].tolist()
    assert {number % (int(group.max()) + 1) for number in read[: len(sizes)]} <= set(group.tolist())


def test_every_epoch_has_an_order_of_its_own() -> None:
    source = LogSource[str](log=episodes_of([1] * 30), batch_size=30, seed=0)
    first, second = source.collect().score.tolist(), source.collect().score.tolist()
    assert first != second
    assert first != sorted(first)
    other = LogSource[str](log=episodes_of([1] * 30), batch_size=30, seed=1)
    assert other.collect().score.tolist() != first


@given(rows=st.integers(1, 9), batch=st.integers(1, 7), stop=st.integers(0, 9))
def test_a_log_read_on_from_its_cursor_is_the_log_read_through(rows: int, batch: int, stop: int) -> None:
    straight, stopped, resumed = (
        LogSource[str](log=episodes_of([1] * rows), batch_size=batch, seed=5) for _ in range(3)
    )
    for _ in range(stop):
        straight.collect()
        stopped.collect()
    resumed.restore(stopped.state())
    for _ in range(6):
        assert resumed.collect().score.tolist() == straight.collect().score.tolist()


@dataclass
class Echo:
    """A learner whose policy is a word that grows by a letter with each update."""

    policy: str = ""
    heard: list[float] = field(default_factory=list)

    def values(self, episodes: Episodes) -> Values:
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        self.heard.extend(credits.advantage.tolist())
        self.policy += "x"
        return {"n": float(len(episodes))}

    def state(self) -> State:
        return {"policy": self.policy}

    def restore(self, state: State) -> None:
        self.policy = str(state["policy"])


def judge(episodes: Episodes, values: Values) -> Credits:
    return Credits(advantage=np.repeat(episodes.score, episodes.lengths).astype(np.float32))


def test_the_loop_acts_judges_learns_publishes_and_reports() -> None:
    actor, learner = Actor(), Echo()
    source = LiveSource[str](CountingWorld(), actor)
    said: list[tuple[int, list[int], list[float], Metrics, str]] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        said.append((step, episodes.version.tolist(), credits.advantage.tolist(), metrics, learner.policy))

    policy = train(Recipe(source=source, credit=judge, learner=learner), steps=3, callback=report)
    assert policy == "xxx"
    assert actor.published == [("", 0), ("x", 1), ("xx", 2), ("xxx", 3)]
    assert said == [
        (1, [0] * 4, [0, 0, 1, 1], {"n": 2.0}, "x"),
        (2, [1] * 4, [2, 2, 3, 3], {"n": 2.0}, "xx"),
        (3, [2] * 4, [4, 4, 5, 5], {"n": 2.0}, "xxx"),
    ]


def test_a_restored_recipe_goes_on_with_the_same_versions_and_episodes() -> None:
    def recipe() -> tuple[Recipe[str], Actor, Echo]:
        actor, learner = Actor(), Echo()
        return Recipe(source=LiveSource[str](CountingWorld(), actor), credit=judge, learner=learner), actor, learner

    seen: list[tuple[int, list[int], list[float]]] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        seen.append((step, episodes.version.tolist(), episodes.score.tolist()))

    straight, _, _ = recipe()
    train(straight, steps=5, callback=report)
    expected, seen = seen, []
    first, _, learner = recipe()
    train(first, steps=2, callback=report)
    second, actor, other = recipe()
    second.source.restore(first.source.state())
    other.restore(learner.state())
    assert train(second, steps=5, callback=report, first_step=3) == "xxxxx"
    assert seen == expected
    assert actor.published[0] == ("xx", 2), "the restored policy is published under the version that it had"


def test_parts_are_timed_and_otherwise_the_same() -> None:
    clock = ManualClock()
    watch = Stopwatch(clock)
    learner = Echo()
    recipe = timed(Recipe(source=LiveSource[str](CountingWorld(), Actor()), credit=judge, learner=learner), watch)
    reported: list[float] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        assert watch.episodes is episodes
        assert watch.credits is credits
        reported.extend(credits.advantage.tolist())

    assert train(recipe, steps=2, callback=report) == "xx"
    assert reported == learner.heard == [0, 0, 1, 1, 2, 2, 3, 3]
    watch.time("slow", lambda: clock.advance(1.5))
    watch.time("slow", lambda: clock.advance(2.0))
    told = watch.pop_metrics()
    assert told["time/slow_s"] == 3.5
    assert {"time/collect_s", "time/credit_s", "time/values_s", "time/update_s", "time/publish_s"} < told.keys()
    assert watch.pop_metrics() == {}


@pytest.mark.parametrize(("warmup", "rollouts"), [(0, 1), (4, 1), (5, 2), (17, 5)])
def test_a_memory_is_warm_before_its_first_sample(warmup: int, rollouts: int) -> None:
    """A rollout of the world is four transitions."""
    world = CountingWorld()
    source = ReplaySource[str](
        source=LiveSource[str](world, Actor()), buffer=RingBuffer(100), sample_size=6, warmup=warmup, seed=0
    )
    source.publish("p")
    assert len(source.collect()) == 6
    assert world.told == 2 * rollouts
    source.collect()
    assert world.told == 2 * rollouts + 2, "after the warm-up: one rollout a step"


def test_a_memory_restored_hands_out_the_same_sample() -> None:
    def memory() -> ReplaySource[str]:
        source = ReplaySource[str](
            source=LiveSource[str](CountingWorld(), Actor()), buffer=RingBuffer(11), sample_size=5, warmup=8, seed=2
        )
        source.publish("p")
        return source

    straight, resumed = memory(), memory()
    for _ in range(4):
        straight.collect()
    resumed.restore(straight.state())
    resumed.publish("p")
    for _ in range(3):
        one, other = straight.collect(), resumed.collect()
        assert one.score.tolist() == other.score.tolist()
        assert one.observations.tolist() == other.observations.tolist()


def test_every_sample_is_drawn_anew() -> None:
    """The ring holds just one rollout, so what was drawn is told by scores counted from its first episode."""
    source = ReplaySource[str](
        source=LiveSource[str](CountingWorld(), Actor()), buffer=RingBuffer(4), sample_size=30, warmup=0, seed=0
    )
    source.publish("p")
    drawn = [(source.collect().score - 2 * step).tolist() for step in range(3)]
    assert all(set(draws) == {0.0, 1.0} for draws in drawn)
    assert drawn[0] != drawn[1] != drawn[2]


def test_outcomes_are_told_of_episodes_that_ended_and_were_scored() -> None:
    episodes = episodes_of([1, 2, 3, 4], first=10)
    episodes.terminated[:] = [True, False, True, False]
    episodes.truncated[:] = [False, True, False, False]  # the last one is a piece that goes on
    episodes.status[2] = ScoreStatus.TIMEOUT
    episodes.score[2] = np.nan
    lived = EpisodeStats()
    lived.add(episodes)
    assert lived.pop_metrics() == {
        "episodes/decisions": 10.0,
        "episodes/ended": 3.0,
        "reward/mean": 10.5,
        "reward/std": 0.5,
        "episodes/truncated": 1 / 3,
        "reward/missing": 1 / 3,
    }
    assert lived.pop_metrics() == {"episodes/decisions": 0.0, "episodes/ended": 0.0}


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.8681980515, 0.55, 0.2318019485, 0.1]),
    ],
)
def test_schedules_by_hand(decay: str, expected: list[float]) -> None:
    """Four steps of warm-up to 1, four of decay to 0.1."""
    config = LearnerConfig.model_validate({"lr": 1.0, "warmup_steps": 4, "lr_decay": decay, "final_lr": 0.1})
    rate = learning_rate_schedule(config, 8)
    assert [rate(update) for update in range(9)] == pytest.approx(expected)
    assert rate(1000) == pytest.approx(expected[-1])


def test_optimizer_steps_are_counted() -> None:
    config = LearnerConfig(lr=1e-3, epochs=3, minibatches=4)
    assert config.optimizer_steps(10) == 120
    assert learning_rate_schedule(LearnerConfig(lr=1e-3, warmup_steps=50, lr_decay="linear"), 20)(19) == pytest.approx(
        1e-3 * 20 / 50
    )


def test_loop_and_learner_know_no_algorithm() -> None:
    """They name no recipe, and they branch on nothing that a recipe is called by."""
    words = {*recipe_names(), "sft", "grpo", "ppo", "dqn", "rloo", "dpo", "bandit", "gae", "language", "gymnasium"} - {
        "collect"
    }
    learners = sorted(
        {*(SOURCE / "learner").glob("*.py")}
        - {SOURCE / "learner" / f"{name}.py" for name in ("job_memory", "low_rank_parameters")}
    )
    assert len(learners) > 5
    for file in (SOURCE / "run" / "loop.py", *learners):
        code = re.sub(r'""".*?"""', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        found = words & set(re.findall(r"[a-z]+", code.lower()))
        assert not found, f"{file.name} speaks of {found}"
        assert not re.search(r"isinstance|\.kind\b|algorithm ==", code), file.name
