"""Target network on and off: a network trained on its own bootstrapped values, against dynamic programming."""

from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from hone.control.finite.build import garnet_mdp
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
from hone.core.random import generator
from hone.lab.control import train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, line_plot
from hone.lab.puzzles import Floats
from hone.learner.config import ReplayLearnerConfig
from hone.recipes.offline.cql import CqlAlgorithm, CqlConfig, discrete_method
from hone.run.report.html import format_number

_STATES, _ACTIONS, _SIZE, _DISCOUNT, _UPDATES = 40, 4, 6, 0.97, 10
_RATES = (0.001, 0.003, 0.01)
_SHARES = {"none": 1.0, "tau = 0.1": 0.1, "tau = 0.02": 0.02}
"""Share of the weights that the target network takes over after each update."""


def _collect_log(mdp: FiniteMdp, looks: Floats, *, seed: int, steps: int) -> BehaviourLog:
    """Data of a uniformly random policy; every action is tried everywhere."""
    world = FiniteWorld(mdp=mdp, steps=steps // 50, seed=seed, copies=50)
    lived = world.rollout(StationaryActor(FixedPolicyActor(probability=np.full((_STATES, _ACTIONS), 1 / _ACTIONS))))
    assert lived.final is not None
    shown = looks.astype(np.float32)
    episodes = replace(
        lived, seen=shown[lived.observations.astype(np.int64)], final=shown[lived.final.astype(np.int64)]
    )
    box = spaces.Box(-np.inf, np.inf, (_SIZE,), np.float32)
    return BehaviourLog(episodes=episodes, observation_space=box, action_space=spaces.Discrete(_ACTIONS))


def _train_network(share: float, *, rate: float, seed: int, world: int, turns: int) -> tuple[Floats, Floats]:
    """Per iteration `[turns]`: root mean squared error of the values relative to their size, and value of the greedy
    policy relative to the optimal one.
    """
    mdp = garnet_mdp(states=_STATES, actions=_ACTIONS, branching=3, seed=100 * seed + world, discount=_DISCOUNT)
    true, looks = policy_iteration(mdp), generator(100 * seed + world, "lab/looks").standard_normal((_STATES, _SIZE))
    log = _collect_log(mdp, looks, seed=seed, steps=5000)
    config = CqlConfig(
        recipe="cql", name="lab", log="", seed=seed, steps=turns, network=MlpConfig(hidden=[64], activation="relu"),
        learner=ReplayLearnerConfig(lr=rate, updates_per_iteration=_UPDATES, max_grad_norm=None), batch=64,
        algorithm=CqlAlgorithm(discount=_DISCOUNT, conservatism=0.0, tau=share),
    )  # fmt: skip
    job = offline_job(config, log, discrete_method(config, log_spaces(log)))
    policy = job.recipe.learner.policy
    every = torch.from_numpy(policy.spaces.inputs.array(looks.astype(np.float32)))
    off, result = np.empty(turns), np.empty(turns)

    def watch(step: int, episodes: Episodes) -> None:
        del episodes
        with torch.no_grad():
            table = policy.values(every).numpy().astype(np.float64)
        off[step - 1] = np.linalg.norm(table - true.q) / np.linalg.norm(true.q)
        result[step - 1] = start_value(mdp, evaluate_policy(mdp, table.argmax(axis=1))) / start_value(mdp, true.value)

    train_recipe(job.recipe, steps=turns, watch=watch)
    return off, result


def claims_of(
    fast: float, late: dict[tuple[str, float], float], off: dict[tuple[str, float], float], slow: str
) -> list[BoundedClaim]:
    """Claims on the late value and the final error, by target network and learning rate."""
    once, tenth = list(_SHARES)[:2]
    return [
        at_least(
            f"value in the second half at learning rate {fast}, target network over none",
            late[tenth, fast] / late[once, fast],
            1.05,
        ),
        at_least("final value error, slowest target network over none", off[slow, fast] / off[once, fast], 1.5),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, worlds, rates = (60, 1, _RATES[1:]) if quick else (100, 2, _RATES)
    result = {
        (name, rate): np.array(
            [_train_network(share, rate=rate, seed=seed, world=k, turns=turns) for k in range(worlds)]
        )
        for name, share in _SHARES.items()
        for rate in rates
    }
    late = {case: float(paths[:, 1, turns // 2 :].mean()) for case, paths in result.items()}
    off = {case: float(paths[:, 0, -1].mean()) for case, paths in result.items()}
    fast, slow = rates[-1], min(_SHARES, key=_SHARES.__getitem__)
    once, tenth = list(_SHARES)[:2]
    middle = rates[-2]
    x = _UPDATES * np.arange(1, turns + 1)
    return ExperimentResult(
        header=("target network", *(f"value, rate {rate:g}" for rate in rates), f"value error, rate {fast:g}"),
        rows=[
            (name, *(f"{late[name, rate]:.0%}" for rate in rates), format_number(off[name, fast])) for name in _SHARES
        ],
        panels=[
            line_plot(f"value of the policy over the optimum, rate {fast:g}", "updates", x,
                  {name: result[name, fast][:, 1] for name in _SHARES}),
            line_plot("value error over the size of the values", "updates", x, {name: result[name,
            fast][:, 0] for name in _SHARES}),
        ],
        verdict=(
            f"Without a target network (learning rate {fast:g}) the policy has {late[once, fast]:.0%} of the optimal "
            f"value in the second half of {x[-1]:,} updates, with tau = 0.1 {late[tenth, fast]:.0%} (at learning rate "
            f"{middle:g}: {late[once, middle]:.0%} and {late[tenth, middle]:.0%}). The cost is slower learning: after "
            f"all updates the value error is {off[once, fast]:.0%} of the values without, {off[tenth, fast]:.0%} with "
            f"tau = 0.1 and {off[slow, fast]:.0%} with tau = 0.02."
        ),
        claims=claims_of(fast, late, off, slow),
        figures={f"worth/{name}/{rate:g}": value for (name, rate), value in late.items()},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Target network",
    question="Does a target network stabilise the learning of values?",
    run=_run,
    source="Mnih et al., 2015",
)
