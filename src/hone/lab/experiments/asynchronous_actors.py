"""Asynchronous actors: PPO on CartPole with data of older policies, by a fixed schedule in place of A3C."""

import numpy as np

from hone.core.episodes import Episodes
from hone.envs.gym.world import GymConfig
from hone.lab.control import moving_average, train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.recipes.on_policy.ppo import ENTRY, PpoAlgorithm, PpoConfig

AGES = (0, 1, 4, 16)
ENVS, EACH, WINDOW = 8, 32, 10


def train_cartpole(age: int, *, seed: int, turns: int) -> tuple[Floats, Floats]:
    """Steps per fall in each iteration `[turns]` of the training data, and the final parameters, flat."""
    job = ENTRY.build(
        PpoConfig(
            recipe="ppo", name="lab", seed=seed, steps=turns, env=GymConfig(id="CartPole-v1", num_envs=ENVS),
            algorithm=PpoAlgorithm(max_staleness=age, clip_decay="constant"),
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


def claims_of(mean: dict[int, float], apart: float) -> list[BoundedClaim]:
    """Claims on the episode length by age of the data, and on the difference of the parameters of two equal runs."""
    oldest = max(mean)
    return [
        at_most("difference between the parameters of two asynchronous runs", apart, 1e-12),
        at_least("episode length, 1 iteration old over fresh", mean[1] / mean[0], 0.6),
        at_most(f"the same, {oldest} iterations old", mean[oldest] / mean[0], 0.8),
    ]


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    turns, runs, ages = (35, 1, (0, 1, 16)) if quick else (80, 3, AGES)
    result = {age: [train_cartpole(age, seed=10 * seed + k, turns=turns) for k in range(runs)] for age in ages}
    paths = {age: np.stack([held for held, _ in each]) for age, each in result.items()}
    mean = {age: float(held.mean()) for age, held in paths.items()}
    again = train_cartpole(1, seed=10 * seed, turns=turns)[1]
    apart = float(np.abs(again - result[1][0][1]).max())
    oldest = ages[-1]
    x = ENVS * EACH * np.arange(1, turns + 1)
    return ExperimentResult(
        header=("staleness, iterations", "episode length, mean over training", "in the last tenth"),
        rows=[(str(age), f"{mean[age]:.1f}", f"{paths[age][:, -turns // 10 :].mean():.1f}") for age in ages],
        panels=[
            line_plot(f"episode length, means over {WINDOW} iterations", "environment steps", x[WINDOW - 1 :],
                  {f"{age} iterations old": np.stack([moving_average(held, WINDOW) for held in paths[age]])
                   for age in ages})
        ],
        verdict=(
            f"PPO on data one iteration old reaches a mean episode length of {mean[1]:.0f} over {x[-1]:,} environment "
            f"steps, against {mean[0]:.0f} with fresh data and {mean[oldest]:.0f} at {oldest} iterations. The acting "
            f"thread follows a fixed schedule: the weights of two runs with the same seed differ by {apart:g}."
        ),
        claims=claims_of(mean, apart),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Asynchronous actors",
    question="How much does acting with an older policy cost, and can asynchronous runs be reproducible?",
    run=run,
    source="Mnih et al., 2016 (A3C)",
)
