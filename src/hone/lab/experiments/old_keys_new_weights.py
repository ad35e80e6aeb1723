"""Old keys, new weights: an answer that continues over kept keys is sampled by neither policy; its record is right."""

import copy
from dataclasses import dataclass

import numpy as np
import torch

from hone.core.generation import LikeliestTokens, Request, SamplingParams, ScoreRequest
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, error_bound, line_plot
from hone.lab.puzzles import Floats
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.run.report.html import format_number

_VOCABULARY, _PROMPT, _TOKENS = 16, 24, 24
_SIZES = (0.01, 0.03, 0.1, 0.3)
"""Size of the update, relative to each weight."""
OLD, NEW = "old weights", "new weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampledTokens:
    """The n tokens that were sampled after the weights had changed, and their log-probabilities in nats."""

    recorded: Floats
    """`[n, V]` of every token, as the engine sampled."""
    recomputed: dict[str, Floats]
    """`[n, V]` of every token, by policy, from the text alone."""
    chosen: np.ndarray
    """`[n]` the sampled tokens."""

    def gap(self, name: str) -> float:
        """Mean size of recorded minus recomputed log-probabilities of the sampled tokens, nats."""
        rows = np.arange(len(self.chosen))
        return float(np.abs((self.recorded - self.recomputed[name])[rows, self.chosen]).mean())

    def surprise(self, logp: Floats) -> float:
        """Standard errors between the tokens' mean surprisal under `logp` and its expectation: large if the tokens are
        no draws of it."""
        own = -logp[np.arange(len(self.chosen)), self.chosen]
        entropy = -(np.exp(logp) * logp).sum(axis=1)
        spread = (np.exp(logp) * logp**2).sum(axis=1) - entropy**2
        return float((own - entropy).sum() / np.sqrt(spread.sum()))


def _tiny_decoder(seed: int) -> Decoder:
    """A decoder of two layers whose weights are large enough for the context to matter."""
    config = ModelConfig(
        family="qwen3", vocab_size=_VOCABULARY, hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=2,
        head_dim=16, max_positions=_PROMPT + _TOKENS + 8,
    )  # fmt: skip
    model = new_model(config, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
    return model


def _changed(model: Decoder, size: float, seed: int) -> Decoder:
    """The model after an update that changes each weight by a random part of this relative size."""
    new, draws = copy.deepcopy(model), generator(seed, "lab/update")
    with torch.no_grad():
        for parameter in new.parameters():
            noise = torch.from_numpy(draws.standard_normal(tuple(parameter.shape), dtype=np.float32))
            parameter.add_(size * parameter.abs().mean() * noise)
    return new


def _open_engine(model: Decoder, *, slots: int, keep: bool, seed: int) -> EmbeddedEngine:
    """An engine with its own copy of the weights."""
    runner = TorchRunner(copy.deepcopy(model), vocab_used=_VOCABULARY, source_model=model)
    limits = default_limits(
        slots=slots, page_tokens=runner.page_tokens, sequence_tokens=_PROMPT + _TOKENS, vocab=_VOCABULARY
    )
    rules = TokenizerRules(eos=(), vocab=_VOCABULARY)
    chosen = RunnerChoice(runner=runner, own_weights=True)
    return EmbeddedEngine(chosen, rules, limits=limits, seed=seed, on_publish="keep" if keep else "recompute")


def _sample_across_update(old: Decoder, new: Decoder, *, answers: int, keep: bool, seed: int) -> _SampledTokens:
    """Answers that are half written when the new weights arrive."""
    model = copy.deepcopy(old)
    engine = _open_engine(model, slots=answers, keep=keep, seed=seed)
    prompt = generator(seed, "lab/prompt").integers(0, _VOCABULARY, _PROMPT).astype(np.int32)
    sampling = SamplingParams(max_tokens=_TOKENS, top_logprobs=_VOCABULARY)
    engine.publish(0)
    engine.submit([Request(id="a", prompt=prompt, samples=answers, sampling=sampling)])
    for _ in range(_TOKENS // 2):
        engine.step()
    model.load_state_dict(new.state_dict())
    engine.publish(1)
    done = [one for one in iter(engine.next_completion, None) if 0 < int((one.version == 1).sum()) < _TOKENS]
    texts = [ScoreRequest(prompt=prompt, tokens=one.tokens, sampling=sampling) for one in done]
    recomputed: dict[str, Floats] = {}
    for name, policy in ((OLD, old), (NEW, new)):
        scores = _open_engine(policy, slots=4, keep=False, seed=seed).score(texts)
        recomputed[name] = np.concatenate(
            [_dense_logp(scored.likeliest)[one.version == 1] for scored, one in zip(scores, done, strict=True)]
        )
    return _SampledTokens(
        recorded=np.concatenate([_dense_logp(one.likeliest)[one.version == 1] for one in done]),
        recomputed=recomputed,
        chosen=np.concatenate([one.tokens[one.version == 1] for one in done]),
    )


def _dense_logp(likeliest: LikeliestTokens | None) -> Floats:
    """`[n, V]` log-probabilities of all tokens, from the likeliest ones in their order."""
    assert likeliest is not None
    logp = np.empty(likeliest.logp.shape, np.float64)
    np.put_along_axis(logp, likeliest.tokens.astype(np.int64), likeliest.logp.astype(np.float64), axis=1)
    return logp


def claims_of(
    recompute_gap: float, keep_gap: dict[float, dict[str, float]], fit: dict[str, float], recorded_fit: float
) -> list[BoundedClaim]:
    """Claims on the gaps of recorded and recomputed log-probabilities by size of the update and policy, and on the
    standard errors by which the sampled tokens miss each policy and their record."""
    largest = max(keep_gap)
    smallest = min(one[NEW] for one in keep_gap.values())
    return [
        at_most("gap with recomputed keys, nats", recompute_gap, 1e-5),
        at_least(f"gap to the {NEW} with old keys, nats", keep_gap[largest][NEW], 0.01),
        at_least(f"gap to the {OLD} with old keys, nats", keep_gap[largest][OLD], 0.01),
        at_most("smallest over largest update, gap", smallest / keep_gap[largest][NEW], 0.3),
        at_most("standard errors from the record to the tokens, size", recorded_fit, 4.0),
        at_least(f"standard errors from the {NEW} to the tokens, size", fit[NEW], 5.0),
    ]  # fmt: skip


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    answers, sizes = (96, (0.03, 0.3)) if quick else (400, _SIZES)
    old = _tiny_decoder(seed)
    measured: dict[float, _SampledTokens] = {}
    for size in sizes:
        new = _changed(old, size, seed)
        measured[size] = _sample_across_update(old, new, answers=answers, keep=True, seed=seed)
    again = _sample_across_update(old, _changed(old, sizes[-1], seed), answers=32, keep=False, seed=seed)
    gaps = {size: {name: one.gap(name) for name in (OLD, NEW)} for size, one in measured.items()}
    last = measured[sizes[-1]]
    fit = {name: abs(last.surprise(last.recomputed[name])) for name in (OLD, NEW)}
    recorded = abs(last.surprise(last.recorded))
    return ExperimentResult(
        header=("update, relative", f"gap to the {OLD}, nats", f"gap to the {NEW}, nats"),
        rows=[(f"{size:g}", format_number(one[OLD]), format_number(one[NEW])) for size, one in gaps.items()],
        panels=[
            line_plot(
                "recorded minus recomputed log-probability, mean size in nats", "update, relative", sizes,
                {f"recomputed by the {name}": [gaps[size][name] for size in sizes] for name in (OLD, NEW)}, log_y=True,
            )
        ],
        verdict=(
            f"Tokens that are sampled by new weights over old keys fit neither policy: after an update of "
            f"{sizes[-1]:g} recomputed log-probabilities are off by {gaps[sizes[-1]][NEW]:.3f} nats with the new "
            f"weights and {gaps[sizes[-1]][OLD]:.3f} with the old ones. The tokens are {fit[NEW]:.0f} standard errors "
            f"from the new policy, and {recorded:.1f} from the recorded distribution, which is the behaviour policy. "
            f"With recomputed keys the new weights give the record to {error_bound(again.gap(NEW))} nats."
        ),
        claims=claims_of(again.gap(NEW), gaps, fit, recorded),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Old keys, new weights",
    question="Which policy sampled an answer that went on with new weights over the keys and values of old ones?",
    run=_run,
    source="Fu et al., 2025 (AReaL)",
)
