"""A shield and its price: no crash, in training either, for a reward that depends on what it assumes of others."""

from dataclasses import replace

import numpy as np

from hone.control.finite.build import GymnasiumTable, mdp_from_table
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import finite_horizon_value, policy_iteration, start_value
from hone.control.finite.world import FiniteWorld
from hone.control.tables.learn import QLearningRule, RateConfig
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.core.decisions import ActionSet, Floats
from hone.core.episodes import Episodes
from hone.decide.shield.certificate import certify
from hone.decide.shield.guard import project_action
from hone.decide.shield.model import GameShieldConfig, shield_spec
from hone.decide.simulators.car_following import LATTICE_ROAD, SENSORS, CarFollowingEnv
from hone.lab.control import tabular_recipe, train_recipe, with_rewards
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot, line_plot

_DISCOUNT, _HORIZON = 0.95, 200
_BRAKES = (0.0, 1.0, 2.0, 5.0)
"""Hardest brakes of the other car that a shield assumes, m/s^2; the car's own are 1."""
_NONE = "no shield"


def _assumed_name(brake: float) -> str:
    """Name of the shield that assumes these brakes."""
    return f"shield, brakes {brake:g}"


def _shielded_process(brake: float, env: CarFollowingEnv, table: GymnasiumTable) -> FiniteMdp:
    """The exact process in which a shield that assumes these brakes replaces unsafe actions."""
    spec = shield_spec(replace(LATTICE_ROAD, lead_low=-brake).shield_tables(), place="road")
    assert isinstance(spec, GameShieldConfig)
    shield = certify(spec).open(SENSORS)
    actions = ActionSet(names=LATTICE_ROAD.actions, features=np.array(LATTICE_ROAD.accelerations)[:, None])
    replaced = {
        number: {
            action: table[number][project_action(shield, state, actions, action)] for action in range(len(actions))
        }
        for number, state in enumerate(LATTICE_ROAD.lattice_states())
    }
    return mdp_from_table(replaced, start=env.initial_state_distrib, discount=_DISCOUNT)


def _crashes_in_training(mdp: FiniteMdp, *, seed: int, turns: int) -> Floats:
    """Crashes until each iteration `[turns]` of Q-learning from 16 copies."""
    world = FiniteWorld(mdp=replace(mdp, step_limit=_HORIZON), steps=16, seed=seed, copies=16)
    table = ActionTable(StateFeatures(count=mdp.states, actions=mdp.actions), initial=6.0)
    counts = np.zeros(turns)

    def watch(step: int, episodes: Episodes) -> None:
        counts[step - 1] = episodes.terminated.sum()

    recipe = tabular_recipe(world, table, QLearningRule(actions=mdp.actions), rate=RateConfig(rate=0.3))
    train_recipe(recipe, steps=turns, watch=watch)
    return counts.cumsum()


def claims_of(value: dict[str, float], chance: dict[str, float], training: dict[str, Floats]) -> list[BoundedClaim]:
    """Claims on crashes, in training and of the best policies, and on the price of the assumption."""
    true, blind, timid = (_assumed_name(brake) for brake in (1.0, 0.0, 5.0))
    return [
        at_most("crashes in training under the shield", float(training[true][-1]), 0.5),
        at_least("crashes in training without one", float(training[_NONE][-1]), 50),
        at_most("chance of a crash under the shield", chance[true], 1e-12),
        at_least("value under the shield, share of the best without one", value[true] / value[_NONE], 0.95),
        at_most(
            "value if others might stop dead, share of the best without a shield", value[timid] / value[_NONE], 0.96
        ),
        at_least("chance of a crash if others are believed not to brake", chance[blind], 0.005),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns = 60 if quick else 600
    env = CarFollowingEnv("lattice", numbered=True)
    table = env.P
    mdps = {_NONE: mdp_from_table(table, start=env.initial_state_distrib, discount=_DISCOUNT)}
    mdps |= {_assumed_name(brake): _shielded_process(brake, env, table) for brake in _BRAKES}
    best = {name: policy_iteration(mdp) for name, mdp in mdps.items()}
    value = {name: start_value(mdps[name], best[name].value) for name in mdps}
    chance: dict[str, float] = {}  # of a crash within `_HORIZON` steps from the start, exactly
    for name, mdp in mdps.items():
        crashes = with_rewards(replace(mdp, discount=1.0), mdp.terminates.astype(np.float64))
        chance[name] = start_value(mdp, finite_horizon_value(crashes, best[name].policy, _HORIZON))
    true = _assumed_name(1.0)
    training = {name: _crashes_in_training(mdps[name], seed=seed, turns=turns) for name in (_NONE, true)}
    share = {name: value[name] / value[_NONE] for name in mdps}
    timid = _assumed_name(_BRAKES[-1])
    return ExperimentResult(
        header=("driver", "value of the best policy", "share", f"chance of a crash in {_HORIZON} steps"),
        rows=[(name, f"{value[name]:.2f}", f"{share[name]:.1%}", f"{chance[name]:.2%}") for name in mdps],
        panels=[
            bar_plot("value of the best policy, share of that without a shield", share),
            line_plot("crashes while learning", "iteration", range(1, turns + 1), training),
        ],
        verdict=(
            f"A shield that assumes the brakes that others have left no crash, in {turns * 256:,} steps of training "
            f"either, where the same learner without it crashed {training[_NONE][-1]:,.0f} times. It costs "
            f"{1 - share[true]:.1%} of the best policy's value; {1 - share[timid]:.1%} if it must assume that others "
            f"can stop five times as hard, and a shield that assumes that nobody brakes protects from nothing."
        ),
        claims=claims_of(value, chance, training),
    )


EXPERIMENT = Experiment(
    title="A shield and its price",
    question="What does it cost to be safe for certain?",
    run=_run,
    source="Alshiekh et al., 2018",
)
