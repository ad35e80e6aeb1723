"""A world of logged choices: contexts, actions and rewards whose policies' true values are known exactly.

Contexts are drawn from a finite population, so that the value of a policy is a sum over it. The mean reward is no
linear function of the features: a linear model of it is wrong where its rows are few.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hone.core.decisions import (
    ActionSet,
    Choice,
    Decision,
    DecisionRecord,
    DecisionTable,
    Floats,
    Outcome,
    draw_action,
)
from hone.core.random import generator

POPULATION, FEATURES, ACTIONS = 512, 5, 8
NOISE = 0.4
"""Standard deviation of a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearChoicePolicy:
    """Softmax of linear scores, with a floor: p = (1 - floor) softmax(x W / temperature) + floor / K."""

    weights: Floats
    """`[d, K]`."""
    temperature: float = 1.0
    floor: float = 0.0

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]` for features `[n, d]`."""
        scores = contexts @ self.weights[:, : len(actions)] / self.temperature
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        chance = (1 - self.floor) * odds / odds.sum(axis=1, keepdims=True) + self.floor / len(actions)
        with np.errstate(divide="ignore"):
            return np.log(chance)

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]` for features `[d]`."""
        return self.logp_rows(context[None], actions)[0]

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action."""
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        return Choice(action=action, logp=float(logp[action]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedChoiceWorld:
    """A population of contexts with the mean reward of each action."""

    contexts: Floats
    """`[M, d]`, each as likely as the others."""
    mean_reward: Floats
    """`[M, K]`."""
    actions: ActionSet
    behaviour: LinearChoicePolicy
    """A policy that knows a part of the rewards, and explores."""
    target: LinearChoicePolicy
    """A better policy than the behaviour policy."""

    def value(self, policy: LinearChoicePolicy) -> float:
        """Expected reward of a policy, exactly."""
        return float((np.exp(policy.logp_rows(self.contexts, self.actions)) * self.mean_reward).sum(axis=1).mean())

    def log(
        self, n: int, *, seed: int, policy: LinearChoicePolicy | None = None, logp: Floats | None = None
    ) -> DecisionTable:
        """n decisions of a policy (None: `behaviour`), or of probabilities `logp` `[M, K]` of the population."""
        random = generator(seed, "logged choices", n)
        place = random.integers(0, len(self.contexts), n)
        table = logp if logp is not None else (policy or self.behaviour).logp_rows(self.contexts, self.actions)
        ladder = np.exp(table).cumsum(axis=1)
        draws = random.random(n) * ladder[place, -1]
        executed = (ladder[place] <= draws[:, None]).sum(axis=1)
        reward = self.mean_reward[place, executed] + NOISE * random.standard_normal(n)
        return DecisionTable(
            contexts=self.contexts[place],
            action_sets=(self.actions,),
            action_set=np.zeros(n, np.int64),
            executed=executed.astype(np.int64),
            logp=table[place, executed],
            reward=reward,
            known=np.ones(n, np.bool_),
            at_s=np.arange(n, dtype=np.float64),
            ids=tuple(f"d{number}" for number in range(n)),
            units=tuple(f"u{number}" for number in range(n)),
            versions=("behaviour",) * n,
        )


def logged_records(
    table: DecisionTable, *, tenant: str = "shop", source: str = "gateway", delay_s: float = 60.0
) -> Iterator[DecisionRecord]:
    """A table as records of a decision log: each decision, and its outcome `delay_s` seconds later."""
    for row in range(len(table)):
        action, logp, at_s = int(table.executed[row]), float(table.logp[row]), float(table.at_s[row])
        yield Decision(
            id=table.ids[row],
            tenant=tenant,
            unit=table.units[row],
            at_s=at_s,
            context=table.contexts[row],
            actions=table.action_sets[int(table.action_set[row])],
            choice=Choice(action=action, logp=logp),
            executed=action,
            executed_logp=logp,
            version=table.versions[row],
            source=source,
            seq=row,
        )
        yield Outcome(
            decision_id=table.ids[row],
            tenant=tenant,
            value=float(table.reward[row]),
            at_s=at_s + delay_s,
            source=f"{source} rewards",
            seq=row,
        )


def logged_choice_world(seed: int = 0) -> LoggedChoiceWorld:
    """A world by its seed: 512 contexts of 5 features, 8 actions, mean rewards about 0.7 with bends and products."""
    random = generator(seed, "logged choice world")
    contexts = random.standard_normal((POPULATION, FEATURES))
    slopes, bends = random.standard_normal((2, FEATURES, ACTIONS))
    linear, bent = contexts @ slopes / np.sqrt(FEATURES), np.tanh(contexts @ bends)
    products = contexts[:, :1] * contexts[:, 1:2] * random.standard_normal(ACTIONS)
    mean = 0.7 + 0.25 * np.tanh(linear) + 0.2 * bent**2 - 0.1 * products
    noise = random.standard_normal((FEATURES, ACTIONS))
    return LoggedChoiceWorld(
        contexts=contexts,
        mean_reward=mean,
        actions=ActionSet(names=tuple(f"offer {number}" for number in range(ACTIONS))),
        behaviour=LinearChoicePolicy(weights=0.4 * slopes + 0.6 * noise, temperature=1.0, floor=0.05),
        target=LinearChoicePolicy(weights=slopes, temperature=0.5, floor=0.01),
    )
