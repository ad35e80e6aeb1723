"""The policy losses again, slowly: one decision after another, from the papers' formulas, on Python numbers of torch.

Independent of the package: nothing is imported from it. `now` is a list of scalars with gradient; the rest are floats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Row = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Columns of one batch, as lists."""

    now: Row
    entropy: Row
    top_now: list[Row]
    then: list[float]
    proximal: list[float]
    anchor: list[float]
    advantage: list[float]
    top: list[list[int]]
    top_then: list[list[float]]
    chosen: list[int]
    sequence: list[int]
    factor: list[float]

    def mates(self, t: int) -> list[int]:
        return [s for s in range(len(self.now)) if self.sequence[s] == self.sequence[t]]


Term = Callable[[Slow, int], Tensor]


def clip(x: Tensor, low: float, high: float) -> Tensor:
    return torch.clamp(x, low, high)


def ppo(r: Tensor, a: float, low: float = 0.2, high: float = 0.2, c: float | None = None) -> Tensor:
    value = -torch.minimum(r * a, clip(r, 1 - low, 1 + high) * a)
    if c is not None and a < 0 and float(value.detach()) > -c * a:
        return 0 * r - c * a
    return value


def token_ppo(s: Slow, t: int, *, high: float = 0.2, c: float | None = None) -> Tensor:
    return ppo(torch.exp(s.now[t] - s.then[t]), s.advantage[t], 0.2, high, c)


def proximal_ppo(s: Slow, t: int) -> Tensor:
    return ppo(torch.exp(s.now[t] - s.proximal[t]), s.advantage[t])


def importance(s: Slow, t: int) -> Tensor:
    return -s.advantage[t] * torch.exp(s.now[t] - s.then[t])


def cispo(s: Slow, t: int) -> Tensor:
    r = math.exp(float(s.now[t].detach()) - s.then[t])
    return -min(max(r, 0.5), 1.3) * s.advantage[t] * s.now[t]


def sapo(s: Slow, t: int) -> Tensor:
    tau = 1.0 if s.advantage[t] > 0 else 1.05
    r = torch.exp(s.now[t] - s.then[t])
    return -s.advantage[t] * (4 / tau) / (1 + torch.exp(-tau * (r - 1)))


def dro(s: Slow, t: int) -> Tensor:
    return -(s.advantage[t] * s.now[t] - 0.5 * 0.7 * (s.now[t] - s.then[t]) ** 2)


def decoupled(s: Slow, t: int) -> Tensor:
    return min(math.exp(s.proximal[t] - s.then[t]), 1.5) * proximal_ppo(s, t)


def geometric(s: Slow, t: int) -> Tensor:
    gaps = [s.now[k] - s.then[k] for k in s.mates(t)]
    return torch.exp(torch.stack(gaps).mean())


def gspo(s: Slow, t: int) -> Tensor:
    return ppo(geometric(s, t), s.advantage[t], 0.1, 0.1)


def gspo_token(s: Slow, t: int) -> Tensor:
    ratio = geometric(s, t).detach() * s.now[t].exp() / s.now[t].exp().detach()
    return ppo(ratio, s.advantage[t], 0.1, 0.1)


def gmpo(s: Slow, t: int) -> Tensor:
    clipped: Row = []
    for k in s.mates(t):
        d = s.now[k] - s.then[k]
        bound = clip(d, -0.4, 0.4)
        clipped.append(torch.minimum(d, bound) if s.advantage[k] > 0 else torch.maximum(d, bound))
    return -s.advantage[t] * torch.exp(sum(clipped, start=torch.zeros(())) / len(clipped))


def vespo(s: Slow, t: int) -> Tensor:
    total = sum(float(s.now[k].detach()) - s.proximal[k] + s.proximal[k] - s.then[k] for k in s.mates(t))
    w = min(max(math.exp(total), 1e-8), math.exp(20.0))
    k, lam = (2, 3) if s.advantage[t] >= 0 else (3, 2)
    return -(w**k * math.exp(lam * (1 - w))) * s.advantage[t] * s.now[t]


def dppo(s: Slow, t: int, *, divergence: Callable[[Slow, int], float], bound: float, cap: float, base: str) -> Tensor:
    anchor = s.then if base == "then" else s.proximal
    a, p, q = s.advantage[t], math.exp(float(s.now[t].detach())), math.exp(anchor[t])
    far = divergence(s, t) > bound
    if far and ((a > 0 and p > q) or (a < 0 and p < q)):
        return 0 * s.now[t]
    return -a * min(p / q, cap) * s.now[t]


def tv(s: Slow, t: int) -> float:
    return abs(math.exp(float(s.now[t].detach())) - math.exp(s.then[t]))


def binary_kl(p: float, q: float) -> float:
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def kl(s: Slow, t: int) -> float:
    return binary_kl(math.exp(float(s.now[t].detach())), math.exp(s.then[t]))


def buckets(s: Slow, t: int) -> list[tuple[float, float]]:
    """(p, q) of each listed token, of the chosen one where it is not listed, and of the rest."""
    found = [
        (math.exp(float(now.detach())), math.exp(then)) for now, then in zip(s.top_now[t], s.top_then[t], strict=True)
    ]
    if s.chosen[t] not in s.top[t]:
        found.append((math.exp(float(s.now[t].detach())), math.exp(s.proximal[t])))
    return [*found, (1 - sum(p for p, _ in found), 1 - sum(q for _, q in found))]


def top_tv(s: Slow, t: int) -> float:
    return sum(abs(p - q) for p, q in buckets(s, t)) / 2


def top_kl(s: Slow, t: int) -> float:
    return sum(q * math.log(q / p) for p, q in buckets(s, t))


def m2po(s: Slow, t: int) -> Tensor:
    return importance(s, t) * s.factor[t]


def clip_cov(s: Slow, t: int) -> Tensor:
    return token_ppo(s, t) * (1 - s.factor[t])


def kl_cov(s: Slow, t: int) -> Tensor:
    return importance(s, t) + s.factor[t] * torch.abs(s.now[t] - s.then[t])


def simko(s: Slow, t: int, *, width: float = 0.2, c: float | None = None) -> Tensor:
    mates = s.mates(t)
    ranked = sorted(float(s.entropy[k].detach()) for k in mates)
    place = 0.4 * (len(ranked) - 1)
    low = ranked[math.floor(place)]
    high = ranked[min(math.floor(place) + 1, len(ranked) - 1)]
    fork = float(s.entropy[t].detach()) > low + (place - math.floor(place)) * (high - low)
    r, a = torch.exp(s.now[t] - s.proximal[t]), s.advantage[t]
    if fork and a > 0:
        others = [torch.exp(now - then) for now, then in zip(s.top_now[t], s.top_then[t], strict=True)]
        spread = [r.detach() / (other.detach() + 1e-8) * other for other in others]
        r = (1 - 0.3) * r + 0.3 / len(others) * sum(spread, start=torch.zeros(()))
    if fork and a < 0 and s.chosen[t] == s.top[t][0]:
        a = 1.1 * a
    return ppo(r, a, 0.2, width, c)


def off_policy(s: Slow, t: int) -> Tensor:
    mates = s.mates(t)
    gap = sum(s.then[k] - float(s.now[k].detach()) for k in mates) / len(mates)
    return 0 * s.now[t] if s.advantage[t] < 0 and gap > 0.1 else token_ppo(s, t)


def corrected(s: Slow, t: int, *, weight: Callable[[float], float], level: str = "token") -> Tensor:
    mates = [t] if level == "token" else s.mates(t)
    total = sum(s.proximal[k] - s.then[k] for k in mates)
    return weight(math.exp(total / len(mates) if level == "mean" else total)) * proximal_ppo(s, t)


def between(low: float, high: float, x: float) -> float:
    return x if low <= x <= high else 0.0


def kpop(s: Slow, t: int) -> Tensor:
    p, q = math.exp(s.proximal[t]), math.exp(s.then[t])
    return (p / q if max(binary_kl(p, q), binary_kl(q, p)) <= 0.05 else 0.0) * proximal_ppo(s, t)


def k2(s: Slow, t: int) -> Tensor:
    return token_ppo(s, t) + 0.3 * (s.now[t] - s.anchor[t]) ** 2 / 2


def k3(s: Slow, t: int, *, weighted: bool = False) -> Tensor:
    d = s.now[t] - s.anchor[t]
    ratio = torch.exp(s.now[t] - s.then[t]) if weighted else 1.0
    return token_ppo(s, t) + 0.3 * ratio * (torch.exp(-d) + d - 1)


def k3_valued_k2(s: Slow, t: int) -> Tensor:
    d = s.now[t] - s.anchor[t]
    value = (torch.exp(-d) + d - 1).detach()
    return token_ppo(s, t) + 0.3 * (value + (d**2 - d.detach() ** 2) / 2)


SLOW: dict[str, Term] = {
    "reinforce": lambda s, t: -s.advantage[t] * s.now[t],
    "importance": importance,
    "ppo": token_ppo,
    "grpo": token_ppo,
    "dr_grpo": token_ppo,
    "dapo": partial(token_ppo, high=0.28),
    "dual_clip": partial(token_ppo, c=1.5),
    "cispo": cispo,
    "sapo": sapo,
    "dro": dro,
    "decoupled": decoupled,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "luspo": gspo,
    "gmpo": gmpo,
    "vespo": vespo,
    "dppo_tv": partial(dppo, divergence=tv, bound=0.15, cap=2.0, base="then"),
    "dppo_kl": partial(dppo, divergence=kl, bound=0.05, cap=math.inf, base="then"),
    "dppo_top_tv": partial(dppo, divergence=top_tv, bound=0.1, cap=math.inf, base="proximal"),
    "dppo_top_kl": partial(dppo, divergence=top_kl, bound=0.03, cap=math.inf, base="proximal"),
    "m2po": m2po,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "simko": simko,
    "simko_dual_clip": partial(simko, width=0.1, c=1.15),
    "entropy_bonus": lambda s, t: token_ppo(s, t) - 0.2 * s.entropy[t],
    "high_entropy": lambda s, t: s.factor[t] * token_ppo(s, t),
    "off_policy_mask": off_policy,
    "tis": partial(corrected, weight=lambda x: min(x, 1.2)),
    "mis": partial(corrected, weight=partial(between, 0.0, 1.2)),
    "icepop": partial(corrected, weight=partial(between, 0.7, 1.4)),
    "kpop": kpop,
    "sequence_tis": partial(corrected, weight=lambda x: min(x, 2.0), level="sum"),
    "sequence_mis": partial(corrected, weight=partial(between, 0.0, 3.0), level="sum"),
    "geometric_tis": partial(corrected, weight=lambda x: min(x, 1.1), level="mean"),
    "geometric_rejection": partial(corrected, weight=lambda x: float(0.8 <= x <= 1.25), level="mean"),
    "kl_k2": k2,
    "kl_k3": k3,
    "kl_weighted_k3": partial(k3, weighted=True),
    "kl_k3_valued_k2": k3_valued_k2,
}
