"""Exact play over the tree: known values of Kuhn and Leduc poker, slow best responses, CFR+ and double oracle."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.seats.compiled_games import CompiledGame, game_tree
from hone.control.seats.exploitability import infoset_probabilities
from hone.control.seats.tree_play import Floats, TreePlay, regret_matching
from hone.control.seats.tree_training import TreePolicies
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.run.job import EvaluationRequest, TrainingJob
from hone.run.loop import train

KUHN, LEDUC = TreePlay(tree=game_tree("kuhn_poker")), TreePlay(tree=game_tree("leduc_poker"))


def kuhn_policy(bets: dict[tuple[int, str], float]) -> Floats:
    """Probabilities to bet by card and what went before (p, b); by the rows that a seat sees."""
    policy = KUHN.uniform()
    for place, seen in enumerate(KUHN.tree.seen):
        card, pairs = int(seen[2:5].argmax()), seen[5:].reshape(3, 2)
        history = "".join("pb"[int(pair.argmax())] for pair in pairs if pair.any())
        if (card, history) in bets:
            policy[place] = 1 - bets[card, history], bets[card, history]
    return policy


def equilibrium(alpha: float) -> Floats:
    """Kuhn's equilibria (1950): alpha in [0, 1/3]."""
    first = {(0, ""): alpha, (1, ""): 0.0, (2, ""): 3 * alpha, (0, "pb"): 0.0, (1, "pb"): alpha + 1 / 3, (2, "pb"): 1.0}
    second = {(0, "p"): 1 / 3, (1, "p"): 0.0, (2, "p"): 1.0, (0, "b"): 0.0, (1, "b"): 1 / 3, (2, "b"): 1.0}
    return kuhn_policy(first | second)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_kuhn_s_equilibria_lose_an_eighteenth_and_cannot_be_exploited(alpha: float) -> None:
    policy = equilibrium(alpha)
    assert KUHN.values(policy)[0].tolist() == pytest.approx([-1 / 18, 1 / 18])
    assert KUHN.nash_conv(policy) == pytest.approx(0, abs=1e-12)


def test_uniform_play_has_the_nash_conv_of_the_literature() -> None:
    assert KUHN.nash_conv(KUHN.uniform()) == pytest.approx(11 / 12)
    assert LEDUC.nash_conv(LEDUC.uniform()) == pytest.approx(4.747222222222222)


def random_policy(play: TreePlay, seed: int) -> Floats:
    weights = np.random.default_rng(seed).random(play.tree.legal.shape) * play.tree.legal
    return weights / weights.sum(axis=1, keepdims=True)


def slow_value(policy: Floats, history: int = 0) -> float:
    """What seat 0 of Kuhn poker is paid, history by history."""
    tree = KUHN.tree
    children = np.flatnonzero(tree.parent == history)
    if not len(children):
        return float(tree.paid[history, 0])
    acts = tree.mover[history] >= 0
    return sum(
        (policy[tree.infoset[history], tree.action[child]] if acts else tree.chance[child])
        * slow_value(policy, int(child))
        for child in children
    )


def test_values_and_best_responses_are_those_of_all_pure_policies() -> None:
    policy = random_policy(KUHN, 0)
    assert KUHN.values(policy)[0, 0] == pytest.approx(slow_value(policy))
    for seat, sign in ((0, 1), (1, -1)):
        sets, paid = np.flatnonzero(KUHN.tree.seat == seat), list[float]()
        for bits in product((0, 1), repeat=len(sets)):
            tried = policy.copy()
            tried[sets] = np.eye(2)[list(bits)]
            paid.append(sign * slow_value(tried))
        best, value = KUHN.best_response(policy, seat)
        assert value == pytest.approx(max(paid))
        assert sign * slow_value(best) == pytest.approx(value)
        assert np.array_equal(best[KUHN.tree.seat != seat], policy[KUHN.tree.seat != seat])


def test_counterfactual_values_are_the_slope_of_the_value() -> None:
    """d u / d pi(a | s) is the counterfactual value times the seat's own reach."""
    policy, step = random_policy(KUHN, 1), 1e-6
    for seat in (0, 1):
        values = KUHN.counterfactual(policy, seat)
        own = KUHN.reach(policy, seat=seat)[KUHN.first_histories]
        for place, action in product(np.flatnonzero(KUHN.tree.seat == seat), (0, 1)):
            moved = policy.copy()
            moved[place, action] += step
            slope = (KUHN.values(moved)[0, seat] - KUHN.values(policy)[0, seat]) / step
            assert slope == pytest.approx(own[place] * values[place, action], abs=1e-7)
        assert not values[KUHN.tree.seat != seat].any()


def test_a_mixture_is_paid_the_mean_of_its_policies() -> None:
    """Kuhn's theorem: drawing a policy before the match is the same as the behaviour that `mixture` gives."""
    for play in (KUHN, LEDUC):
        one, other, enemy = (random_policy(play, seed) for seed in (2, 3, 4))
        mine = play.tree.seat[:, None] == 0
        mixed = play.mixture([one, other], np.array([0.3, 0.7]))
        paid = [play.values(np.where(mine, policy, enemy))[0, 0] for policy in (one, other, mixed)]
        assert paid[2] == pytest.approx(0.3 * paid[0] + 0.7 * paid[1])
        assert np.allclose(mixed.sum(axis=1), 1)
    assert np.allclose(KUHN.mixture([KUHN.uniform()] * 2, np.full((2, 2), 0.5)), KUHN.uniform())


def test_regrets_become_probabilities() -> None:
    regrets, legal = np.array([[1.0, 3.0, -2.0], [-1.0, 0.0, -1.0]]), np.array([[1, 1, 1], [1, 0, 1]], bool)
    assert regret_matching(regrets, legal).tolist() == [[0.25, 0.75, 0.0], [0.5, 0.0, 0.5]]


# -------------------------------------------------------------------------------------------------------------- recipes


def job_of(recipe: str, game: str = "kuhn_poker", steps: int = 400, **more: Any) -> TrainingJob[Any]:
    spec = load_recipe(recipe)
    tables = {"recipe": recipe, "name": "x", "steps": steps, "env": {"id": f"compiled:{game}", "num_envs": 1}}
    return spec.build(spec.config.model_validate({**tables, "evaluation": {"episodes": 4}, **more}))


def nash_convs(job: TrainingJob[Any], steps: int) -> list[float]:
    """NashConv of the released policy after each visit of both seats."""
    learner, found = job.recipe.learner, list[float]()

    def note(step: int, *_: object) -> None:
        if step % 2 == 0:
            found.append(learner.policies.play.nash_conv(learner.policies.average))

    train(job.recipe, steps=steps, callback=note)
    return found


def slow_cfr_plus(iterations: int) -> float:
    """NashConv of CFR+ on Kuhn poker, history by history."""
    tree, regrets = KUHN.tree, np.zeros_like(KUHN.uniform())
    summed, policy = np.zeros_like(regrets), KUHN.uniform()
    children = [np.flatnonzero(tree.parent == history) for history in range(len(tree.parent))]

    def walk(history: int, seat: int, mine: float, others: float, moved: Floats) -> float:
        if not len(children[history]):
            return float(tree.paid[history, seat])
        mover, place = tree.mover[history], tree.infoset[history]
        if mover == -1:
            parts = (
                (tree.chance[c], walk(int(c), seat, mine, others * tree.chance[c], moved)) for c in children[history]
            )
            return sum(share * value for share, value in parts)
        values = np.array(
            [
                walk(int(c), seat, mine * p, others, moved)
                if mover == seat
                else walk(int(c), seat, mine, others * p, moved)
                for c, p in zip(children[history], policy[place], strict=True)
            ]
        )
        value = float(policy[place] @ values)
        if mover == seat:
            moved[place] += others * (values - value)
        return value

    for iteration in range(1, iterations + 1):
        for seat in (0, 1):
            moved = np.zeros_like(regrets)
            walk(0, seat, 1.0, 1.0, moved)
            regrets = np.maximum(regrets + moved, 0)
            rows = tree.seat == seat
            policy = policy.copy()
            policy[rows] = regret_matching(regrets, tree.legal)[rows]
            own = KUHN.reach(policy, seat=seat)[KUHN.first_histories]
            summed[rows] += iteration * (own[:, None] * policy)[rows]
    return KUHN.nash_conv(summed / summed.sum(axis=1, keepdims=True))


def test_cfr_plus_is_the_slow_one_and_converges() -> None:
    found = nash_convs(job_of("cfr_plus"), 400)
    assert found[9] == pytest.approx(slow_cfr_plus(10), abs=1e-6)  # rewards are 32-bit
    assert found[-1] <= 1e-3


def test_a_double_oracle_ends_where_naive_self_play_cycles() -> None:
    assert min(nash_convs(job_of("double_oracle"), 14)) <= 1e-9
    cycle = nash_convs(job_of("double_oracle", algorithm={"mixture": "latest"}), 40)
    assert min(cycle) >= 1 / 3 - 1e-9
    assert cycle[-4:] == pytest.approx(cycle[-8:-4])
    fictitious = nash_convs(job_of("double_oracle", algorithm={"mixture": "uniform"}), 100)
    assert fictitious[-1] < 0.5 * fictitious[4]


def test_a_released_table_is_saved_loaded_and_evaluated(tmp_path: Path) -> None:
    job = job_of("cfr_plus")
    train(job.recipe, steps=100, callback=lambda *_: None)
    job.save_policy(tmp_path)
    policies = TreePolicies.of_game(opened())
    (read,) = infoset_probabilities(KUHN, policies.layout, [load_policy(tmp_path).numpy_policy()])
    assert np.allclose(read, job.recipe.learner.policies.average, atol=1e-6)
    spec = load_recipe("cfr_plus")
    assert spec.evaluate is not None
    config = spec.config.model_validate(
        {"recipe": "cfr_plus", "name": "x", "steps": 1, "env": {"id": "compiled:kuhn_poker", "num_envs": 1}}
    )
    metrics = spec.evaluate(config, EvaluationRequest(policy=tmp_path, episodes=4, seed=1))
    assert metrics["eval/nash_conv"] == pytest.approx(KUHN.nash_conv(job.recipe.learner.policies.average), abs=1e-5)


def test_an_unknown_row_has_all_actions_alike(tmp_path: Path) -> None:
    policies = TreePolicies.of_game(opened())
    policies.release(equilibrium(0.0))
    save_policy(policies.released, tmp_path)
    chances = load_policy(tmp_path).numpy_policy()
    seen, mask = np.full((1, 13), 9, np.float32), np.ones((1, 2), bool)
    assert [int(chances.decide(seen, np.full(1, draw, np.float32), mask)[0][0]) for draw in (0.4, 0.6)] == [0, 1]


def opened() -> CompiledGame:
    game = CompiledGame("kuhn_poker")
    game.reset(0)
    return game


def test_a_game_without_a_tree_is_refused() -> None:
    for name in ("connect_four", "kuhn"):
        with pytest.raises(ConfigError, match=r'compiled:kuhn_poker" or|no such game'):
            job_of("cfr_plus", name)


def test_the_tables_agree_with_openspiel() -> None:
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    from hone.control.seats.adapters import OpenSpielGame
    from hone.control.seats.exploitability import nash_conv, policy_tables

    job = job_of("cfr_plus", steps=20)
    train(job.recipe, steps=20, callback=lambda *_: None)
    game = OpenSpielGame(pyspiel.load_game("kuhn_poker"))
    policies = job.recipe.learner.policies
    (table,) = policy_tables(game, policies.layout, [policies.released.numpy_policy()])
    assert nash_conv(game.game, table) == pytest.approx(KUHN.nash_conv(policies.average), abs=1e-6)
