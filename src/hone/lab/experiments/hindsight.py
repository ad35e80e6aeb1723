"""Hindsight relabelling on and off: flipping bits into a pattern, where unreached goals give no signal."""

from typing import Any

from hone.control.environments.world import GymConfig
from hone.control.hindsight import HindsightConfig
from hone.control.job import ControlEvaluationConfig
from hone.control.networks.mlp import MlpConfig
from hone.control.off_policy import IterationReplayConfig
from hone.lab.control import train_job
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.learner.config import ReplayLearnerConfig
from hone.recipes.off_policy.her_dqn import ENTRY, HerDqnConfig
from hone.run.job import TrainingJob

_SHARES = {"with hindsight": 0.8, "without": 0.0}
_TRIES = 100


def _make_job(bits: int, share: float, *, seed: int, turns: int) -> TrainingJob[Any]:
    """DQN on bit flipping, with `share` of relabelled goals."""
    return ENTRY.build(
        HerDqnConfig(
            recipe="her_dqn", name="lab", seed=seed, steps=turns,
            env=GymConfig(id="hone/BitFlip-v0", num_envs=16, kwargs={"bits": bits}),
            network=MlpConfig(hidden=[64], activation="relu"),
            learner=ReplayLearnerConfig(lr=2e-3, updates_per_iteration=4, max_grad_norm=None),
            replay=IterationReplayConfig(collect=1, warmup=500, batch=128, capacity=200_000),
            hindsight=HindsightConfig(share=share),
            evaluation=ControlEvaluationConfig(episodes=_TRIES),
        )
    )  # fmt: skip


def claims_of(on: list[float], at: int, off: list[float]) -> list[BoundedClaim]:
    """Claims on the goals reached with and without hindsight; the number `at` is that of 8 bits."""
    return [
        at_least("goals of 8 bits reached with hindsight", on[at], 0.7),
        at_most("the same without", off[at], 0.4),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, sizes = (240, (8,)) if quick else (300, (4, 6, 8, 10))
    result = {
        name: [train_job(_make_job(n, share, seed=seed, turns=turns), steps=turns)["eval/score"] for n in sizes]
        for name, share in _SHARES.items()
    }
    at = sizes.index(8)
    on, off = result["with hindsight"], result["without"]
    return ExperimentResult(
        header=("replay", *(f"{n} bits" for n in sizes)),
        rows=[(name, *(f"{share:.0%}" for share in values)) for name, values in result.items()],
        panels=[line_plot(f"goals reached after {turns} iterations", "bits", sizes, result)],
        verdict=(
            f"With {turns} iterations of 16 steps and 4 updates, hindsight relabelling learns to reach {on[at]:.0%} of "
            f"the goals of 8 bits; without it {off[at]:.0%} are reached."
        ),
        claims=claims_of(on, at, off),
    )


EXPERIMENT = Experiment(
    title="Hindsight relabelling",
    question="Can a goal-conditioned policy learn from episodes that miss their goal?",
    run=_run,
    source="Andrychowicz et al., 2017",
)
