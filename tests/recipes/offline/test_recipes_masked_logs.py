"""Logs with masks of legal actions: written, read, and learned from by policies that act with masks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from control_runs import StepRecorder
from gymnasium import spaces

from hone.control.environments.world import GymConfig, open_world
from hone.control.logs.formats import LogDataConfig
from hone.control.logs.parquet import BehaviourLog, describe_log, read_log, write_log
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import DiscreteActions, Mlp, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.offline import DiscreteBcqPolicy
from hone.control.rows import TransitionRows
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import ConfigError, DataError
from hone.objectives.constraint import bcq_admissible_actions
from hone.objectives.offline import cql_penalty
from hone.recipes.offline import bc, cql, iql
from hone.recipes.registry import load_recipe
from hone.run.loop import train

LADDER = f"{Path(__file__).parents[2] / 'control' / 'environments' / 'masked_envs.py'}:Ladder"


class Right:
    """The paid action, which is always legal."""

    version = 0

    def noise(self, draws, shape):
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen, noise, mask=None):
        return np.rint(seen[:, 0] * 4).astype(np.int64), np.zeros(len(seen), np.float32)


class Either(Right):
    """Each of the two legal actions half of the time."""

    def decide(self, seen, noise, mask=None):
        assert mask is not None
        second = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
        return np.where(noise < 0.5, mask.argmax(axis=1), second), np.full(len(seen), np.log(0.5), np.float32)


def logged(path: Path, actor: Right) -> Episodes:
    world = open_world(GymConfig(id=LADDER, num_envs=4, isolation="none"), steps=40, seed=1, masks=True)
    episodes = concatenate([world.rollout(actor)])
    spaces = (world.envs.single_observation_space, world.envs.single_action_space)
    write_log(path, BehaviourLog(episodes=episodes, observation_space=spaces[0], action_space=spaces[1]))
    world.close()
    return episodes


def test_masks_are_columns_of_a_log_and_of_what_is_learned_from_it(tmp_path: Path) -> None:
    """An illegal action would raise an error in the environment of the evaluation."""
    path = tmp_path / "log.parquet"
    episodes = logged(path, Right())
    again = read_log(path).episodes
    np.testing.assert_array_equal(again.mask, episodes.mask)
    np.testing.assert_array_equal(again.final_mask, episodes.final_mask)
    given: dict[str, Any] = {"recipe": "bc", "name": "x", "steps": 60, "log": str(path), "evaluation": {"episodes": 2}}
    given |= {"env": {"id": LADDER, "isolation": "none"}, "learner": {"lr": 0.02}}
    config = load_recipe("bc").config.model_validate(given)
    assert isinstance(config, bc.BcConfig)
    job, recorder = config.open().build(config), StepRecorder()
    train(job.recipe, steps=60, callback=recorder)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == pytest.approx(4.0)
    assert job.recipe.learner.policy.spaces.choices.masked
    assert 0.0 <= recorder.lines[-1][-1]["policy/entropy_share"] < 0.9
    job.close()


@pytest.fixture(scope="module")
def ladder_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paid action in half of the decisions, the other legal one in the others."""
    path = tmp_path_factory.mktemp("ladder") / "log.parquet"
    logged(path, Either())
    return path


@pytest.mark.parametrize("recipe", ["cql", "iql", "bcq"])
def test_offline_recipes_learn_and_act_under_the_masks_of_a_log(recipe: str, ladder_log: Path, tmp_path: Path) -> None:
    """The policy is evaluated, saved and loaded; an illegal action raises an error in the environment. Its values of
    illegal actions are not trained: a loss that compared with them would push them down."""
    settings = {"cql": {"conservatism": 0.5, "tau": 0.1}, "iql": {"tau": 0.1}, "bcq": {"tau": 0.1, "threshold": 0.0}}
    given: dict[str, Any] = {
        "recipe": recipe, "name": "x", "steps": 30, "log": str(ladder_log), "evaluation": {"episodes": 2},
        "env": {"id": LADDER, "isolation": "none"}, "learner": {"lr": 0.01, "updates_per_iteration": 5},
        "network": {"hidden": [32]}, "algorithm": settings[recipe], "batch": 64,
    }  # fmt: skip
    config = load_recipe(recipe).config.model_validate(given)
    job, recorder = config.open().build(config), StepRecorder()
    train(job.recipe, steps=30, callback=recorder)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] == pytest.approx(4.0)
    assert all(np.isfinite(list(line[-1].values())).all() for line in recorder.lines)
    job.save_policy(tmp_path)
    again = load_policy(tmp_path).numpy_policy()
    with pytest.raises(ConfigError, match="trained with masks"):
        again.best(np.zeros((1, 2), np.float32))
    job.close()


def fixed_outputs(network: Mlp, values: list[float]) -> None:
    """Let the network have these outputs, whatever its inputs."""
    weight, bias = network.layer_parameters[-1]
    weight.data.zero_()
    bias.data.copy_(torch.tensor(values))


MASKED = PolicySpaces(inputs=ObservationInputs(size=1), actions=DiscreteActions(count=3, masked=True))
LEGAL = torch.tensor([[True, False, True]])
ROWS = TransitionRows(
    weight=torch.ones(1), seen=torch.ones(1, 1), chosen=torch.tensor([0]), reward=torch.ones(1),
    discount=torch.full((1,), 0.5), next_seen=torch.ones(1, 1), noise=torch.zeros(1, 0), mask=LEGAL, next_mask=LEGAL,
)  # fmt: skip


def test_loss_of_cql_by_hand() -> None:
    """Values 1, 5, 3 of which the best is illegal, and target values 10, 20, 30: the target is 1 + 0.5 * 30, the gap
    log(e^1 + e^3) - 1. Without masks both look at the second action."""
    config = cql.CqlConfig(recipe="cql", name="x", steps=1, log="unread", algorithm=cql.CqlAlgorithm(conservatism=2.0))
    method = cql.discrete_method(config, MASKED)
    policy = method.policy
    fixed_outputs(policy.values, [1.0, 5.0, 3.0])
    fixed_outputs(policy.target, [10.0, 20.0, 30.0])
    loss = method.phases[0].objective(policy, ROWS).loss
    assert loss.item() == pytest.approx(0.5 * 15.0**2 + 2.0 * (math.log(math.e + math.e**3) - 1.0), rel=1e-6)
    loss.sum().backward()
    grad = policy.values.layer_parameters[-1][1].grad
    assert grad is not None
    assert grad[1] == 0.0  # nothing is learned about an illegal action
    plain = method.phases[0].objective(policy, replace(ROWS, mask=None, next_mask=None)).loss
    gap = math.log(math.e + math.e**5 + math.e**3) - 1.0
    assert plain.item() == pytest.approx(0.5 * 10.0**2 + 2.0 * gap, rel=1e-6)


def test_imitation_of_iql_is_among_the_legal_actions() -> None:
    """Logits 0, 9, 0 with the second action illegal: log 1/2 for each of the others."""
    policy = iql.IqlConfig(recipe="iql", name="x", steps=1, log="unread").method(MASKED).policy
    fixed_outputs(policy.actor, [0.0, 9.0, 0.0])
    assert policy.log_prob(ROWS.seen, ROWS.chosen, LEGAL).item() == pytest.approx(-math.log(2.0))
    assert policy.log_prob(ROWS.seen, ROWS.chosen).item() < -9.0


def test_gap_of_cql_over_legal_actions_is_that_of_a_table_without_the_others() -> None:
    """Against a slow version that leaves the illegal columns out; the gradient is finite and 0 there."""
    draws = np.random.default_rng(3)
    for _ in range(50):
        values, mask = draws.normal(0, 20, 6), draws.random(6) < 0.5
        chosen = int(draws.integers(6))
        mask[chosen] = True
        slow = math.log(sum(math.exp(value - values[chosen]) for value in values[mask]))
        table = torch.tensor(values)[None].requires_grad_()
        gap = cql_penalty(table.masked_fill(~torch.from_numpy(mask), -torch.inf), torch.tensor([chosen])).loss
        assert gap.item() == pytest.approx(slow, abs=1e-9)
        gap.sum().backward()
        assert table.grad is not None and table.grad.isfinite().all()
        assert (table.grad[0][torch.from_numpy(~mask)] == 0).all()


def test_admissible_actions_of_bcq_are_compared_among_legal_ones() -> None:
    """The action that the log likes most is illegal here, and beside it no other is likely enough. A threshold of 0
    allows all, and no illegal one."""
    policy = DiscreteBcqPolicy(MASKED, MlpConfig(hidden=[4], activation="relu"), seed=0, threshold=0.3)
    fixed_outputs(policy.values, [7.0, 9.0, 8.0])
    fixed_outputs(policy.behaviour, [0.0, 9.0, -0.5])
    seen = np.ones((1, 1), np.float32)
    assert policy.numpy_policy().best(seen, LEGAL.numpy()).tolist() == [2]
    policy.threshold = 0.0
    assert policy.numpy_policy().best(seen, LEGAL.numpy()).tolist() == [2]
    likely = torch.tensor([[0.5, 0.0, 0.5]]).log()
    assert bcq_admissible_actions(likely, threshold=0.0).tolist() == [[True, False, True]]
    assert bcq_admissible_actions(likely, threshold=1.0).tolist() == [[True, False, True]]


def plain_log(path: Path, **changes: Any) -> Path:
    """Two episodes of two decisions over three actions, as another program would write them: one terminated, one
    cut."""
    held: dict[str, Any] = {
        "episode": [0, 0, 1, 1], "observation": [[0.0], [1.0], [2.0], [3.0]], "action": [0, 1, 2, 0],
        "reward": [1.0] * 4, "terminated": [False, True, False, False],
        "mask": [[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0]],
        "final": [None, None, None, [4.0]], "final_mask": [None, None, None, [0, 1, 0]],
    }  # fmt: skip
    pq.write_table(pa.table({name: column for name, column in {**held, **changes}.items() if column is not None}), path)
    return path


SPACES = (spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(3))


def test_masks_of_a_plain_table_are_read(tmp_path: Path) -> None:
    """A termination leaves all actions; a row's next mask is that of the next row of its episode."""
    log = read_log(plain_log(tmp_path / "log.parquet"), spaces=SPACES)
    single = log.episodes.transitions()
    assert single.mask is not None
    assert single.final_mask is not None
    assert single.mask.astype(int).tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0]]
    assert single.final_mask.astype(int).tolist() == [[0, 1, 1], [1, 1, 1], [1, 0, 0], [0, 1, 0]]
    assert "4 decisions with masks of legal actions" in describe_log(log)


def test_without_masks_of_last_observations_their_decisions_are_left_out(tmp_path: Path) -> None:
    log = read_log(plain_log(tmp_path / "log.parquet", final_mask=None), spaces=SPACES)
    assert log.episodes.decisions == 3
    assert log.notes == (
        f"{tmp_path / 'log.parquet'}: no column final_mask: the last decision of 1 episodes that did not terminate is "
        "left out, as what is legal after it is not known",
    )
    assert log.episodes.final_mask is not None
    assert log.episodes.final_mask.astype(int).tolist() == [[0, 1, 1], [1, 0, 0]]  # the first ends: any will do
    assert log.episodes.final is not None
    assert log.episodes.final[1].tolist() == [3.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action": [0, 1, 1, 1]}, r"2 actions are illegal by their own mask; the first is 1 in row 2, where .* \[2\]"),
        ({"mask": [[1, 1, 0]] * 3 + [[1, 2, 0]]}, "row 3: mask is 2; it must be a flag"),
        ({"mask": [[1, 1, 0]] * 3 + [[1, 1]]}, "1 rows with a wrong count of numbers in mask; the first is row 3"),
        ({"final_mask": [None, None, None, [0, 0, 0]]}, "row 3 is the last of an episode that did not terminate"),
        ({"terminated": [0, 1, 0, 3]}, "row 3: terminated is 3; it must be a flag"),
    ],
)
def test_faults_of_masks_name_the_row(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_log(plain_log(tmp_path / "log.parquet", **changes), spaces=SPACES)


def test_masks_of_a_csv_file_are_several_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = ["0,0.5,0,1.0,0,1,1,0", "0,0.7,1,1.0,1,0,1,0"]
    path.write_text("\n".join(["episode,observation,action,reward,terminated,legal_0,legal_1,legal_2", *rows]) + "\n")
    data = LogDataConfig(columns={"mask": "legal_*"}, spaces={"action": "discrete(3)"})
    read = read_log(path, data=data).episodes
    assert read.mask is not None
    assert read.mask.astype(int).tolist() == [[1, 1, 0], [0, 1, 0]]
