"""Three trust regions: TRPO's bound on the KL, PPO's clip of ratios, DPPO's mask of probabilities."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State
from hone.credit.group import group_relative
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    LinePlot,
    PlotSeries,
    at_least,
    at_most,
    plot_by_step,
)
from hone.lab.policies import answer_paths, frozen_copy, kl_between, log_softmax, pretrained_network, puzzle_metrics
from hone.lab.puzzles import Floats, Puzzle, addition
from hone.lab.training import DelayedActor, Objective, PuzzleTraining, PuzzleWorld, clipped_objective, train_policy
from hone.learner.flat_parameters import FlatParameters
from hone.objectives.natural import TrustRegion, fisher_product, flatten, trust_region_step
from hone.objectives.policy import importance_weighted
from hone.objectives.trust import dppo_tv
from hone.run.loop import Recipe, train
from hone.run.report.html import format_number
from hone.sources.live import LiveSource

_REGION = TrustRegion(max_kl_nats=0.02, damping=0.01)
_GOAL = 0.8
_EPOCHS, _RATE = 4, 0.004
_OBJECTIVES: dict[str, Objective] = {
    "PPO": clipped_objective,
    "DPPO": lambda policy, batch: dppo_tv(batch.logp(policy), batch.old_logp, batch.advantage),
}


@dataclass(slots=True)
class _NaturalGradientLearner:
    """One natural step a batch; implements `loop.Learner`."""

    policy: nn.Module
    parameters: FlatParameters

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        seen = torch.from_numpy(np.ascontiguousarray(episodes.observations))
        chosen = torch.from_numpy(episodes.chosen.astype(np.int64))[:, None]
        then, advantage = torch.from_numpy(episodes.logp), torch.from_numpy(credits.advantage)
        with torch.no_grad():
            before = log_softmax(self.policy, seen)

        def loss() -> Tensor:
            return importance_weighted(
                log_softmax(self.policy, seen).gather(1, chosen).squeeze(1), then, advantage
            ).loss.mean()

        def kl() -> Tensor:
            return (before.exp() * (before - log_softmax(self.policy, seen))).sum(dim=1).mean()

        def metrics() -> tuple[float, float]:
            with torch.no_grad():
                return float(loss()), float(kl())

        weights = self.parameters.parameters
        slope = flatten(torch.autograd.grad(loss(), weights)).detach()
        outcome = trust_region_step(self.parameters.data.detach(), slope, fisher_product(kl, weights), metrics, _REGION)
        return {"policy/kl_nats": outcome.kl_nats, "accepted": float(outcome.accepted)}

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        del state


@dataclass(slots=True)
class _StepKlMeter:
    """Accuracy, and the exact KL(before || after) of each step along the right answers."""

    puzzle: Puzzle
    previous: nn.Module

    def __call__(self, policy: nn.Module) -> Metrics:
        moved = kl_between(self.previous, policy, answer_paths(self.puzzle)[0])
        self.previous = frozen_copy(policy)
        return {**puzzle_metrics(policy, self.puzzle), "step_kl": moved}


def _train_natural_gradient(
    policy: nn.Module, puzzle: Puzzle, *, seed: int, steps: int, watch: _StepKlMeter
) -> dict[str, Floats]:
    """`training.improve` with another learner."""
    history: list[Metrics] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del step, episodes, credits
        history.append({**metrics, **watch(policy)})

    learner = _NaturalGradientLearner(policy, FlatParameters(policy.parameters()))
    source: LiveSource[nn.Module] = LiveSource(
        world=PuzzleWorld(puzzle=puzzle, seed=seed, prompts=36, samples=8), actor=DelayedActor()
    )
    train(Recipe(source=source, credit=group_relative, learner=learner), steps=steps, callback=report)
    return {name: np.array([metrics[name] for metrics in history]) for name in history[0]}


def claims_of(paid: dict[str, float], most: dict[str, float], reached: dict[str, float]) -> list[BoundedClaim]:
    """Claims by method on the KL until the goal `paid` and the largest step `most`, in nats over all questions, and on
    the share of runs that `reached` the goal.
    """
    return [
        at_least("runs that reach the goal, least share of the methods", min(reached.values()), 0.99),
        at_most("KL for the same gain, TRPO over PPO", paid["TRPO"] / paid["PPO"], 0.9),
        at_least("KL for the same gain, DPPO over PPO", paid["DPPO"] / paid["PPO"], 1.1),
        at_most("largest step of TRPO over the bound on its batch", most["TRPO"] / _REGION.max_kl_nats, 1.25),
        at_least("largest step, DPPO over PPO", most["DPPO"] / most["PPO"], 1.1),
    ]


def _train_methods(seed: int, *, steps: int, runs: int) -> dict[str, list[dict[str, Floats]]]:
    """Metrics of `runs` trainings by each method, from the same networks."""
    puzzle = addition()
    result: dict[str, list[dict[str, Floats]]] = {"TRPO": [], "PPO": [], "DPPO": []}
    for run_seed in range(10 * seed, 10 * seed + runs):
        policy = pretrained_network(puzzle, seed=run_seed)
        meter = _StepKlMeter(puzzle, frozen_copy(policy))
        result["TRPO"].append(_train_natural_gradient(policy, puzzle, seed=run_seed, steps=steps, watch=meter))
        for name, objective in _OBJECTIVES.items():
            policy = pretrained_network(puzzle, seed=run_seed)
            plan = PuzzleTraining(puzzle=puzzle, objective=objective, steps=steps, epochs=_EPOCHS, learning_rate=_RATE)
            result[name].append(
                train_policy(policy, plan, seed=run_seed, watch=_StepKlMeter(puzzle, frozen_copy(policy)))
            )
    return result


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    result = _train_methods(seed, steps=40 if quick else 60, runs=1 if quick else 3)
    paid = {name: float(np.mean([_steps_to_goal(metrics)[1] for metrics in each])) for name, each in result.items()}
    needed = {name: float(np.mean([_steps_to_goal(metrics)[0] for metrics in each])) for name, each in result.items()}
    most = {name: float(np.mean([metrics["step_kl"].max() for metrics in each])) for name, each in result.items()}
    last = {name: float(np.mean([metrics["solved"][-1] for metrics in each])) for name, each in result.items()}
    reached = {
        name: float(np.mean([metrics["solved"].max() >= _GOAL for metrics in each])) for name, each in result.items()
    }
    return ExperimentResult(
        header=("method", f"steps to {_GOAL:.0%}", "KL until then, nats", "largest step, nats", "solved at the end"),
        rows=[
            (name, *map(format_number, (needed[name], paid[name], most[name])), f"{last[name]:.1%}") for name in result
        ],
        panels=[
            LinePlot(
                title="additions solved by cumulative KL, two runs",
                x_label="sum of the steps' KL, nats",
                series=[
                    PlotSeries(
                        label=f"{name}, run {k + 1}",
                        x=np.cumsum(metrics["step_kl"]).tolist(),
                        y=metrics["solved"].tolist(),
                    )
                    for name, each in result.items()
                    for k, metrics in enumerate(each[:2])
                ],
            ),
            plot_by_step(
                "KL of each step, nats",
                {name: np.stack([metrics["step_kl"] for metrics in each]) for name, each in result.items()},
            ),
        ],
        verdict=(
            f"To solve {_GOAL:.0%}, TRPO needs {paid['TRPO']:.3f} nats of KL in {needed['TRPO']:.0f} steps, PPO "
            f"{paid['PPO']:.3f} in {needed['PPO']:.0f} and DPPO {paid['DPPO']:.3f} in {needed['DPPO']:.0f}. The "
            f"largest step of a run is {most['TRPO']:.3f}, {most['PPO']:.3f} and {most['DPPO']:.3f} nats, measured "
            f"over all questions; TRPO's bound of {_REGION.max_kl_nats} nats is on its own batch."
        ),
        claims=claims_of(paid, most, reached),
    )


def _steps_to_goal(metrics: dict[str, Floats]) -> tuple[int, float]:
    """Steps to the goal, and the total KL until then; all steps if the goal is missed, which a claim forbids."""
    reached = np.flatnonzero(metrics["solved"] >= _GOAL)
    steps = int(reached[0]) + 1 if len(reached) else len(metrics["solved"])
    return steps, float(metrics["step_kl"][:steps].sum())


EXPERIMENT = Experiment(
    title="Trust regions",
    question="How far do TRPO, PPO and DPPO move the policy for the same gain?",
    run=_run,
    source="Schulman et al., 2015 and 2017; DPPO, 2026",
)
