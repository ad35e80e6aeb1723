"""`benchmarks/worlds.py` starts, its refusals name the cause and the remedy, and its bars hold for the worst seed."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hone.process.user_files import load_reference


@pytest.fixture
def worlds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    yield importlib.import_module("worlds")
    sys.modules.pop("worlds", None)


def test_refused_environments_are_told_why_and_what_to_do(worlds, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--only", "refused", "--seeds", "1", "--first-seed", "7"])
    assert worlds.main() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6
    assert all(line["met"] and line["processor"] and line["value"] and line["bar"] for line in lines)


def test_a_missed_bar_is_the_exit_code_unless_the_run_was_quick(worlds, monkeypatch, capsys):
    seen = []

    def missed(seeds, *, quick):
        seen.append((list(seeds), quick))
        yield worlds.line_of("missed", [1.0], 2.0)

    monkeypatch.setattr(worlds, "ROWS", {"missed": missed, "other": lambda *_, **__: pytest.fail("not asked for")})
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--only", "mis", "--first-seed", "9"])
    assert worlds.main() == 1
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--only", "mis", "--quick"])
    assert worlds.main() == 0
    assert seen == [([9, 10, 11, 12, 13], False), ([worlds.FRESH_SEED], True)]
    assert capsys.readouterr().out.count('"met": false') == 2


def test_the_worst_seed_decides_and_a_bar_is_met_at_equality(worlds):
    line = worlds.line_of("a", [3.0, 1.0, 2.0], 1.0)
    assert (line["value"], line["worst"], line["met"], line["seeds"]) == (2.0, 1.0, True, 3)
    assert not worlds.line_of("a", [3.0, 0.99], 1.0)["met"]
    most = worlds.line_of("a", [3.0, 1.0], 3.0, most=True)
    assert (most["worst"], most["met"], most["bar"]) == (3.0, True, "<= 3, worst seed")
    assert not worlds.line_of("a", [3.01, 1.0], 3.0, most=True)["met"]


# Best actions of the environments that are kept back, by their hidden state, and what they return.
BEST_ACTIONS = {
    "Workshop": (lambda env: env.tool + 5, 5.0),
    "MixingDesk": (lambda env: (env.channel, env.levels, np.array([env.switch], np.int8)), 6.0),
    "PhotoAndGauges": (lambda env: env.want, 8.0),
    "Thermostat": (lambda env: np.clip(20.0 - env.heat, -2.0, 2.0), -0.4),
    "ThreeBack": (lambda env: env.shown[-4] if len(env.shown) > 3 else 0, 12.0),
    "LongWay": (lambda env: 3 if env.place[1] < 4 and env.place[0] == 0 else 1 if env.place[0] < 4 else 2, -12.0),
    "WideNumbers": (lambda env: env.want, 10.0),
    "RestlessInfo": (lambda env: env.bit, 10.0),
    "Sliders": (lambda env: env.low + env.share * (env.high - env.low), 10.0),
    "Grid": (lambda env: env.seen, 1.0),
    "Whole": (lambda env: env.want, 5.0),
}


@pytest.mark.parametrize("name", BEST_ACTIONS)
def test_the_best_return_of_an_environment_kept_back_is_the_one_told(worlds, name):
    env = load_reference(worlds.env_of(name, "kept_back_envs.py")["id"], kind="env.id =", prefix="hone_user_")()
    best, told = BEST_ACTIONS[name]
    returns = []
    for choose in (best, lambda _: env.action_space.sample(), lambda _: env.action_space.sample()):
        env.reset(seed=3)
        env.action_space.seed(17)  # the streams of equal seeds are equal
        paid, ended = 0.0, False
        while not ended and paid > -500:
            try:
                _, reward, terminated, truncated, _ = env.step(choose(env))
            except ValueError:  # a tool that is not there
                break
            paid, ended = paid + float(reward), bool(terminated or truncated)
        returns.append(paid)
    assert returns[0] == pytest.approx(told, abs=1e-6)
    assert max(returns[1:]) < told


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_lanes_pay_one_an_episode_however_they_begin_anew(worlds, mode):
    reference = worlds.env_of("Lanes", "kept_back_envs.py")["id"]
    lanes = load_reference(reference, kind="env.id =", prefix="hone_user_")(num_envs=3, mode=mode)
    lanes.reset(seed=1)
    paid, episodes = 0.0, 0
    for _ in range(30):
        _, reward, terminated, truncated, _ = lanes.step(lanes.colour + 10)
        over = terminated | truncated
        paid, episodes = paid + float(reward.sum()), episodes + int(over.sum())
        if mode == "DISABLED" and over.any():
            lanes.reset(options={"reset_mask": over})
    running = lanes.time[~lanes.ended] / lanes.length[~lanes.ended]
    assert episodes >= 12
    assert paid == pytest.approx(episodes + running.sum())
