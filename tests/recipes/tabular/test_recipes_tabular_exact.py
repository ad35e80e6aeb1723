"""Recipes on tables against arithmetic that leaves no room: expected updates, slow replicas, and what GLIE promises."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from plain_episodes import plain_episodes

from hone.control.finite.build import mdp_from_table
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy, policy_iteration
from hone.control.tables.explore import ConstantSchedule, EpsilonGreedy
from hone.control.tables.learn import (
    DoubleQLearning,
    ExpectedSarsa,
    QLearningRule,
    RateConfig,
    TabularLearner,
    UpdateRule,
    expected_sarsa_weights,
    sarsa_weights,
)
from hone.control.tables.tables import ActionTable, StateFeatures, StateValues
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

ANY = EpsilonGreedy(epsilon=ConstantSchedule(value=1.0))
STATES, ACTIONS, DISCOUNT = 5, 2, 0.75


def job_of(settings: Mapping[str, Any]) -> TrainingJob[Any]:
    entry = load_recipe(settings["recipe"])
    config = entry.config.model_validate(
        {"name": "x", "seed": 3, "steps": 8, "evaluation": {"episodes": 3}, **settings}
    )
    return entry.build(config)


def lived_through(settings: Mapping[str, Any], steps: int) -> tuple[TrainingJob[Any], list[Episodes]]:
    """A run and all that it learned from."""
    job, lived = job_of({**settings, "steps": steps}), list[Episodes]()

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del step, credits, metrics
        lived.append(episodes)

    train(job.recipe, steps=steps, callback=report)
    job.close()
    return job, lived


# ------------------------------------------------------------------------------- what an update comes to on average


def world(seed: int) -> FiniteMdp:
    """Outcomes whose numbers float32, which credit speaks, holds exactly; three in four go on."""
    draws = np.random.default_rng(seed)
    table = {
        state: {
            action: [
                (0.25, int(draws.integers(STATES)), draws.integers(-8, 9) / 4, k == 3 and bool(draws.random() < 0.7))
                for k in range(4)
            ]
            for action in range(ACTIONS)
        }
        for state in range(STATES)
    }
    return mdp_from_table(table, start=np.full(STATES, 1 / STATES), discount=DISCOUNT)


def piece(seen: list[int], chosen: list[int], rewards: list[float], final: int, *, ends: bool) -> Episodes:
    count = len(seen)
    return plain_episodes(
        np.array([0, count]),
        seen=np.array(seen),
        chosen=np.array(chosen),
        logp=np.full(count, np.log(0.5), np.float32),
        reward=np.array(rewards, np.float32),
        group=np.zeros(1, np.int64),
        terminated=np.array([ends]),
        final=np.array([final]),
    )


def target_of(
    rule: UpdateRule, x: np.ndarray, seen: list[int], chosen: list[int], outcome: tuple[float, int, bool]
) -> float:
    """What the first step of a piece was moved towards, read off the table after an update of step size 1/2.

    A second step's own target is what its cell holds, and its discount 0: where it is the same cell, it undoes half.
    """
    reward, after, ends = outcome
    table = (
        StateValues(np.full((STATES, ACTIONS), 0.5))
        if len(x) == STATES
        else ActionTable(StateFeatures(count=STATES, actions=ACTIONS), explore=ANY, tables=len(x) // (STATES * ACTIONS))
    )
    table.x[:] = x
    cells = [s if len(x) == STATES else s * ACTIONS + a for s, a in zip(seen, chosen, strict=True)]
    rewards = [reward, *(float(x[cell]) for cell in cells[1:])]
    episodes = piece(seen, chosen, rewards, after, ends=ends)
    discount = np.array([0.0 if ends else DISCOUNT, *(0.0 for _ in cells[1:])])
    # float64 on purpose: in float32 the second step's target would not be what its cell holds.
    credits = Credits(advantage=np.array(rewards), discount=discount)  # pyright: ignore[reportArgumentType]
    TabularLearner(table, rule, RateConfig(rate=0.5)).update(episodes, credits)
    changed = np.flatnonzero(table.x != x)
    cell = cells[0] if len(x) <= STATES * ACTIONS or not len(changed) else int(changed[0])
    share = 0.25 if cells[1:] == cells[:1] else 0.5
    return float(x[cell] + (table.x[cell] - x[cell]) / share)


def outcomes_of(mdp: FiniteMdp) -> Iterator[tuple[int, float, tuple[float, int, bool]]]:
    for pair, (begin, end) in enumerate(pairwise(mdp.offsets)):
        for k in range(begin, end):
            outcome = (float(mdp.reward[k]), int(mdp.next_state[k]), bool(mdp.terminates[k]))
            yield pair, float(mdp.probability[k]), outcome


def expected_update(
    mdp: FiniteMdp, rule: UpdateRule, x: np.ndarray, *, draws_next: bool, of_states: bool
) -> np.ndarray:
    """The mean of an update's targets, over outcomes, and over next actions of the even policy -> like `x`."""
    mean = np.zeros(STATES if of_states else STATES * ACTIONS)
    for pair, probability, (reward, after, ends) in outcomes_of(mdp):
        state, action = divmod(pair, ACTIONS)
        weight, cell = (probability / ACTIONS, state) if of_states else (probability, pair)
        if draws_next and not ends:
            targets = [
                target_of(rule, x, [state, after], [action, following], (reward, after, False))
                for following in range(ACTIONS)
            ]
        else:
            targets = [target_of(rule, x, [state], [action], (reward, after, ends))]
        mean[cell] += weight * float(np.mean(targets))
    return mean


@pytest.mark.parametrize("name", ["q_learning", "expected_sarsa", "sarsa", "td"])
def test_the_expected_update_is_the_operator_of_dynamic_programming(name: str) -> None:
    """Carried out again and again it comes to q*, to the q or the v of the policy that acts, to 1e-9."""
    mdp, half = world(0), np.full((STATES, ACTIONS), 0.5)
    value = evaluate_policy(mdp, half)
    rule, truth = {
        "q_learning": (QLearningRule(actions=ACTIONS), policy_iteration(mdp).q.ravel()),
        "expected_sarsa": (ExpectedSarsa(next_weights=expected_sarsa_weights), mdp.backup(value).ravel()),
        "sarsa": (ExpectedSarsa(next_weights=sarsa_weights), mdp.backup(value).ravel()),
        "td": (ExpectedSarsa(next_weights=expected_sarsa_weights), value),
    }[name]
    x = np.random.default_rng(0).normal(size=len(truth))
    for _ in range(90):  # 0.75^90 = 6e-12
        x = expected_update(mdp, rule, x, draws_next=name == "sarsa", of_states=name == "td")
    np.testing.assert_allclose(x, truth, rtol=0, atol=1e-9)


def test_the_expected_update_of_double_q_stands_still_at_the_best() -> None:
    """With q* in both tables, whichever the coin says learns nothing."""
    mdp = world(0)
    best = policy_iteration(mdp).q.ravel()
    both = np.concatenate([best, best])
    for pair, (begin, end) in enumerate(pairwise(mdp.offsets)):
        state, action = divmod(pair, ACTIONS)
        targets = []
        for k in range(begin, end):
            outcome = (float(mdp.reward[k]), int(mdp.next_state[k]), bool(mdp.terminates[k]))
            targets.append(target_of(DoubleQLearning(actions=ACTIONS, seed=k), both, [state], [action], outcome))
        assert np.mean(targets) == pytest.approx(best[pair], abs=1e-9)


# ------------------------------------------------------------------------------------------------- slow replicas

WALK: dict[str, Any] = {"world": {"kind": "chain"}, "copies": 8}


def walked(method: Mapping[str, Any], rate: Mapping[str, float], steps: int) -> tuple[np.ndarray, list[Episodes]]:
    settings = {"recipe": "td_prediction", "finite": WALK, "rollout_steps": 32}
    job, lived = lived_through({**settings, "algorithm": {"method": method}, "table": {"rate": rate}}, steps)
    return job.recipe.learner.policy.v, lived


@pytest.mark.parametrize("visits", ["first", "every"])
def test_monte_carlo_is_the_mean_of_the_returns_that_were_lived_through(visits: str) -> None:
    """And of first visits, which are independent draws of +-1, the mean is within four standard errors of the truth."""
    found, lived = walked({"kind": "monte_carlo", "visits": visits}, {"rate": 1.0, "power": 1.0}, 120)
    told: list[list[float]] = [[] for _ in range(19)]
    for episodes in lived:
        for begin, end in pairwise(episodes.offsets):
            states = episodes.observations[begin:end].astype(int).tolist()
            outcome = float(episodes.reward[begin:end].sum())
            for state in set(states) if visits == "first" else states:
                told[state].append(outcome)
    np.testing.assert_allclose(found, [np.mean(each) for each in told], rtol=0, atol=1e-9)
    if visits == "first":
        truth = np.linspace(-0.9, 0.9, 19)
        error = np.abs(found - truth) / np.sqrt((1 - truth**2) / [len(each) for each in told])
        assert error.max() < 4
        assert min(len(each) for each in told) > 80


def test_td_and_true_online_td_are_their_formulas_step_after_step() -> None:
    """Every state, after thousands of steps in pieces that the rollout cuts."""
    found, lived = walked({"kind": "td"}, {"rate": 1.0, "power": 0.8}, 30)
    v, visits = np.zeros(20), np.zeros(20)
    for state, reward, after, ended, _ in steps_of(lived):
        visits[state] += 1
        v[state] += visits[state] ** -0.8 * (reward + (0.0 if ended else v[after]) - v[state])
    np.testing.assert_allclose(found, v[:19], rtol=0, atol=1e-9)
    found, lived = walked({"kind": "lambda", "trace_lambda": 0.8, "trace": "dutch"}, {"rate": 0.05}, 30)
    v, kept = np.zeros(20), dict[int, tuple[np.ndarray, float]]()
    for state, reward, after, ended, episode in steps_of(lived):
        trace, old = kept.get(episode) or (np.zeros(20), v[state])
        now, ahead = v[state], 0.0 if ended else v[after]
        trace = 0.8 * trace + (1 - 0.05 * 0.8 * trace[state]) * np.eye(20)[state]
        v = v + 0.05 * (reward + ahead - old) * trace  # error + now - old, with error = r + ahead - now
        v[state] -= 0.05 * (now - old)
        kept[episode] = (trace, ahead)
    np.testing.assert_allclose(found, v[:19], rtol=0, atol=1e-9)


def test_n_step_td_is_its_formula() -> None:
    """Eight rewards and what the table said then; fewer where a piece ends."""
    found, lived = walked({"kind": "n_step", "steps": 8}, {"rate": 1.0, "power": 0.8}, 30)
    v, visits = np.zeros(19), np.zeros(19)
    for episodes in lived:
        assert episodes.final is not None
        before, moves = np.append(v, 0.0), list[tuple[int, float]]()
        for number, (begin, end) in enumerate(pairwise(episodes.offsets)):
            seen = [*episodes.observations[begin:end].astype(int).tolist(), int(episodes.final[number])]
            if episodes.terminated[number]:
                seen[-1] = 19  # worth nothing
            for k in range(end - begin):
                ahead = min(k + 8, end - begin)
                paid = float(episodes.reward[begin + k : begin + ahead].sum())
                moves.append((seen[k], paid + float(before[seen[ahead]])))
        for state, target in moves:
            visits[state] += 1
            v[state] += visits[state] ** -0.8 * (target - v[state])
    np.testing.assert_allclose(found, v, rtol=0, atol=1e-5)  # credit speaks float32


def steps_of(lived: list[Episodes]) -> Iterator[tuple[int, float, int, bool, int]]:
    """State, reward, next state, whether the world ended, episode: of each step in the order in which it is learned."""
    for episodes in lived:
        assert episodes.final is not None
        seen = episodes.observations.astype(int)
        for number, (begin, end) in enumerate(pairwise(episodes.offsets)):
            for k in range(begin, end):
                last = k == end - 1
                after = int(episodes.final[number]) if last else int(seen[k + 1])
                ended = last and bool(episodes.terminated[number])
                yield int(seen[k]), float(episodes.reward[k]), after, ended, int(episodes.group[number])


def test_returns_off_policy_are_weighted_means() -> None:
    """sum of w G / sum of w over all visits, w = product of pi / b to the end: whatever the order."""
    settings = {
        "recipe": "td_prediction", "finite": {"world": {"kind": "chain", "length": 5}, "copies": 8},
        "rollout_steps": 32, "follow": {"epsilon": 0.5}, "behave": {"epsilon": 1.0},
        "algorithm": {"method": {"kind": "monte_carlo", "off_policy": True}},
    }  # fmt: skip
    job, lived = lived_through(settings, 40)
    table, mass, total = job.recipe.learner.policy, np.zeros(5), np.zeros(5)
    for episodes in lived:
        for begin, end in pairwise(episodes.offsets):
            weight, paid = 1.0, 0.0
            for k in reversed(range(begin, end)):
                state, action = int(episodes.observations[k]), int(episodes.chosen[k])
                weight *= table.target_policy[state, action] / 0.5
                paid += float(episodes.reward[k])
                mass[state] += weight
                total[state] += weight * paid
    np.testing.assert_allclose(table.v, total / mass, rtol=0, atol=1e-5)  # propensities are float32


def test_off_policy_control_is_its_pseudocode() -> None:
    """Sutton & Barto, 2018, section 5.7, with the greedy policy of the turn's beginning."""
    settings = {
        "recipe": "monte_carlo", "finite": {"world": {"kind": "chain", "length": 5}, "copies": 8},
        "algorithm": {"off_policy": True, "discount": 0.5},
        "exploration": {"kind": "epsilon_greedy", "epsilon": {"kind": "constant", "value": 0.5}},
    }  # fmt: skip
    job, lived = lived_through(settings, 60)
    q, mass = np.zeros((5, 2)), np.zeros((5, 2))
    for episodes in lived:
        greedy = q.argmax(axis=1)
        for begin, end in reversed(list(pairwise(episodes.offsets))):
            weight, paid = 1.0, 0.0
            for k in reversed(range(begin, end)):
                state, action = int(episodes.observations[k]), int(episodes.chosen[k])
                paid = float(episodes.reward[k]) + 0.5 * paid
                mass[state, action] += weight
                q[state, action] += weight / max(mass[state, action], 1e-300) * (paid - q[state, action])
                weight *= (action == greedy[state]) / float(np.exp(episodes.logp[k]))
    np.testing.assert_allclose(job.recipe.learner.policy.q, q, rtol=0, atol=1e-5)
    assert mass.min() > 0


# ------------------------------------------------------------------- greedy in the limit with infinite exploration

ON_POLICY = ["sarsa", "expected_sarsa", "sarsa_lambda", "monte_carlo"]
LAKE: dict[str, Any] = {"world": {"kind": "gymnasium", "id": "FrozenLake-v1"}, "copies": 64}
SMALL_CLIFF: dict[str, Any] = {
    "world": {
        "kind": "grid", "rows": ["....", "....", "SXXG"], "step_reward": -1.0, "rewards": {"G": 0.0, "X": -10.0},
    },
    "copies": 32, "limit": 50,
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(place, name, marks=pytest.mark.slow if place == "lake" and name != "sarsa" else ())
        for place in ("lake", "cliff")
        for name in ON_POLICY
    ],
)
def test_control_is_best_as_exploration_and_steps_fall(name: str, place: str) -> None:
    """Singh, Jaakkola, Littman & Szepesvari (2000). Judged exactly."""
    lake, traced = place == "lake", name == "sarsa_lambda"
    settings: dict[str, Any] = {
        "recipe": name, "finite": LAKE if lake else SMALL_CLIFF, "rollout_steps": 16,
        "table": {
            "rate": {"rate": 0.02 if lake else 0.05} if traced else {"rate": 1.0, "power": 0.8, "minimum": 0.005}
        },
        "exploration": {
            "kind": "epsilon_greedy",
            "epsilon": {"kind": "exponential", "start": 1.0, "end": 0.0, "half_life": 100 if lake else 40},
        },
        "algorithm": {"trace_lambda": 0.5} if traced else {},
    }  # fmt: skip
    job, _ = lived_through(settings, 700 if lake else 300)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/of_best"] >= 0.98


def test_sarsa_walks_along_the_edge_once_it_does_not_err() -> None:
    """-13 on CliffWalking in the limit, by a temperature that falls. By epsilon the edge pays only below 0.006, where
    nobody tries it any more: such runs end at -15 to -19."""
    settings = {
        "recipe": "sarsa", "rollout_steps": 16, "table": {"rate": {"rate": 0.3}},
        "finite": {"world": {"kind": "gymnasium", "id": "CliffWalking-v1"}, "copies": 64, "limit": 200},
        "exploration": {
            "kind": "boltzmann",
            "temperature": {"kind": "exponential", "start": 50.0, "end": 0.0, "half_life": 60},
        },
    }  # fmt: skip
    job, _ = lived_through(settings, 900)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == -13.0
