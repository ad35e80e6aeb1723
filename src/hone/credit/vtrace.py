"""V-trace: returns and advantages of a policy, corrected for another behaviour policy."""

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.credit.columns import DecisionColumn, behaviour_logp, checked_column
from hone.credit.returns import last_decisions, recurrence, scored_decisions, values_around

LOG_RATIO_BOUND = 20.0


def v_trace(
    episodes: Episodes,
    values: Values,
    *,
    current: DecisionColumn,
    discount: float,
    trace_lambda: float = 1.0,
    ratio_cap: float = 1.0,
    trace_cap: float = 1.0,
) -> Credits:
    """V-trace (IMPALA, Espeholt et al., 2018, 1802.01561).

    ratio_t = pi(a_t) / mu(a_t); rho_t = min(ratio_cap, ratio_t); c_t = trace_lambda * min(trace_cap, ratio_t); delta_t
    = rho_t (r_t + discount V_{t+1} - V_t); v_t = V_t + delta_t + discount c_t (v_{t+1} - V_{t+1}); A_t = rho_t (r_t +
    discount v_{t+1} - V_t); target = v. Beyond the end of a piece v and V are 0 if it terminated and `values.final`
    otherwise.

    `current` gives log pi of each action under the current policy, in nats `[N]`; mu is `episodes.logp`. A includes
    rho_t: use the loss -A log pi, without another ratio. On-policy (ratio 1) the target is that of `gae`, while A is r
    + discount v' - V, which equals GAE for trace_lambda 1 only. ratio_cap determines which policy's value is learned,
    trace_cap the speed. Log-ratios are clamped to +-20 before exp. Raises ConfigError without a critic or for a
    ratio_cap below trace_cap (the paper requires rho-bar >= c-bar), DataError where a log-probability is not finite.
    """
    worth, after = values_around(episodes, values, "v_trace")
    if not 0 < trace_cap <= ratio_cap:
        raise ConfigError(f"v_trace: trace_cap = {trace_cap} must be in (0, ratio_cap = {ratio_cap}]")
    behaviour = checked_column(behaviour_logp, episodes, "the recorded log-probability")
    gap = checked_column(current, episodes, "the current log-probability") - behaviour
    ratio = np.exp(np.clip(gap, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    rho, trace = np.minimum(ratio_cap, ratio), discount * trace_lambda * np.minimum(trace_cap, ratio)
    last, _ = last_decisions(episodes)
    trace[last] = 0.0
    target = worth + recurrence(rho * (episodes.reward + discount * after - worth), trace)
    corrected = np.append(target[1:], 0.0)[: len(target)]
    corrected[last] = after[last]
    advantage = rho * (episodes.reward + discount * corrected - worth)
    scored = scored_decisions(episodes)
    return Credits(
        advantage=np.where(scored, advantage, 0.0).astype(np.float32),
        target=np.where(scored, target, worth).astype(np.float32),
        metrics={"credit/ratio_capped": float((ratio > ratio_cap).mean()) if len(ratio) else 0.0},
    )
