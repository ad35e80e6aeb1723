"""Any world: environments of every form, trained to their known best returns or refused in words.

    python benchmarks/worlds.py                     every row, fresh seeds
    python benchmarks/worlds.py --quick             one seed a row and fewer steps
    python benchmarks/worlds.py --only masked       rows whose names begin so

One JSON line a row, with `row`, `value`, `bar` and `met`, and the processor; exit code 1 if a bar is missed. `ROWS` is
the table: a row is a function of the seeds and of `quick` that returns lines. Seeds were not used to choose settings.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tables import processor

import hone.api
from hone.control.distill import DistillConfig, distill_tree
from hone.control.environments.make import GymConfig
from hone.control.export_onnx import export_onnx, random_observations
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.run.loop import train

HERE = Path(__file__).resolve().parent
FRESH_SEED = 4100
"""First of the seeds that no setting was chosen by."""
BEST = 10.0
"""Best return of the environments of `foreign_environments/worlds_envs.py`."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one row says."""

    row: str
    value: float | str
    bar: str
    met: bool
    worst: float | None = None
    seeds: int = 1

    def tell(self) -> None:
        """Print it as one line of JSON."""
        print(json.dumps({**vars(self), "processor": processor()}), flush=True)


RowFn = Callable[..., Iterator[Line]]
"""Seeds, and `quick` -> lines."""


def returns_of(
    recipe: str, env: dict[str, Any], seeds: Sequence[int], *, steps: int, **settings: object
) -> list[float]:
    """Mean return over 20 episodes of the mode of the policy that each seed's run ends with."""
    found = list[float]()
    for seed in seeds:
        tables = {
            "recipe": recipe,
            "name": "x",
            "seed": seed,
            "steps": steps,
            "env": env,
            "evaluation": {"episodes": 20},
        }
        config = load_recipe(recipe).config.model_validate({**tables, **settings})
        job = config.open().build(config)
        try:
            train(job.recipe, steps=steps, callback=lambda *_: None)
            assert job.evaluate is not None
            found.append(job.evaluate().metrics["eval/score"])
        finally:
            job.close()
    return found


def line_of(name: str, found: Sequence[float], bar: float) -> Line:
    """A row whose worst seed has to reach the bar."""
    mean, worst = sum(found) / len(found), min(found)
    return Line(
        row=name, value=round(mean, 3), bar=f">= {bar:g}, worst seed", met=worst >= bar, worst=worst, seeds=len(found)
    )


def env_of(name: str, **kwargs: object) -> dict[str, Any]:
    return {
        "id": f"{HERE / 'foreign_environments' / 'worlds_envs.py'}:{name}",
        "num_envs": 16,
        "isolation": "none",
        "kwargs": kwargs,
    }


PPO = {"rollout_steps": 16, "learner": {"lr": 0.01, "epochs": 4, "minibatches": 2}}
DQN = {
    "network": {"hidden": [64]}, "learner": {"lr": 3e-3, "updates_per_iteration": 8},
    "replay": {"warmup": 500, "collect": 8}, "exploration": {"decay_env_steps": 4000},
}  # fmt: skip


def masked(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Masks of three kinds of actions and of two forms; an illegal action would end the run."""
    steps = 60 if quick else 120
    for kind in ("discrete", "multi_discrete", "multi_binary"):
        found = returns_of("ppo", env_of("Masked", kind=kind), seeds, steps=steps, **PPO)
        yield line_of(f"masked actions, {kind}, PPO", found, BEST)
    found = returns_of("ppo", env_of("Masked", told="leaf"), seeds, steps=steps, **PPO)
    yield line_of("masked actions, told by a leaf, PPO", found, BEST)
    found = returns_of("double_dqn", env_of("Masked"), seeds, steps=steps, **DQN)
    yield line_of("masked actions, discrete, double DQN", found, BEST)


def own_spaces(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Nested observations and actions, truncation, a native vector form."""
    steps = 80 if quick else 150
    yield line_of(
        "nested Dict and Tuple, PPO", returns_of("ppo", env_of("Nested"), seeds, steps=steps, **PPO), 0.95 * BEST
    )
    yield line_of(
        "MultiDiscrete, ends by truncation, PPO",
        returns_of("ppo", env_of("Truncated"), seeds, steps=steps, **PPO),
        BEST,
    )
    found = returns_of("ppo", env_of("NativeVector"), seeds, steps=steps, **PPO)
    yield line_of("native vector form with parts, PPO", found, BEST)


def refused(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Environments that cannot train as they are: the message has to name the cause and the remedy."""
    del quick
    cases = {
        "words in an observation": ("ppo", env_of("Words"), ["'words'", "env.ignore"]),
        "a PettingZoo environment": ("ppo", env_of("make_two_players"), ["PettingZoo", "env.seats"]),
        "masks in a recipe without": ("rl2", env_of("Masked"), ["info[", "env.mask"]),
        "factors in a recipe without": ("sac", env_of("Nested"), ["parts", "ppo"]),
    }
    for name, (recipe, env, words) in cases.items():
        try:
            returns_of(recipe, env, seeds[:1], steps=1)
            told = "trained"
        except ConfigError as fault:
            told = " ".join(fault.messages)
        met = all(word in told for word in words)
        yield Line(row=f"refused in words: {name}", value=told[:160], bar=f"names {' and '.join(words)}", met=met)


PICTURES = """
import sys
from pathlib import Path
from hone.control.environments.make import GymConfig, env_factory
from hone.control.evaluate.video import record_episode
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import MlpConfig
from hone.control.spaces import network_spaces
for name in ("HalfCheetah-v5", "Hopper-v5"):
    config = GymConfig(id=name, max_episode_steps=3)
    env = env_factory(config).make_one()
    policy = ActorCritic(network_spaces(env.observation_space, env.action_space), MlpConfig(hidden=[8]), seed=0)
    env.close()
    told, picture = record_episode(policy, config, seed=0, step=1)
    assert picture is not None, told.note
"""


def pictures(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Pictures of two MuJoCo environments in one process without a display."""
    del seeds, quick
    known = {name: value for name, value in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    done = subprocess.run([sys.executable, "-c", PICTURES], env=known, capture_output=True, text=True, check=False)
    told = done.returncode if done.returncode == 0 else f"{done.returncode}: {done.stderr.strip()[-160:]}"
    yield Line(row="pictures of two MuJoCo runs in one process", value=told, bar="rc 0", met=done.returncode == 0)


RUNS_WITH_PICTURES = """
import sys
import hone.api
for name in ("HalfCheetah-v5", "Hopper-v5"):
    run = hone.api.train(
        {
            "recipe": "ppo", "name": name[:6], "steps": 1, "rollout_steps": 32, "evaluation": {"episodes": 1},
            "env": {"id": name, "num_envs": 2, "clip_actions": True, "max_episode_steps": 50},
        },
        runs=sys.argv[1],
    )
    assert (run.folder / "episode.png").is_file(), (run.folder / "episode.json").read_text()
"""


def runs_with_pictures(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Two whole runs of MuJoCo with pictures in one process, without a display."""
    del seeds, quick
    known = {name: value for name, value in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", RUNS_WITH_PICTURES, place]
        done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    told = done.returncode if done.returncode == 0 else f"{done.returncode}: {done.stderr.strip()[-160:]}"
    yield Line(row="two runs with pictures in one process", value=told, bar="rc 0", met=done.returncode == 0)


TAKEN: dict[str, dict[str, Any]] = {
    "ppo CartPole": {
        "recipe": "ppo", "steps": 150, "rollout_steps": 64, "env": {"id": "CartPole-v1", "num_envs": 16},
        "algorithm": {"normalise": {"observations": True}},
    },
    "sac Pendulum": {"recipe": "sac", "steps": 300, "env": {"id": "Pendulum-v1"}},
    "td3 Pendulum": {"recipe": "td3", "steps": 300, "env": {"id": "Pendulum-v1"}},
    "dqn CartPole": {"recipe": "dqn", "steps": 300, "env": {"id": "CartPole-v1"}},
}  # fmt: skip
"""Policies that are taken away; the first is distilled into a tree, too."""


def taken_away(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Trained policies called from Python and by onnxruntime: equal actions on random observations."""
    del quick
    with tempfile.TemporaryDirectory() as place:
        for name, config in TAKEN.items():
            saved = hone.api.load(hone.api.train({**config, "name": name[:3], "seed": seeds[0]}, runs=place))
            exported = export_onnx(saved.folder, Path(place) / f"{name}.onnx")
            seen = random_observations(saved, 1000, seed=7)
            same = (saved.predict(seen)[0] == saved.acting.best(seen)).reshape(1000, -1).all(axis=1)
            for way, equal in (("ONNX", exported.equal), ("predict", int(same.sum()))):
                yield Line(row=f"equal actions, {way}: {name}", value=equal, bar="1000 of 1000", met=equal == 1000)


def trees(seeds: Sequence[int], *, quick: bool) -> Iterator[Line]:
    """Trees distilled from PPO's policies, by their return and fidelity."""
    differences: list[float] = []
    config = TAKEN["ppo CartPole"]
    with tempfile.TemporaryDirectory() as place:
        for seed in seeds:
            saved = hone.api.load(hone.api.train({**config, "name": f"ppo{seed}", "seed": seed}, runs=place))
            sizes = DistillConfig(rounds=4 if quick else 8, seed=seed)
            found = distill_tree(saved, GymConfig.model_validate(config["env"]), sizes).measures
            differences.append(found.tree.mean / found.teacher.mean - 1.0)
            told = f"{found.fidelity.mean:.3f} ({found.fidelity.low:.3f} to {found.fidelity.high:.3f})"
            yield Line(row=f"tree: fidelity, seed {seed}", value=told, bar="with its interval", met=True)
    mean = sum(differences) / len(differences)
    yield Line(
        row="tree: return beside its teacher's", value=mean, bar="within 1%", met=mean >= -0.01, worst=min(differences),
        seeds=len(differences),
    )  # fmt: skip


ROWS: dict[str, RowFn] = {
    "masked": masked,
    "own_spaces": own_spaces,
    "refused": refused,
    "pictures": pictures,
    "runs_with_pictures": runs_with_pictures,
    "taken_away": taken_away,
    "trees": trees,
}


def main() -> int:
    """Run the rows; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    seeds = range(FRESH_SEED, FRESH_SEED + (1 if given.quick else given.seeds))
    missed = 0
    for name, row in ROWS.items():
        if name.startswith(given.only):
            for line in row(seeds, quick=given.quick):
                line.tell()
                missed += not line.met
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
