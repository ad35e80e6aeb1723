"""A cold start: reinforcement from random weights, after a few examples, and examples alone."""

import numpy as np

from hone.core.random import permutation
from hone.lab.finding import Experiment, ExperimentResult, at_least, line_plot
from hone.lab.policies import make_network, puzzle_metrics, train_supervised
from hone.lab.puzzles import addition
from hone.lab.training import PuzzleTraining, train_policy
from hone.report.html import format_number

BASE, EXAMPLES = 14, 48
STARTS = {"nothing": 0, "12 steps on examples": 12, "400 steps on examples": 400}


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    steps, runs = (90, 1) if quick else (150, 2)
    puzzle = addition(BASE)
    solved: dict[str, list[np.ndarray]] = {name: [] for name in STARTS}
    entropy: dict[str, float] = {}
    for run_seed in range(10 * seed, 10 * seed + runs):
        shown = permutation(run_seed, "lab/examples", count=len(puzzle.questions))[:EXAMPLES]
        for name, cold in STARTS.items():
            policy = make_network(puzzle, seed=run_seed)
            train_supervised(policy, puzzle, steps=cold, questions=shown)
            start = puzzle_metrics(policy, puzzle)
            entropy[name] = start["entropy_nats"]
            plan = PuzzleTraining(puzzle=puzzle, steps=steps, prompts=36)
            metrics = train_policy(policy, plan, seed=run_seed, watch=lambda now: puzzle_metrics(now, puzzle))
            solved[name].append(np.append(start["solved"], metrics["solved"]))
    paths = {name: np.mean(each, axis=0) for name, each in solved.items()}
    nothing, cold, long = STARTS
    gain = {name: float(path[-1] - path[0]) for name, path in paths.items()}
    claims = [
        at_least("solved after RL, cold start over none", float(paths[cold][-1] / paths[nothing][-1]), 1.15),
        at_least("improvement by RL after the short cold start", gain[cold], 0.1),
        at_least("improvement by RL, short cold start over long", gain[cold] / gain[long], 1.3),
    ]
    return ExperimentResult(
        header=("start", "entropy before RL, nats", "solved before RL", "solved after RL"),
        rows=[
            (name, format_number(entropy[name]), f"{path[0]:.1%}", f"{path[-1]:.1%}") for name, path in paths.items()
        ],
        panels=[line_plot("additions solved", "step of RL", range(steps + 1), paths)],
        verdict=(
            f"Without examples, {steps} steps of RL reach {paths[nothing][-1]:.0%} solved. After {STARTS[cold]} "
            f"supervised steps on {EXAMPLES} examples RL goes from {paths[cold][0]:.0%} to {paths[cold][-1]:.0%}; "
            f"after {STARTS[long]} steps, with {entropy[long]:.2f} nats of entropy left for exploration, from "
            f"{paths[long][0]:.0%} to {paths[long][-1]:.0%}."
        ),
        claims=claims,
    )


EXPERIMENT = Experiment(
    title="Supervised cold start",
    question="Do supervised steps before RL help?",
    run=run,
    source="DeepSeek-R1, 2025",
)
