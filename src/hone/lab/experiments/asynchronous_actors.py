"""Asynchronous actors: PPO on CartPole with data of older policies, by a fixed schedule in place of A3C."""

import numpy as np

from hone.core.episodes import Episodes
from hone.envs.gym.world import GymConfig
from hone.lab.control import moving_average, train_recipe
from hone.lab.finding import Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.recipes.on_policy.ppo import ENTRY, PpoAlgorithm, PpoConfig

AGES = (0, 1, 4, 16)
ENVS, EACH, WINDOW = 8, 32, 10


def train_cartpole(age: int, *, seed: int, turns: int) -> tuple[Floats, Floats]:
    """Steps per fall in each iteration `[turns]` of the training data, and the final parameters, flat."""
    job = ENTRY.build(
        PpoConfig(
            recipe="ppo", name="lab", seed=seed, steps=turns, env=GymConfig(id="CartPole-v1", num_envs=ENVS),
            algorithm=PpoAlgorithm(max_staleness=age),
        )
    )  # fmt: skip
    held = np.empty(turns)

    def watch(step: int, episodes: Episodes) -> None:
        held[step - 1] = episodes.decisions / max(1, int(episodes.terminated.sum()))

    try:
        policy = train_recipe(job.recipe, steps=turns, watch=watch)
        return held, np.concatenate([number.detach().double().numpy().reshape(-1) for number in policy.parameters()])
    finally:
        job.close()


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    turns, runs, ages = (35, 1, (0, 1, 16)) if quick else (80, 3, AGES)
    result = {age: [train_cartpole(age, seed=10 * seed + k, turns=turns) for k in range(runs)] for age in ages}
    path = {age: np.mean([held for held, _ in each], axis=0) for age, each in result.items()}
    mean = {age: float(held.mean()) for age, held in path.items()}
    again = train_cartpole(1, seed=10 * seed, turns=turns)[1]
    apart = float(np.abs(again - result[1][0][1]).max())
    oldest = ages[-1]
    claims = [
        at_most("parameters of two runs with a thread that acts ahead, apart", apart, 1e-12),
        at_least("steps per fall over learning, 1 turn old over fresh", mean[1] / mean[0], 0.6),
        at_most(f"the same, {oldest} turns old", mean[oldest] / mean[0], 0.8),
    ]
    x = ENVS * EACH * np.arange(1, turns + 1)
    return ExperimentResult(
        header=("age, turns", "steps per fall, over learning", "in the last tenth"),
        rows=[(str(age), f"{mean[age]:.1f}", f"{path[age][-turns // 10 :].mean():.1f}") for age in ages],
        panels=[
            line_plot(f"steps per fall, means over {WINDOW} turns", "environment steps", x[WINDOW - 1 :],
                  {f"{age} turns old": moving_average(path[age], WINDOW) for age in ages})
        ],
        verdict=(
            f"PPO that learns from steps one turn old keeps the pole up {mean[1]:.0f} steps a fall over {x[-1]:,} "
            f"environment steps, against {mean[0]:.0f} with fresh ones and {mean[oldest]:.0f} at {oldest} turns; the "
            "thread that acts ahead on a fixed schedule leaves no trace of its timing: two runs agree in every bit, "
            "which actors that write when they please (A3C) do not."
        ),
        claims=claims,
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Asynchronous actors",
    question="What does it cost to act while the policy learns, and must it make runs differ?",
    run=run,
    source="Mnih et al., 2016 (A3C)",
)
