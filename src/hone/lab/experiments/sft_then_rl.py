"""A cold start: reinforcement from random weights, after a few examples, and examples alone."""

import numpy as np

from hone.core.random import permutation
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, line_plot
from hone.lab.policies import make_network, puzzle_metrics, train_supervised
from hone.lab.puzzles import addition
from hone.lab.training import PuzzleTraining, train_policy
from hone.run.report.html import format_number

_BASE, _EXAMPLES = 14, 48
_STARTS = {"nothing": 0, "12 steps on examples": 12, "400 steps on examples": 400}


def claims_of(solved: dict[str, tuple[float, float]]) -> list[BoundedClaim]:
    """Claims on the share solved by each start, before and after RL."""
    nothing, cold, long = _STARTS
    gain = {name: after - before for name, (before, after) in solved.items()}
    return [
        at_least("solved after RL, cold start over none", solved[cold][1] / max(solved[nothing][1], 1e-6), 1.15),
        at_least("improvement by RL after the short cold start", gain[cold], 0.1),
        at_least("improvement by RL, short cold start minus long", gain[cold] - gain[long], 0.05),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs = (90, 1) if quick else (150, 3)
    puzzle = addition(_BASE)
    paths: dict[str, list[np.ndarray]] = {name: [] for name in _STARTS}
    entropies: dict[str, list[float]] = {name: [] for name in _STARTS}
    for run_seed in range(10 * seed, 10 * seed + runs):
        shown = permutation(run_seed, "lab/examples", count=len(puzzle.questions))[:_EXAMPLES]
        for name, cold in _STARTS.items():
            policy = make_network(puzzle, seed=run_seed)
            train_supervised(policy, puzzle, steps=cold, questions=shown)
            start = puzzle_metrics(policy, puzzle)
            entropies[name].append(start["entropy_nats"])
            plan = PuzzleTraining(puzzle=puzzle, steps=steps, prompts=36)
            metrics = train_policy(policy, plan, seed=run_seed, watch=lambda now: puzzle_metrics(now, puzzle))
            paths[name].append(np.append(start["solved"], metrics["solved"]))
    mean = {name: np.mean(each, axis=0) for name, each in paths.items()}
    solved = {name: (float(path[0]), float(path[-1])) for name, path in mean.items()}
    entropy = {name: float(np.mean(each)) for name, each in entropies.items()}
    nothing, cold, long = _STARTS
    return ExperimentResult(
        header=("start", "entropy before RL, nats", "solved before RL", "solved after RL"),
        rows=[(name, format_number(entropy[name]), *(f"{share:.1%}" for share in solved[name])) for name in solved],
        panels=[
            line_plot(
                "additions solved",
                "step of RL",
                range(steps + 1),
                {name: np.stack(each) for name, each in paths.items()},
            )
        ],
        verdict=(
            f"Without examples, {steps} steps of RL reach {solved[nothing][1]:.0%} solved. After {_STARTS[cold]} "
            f"supervised steps on {_EXAMPLES} examples RL goes from {solved[cold][0]:.0%} to {solved[cold][1]:.0%}; "
            f"after {_STARTS[long]} steps, which leave {entropy[long]:.2f} nats of entropy instead of "
            f"{entropy[cold]:.2f}, from {solved[long][0]:.0%} to {solved[long][1]:.0%}. All figures are means over "
            f"{runs} runs."
        ),
        claims=claims_of(solved),
    )


EXPERIMENT = Experiment(
    title="Supervised cold start",
    question="Do supervised steps before RL help?",
    run=_run,
    source="DeepSeek-R1, 2025",
)
