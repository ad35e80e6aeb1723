"""A fleet's log as a source of training: a function of the log alone, whatever the pauses and the kills."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.api import train
from hone.control.logs.fleet import FleetSource, open_fleet_log
from hone.core.errors import ConfigError, DataError, LostResourceError
from hone.decide.fleet.device import HttpCall, Uploader
from hone.decide.fleet.store import FleetStore, open_fleet_store, read_batch


@dataclass
class LogWriter:
    """A store that robots write to without a service."""

    folder: Path
    choices: int = 0
    store: FleetStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_fleet_store(self.folder / "fleet.db")

    def send(self, call: HttpCall) -> tuple[int, bytes]:
        if call.method != "POST":
            return 404, b""
        ack = self.store.append(read_batch(call.body), now_s=1e9)
        return 200, json.dumps({"refused": [], "watermark": ack.progress.watermark}).encode()

    def play(self, robot: str, steps: int, *, seed: int = 0, ends: Sequence[int] = ()) -> None:
        """Steps of Pendulum's form, or with choices of CartPole's: three or four numbers seen, one done."""
        random, seen = np.random.default_rng(seed), 4 if self.choices else 3
        path = self.folder / f"{robot}.db"
        with Uploader(
            path, to="", robot=robot, transport=self.send, background=False, choices=self.choices,
            clock=ManualClock(1e9),
        ) as up:  # fmt: skip
            observation = random.standard_normal(seen)
            for step in range(steps):
                after = random.standard_normal(seen)
                action = int(random.integers(self.choices)) if self.choices else random.uniform(-2, 2, 1)
                up.step(observation, action, -1.0, float(step), step in ends, next_observation=after)
                observation = after
            up.sync()


def source(folder: Path, count: int, **changed: object) -> FleetSource[object]:
    log = open_fleet_log(folder / "fleet.db", observation=3, action=1, choices=0)
    return FleetSource(log=log, count=count, observation_shape=(3,), action_shape=(1,), **changed)  # type: ignore[arg-type]


def test_steps_come_in_the_order_of_their_arrival_as_transitions(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.play("r1", 3, ends=[2])
    writer.play("r2", 3)
    reader = source(tmp_path, 4)
    episodes = reader.collect()
    assert episodes.reward.tolist() == [0.0, 1.0, 2.0, 0.0]
    assert episodes.group.tolist() == [1, 1, 1, 2]
    assert episodes.terminated.tolist() == [False, False, True, False]
    assert episodes.observations.dtype == np.float32
    assert episodes.final is not None
    assert np.array_equal(episodes.final[:2], episodes.observations[1:3])
    assert (episodes.chosen.shape, episodes.logp.tolist()) == ((4, 1), [-1.0] * 4)


def test_a_source_waits_for_all_of_its_steps_and_then_takes_them_at_once(tmp_path: Path) -> None:
    writer, clock, waited = LogWriter(tmp_path), ManualClock(), list[float]()
    writer.play("r1", 2)

    def pause(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(seconds)
        if len(waited) == 3:
            writer.play("r2", 4)

    reader = source(tmp_path, 6, clock=clock, pause=pause, patience_s=1.0)
    assert reader.collect().group.tolist() == [1, 1, 2, 2, 2, 2]
    assert len(waited) == 3
    with pytest.raises(LostResourceError, match="no new step for 1 s, 0 of 6"):
        reader.collect()
    assert reader.position == 6


def test_a_restored_source_goes_on_where_it_was_and_refuses_another_log(tmp_path: Path) -> None:
    LogWriter(tmp_path).play("r1", 6)
    first, other = source(tmp_path, 2), source(tmp_path, 2)
    first.collect()
    other.restore(first.state())
    assert np.array_equal(first.collect().observations, other.collect().observations)
    (tmp_path / "b").mkdir()
    LogWriter(tmp_path / "b").play("r1", 6)
    with pytest.raises(DataError, match="another log than the saved run's"):
        source(tmp_path / "b", 2).restore(first.state())


def test_a_log_of_other_numbers_and_no_log_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no log of a fleet"):
        open_fleet_log(tmp_path / "fleet.db", observation=3, action=1, choices=0)
    writer = LogWriter(tmp_path)
    with pytest.raises(DataError, match="none yet"):
        open_fleet_log(tmp_path / "fleet.db", observation=3, action=1, choices=0)
    writer.play("r1", 1)
    with pytest.raises(DataError, match="3 seen, 1 done, 0 choices"):
        open_fleet_log(tmp_path / "fleet.db", observation=4, action=1, choices=2)


def run_config(folder: Path, recipe: str, env: str, **tables: object) -> dict[str, object]:
    table = {
        "recipe": recipe, "steps": 6, "env": {"id": env, "num_envs": 1}, "network": {"hidden": [8, 8]},
        "evaluation": {"episodes": 1}, "replay": {"batch": 4, "warmup": 8}, "learner": {"updates_per_iteration": 2},
        "fleet": {"log": str(folder / "fleet.db"), "samples_per_insert": 4.0, "shards": 2, "patience_s": 0.1},
        "run": {"log_every": 1},
    }  # fmt: skip
    return {**table, **tables}


@pytest.mark.parametrize(
    ("recipe", "env", "choices"),
    [
        ("sac", "Pendulum-v1", 0),
        pytest.param("td3", "Pendulum-v1", 0, marks=pytest.mark.slow),
        ("dqn", "CartPole-v1", 2),
        pytest.param("discrete_sac", "CartPole-v1", 2, marks=pytest.mark.slow),
    ],
)
def test_an_off_policy_recipe_learns_from_the_log_and_draws_each_step_so_often(
    tmp_path: Path, recipe: str, env: str, choices: int
) -> None:
    writer = LogWriter(tmp_path, choices)
    writer.play("r1", 20, seed=1)
    writer.play("r2", 20, seed=2)
    result = train(run_config(tmp_path, recipe, env), runs=tmp_path / "runs")
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["robots/samples_per_insert"] == 48 / (8 + 5 * 2)  # 8 samples of 2 steps, after a warm-up of 8
    assert rows[-1]["robots/staleness_max"] == 5


def test_recipes_that_need_whole_episodes_say_so(tmp_path: Path) -> None:
    LogWriter(tmp_path, 2).play("r1", 20)
    with pytest.raises(ConfigError, match="single steps"):
        train(run_config(tmp_path, "n_step_dqn", "CartPole-v1"), runs=tmp_path / "runs")


@pytest.mark.slow  # its fast form is a figure of the system
def test_a_run_that_ran_out_of_steps_goes_on_and_ends_bit_for_bit_as_one_that_did_not(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, steps in ((whole, 40), (cut, 12)):
        folder.mkdir()
        LogWriter(folder).play("r1", steps, seed=3)
    first = train(run_config(whole, "sac", "Pendulum-v1"), runs=whole / "runs")
    with pytest.raises(LostResourceError):
        train(run_config(cut, "sac", "Pendulum-v1"), runs=cut / "runs")
    options = {"to": "", "robot": "r1", "background": False, "clock": ManualClock(1e9)}
    with Uploader(cut / "another_spool.db", transport=LogWriter(cut).send, **options) as up:  # type: ignore[arg-type]
        for one in open_fleet_log(whole / "fleet.db", observation=3, action=1, choices=0).read(0, 1000)[2][12:]:
            up.step(
                one["observation"], one["action"], float(one["logp"]), float(one["reward"]), False,
                next_observation=one["next_observation"],
            )  # fmt: skip
        up.sync()
    second = train(run_config(cut, "sac", "Pendulum-v1"), runs=cut / "runs", resume=True)
    weights = "checkpoints/step_00000006/policy/model.safetensors"
    assert (first.folder / weights).read_bytes() == (second.folder / weights).read_bytes()
