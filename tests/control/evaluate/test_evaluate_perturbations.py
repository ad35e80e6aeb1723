"""Worlds made worse: each perturbation by hand, on policies whose score is known."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from hone.cli.commands.perturb import parse_perturbations
from hone.control.environments.make import GymConfig
from hone.control.evaluate.perturbations import (
    ObservationSpread,
    PerturbationConfig,
    PerturbedPolicy,
    incompatible_perturbations,
    open_perturbed_envs,
)
from hone.control.evaluate.robustness import compare_with_unperturbed
from hone.core.errors import ConfigError
from hone.run.store.records import UNPERTURBED, read_robustness, write_robustness

TWO = spaces.Discrete(2)


class Balancer:
    """Pushes the cart under the pole: a rule that holds CartPole up, a policy to be disturbed."""

    def numpy_policy(self):
        return self

    def best(self, seen):
        return (seen[:, 2] + 0.3 * seen[:, 3] > 0).astype(np.int64)


def disturbed(best, space=TWO, deviation=1.0, **changes):
    return PerturbedPolicy(
        greedy_action=best,
        perturbation=PerturbationConfig(**changes),
        observation_std=np.array(deviation),
        action_space=space,
        seed=7,
    )


def steps(policy, seen):
    return [policy(np.array(row, np.float32)).tolist() for row in seen]


def first(seen):
    return seen[:, 0].astype(np.int64)


def test_a_decision_arrives_late_and_the_first_one_at_once():
    late = disturbed(first, action_delay=2)
    assert steps(late, [[[3.0]], [[4.0]], [[5.0]], [[6.0]], [[7.0]]]) == [[3], [3], [3], [4], [5]]


def test_sticky_actions_repeat_what_was_done_and_random_ones_are_anything():
    assert steps(disturbed(first, sticky_actions=1.0), [[[3.0]], [[4.0]], [[5.0]]]) == [[3], [3], [3]]
    rows = [np.zeros((4000, 1))] * 2
    stuck = disturbed(lambda seen: np.arange(4000) + 10_000 * int(seen[0, 0]), sticky_actions=0.25)
    stuck(np.zeros((4000, 1)))
    repeated = (stuck(np.ones((4000, 1))) < 10_000).mean()
    assert repeated == pytest.approx(0.25, abs=0.03)
    anything = np.array(steps(disturbed(lambda seen: np.zeros(4000, np.int64), random_actions=0.5), rows))
    assert anything.mean() == pytest.approx(0.25, abs=0.02)  # half of them are a fair coin
    box = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
    drawn = disturbed(lambda seen: np.full((4000, 2), 9.0), space=box, random_actions=1.0)(rows[0])
    assert drawn.min(axis=0) == pytest.approx([-2, 0], abs=0.01) and drawn.max(axis=0) == pytest.approx(
        [2, 1], abs=0.01
    )


def test_noise_has_the_size_that_is_asked_for_and_comes_from_the_seed():
    heard = []

    def listen(seen):
        heard.append(seen)
        return np.zeros(len(seen), np.int64)

    zeros = np.zeros((5000, 2), np.float32)
    for _ in range(2):
        disturbed(listen, deviation=[1.0, 10.0], sensor_noise=0.5)(zeros)
    assert heard[0].std(axis=0) == pytest.approx([0.5, 5.0], rel=0.05)
    assert np.array_equal(heard[0], heard[1]) and heard[0].dtype == np.float32
    disturbed(listen, deviation=[1.0, 10.0], sensor_noise_absolute=0.5)(zeros)
    assert heard[2].std(axis=0) == pytest.approx([0.5, 0.5], rel=0.05)


def test_the_spread_of_what_was_seen():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, [1.0, 20.0], size=(50, 2)) for _ in range(4)]
    heard = ObservationSpread(first)
    for batch in batches:
        heard(batch)
    assert heard.std() == pytest.approx(np.concatenate(batches).std(axis=0))


def test_physics_are_constructor_arguments_or_attributes_with_what_follows_from_them():
    pole = open_perturbed_envs(
        GymConfig(id="CartPole-v1"), episodes=2, physics={"gravity": 12.0, "masspole": 0.5}, single_envs=True
    )
    inside = [env.unwrapped for env in pole.envs]
    assert [(one.gravity, one.masspole, one.total_mass, one.polemass_length) for one in inside] == [
        (12.0, 0.5, 1.5, 0.25)
    ] * 2
    pole.close()
    lake = open_perturbed_envs(
        GymConfig(id="FrozenLake-v1"), episodes=1, physics={"is_slippery": False}, single_envs=True
    )
    assert lake.envs[0].unwrapped.P[0][2] == [(1.0, 1, 0, False)]
    lake.close()
    arm = open_perturbed_envs(GymConfig(id="Acrobot-v1"), episodes=1, physics={"LINK_MASS_1": 2.0}, single_envs=True)
    assert arm.envs[0].unwrapped.LINK_MASS_1 == 2.0 and type(arm.envs[0].unwrapped).LINK_MASS_1 == 1.0
    arm.close()


def test_unknown_physics_are_refused_all_at_once():
    with pytest.raises(ConfigError) as refused:
        open_perturbed_envs(
            GymConfig(id="CartPole-v1"), episodes=1, physics={"gravty": 1, "force_mag": "strong"}, single_envs=True
        )
    assert "did you mean gravity?" in refused.value.messages[0]
    assert "force_mag must be a number as 10.0 is, got 'strong'" in refused.value.messages[1]


def test_a_policy_against_itself():
    env = GymConfig(id="CartPole-v1", max_episode_steps=120)
    changes = [
        PerturbationConfig(sensor_noise_absolute=1e-9),
        PerturbationConfig(random_actions=1.0),
        PerturbationConfig(physics={"force_mag": 30.0}, name="strong motor"),
    ]
    rows = compare_with_unperturbed(Balancer(), env, changes, episodes=12, seed=3)
    assert [row.name for row in rows] == [
        UNPERTURBED,
        "sensor_noise_absolute=1e-09",
        "random_actions=1",
        "strong motor",
    ]
    as_it_was, nothing, chance, _ = rows
    assert as_it_was.mean == 120.0 and as_it_was.difference == 0.0
    assert (nothing.mean, nothing.difference, nothing.p_value) == (120.0, 0.0, 1.0)  # the same seeds, the same episodes
    assert chance.mean < 60 and chance.difference_high < -60 and chance.p_value < 0.001 and chance.n == 12
    assert compare_with_unperturbed(Balancer(), env, changes, episodes=12, seed=3) == rows


def test_what_makes_no_sense_is_refused():
    noisy, drawn = PerturbationConfig(sensor_noise=0.1), PerturbationConfig(random_actions=0.1)
    boundless = spaces.Box(-np.inf, np.inf, (1,))
    assert "noise cannot be added" in incompatible_perturbations(noisy, spaces.Discrete(4), TWO)[0]
    assert "the action space is unbounded" in incompatible_perturbations(drawn, boundless, boundless)[0]
    assert incompatible_perturbations(noisy, boundless, TWO) == []
    with pytest.raises(ConfigError, match="noise cannot be added"):
        compare_with_unperturbed(Balancer(), GymConfig(id="FrozenLake-v1"), [noisy], episodes=1, seed=0)
    gymnasium.make("FrozenLake-v1").close()


def test_words_and_files_say_what_is_wanted(tmp_path: Path):
    (tmp_path / "p.toml").write_text(
        '[[perturb]]\nname = "windy"\naction_delay = 1\n[[perturb]]\nphysics = { g = 12.0 }\n'
    )
    words = ["sensor_noise=[0.1, 0.2]", "action_delay=2,random_actions=0.5", "physics.gravity=12"]
    changes = parse_perturbations([*words, str(tmp_path / "p.toml")])
    assert sorted(change.label for change in changes) == sorted(
        [
            "sensor_noise=0.1", "sensor_noise=0.2", "action_delay=2, random_actions=0.5", "physics.gravity=12",
            "windy", "physics.g=12",
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sensr_noise=0.1", "did you mean perturb.0.sensor_noise?"),
        ("random_actions=2", "random_actions"),
        ("action_delay=0", "nothing is changed"),
        ("noise", "is not of the form key=value"),
        ("action_delay=[]", "must not be empty"),
        ("action_delay=[1],random_actions=0.1", "must be a whole number"),
    ],
)
def test_other_words_are_refused(word, said):
    with pytest.raises(ConfigError) as refused:
        parse_perturbations([word])
    assert said in str(refused.value)


def test_the_file_is_read_as_it_was_written(tmp_path: Path):
    rows = compare_with_unperturbed(
        Balancer(),
        GymConfig(id="CartPole-v1", max_episode_steps=20),
        [PerturbationConfig(action_delay=1)],
        episodes=3,
        seed=0,
    )
    assert read_robustness(tmp_path) == []
    write_robustness(tmp_path, rows)
    assert read_robustness(tmp_path) == rows
