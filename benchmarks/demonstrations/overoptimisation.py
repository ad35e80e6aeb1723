"""Over-optimisation of reward models against a known true reward: best of n, and RL with and without a price on KL.

A base policy writes strings of letters. Reward models learn from 250, 1,000 and 4,000 noisy comparisons of its strings,
and are then optimised: by the best of n of a pool of the base's answers (KL: ln n - (n - 1)/n), and by RLOO.
An ensemble of three models of a third of the same 4,000 comparisons each subtracts their disagreement.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from letter_policies import MAX_TOKENS, NEW, THREADS, answers_of, base_policy, preference_rows, write_rows
from numpy.typing import NDArray
from scipy.special import gammaln

from demonstrations import Bar
from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes
from hone.credit.returns import reward_as_advantage
from hone.lab.tasks.letter_pairs import LETTERS, true_reward
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import token_mean
from hone.recipes.registry import load_recipe
from hone.run.loop import train
from hone.text.evaluate.open_policy import load_scorer
from hone.text.loss import chosen_logp
from hone.text.rows import TokenLayout

TITLE = "Over-optimisation of reward models"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="RL, 4,000 pairs: true reward from its peak to the end", at_most=-3.0),
    Bar(figure="RL, 4,000 pairs: proxy from its start to the end, sd", at_least=0.5),
    Bar(figure="RL, 4,000 pairs, 0.3 per nat: true reward at the end", at_least=5.0),
)
PAIRS = {250: 100, 1000: 150, 4000: 400}
"""Comparisons of a model -> its steps of training."""
MEMBERS = 3
PESSIMISM = 1.0
KL_PRICE = 0.3
RL_STEPS = 30
SIZES = tuple(4**power for power in range(7))
"""Numbers of answers of which the best is taken: 1 to 4,096; up to a quarter of the pool is used."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run by RLOO, step by step, `[steps]` each; answers before the step's update."""

    proxy: Floats
    truth: Floats
    kl: Floats
    """Nats to the base, estimated on the samples."""


def reward_model(folder: Path, rows: Sequence[Mapping[str, object]], *, seed: int, steps: int) -> str:
    """A Bradley-Terry model of the base's size, from random weights; saved in `folder`, whose path is returned."""
    spec = load_recipe("reward_pairs")
    config = {
        "recipe": "reward_pairs", "name": "model", "seed": seed, "steps": steps, "batch": 48, "run": THREADS,
        "model": {"new": NEW, "compute": "float32"},
        "task": {"source": write_rows(folder.with_suffix(".jsonl"), rows)},
        "learner": {"lr": 4e-3, "warmup_steps": 10, "lr_decay": "linear"},
    }  # fmt: skip
    job = spec.build(spec.config.model_validate(config))
    train(job.recipe, steps=steps, callback=lambda *_: None)
    folder.mkdir()
    job.save_policy(folder)
    return str(folder)


def scored(paths: Sequence[str], texts: Sequence[str]) -> Floats:
    """`[members, n]` scores of whole strings by the models in `paths`."""
    found: list[Floats] = []
    for path in paths:
        scorer = load_scorer(path)
        encode, end = scorer.tokenizer.encode, np.int32(scorer.tokenizer.eos_id)
        sequences = [np.append(encode(text), end).astype(np.int32) for text in texts]
        found.append(scorer.model.score_sequences(sequences, micro_batch_tokens=16384))
    return np.stack(found)


def best_of(scores: Floats, truth: Floats, n: int) -> float:
    """Mean truth of the best-scored of n answers over all subsets of the pool `[N]`.

    Of answers sorted by score, the i-th (from 1) is the best of n with probability C(i - 1, n - 1) / C(N, n).
    """
    rank, size = np.arange(1, len(scores) + 1), len(scores)
    with np.errstate(divide="ignore"):
        ways = np.where(rank >= n, gammaln(rank) - gammaln(n) - gammaln(np.maximum(rank - n + 1, 1)), -np.inf)
    whole = gammaln(size + 1) - gammaln(n + 1) - gammaln(size - n + 1)
    return float(np.exp(ways - whole) @ truth[np.argsort(scores, kind="stable")])


def optimised(
    folder: Path, base: TokenPolicy, reward: Mapping[str, object], *, seed: int, steps: int, price: float = 0.0
) -> Curve:
    """RLOO from the base against a reward, 256 answers a step in groups of 64."""
    prompts = write_rows(folder / "prompts.jsonl", [{"prompt": letter} for letter in LETTERS])
    spec = load_recipe("rloo")
    config = {
        "recipe": "rloo", "name": "rl", "seed": seed, "steps": steps, "run": THREADS,
        "model": {"path": str(folder / "base"), "compute": "float32"},
        "task": {"source": prompts},
        "rewards": {"functions": [{"kind": "model", **reward}]},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 64, "max_tokens": MAX_TOKENS, "max_concurrent": 256},
        "learner": {"lr": 6e-4},
        "algorithm": {"kl_in_reward": {"kind": "fixed", "weight": price}},
    }  # fmt: skip
    job = spec.build(spec.config.model_validate(config))
    rows: list[tuple[float, float, float]] = []

    def report(_step: int, episodes: Episodes, _credits: Credits, _metrics: object) -> None:
        rows.append((float(np.nanmean(episodes.score)), mean_truth(base, episodes), kl_nats(base, episodes)))

    train(job.recipe, steps=steps, callback=report)
    job.close()
    proxy, truth, kl = np.array(rows).T
    return Curve(proxy=proxy, truth=truth, kl=kl)


def mean_truth(base: TokenPolicy, episodes: Episodes) -> float:
    """Mean true reward of the strings of a step."""
    seen = episodes.transcript
    strings = np.split(seen.tokens, seen.offsets[1:-1])
    return float(np.mean([true_reward(base.tokenizer.decode(tokens)) for tokens in strings]))


def kl_nats(base: TokenPolicy, episodes: Episodes) -> float:
    """Mean over the answers of log pi / pi_base: an unbiased estimate of the KL of a whole answer."""
    rows = TokenLayout(scheme=token_mean)(episodes, reward_as_advantage(episodes, NO_VALUES))
    (logp,) = rows.evaluate(partial(chosen_logp, base), 1 << 16)
    return float((episodes.logp.astype(np.float64) - logp).sum() / len(episodes))


def fitted_curve(kl: Floats, gain: Floats) -> tuple[float, float, float]:
    """a, b and R^2 of gain = a sqrt(KL) - b KL by least squares (Gao et al., 2022)."""
    columns = np.stack([np.sqrt(np.maximum(kl, 0.0)), -kl], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, gain, rcond=None)
    rest = gain - columns @ np.array([a, b])
    return float(a), float(b), 1.0 - float((rest**2).sum() / max(((gain - gain.mean()) ** 2).sum(), 1e-12))


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed."""
    pool_size, sizes, steps = (512, {40: 10, 80: 10}, 4) if quick else (8192, PAIRS, RL_STEPS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = base_policy(folder, seed=seed, steps=40 if quick else 250)
        rows = preference_rows(base, max(sizes), seed=seed)
        pool = answers_of(base, pool_size, seed=seed + 1, name="pool")
        texts = [prompt + text for prompt, text in zip(pool.prompts, pool.texts, strict=True)]
        found = {"true reward of the base": float(pool.rewards.mean())}
        paths: dict[int, str] = {}
        for count, taught in sizes.items():
            paths[count] = reward_model(folder / f"model_{count}", rows[:count], seed=seed, steps=taught)
            found |= selection_figures(f"{count:,} pairs", scored([paths[count]], texts)[0], pool.rewards)
        share = max(len(rows) // MEMBERS, 1)
        members = [
            reward_model(folder / f"member_{place}", rows[place * share : (place + 1) * share],
                         seed=seed + 10 + place, steps=10 if quick else PAIRS[1000])
            for place in range(MEMBERS)
        ]  # fmt: skip
        several = scored(members, texts)
        careful = several.mean(axis=0) - PESSIMISM * several.std(axis=0, ddof=1)
        found |= selection_figures(f"{MEMBERS} members, pessimism", careful, pool.rewards)
        largest = max(sizes)
        spread = scored([paths[largest]], texts)[0].std()
        single = {"path": paths[largest]}
        ensemble = {"path": members[0], "members": members[1:], "pessimism": PESSIMISM}
        go = partial(optimised, folder, base, seed=seed, steps=steps)
        found |= curve_figures("RL, 4,000 pairs", go(single), scale=float(spread))
        found |= curve_figures("RL, 4,000 pairs, 0.3 per nat", go(single, price=KL_PRICE), scale=float(spread))
        found |= curve_figures(
            f"RL, {MEMBERS} members, pessimism", go(ensemble), scale=float(several.mean(axis=0).std())
        )
    return found


def selection_figures(name: str, scores: Floats, truth: Floats) -> dict[str, float]:
    """True reward of the best of n by a model, and its largest over n against the last."""
    sizes = [n for n in SIZES if n <= len(scores) // 4]
    curve = [best_of(scores, truth, n) for n in sizes]
    found = {f"best of {n} by {name}: true reward": value for n, value in zip(sizes, curve, strict=True) if n > 1}
    found[f"best of n by {name}: true reward at the last n less the best"] = curve[-1] - max(curve)
    found[f"correlation of {name} with the truth"] = float(np.corrcoef(scores, truth)[0, 1])
    return found


def curve_figures(name: str, curve: Curve, *, scale: float) -> dict[str, float]:
    """Start, peak and end of a run by RLOO; the proxy in standard deviations over the base's answers."""
    peak = int(curve.truth.argmax())
    a, b, fit = fitted_curve(curve.kl, curve.truth - curve.truth[0])
    tail = slice(-max(1, len(curve.truth) // 8), None)
    return {
        f"{name}: proxy from its start to the end, sd": float((curve.proxy[tail].mean() - curve.proxy[0]) / scale),
        f"{name}: true reward at its peak": float(curve.truth[peak]),
        f"{name}: KL at the peak, nats": float(curve.kl[peak]),
        f"{name}: true reward at the end": float(curve.truth[tail].mean()),
        f"{name}: KL at the end, nats": float(curve.kl[tail].mean()),
        f"{name}: true reward from its peak to the end": float(curve.truth[tail].mean() - curve.truth[peak]),
        f"{name}: a of a sqrt(KL) - b KL": a,
        f"{name}: b of a sqrt(KL) - b KL": b,
        f"{name}: R^2 of the fit": fit,
    }
