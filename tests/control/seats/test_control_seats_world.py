"""Matches as episodes per seat: rewards in between, ends at different times, masks, resume, and players kept apart."""

from collections import defaultdict

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from seat_games import CountingActor, UnevenGame

from hone.control.seats.adapters import PettingZooParallel, PettingZooTurns, game_maker
from hone.control.seats.game import SeatGame, SeatsConfig, SeatStep, seat_groups
from hone.control.seats.matches import SeatLayout
from hone.control.seats.players import RandomPlayer
from hone.control.seats.training import LearnerSeats
from hone.control.seats.world import LEARNER, SeatWorld, open_seat_world
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import ConfigError, UserCodeError
from hone.core.state import State
from hone.sources.live import _join_pieces

UNEVEN = SeatsConfig(id="seat_games:UnevenGame", num_envs=3)
KUHN = SeatsConfig(id="openspiel:kuhn_poker", num_envs=3)


def whole_episodes(world: SeatWorld, rollouts: int) -> Episodes:
    """Ended episodes of several rollouts, their pieces put together."""
    actor = CountingActor(world.layout.policy_spaces.choices.count)
    pieces = [world.rollout(actor) for _ in range(rollouts)]
    return _join_pieces(concatenate(pieces))[0]


def replayed(world_seed: int, number: int, episodes: Episodes) -> dict[int, tuple[list[int], list[float], float]]:
    """Actions, rewards and score of each seat of a match by a plain loop over a game of its own: the slow version."""
    from hone.core.random import key

    game, place = UnevenGame(), {0: 0, 1: 0, 2: 0}
    game.reset(key(world_seed, "match", number) & 0x3FFFFFFF)
    of_seat = {int(episodes.seat[e]): e for e in np.flatnonzero(episodes.match == number)}
    rows: dict[int, list[int]] = defaultdict(list)
    paid: dict[int, list[float]] = defaultdict(list)
    score = {0: 0.0, 1: 0.0, 2: 0.0}
    while game.to_move():
        actions = {}
        for seat in game.to_move():
            index = int(episodes.chosen[episodes.offsets[of_seat[seat]] + place[seat]])
            place[seat] += 1
            rows[seat].append(index)
            paid[seat].append(0.0)
            actions[seat] = index + (5 if seat == 1 else 0)
        for seat, reward in game.step(actions).rewards.items():
            score[seat] += reward
            if paid[seat]:
                paid[seat][-1] += reward
    return {seat: (rows[seat], paid[seat], score[seat]) for seat in rows}


@examples(12)
@given(seed=st.integers(0, 2**31), decisions=st.integers(1, 40))
def test_each_seat_of_a_match_is_an_episode_with_the_rewards_between_its_turns(seed: int, decisions: int) -> None:
    world = open_seat_world(UNEVEN, decisions=decisions, seed=seed)
    episodes = whole_episodes(world, 1 + 120 // decisions)
    for number in np.unique(episodes.match)[:3].tolist():
        own = np.flatnonzero(episodes.match == number)
        if len(own) < 3:
            continue  # a seat of it goes on, or never moved
        expected = replayed(seed, number, episodes)
        for e in own:
            rows = slice(episodes.offsets[e], episodes.offsets[e + 1])
            chosen, reward, score = expected[int(episodes.seat[e])]
            assert episodes.chosen[rows].tolist() == chosen
            assert episodes.reward[rows].tolist() == reward
            assert episodes.score[e] == score
            assert bool(episodes.truncated[e]) == (episodes.seat[e] == 0)
            assert bool(episodes.terminated[e]) == (episodes.seat[e] != 0)


def test_rows_have_the_views_the_masks_and_the_seat() -> None:
    episodes = whole_episodes(open_seat_world(UNEVEN, decisions=60, seed=1), 2)
    seat = episodes.seat[episodes.owner]
    clock = np.where(seat == 1, episodes.observations[:, :40].argmax(axis=1), episodes.observations[:, 0])
    assert episodes.observations.shape[1] == 40 + 3  # the widest view, which is one-hot, and the seat
    np.testing.assert_array_equal(episodes.observations[:, 40:], np.eye(3)[seat])
    legal = (clock[:, None] + np.arange(3)) % 3 > 0
    legal[seat == 2, 2] = False  # it has two actions
    np.testing.assert_array_equal(episodes.mask, legal)
    assert legal[np.arange(len(seat)), episodes.chosen].all()
    np.testing.assert_allclose(episodes.logp, -np.log(legal.sum(axis=1)), rtol=1e-6)
    for e in range(len(episodes)):  # the last view, after the last decision
        row = episodes.final[e]
        last = row[:40].argmax() if episodes.seat[e] == 1 else row[0]
        assert last == (4 if episodes.seat[e] == 2 else 9)


def test_a_rollout_ends_with_enough_rows_and_pieces_follow_each_other() -> None:
    world, actor = open_seat_world(UNEVEN, decisions=7, seed=2), CountingActor(3)
    pieces = [world.rollout(actor) for _ in range(12)]
    assert all(7 <= piece.decisions <= 7 + 9 for piece in pieces)
    final: dict[int, np.ndarray] = {}
    for piece in pieces:
        for e in range(len(piece)):
            number = int(piece.group[e])
            if number in final:  # the view that the cut piece ended with is the next decision's
                np.testing.assert_array_equal(piece.observations[piece.offsets[e]], final[number])
            final[number] = piece.final[e]
    whole, _ = _join_pieces(concatenate(pieces))
    assert len(np.unique(whole.group)) == len(whole)


@pytest.mark.parametrize("whole_state", [False, True])
@pytest.mark.parametrize("config", [UNEVEN, KUHN], ids=["own", "openspiel"])
def test_a_resumed_world_is_the_same_to_the_bit(config: SeatsConfig, whole_state: bool) -> None:
    if config is KUHN:
        pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")

    def opened() -> SeatWorld:
        return open_seat_world(config, decisions=10, seed=3, whole_state=whole_state)

    world = opened()
    actor = CountingActor(world.layout.policy_spaces.choices.count)
    for _ in range(3):
        world.rollout(actor)
    state, again = world.state(), opened()
    again.restore(state)
    for _ in range(3):
        one, other = world.rollout(actor), again.rollout(actor)
        np.testing.assert_equal(
            {"offsets": one.offsets, **one.columns()}, {"offsets": other.offsets, **other.columns()}
        )


def test_a_game_that_does_not_repeat_begins_new_matches_and_says_so() -> None:
    config = UNEVEN.model_copy(update={"kwargs": {"repeatable": False}})
    world, actor = open_seat_world(config, decisions=10, seed=3), CountingActor(3)
    assert "a resume will begin new matches" in world.warnings[0]
    world.rollout(actor)
    again = open_seat_world(config, decisions=10, seed=3)
    again.restore(world.state())
    fresh = again.rollout(actor)
    assert fresh.match.min() >= world.begun - 3
    unchecked = config.model_copy(update={"check": False})
    world, again = (open_seat_world(unchecked, decisions=10, seed=3) for _ in range(2))
    world.rollout(actor)
    again.restore(world.state())
    assert "replayed matches differ" in again.pop_notices()[0]
    assert again.rollout(actor).decisions >= 10


class OneSeat:
    """The learner has one seat, in turn; a random player has the others."""

    def __init__(self, layout: SeatLayout) -> None:
        self.other, self.results = RandomPlayer(layout), list[tuple[list[int], np.ndarray]]()

    def draw(self, match: int) -> list[int]:
        return [LEARNER if seat == match % 3 else 7 for seat in range(3)]

    def player(self, number: int) -> RandomPlayer:
        assert number == 7
        return self.other

    def record(self, players, returns) -> None:
        self.results.append((list(players), returns.copy()))

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        del state


def test_rows_of_other_players_never_reach_the_learner() -> None:
    world = open_seat_world(UNEVEN, decisions=30, seed=4)
    world.seating = seating = OneSeat(world.layout)
    learner, every = LearnerSeats(world), world.rollout(CountingActor(3, version=5))
    assert set(every.played_by) == {LEARNER, 7}
    own = every.owner[np.flatnonzero(every.played_by[every.owner] == LEARNER)]
    assert (every.seat[own] == every.match[own] % 3).all(), "seats are swapped from match to match"
    mine = every.played_by[every.owner] == LEARNER
    assert np.isnan(every.logp[~mine]).all()
    assert np.isfinite(every.logp[mine]).all()
    assert set(every.version[mine]) == {5}
    kept = learner.rollout(CountingActor(3))
    assert set(kept.played_by) == {LEARNER}
    assert kept.decisions >= 30
    players, returns = seating.results[0]
    assert players == seating.draw(0)
    scores = {
        int(s): float(v) for s, v in zip(every.seat[every.match == 0], every.score[every.match == 0], strict=True)
    }
    assert all(returns[seat] == score for seat, score in scores.items())


def test_the_state_of_a_match_is_that_of_all_seats_and_ends_in_the_seat() -> None:
    world = open_seat_world(UNEVEN, decisions=30, seed=5, whole_state=True)
    episodes = world.rollout(CountingActor(3))
    assert episodes.state.shape == (episodes.decisions, 3 * 40 + 3)
    assert episodes.final_state.shape == (len(episodes), 3 * 40 + 3)
    seat = episodes.seat[episodes.owner]
    np.testing.assert_array_equal(episodes.state[:, 120:], np.eye(3)[seat])
    for place in range(3):  # a seat's own view is the part of its place
        own = seat == place
        np.testing.assert_array_equal(
            episodes.state[own, 40 * place : 40 * (place + 1)], episodes.observations[own, :40]
        )


def test_a_match_is_truncated_after_its_limit() -> None:
    config = UNEVEN.model_copy(update={"max_match_steps": 3})
    episodes = whole_episodes(open_seat_world(config, decisions=30, seed=6), 2)
    assert episodes.truncated.all()
    assert not episodes.terminated.any()
    assert episodes.lengths.max() <= 3


# ------------------------------------------------------------------------------------------------------------- adapters


def agent_iter(env, seed: int, moves: list[int]) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Rewards and decisions of each agent by PettingZoo's own loop, playing `moves`."""
    env.reset(seed=seed)
    rewards, decisions, queue = defaultdict(list), defaultdict(int), iter(moves)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        if decisions[agent]:
            rewards[agent].append(reward)
        if terminated or truncated:
            env.step(None)
            continue
        decisions[agent] += 1
        env.step(next(queue))
    return rewards, decisions


def test_turns_of_pettingzoo_are_those_of_its_own_loop() -> None:
    pettingzoo = pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")
    pytest.importorskip("pygame", reason="PettingZoo's classic games draw with pygame")
    config = SeatsConfig(id="pettingzoo:classic/connect_four-v3", num_envs=2)
    world = open_seat_world(config, decisions=150, seed=1)
    assert isinstance(world.matches[0].game, PettingZooTurns)
    episodes = whole_episodes(world, 1)
    from hone.core.random import key

    for number in np.unique(episodes.match)[:2].tolist():
        own = {int(episodes.seat[e]): e for e in np.flatnonzero(episodes.match == number)}
        columns = [
            episodes.chosen[episodes.offsets[e] : episodes.offsets[e + 1]].tolist() for _, e in sorted(own.items())
        ]
        moves = [column[turn] for turn in range(len(columns[0])) for column in columns if turn < len(column)]
        env = pettingzoo.make("aec", "classic/connect_four-v3")
        rewards, decisions = agent_iter(env, key(1, "match", number) & 0x3FFFFFFF, moves)
        for seat, e in own.items():
            rows = slice(episodes.offsets[e], episodes.offsets[e + 1])
            assert episodes.reward[rows].tolist() == rewards[f"player_{seat}"]
            assert episodes.lengths[e] == decisions[f"player_{seat}"]
    assert {float(score) for score in episodes.score} <= {-1.0, 0.0, 1.0}
    assert episodes.terminated.all()


class Parallel:
    """A parallel environment in which an agent leaves a step before the others, who are truncated."""

    possible_agents = ("x", "y")

    def observation_space(self, agent):
        from gymnasium import spaces

        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        from gymnasium import spaces

        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.clock = ["x", "y"], 0
        return self._seen(), {}

    def _seen(self):
        return {agent: np.array([self.clock], np.float32) for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.clock += 1
        live, seen = self.agents, self._seen()
        ends, cuts = (dict.fromkeys(live, value) for value in (False, False))
        ends["x"] = self.clock == 2
        cuts["y"] = self.clock == 3
        self.agents = [agent for agent in live if not (ends.get(agent) or cuts.get(agent))]
        rewards = {agent: float(self.clock) for agent in live}
        return seen, rewards, {agent: ends[agent] for agent in live}, {agent: cuts[agent] for agent in live}, {}


def test_agents_of_a_parallel_environment_end_at_different_times() -> None:
    game = PettingZooParallel(Parallel())
    game.reset(0)
    steps = []
    while game.to_move():
        steps.append(game.step(dict.fromkeys(game.to_move(), 1)))
    assert [step.rewards for step in steps] == [{0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}, {1: 3.0}]
    assert [list(step.terminated) for step in steps] == [[], [0], []]
    assert [list(step.truncated) for step in steps] == [[], [], [1]]
    assert game.observe(0).seen.tolist() == [2]
    assert game.observe(1).seen.tolist() == [3]


def test_chance_of_openspiel_follows_the_seed_and_the_probabilities() -> None:
    pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    game = game_maker(KUHN)()
    deals: dict[str, int] = defaultdict(int)
    for seed in range(600):
        game.reset(seed)
        deals[str(game.position)] += 1
        first = str(game.position)
        game.reset(seed)
        assert str(game.position) == first
    assert len(deals) == 6  # two of three cards, in order
    assert all(60 < count < 140 for count in deals.values())  # 100 expected, sd 9


def test_rewards_of_kuhn_poker_are_those_of_its_rules() -> None:
    pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    game = game_maker(KUHN)()
    game.reset(1)
    cards = [int(card) for card in str(game.position).split()]
    winner = int(cards[1] > cards[0])
    assert game.step({0: 1}).rewards == {0: 0.0, 1: 0.0}  # a bet
    last = game.step({1: 1})  # called: two chips each
    assert last.rewards == {winner: 2.0, 1 - winner: -2.0}
    assert list(last.terminated) == [0, 1]
    assert game.to_move() == []


# --------------------------------------------------------------------------------------------------------------- faults


class NoLegal(UnevenGame):
    def observe(self, seat):
        view = super().observe(seat)
        return type(view)(seen=view.seen, mask=np.zeros_like(view.mask))


class Infinite(UnevenGame):
    def step(self, actions):
        return SeatStep(rewards={0: float("nan")})


class Fails(UnevenGame):
    def step(self, actions):
        raise RuntimeError("the dice fell off the table")


class AtOnce(UnevenGame):
    def to_move(self):
        return []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoLegal", "its mask allows no action"),
        ("Infinite", "the reward of a is nan"),
        ("Fails", "the dice fell off the table"),
        ("AtOnce", "no seat is to move after reset"),
    ],
)
def test_a_game_that_breaks_its_contract_is_told_before_the_run(name: str, message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        open_seat_world(SeatsConfig(id=f"{__name__}:{name}"), decisions=4, seed=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pettingzoo:classic/conect_four-v3", "did you mean classic/connect_four-v3"),
        ("openspiel:kun_poker", "did you mean kuhn_poker"),
        ("seat_games:CountingActor", "must make a hone.control.seats.game.SeatGame"),
    ],
)
def test_a_game_that_is_none_is_refused_with_a_hint(name: str, message: str) -> None:
    package = {"pettingzoo": "pettingzoo", "openspiel": "pyspiel"}.get(name.partition(":")[0])
    if package is not None:
        pytest.importorskip(package, reason=f"{package} is not installed")
    kwargs = {"count": 1} if name.startswith("seat_games") else {}
    with pytest.raises(ConfigError, match=message):
        open_seat_world(SeatsConfig(id=name, kwargs=kwargs), decisions=4, seed=0)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, package in (("pettingzoo:classic/go-v5", "pettingzoo"), ("openspiel:go", "open-spiel")):
        with pytest.raises(ConfigError, match=f"pip install {package}"):
            game_maker(SeatsConfig(id=name))


def test_groups_of_seats_are_a_partition() -> None:
    assert seat_groups("shared", ("a", "b")) == (0, 0)
    assert seat_groups("independent", ("a", "b")) == (0, 1)
    assert seat_groups([["b"], ["c", "a"]], ("a", "b", "c")) == (1, 0, 1)
    for wrong in ([["a"]], [["a", "b"], ["b"]]):
        with pytest.raises(ValueError, match="every seat must be named once; the seats are a, b"):
            seat_groups(wrong, ("a", "b"))


def test_a_game_of_ones_own_has_few_calls() -> None:
    assert SeatGame.__abstractmethods__ == {"reset", "to_move", "observe", "step"}
