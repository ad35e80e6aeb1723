"""Decisions in production: what a policy chose, what was executed, and the outcomes that arrive later.

A decision is one choice among named actions, logged with its log-probability. Three rules hold for every record:

- The log-probability is that of the *executed* action, after every wrapper (mask, clip, fallback, shield, route): a
  wrapper transforms the distribution, never only the action. An executed action with the chooser's probability biases
  every estimate that weights by it (Agarwal et al., "Making contextual decisions with low technical debt", 2016).
- Log-probabilities are in nats: the probability of a long answer underflows, its logarithm does not.
- `(source, seq)` identifies a record: sent twice, it is stored once.

Belongs here: the nouns that the log, policies, estimators, shields and services share. Does not: storage, learning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.random import key

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Verdict = Literal["ok", "weak", "refuse"]
"""Judgement of an estimate or of evidence. `ok`: it may decide; `weak`: it may inform; `refuse`: the data cannot
answer the question, and the value must not be used."""
VersionStage = Literal["candidate", "shadow", "canary", "live", "retired"]
"""Stage of a policy's version. A service has at most one live version; versions leave `live` to `retired`."""
LOGP_TOLERANCE: Final = 1e-6
"""Largest distance of a distribution's sum from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSet:
    """The K actions that a decision chooses from. Decisions with equal actions share one object."""

    names: tuple[str, ...]
    """`K` distinct names, in the order that actions are numbered in."""
    features: Floats | None = field(default=None, compare=False)
    """`[K, f]` features of the actions; None: they are told apart by their numbers alone."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An action that a policy drew, and its log-probability."""

    action: int
    """Number of the action."""
    logp: float
    """nats: its log-probability under the whole distribution that it was drawn from; at most 0, finite."""
    scores: Floats | None = None
    """`[K]` values that the policy's model gives the actions; None: it has none."""
    intervention: str = ""
    """Reason why the drawn action is not the inner policy's own: `shield`, `clip`, `fallback: timeout` ...; empty: it
    is."""


class DecisionPolicy(Protocol):
    """A policy over a finite set of actions that can tell its whole distribution. Pure: it has no hidden state."""

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]` in nats for features `[d]`; -inf for an action that is never taken; they sum to 1."""
        ...

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]` for features `[n, d]`: row i is `logp(contexts[i], actions)` up to rounding."""
        ...

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action from `logp(context, actions)`; the same key draws the same action, to the bit."""
        ...


class ActionShield(Protocol):
    """A shield: which actions are safe, and what to do where none is. Pure."""

    @property
    def certificate(self) -> str:
        """sha256 of the proof that it stands on; empty: rules without a proof."""
        ...

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Safe actions `[K]` for features `[d]`; all False: nothing is known to be safe, take `fallback`."""
        ...

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The action to take where no action is known to be safe, or the shield's deadline has passed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision as it is logged, before its outcome is known."""

    id: str
    """Identity; outcomes name it. Unique within a tenant."""
    tenant: str
    unit: str
    """Person, session or machine that the decision was made for; erased by it, and assigned to rollouts by it."""
    at_s: float
    """Seconds since the epoch, by the gateway's clock."""
    context: Floats
    """`[d]` features."""
    actions: ActionSet
    choice: Choice
    """The served policy's own choice."""
    executed: int
    """Number of the action that was executed."""
    executed_logp: float
    """nats: log-probability of `executed`, after every wrapper."""
    version: str
    """Version of the policy that decided."""
    route: str = ""
    """Experiment, arm and stage that the unit was assigned to; empty: none."""
    draw_key: int = 0
    """128-bit key of the draw: with `version` and `context` it reproduces `executed` and `executed_logp` to the bit."""
    schema: str = ""
    """`schema_hash` of the names of the features."""
    entities: tuple[tuple[str, str], ...] = ()
    """Fields of the request that named entities of a feature store, and these; erased with the unit."""
    latency_s: float = 0.0
    source: str
    """Writer of the record: a gateway, a device."""
    seq: int
    """Number of the record among those of its source, from 0, without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Something that was learnt about a decision later: a reward, a click, a return."""

    decision_id: str
    tenant: str
    kind: str = "reward"
    value: float
    at_s: float
    """Seconds since the epoch at which it happened, by its source's clock."""
    source: str
    seq: int
    """Number of the record among those of its source, from 0, without gaps."""


DecisionRecord = Decision | Outcome
SHADOW_PREFIX: Final = "shadow:"
"""Beginning of the kinds of outcomes that are choices of versions in the shadow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowChoice:
    """The choice of a version in the shadow for a decision that another version made.

    It is logged as an outcome of the decision: of the kind `shadow:VERSION:NUMBER`, with the log-probability as value.
    So no join takes it for a reward or for something that was served, and it is erased with its decision.
    """

    version: str
    """Version that was asked; it has no `:` in its name."""
    action: int
    """Number of the action that it would have taken, among those of the decision."""
    logp: float
    """nats: the action's log-probability."""

    @property
    def kind(self) -> str:
        """Kind of the outcome."""
        return f"{SHADOW_PREFIX}{self.version}:{self.action}"


def is_shadow_kind(kind: str) -> bool:
    """True if outcomes of this kind are choices of versions in the shadow."""
    return kind.startswith(SHADOW_PREFIX)


def shadow_choice(outcome: Outcome) -> ShadowChoice | None:
    """The shadow's choice that an outcome holds; None for any other kind."""
    version, _, number = outcome.kind.removeprefix(SHADOW_PREFIX).partition(":")
    if not is_shadow_kind(outcome.kind) or not number.isdecimal():
        return None
    return ShadowChoice(version=version, action=int(number), logp=outcome.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTable:
    """n logged decisions with their rewards, column-wise: what estimators and learners read.

    Rows whose outcome was still open are not rows with reward 0: `known` is False, and their reward is NaN.
    """

    contexts: Floats
    """`[n, d]`."""
    action_sets: tuple[ActionSet, ...]
    """The distinct sets of actions."""
    action_set: Ints
    """`[n]` each row's place in `action_sets`."""
    executed: Ints
    """`[n]` number of the executed action."""
    logp: Floats
    """`[n]` nats: log-probability of the executed action under the policy that logged it."""
    reward: Floats
    """`[n]`; NaN where `known` is False."""
    known: Bools
    """`[n]` the reward is final: its window has closed."""
    at_s: Floats
    """`[n]` seconds since the epoch, ascending."""
    ids: tuple[str, ...]
    units: tuple[str, ...]
    versions: tuple[str, ...]
    routes: tuple[str, ...] = ()
    """`n` routes; empty: none was recorded."""
    schemas: tuple[str, ...] = ()
    """`n` schema hashes of the contexts; empty: none was recorded."""

    def __len__(self) -> int:
        return len(self.executed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A judgement of a policy's version that a promotion may need: an estimate, a certificate, a paired comparison."""

    kind: str
    """`offline`, `certificate`, `paired`, `load`, ..."""
    verdict: Verdict
    words: str
    """The judgement in one sentence."""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    count: int = 0
    """Decisions that it stands on."""
    made_by: str
    """Job, command or file that made it."""
    at_s: float


def uniform_of_key(draw_key: int) -> float:
    """The uniform number in [0, 1) of a 128-bit key: its upper 53 bits, as every key is a hash."""
    return (draw_key >> 75) * 2.0**-53


def decision_key(seed: int, tenant: str, decision_id: str) -> int:
    """Key of a decision's draw: a function of the service's seed and the decision, of nothing else."""
    return key(seed, "decide", tenant, decision_id)


def draw_action(logp: Floats, draw_key: int) -> int:
    """Draw from log-probabilities `[K]` by inversion; an action of probability 0 is never drawn."""
    cumulative: Floats = np.exp(logp).cumsum()
    action = int(np.searchsorted(cumulative, uniform_of_key(draw_key) * float(cumulative[-1]), side="right"))
    return action if action < len(logp) else int(np.flatnonzero(logp > -np.inf)[-1])


def logp_each(policy: DecisionPolicy, contexts: Floats, actions: ActionSet) -> Floats:
    """`logp_rows` of a policy that has no faster way: one row after another -> `[n, K]`."""
    rows = [policy.logp(context, actions) for context in contexts]
    return np.array(rows, dtype=np.float64).reshape(len(contexts), len(actions))


def schema_hash(names: Sequence[str]) -> str:
    """Hash of the names of features, in their order -> 16 hexadecimal digits."""
    return blake2b("\x00".join(names).encode(), digest_size=8).hexdigest()
