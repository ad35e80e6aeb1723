"""Distribution shift: offline Q-learning overestimates actions outside the data; conservative Q-learning does not."""

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from hone.control.finite.build import garnet_mdp, mdp_from_log
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.finite.world import FiniteWorld
from hone.control.logs.parquet import BehaviourLog
from hone.control.networks.mlp import MlpConfig
from hone.control.offline import offline_job
from hone.control.spaces import log_spaces
from hone.control.tables.tables import FixedPolicyActor
from hone.control.tabular import StationaryActor
from hone.core.episodes import Episodes
from hone.lab.control import train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.learner.config import ReplayLearnerConfig
from hone.recipes.offline.cql import CqlAlgorithm, CqlConfig, discrete_method
from hone.run.report.html import format_number

STATES, ACTIONS, TRIED, DISCOUNT = 30, 8, 2, 0.9
_KEYS = ("thought", "true", "untried")
_UPDATES = 20
"""Updates per iteration."""
_METHODS = {"Q-learning": 0.0, "CQL": 1.0}
"""Weight of the conservative penalty."""


def _collect_log(mdp: FiniteMdp, behaviour: Floats, *, seed: int, steps: int) -> BehaviourLog:
    """Transitions collected by the policy `behaviour` `[S, A]`."""
    world = FiniteWorld(mdp=mdp, steps=steps // 50, seed=seed, copies=50)
    episodes = world.rollout(StationaryActor(FixedPolicyActor(probability=behaviour)))
    return BehaviourLog(
        episodes=episodes, observation_space=spaces.Discrete(mdp.states), action_space=spaces.Discrete(mdp.actions)
    )


def behaviour_policy(mdp: FiniteMdp) -> Floats:
    """A behaviour policy that takes the `TRIED` best actions of each state, equally often `[S, A]`."""
    rank = (-policy_iteration(mdp).q).argsort(axis=1).argsort(axis=1)
    return (rank < TRIED) / TRIED


def _train_offline(
    log: BehaviourLog, mdp: FiniteMdp, conservatism: float, *, seed: int, turns: int
) -> dict[str, Floats]:
    """Greedy policy after each iteration `[turns]`, at the start: its estimated value, its true value, and the share of
    states in which its action is not in the data.
    """
    config = CqlConfig(
        recipe="cql", name="lab", log="", seed=seed, steps=turns, network=MlpConfig(hidden=[64], activation="relu"),
        learner=ReplayLearnerConfig(lr=4e-3, updates_per_iteration=_UPDATES, max_grad_norm=None), batch=128,
        algorithm=CqlAlgorithm(discount=DISCOUNT, conservatism=conservatism),
    )  # fmt: skip
    job = offline_job(config, log, discrete_method(config, log_spaces(log)))
    policy = job.recipe.learner.policy
    every = torch.from_numpy(policy.spaces.inputs.array(np.arange(STATES)))
    tried = mdp_from_log(log.episodes, states=STATES, actions=ACTIONS, discount=DISCOUNT).available
    result = {name: np.empty(turns) for name in _KEYS}

    def watch(step: int, episodes: Episodes) -> None:
        del episodes
        table = _action_values(policy.values, every)
        choice = table.argmax(axis=1)
        result["thought"][step - 1] = start_value(mdp, table.max(axis=1))
        result["true"][step - 1] = start_value(mdp, evaluate_policy(mdp, choice))
        result["untried"][step - 1] = 1.0 - tried[np.arange(STATES), choice].mean()

    train_recipe(job.recipe, steps=turns, watch=watch)
    return result


@torch.no_grad()
def _action_values(values: nn.Module, every: torch.Tensor) -> Floats:
    """Rewards and transitions `[S, A]`."""
    return np.asarray(values(every).numpy(), np.float64)


def _compare_methods(seed: int, number_: int, *, turns: int, steps: int) -> tuple[dict[str, dict[str, Floats]], Floats]:
    """Both methods on the data of one random environment; and the values of the best policy within the data and of the
    behaviour policy `[2]`.
    """
    mdp = garnet_mdp(
        states=STATES, actions=ACTIONS, branching=3, seed=100 * seed + number_, discount=DISCOUNT, ending=0.02
    )
    behaviour = behaviour_policy(mdp)
    log = _collect_log(mdp, behaviour, seed=seed, steps=steps)
    known = policy_iteration(mdp_from_log(log.episodes, states=STATES, actions=ACTIONS, discount=DISCOUNT)).policy
    bars = np.array([start_value(mdp, evaluate_policy(mdp, known)), start_value(mdp, evaluate_policy(mdp, behaviour))])
    return {name: _train_offline(log, mdp, weight, seed=seed, turns=turns) for name, weight in _METHODS.items()}, bars


def claims_of(over: dict[str, float], wary: dict[str, float], naive: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the overestimation by method, and on the last figures of CQL (`wary`) and Q-learning (`naive`)."""
    return [
        at_least("overestimation by Q-learning, share of the best value on the log", over["Q-learning"], 0.03),
        at_most("the same, CQL", over["CQL"], 0.02),
        at_least("value of CQL over Q-learning", wary["true"] / naive["true"], 1.05),
        at_least("untried actions, Q-learning", naive["untried"], 0.1),
        at_most("untried actions, CQL", wary["untried"], 0.05),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, worlds = (60, 2) if quick else (60, 3)
    each_world = [_compare_methods(seed, k, turns=turns, steps=2000 if quick else 5000) for k in range(worlds)]
    by_log, by_habit = np.mean([bars for _, bars in each_world], axis=0).tolist()
    result = {
        name: {key: np.stack([paths[name][key] for paths, _ in each_world]) for key in _KEYS} for name in _METHODS
    }
    last = {name: {key: float(path[:, -1].mean()) for key, path in each.items()} for name, each in result.items()}
    over = {name: (each["thought"] - each["true"]) / by_log for name, each in last.items()}
    naive, wary = last["Q-learning"], last["CQL"]
    x = _UPDATES * np.arange(1, turns + 1)
    return ExperimentResult(
        header=("method", "estimated value", "true value", "untried actions"),
        rows=[
            *((name, format_number(each["thought"]), format_number(each["true"]), f"{each['untried']:.0%}")
              for name, each in last.items()),
            ("dynamic programming on the log", "", format_number(by_log), "0%"),
            ("the behaviour policy", "", format_number(by_habit), "0%"),
        ],
        panels=[
            line_plot("value of the policy", "updates", x, {
                f"{name}, {words}": each[key]
                for name, each in result.items() for key, words in (("thought", "estimated"), ("true", "true"))
            }),
            line_plot("share of states with an untried action", "updates", x,
                  {name: each["untried"] for name, each in result.items()}),
        ],
        verdict=(
            f"On logs of only the best {TRIED} of {ACTIONS} actions, Q-learning estimates the value of its policy at "
            f"{naive['thought']:.2f}. The true value is {naive['true']:.2f}, with untried actions in "
            f"{naive['untried']:.0%} of states. CQL estimates {wary['thought']:.2f} and has {wary['true']:.2f} "
            f"({wary['untried']:.0%} untried). The behaviour policy has {by_habit:.2f}; dynamic programming on the log "
            f"reaches {by_log:.2f}."
        ),
        claims=claims_of(over, wary, naive),
        figures={"worth/log": by_log, "worth/behaviour": by_habit},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Distribution shift offline",
    question="Does offline Q-learning overestimate untried actions, and does CQL prevent it?",
    run=_run,
    source="Kumar et al., 2020; Levine et al., 2020",
)
