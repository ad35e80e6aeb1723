"""Learning over given options: where they come from, and Q-learning in the process that somebody sees who only chooses.

Belongs here: the learner in closed form and the reading of options. The world remembers which option is under way
(`envs.gym.option_wrapper`), so an option may begin in one rollout and stop in another.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.make import GymConfig, env_factory, runs_isolated
from hone.control.finite.options import MarkovOption
from hone.control.networks.mlp import DiscreteActions
from hone.control.networks.options import OptionTablePolicy, decode_option_action, split_option_memory
from hone.control.suite.grid_worlds import HasOptions
from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.core.state import State, array
from hone.core.strict_json import strict_json

OptionArrays: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]
"""Actions, chances of stopping, and where it can be begun: `[options, S]` each."""


class OptionsConfig(Config):
    """The options (courses of action) that the policy selects from."""

    file: str | None = None
    """JSON: a list of objects with `policy` (an action for each state), `stops` (the chance of stopping on arriving in
    each) and, if not everywhere, `begins` (a bool for each). Unset: those that the environment offers."""
    primitive: bool = True
    """Let each single action be an option as well, so that the optimal policy can be represented."""


def load_options(config: OptionsConfig, env: GymConfig, *, states: int, actions: int) -> OptionArrays:
    """Raises ConfigError where there are none, DataError where they do not fit the world."""
    options = _options_of_env(env) if config.file is None else _options_of_file(Path(config.file))
    if config.primitive:
        options += [
            MarkovOption(policy=np.full(states, action), termination=np.ones(states)) for action in range(actions)
        ]
    faults = [
        f"option {number}: {name} has {len(values)} entries, the world has {states} states"
        for number, option in enumerate(options)
        for name, values in (("policy", option.policy), ("stops", option.termination))
        if len(values) != states
    ]
    if faults:
        raise DataError(*faults)
    policies = np.stack([np.asarray(option.policy, np.int64) for option in options])
    stops = np.stack([np.asarray(option.termination, np.float64) for option in options])
    everywhere = np.ones(states, np.bool_)
    begins = np.stack([everywhere if option.initiation_set is None else option.initiation_set for option in options])
    if not ((policies >= 0) & (policies < actions)).all() or not ((stops >= 0) & (stops <= 1)).all():
        raise DataError(f"options take actions 0 .. {actions - 1} and stop with chances in [0, 1]; these do not")
    begins |= ~begins.any(axis=0)  # where nothing can be begun, nobody ever stands; any will do
    return policies, stops, begins


def _options_of_env(config: GymConfig) -> list[MarkovOption]:
    if not runs_isolated(config):
        env = env_factory(config).make_one()
        inside = env.unwrapped
        if isinstance(inside, HasOptions):
            return list(inside.options())
    raise ConfigError(
        f"env.id = {config.id!r} offers no options (a method `options`, asked in the trainer): name a file of them in "
        "options.file"
    )


def _options_of_file(path: Path) -> list[MarkovOption]:
    try:
        rows: Any = strict_json(path.read_bytes())
        return [
            MarkovOption(
                policy=np.asarray(row["policy"], np.int64),
                termination=np.asarray(row["stops"], np.float64),
                initiation_set=None if row.get("begins") is None else np.asarray(row["begins"], np.bool_),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: no list of options with policy and stops (and begins, where it is not everywhere): {error!r}"
        ) from error


@dataclass
class _RunningOption:
    """An option on its way: where it began, and what it was paid so far."""

    state: int
    option: int
    reward: float = 0.0
    discount_factor: float = 1.0
    """discount^(steps so far)."""


@dataclass
class OptionQLearner:
    """SMDP Q-learning: Q(s, o) += rate * (R + discount^k max_o' Q(s', o') - Q(s, o)) once o, begun in s, stopped in s'
    after k steps that paid R, discounted (Bradtke & Duff, 1995; Sutton, Precup & Singh, 1999)."""

    policy: OptionTablePolicy
    discount: float
    rate: float
    running_options: dict[int, _RunningOption] = field(default_factory=dict[int, _RunningOption])
    """By number of the episode: what goes on beyond a rollout."""
    updates: int = 0

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Learn from every option that stopped; `credits` are the rewards as paid."""
        assert episodes.final is not None
        policy = self.policy
        inputs, actions, options = policy.spaces.inputs, policy.spaces.actions, len(policy.table("policies"))
        assert isinstance(actions, DiscreteActions)
        state, _ = split_option_memory(episodes.observations, inputs, options)
        final, _ = split_option_memory(episodes.final, inputs, options)
        began, option, _ = decode_option_action(episodes.chosen, options=options, actions=actions.count)
        columns = tuple(column.tolist() for column in (state, began, option, credits.advantage))
        errors: list[float] = []
        for number, (first, last) in enumerate(pairwise(episodes.offsets.tolist())):
            group = int(episodes.group[number])
            rows = zip(*(column[first:last] for column in columns), strict=True)
            now = self._process_piece(rows, self.running_options.pop(group, None), errors)
            if now is None:
                continue
            if episodes.terminated[number]:
                errors.append(self._update_value(now, 0.0))
            elif episodes.truncated[number]:
                errors.append(self._update_value(now, self._continuation_value(int(final[number]), now.option)))
            else:
                self.running_options[group] = now
        self.updates += len(errors)
        error_metrics = {"options/error_abs": float(np.abs(errors).mean())} if errors else {}
        return {
            **credits.metrics,
            **error_metrics,
            "options/stopped": float(len(errors)),
            "options/updates": float(self.updates),
        }

    def _process_piece(
        self, rows: Iterable[tuple[int, bool, int, float]], now: _RunningOption | None, errors: list[float]
    ) -> _RunningOption | None:
        """Through the decisions of one piece (state, whether an option began, which, paid) -> the option under way."""
        for seen, began, option, paid in rows:
            if began and now is not None:
                errors.append(self._update_value(now, self._max_option_value(seen)))
            if began or now is None:
                now = _RunningOption(seen, option)
            now.reward += now.discount_factor * paid
            now.discount_factor *= self.discount
        return now

    def _update_value(self, now: _RunningOption, beyond: float) -> float:
        values = self.policy.table("values")
        error = now.reward + now.discount_factor * beyond - values[now.state, now.option]
        values[now.state, now.option] += self.rate * error
        return float(error)

    def _max_option_value(self, state: int) -> float:
        """max over the options that can be begun."""
        return float(self.policy.table("values")[state][self.policy.table("begins")[:, state]].max())

    def _continuation_value(self, state: int, option: int) -> float:
        """An option that was cut short would have gone on, unless it stops here."""
        stop = float(self.policy.table("stops")[option, state])
        going_on = float(self.policy.table("values")[state, option])
        return (1.0 - stop) * going_on + (stop * self._max_option_value(state) if stop else 0.0)

    def state(self) -> State:
        rows = [(group, now.state, now.option) for group, now in self.running_options.items()]
        paid = [(now.reward, now.discount_factor) for now in self.running_options.values()]
        return {
            "learnt": self.updates,
            "running": np.array(rows, dtype=np.int64).reshape(-1, 3),
            "paid": np.array(paid, dtype=np.float64).reshape(-1, 2),
        }

    def restore(self, state: State) -> None:
        rows, paid = array(state, "running").astype(np.int64), array(state, "paid").astype(np.float64)
        self.running_options = {
            group: _RunningOption(seen, option, reward, factor)
            for (group, seen, option), (reward, factor) in zip(rows.tolist(), paid.tolist(), strict=True)
        }
        learnt = state["learnt"]
        assert isinstance(learnt, int)
        self.updates = learnt
