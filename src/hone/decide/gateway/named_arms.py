"""A policy over declared actions, asked about some of them."""

import numpy as np

from hone.core.decisions import ActionSet, Choice, DecisionPolicy, Floats, draw_action, logp_each


class NamedArms:
    """Policy over the declared actions, given that the action is on offer: probabilities are renormalised.

    The inner policy tells actions apart by their numbers among the declared ones; a request offers any of them, in any
    order. Where the inner policy gives all its mass to actions that are not on offer, each offered one is equally
    likely.
    """

    def __init__(self, inner: DecisionPolicy, declared: ActionSet) -> None:
        self.inner = inner
        self._declared = declared
        self._places = {name: place for place, name in enumerate(declared.names)}

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]` in nats for features `[d]`."""
        if actions is self._declared or actions.names == self._declared.names:
            return self.inner.logp(context, self._declared)
        offered = self.inner.logp(context, self._declared)[self._numbers(actions)]
        greatest = offered.max()
        if greatest == -np.inf:
            return np.full(len(actions), -np.log(len(actions)))
        return offered - greatest - np.log(np.exp(offered - greatest).sum())

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]` in nats for features `[n, d]`."""
        if actions.names == self._declared.names:
            return self.inner.logp_rows(contexts, self._declared)
        return logp_each(self, contexts, actions)

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action; the same key draws the same action."""
        if actions is self._declared or actions.names == self._declared.names:
            return self.inner.act(context, self._declared, draw_key)
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        whole = self.inner.act(context, self._declared, draw_key)
        scores = None if whole.scores is None else whole.scores[self._numbers(actions)]
        return Choice(action=action, logp=min(0.0, float(logp[action])), scores=scores)

    def _numbers(self, actions: ActionSet) -> list[int]:
        return [self._places[name] for name in actions.names]
