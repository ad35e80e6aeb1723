"""Same question, other company: answers of a batch of one, again among strangers, by how rows are computed."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch

from hone.core.generation import Completion, Request, SamplingParams, ScoreRequest, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.native.library import unavailable_reason
from hone.engine.open_engine import choose_runner
from hone.engine.protocol import RunnerChoice, RunnerKind
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    at_least,
    at_most,
    bar_plot,
    line_plot,
)
from hone.lab.free_rows import FreeRows
from hone.lab.puzzles import Floats
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows
from hone.run.report.html import format_number

_VOCABULARY, TOKENS = 64, 32
_SHORTEST, _LONGEST = 8, 40
"""Tokens of a prompt."""
_QUESTIONS, _ASKED = 16, 8
"""Questions of a batch, and those of them that are asked alone, too."""
_WIDTHS = (2, 4, 16)
"""Answers that are written at the same time, the strangers' included."""
FREE, FREE_HALF, GREEDY = "ordinary float32", "ordinary bfloat16", "the same, greedy"
TILES, _BITWISE = "hone's tiles, bfloat16", "hone's tiles, float32, trainer bitwise"


@dataclass(frozen=True, slots=True)
class _PrecisionPair:
    """A model in two types of numbers."""

    full: Decoder
    """In float32."""
    half: Decoder
    """In bfloat16."""


_RunnerMaker = Callable[[_PrecisionPair], RunnerChoice]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyEffect:
    """Answers alone against those of the same questions in company: A comparisons, one for each question and width."""

    other_bits: Floats
    """`[A]` 1 where a log-probability or a token differs."""
    same_tokens: Floats
    """`[A]` tokens before the first that differs; all tokens of the answer where none does."""
    ratio: float
    """Largest |exp(new - old) - 1| of a token, where old was recorded in company and new is read alone."""

    @property
    def other_tokens(self) -> float:
        """Share of the comparisons with other tokens."""
        return float((self.same_tokens < TOKENS).mean())

    def differing(self) -> Floats:
        """`[TOKENS]` share of the comparisons that differ by then."""
        return np.array([(self.same_tokens < count).mean() for count in range(1, TOKENS + 1)])


def sharp_models(seed: int) -> _PrecisionPair:
    """A decoder of two layers whose weights are large enough for the context to matter."""
    config = ModelConfig(
        family="qwen3", vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2,
        head_dim=16, max_positions=_LONGEST + TOKENS + 8,
    )  # fmt: skip
    model = new_model(config, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0)
    return _PrecisionPair(model, copy.deepcopy(model).to(torch.bfloat16))


def _free_runner(model: Decoder) -> RunnerChoice:
    """Rows and attention as suits the batch."""
    return RunnerChoice(runner=TorchRunner(FreeRows(model), vocab_used=_VOCABULARY), own_weights=False)


def _chosen_runner(kind: RunnerKind, model: Decoder) -> RunnerChoice:
    """A runner of hone's."""
    return choose_runner(kind, model, vocab_used=_VOCABULARY, threads=1)


_RUNNERS: Final[Mapping[str, _RunnerMaker]] = {
    FREE: lambda models: _free_runner(models.full),
    FREE_HALF: lambda models: _free_runner(models.half),
    TILES: lambda models: _chosen_runner("torch", models.half),
}
_COMPILED: Final[Mapping[str, RunnerKind]] = {
    "compiled, float32": "native",
    "compiled, bfloat16": "native_bfloat16",
    "compiled, INT8": "native_int8",
}


def _compiled_runner(kind: RunnerKind, models: _PrecisionPair) -> RunnerChoice:
    return _chosen_runner(kind, models.full)


def _questions(seed: int, *, greedy: bool) -> list[Request]:
    """Drawn prompts of several lengths."""
    draws = generator(seed, "lab/company")
    sampling = SamplingParams(max_tokens=TOKENS, greedy=greedy)
    prompts = [draws.integers(0, _VOCABULARY, int(size)) for size in draws.integers(_SHORTEST, _LONGEST, _QUESTIONS)]
    return [
        Request(id=str(number), prompt=prompt.astype(np.int32), samples=1, sampling=sampling)
        for number, prompt in enumerate(prompts)
    ]


def _open_engine(chosen: RunnerChoice, *, slots: int, seed: int) -> EmbeddedEngine:
    """An engine that writes so many answers at once."""
    limits = default_limits(
        slots=slots, page_tokens=chosen.runner.page_tokens, sequence_tokens=_LONGEST + TOKENS, vocab=_VOCABULARY
    )
    engine = EmbeddedEngine(chosen, TokenizerRules(eos=(), vocab=_VOCABULARY), limits=limits, seed=seed)
    engine.publish(0)
    return engine


def _answers(engine: EmbeddedEngine, asked: Sequence[Request]) -> dict[str, Completion]:
    """Answers by question."""
    return {one.request_id: one for one in generate(engine, asked)}


def _compare(
    make: _RunnerMaker, models: _PrecisionPair, *, seed: int, greedy: bool = False, widths: Sequence[int] = _WIDTHS
) -> CompanyEffect:
    """Ask some questions alone, then with the others, and read the last answers again alone."""
    asked = _questions(seed, greedy=greedy)
    single = _open_engine(make(models), slots=1, seed=seed)
    alone = {name: one for request in asked[:_ASKED] for name, one in _answers(single, [request]).items()}
    bits, same, company = list[bool](), list[int](), dict[str, Completion]()
    for width in widths:
        company = _answers(_open_engine(make(models), slots=width, seed=seed), asked)
        for name, mine in alone.items():
            other = company[name]
            bits.append(not (np.array_equal(mine.tokens, other.tokens) and np.array_equal(mine.logp, other.logp)))
            same.append(int(np.append(mine.tokens != other.tokens, True).argmax()))
    texts = [
        ScoreRequest(prompt=one.prompt, tokens=company[one.id].tokens, sampling=one.sampling) for one in asked[:_ASKED]
    ]
    again = [single.score([text])[0].logp for text in texts]
    gap = np.concatenate([new - company[one.id].logp for new, one in zip(again, asked, strict=False)])
    return CompanyEffect(
        other_bits=np.array(bits, np.float64),
        same_tokens=np.array(same, np.float64),
        ratio=float(np.abs(np.expm1(gap.astype(np.float64))).max()),
    )


def bitwise_ratio(model: Decoder, *, seed: int) -> float:
    """Largest |exp(new - old) - 1| of a trainer that computes like the engine, over one batch of all answers."""
    asked, trainer = _questions(seed, greedy=False), copy.deepcopy(model)
    trainer.use_bitwise_arithmetic()
    company = _answers(_open_engine(_chosen_runner("torch", trainer), slots=_WIDTHS[-1], seed=seed), asked)
    rows = [np.concatenate([one.prompt, company[one.id].tokens]) for one in asked]
    packed = pack_rows(rows)
    ends = packed.offsets[1:, None] - 1 - np.arange(TOKENS, 0, -1)
    at = torch.from_numpy(ends.reshape(-1))
    with torch.no_grad():
        new = trainer.token_logprobs(trainer.hidden(packed)[at], packed.tokens[at + 1]).logp.numpy()
    old = np.concatenate([company[one.id].logp for one in asked])
    return float(np.abs(np.expm1((new - old).astype(np.float64))).max())


def claims_of(effects: Mapping[str, Sequence[CompanyEffect]], bitwise: float) -> list[BoundedClaim]:
    """Claims on the answers by arithmetic, over runs, and on the ratio to a bitwise trainer."""
    bits = {name: float(np.mean([one.other_bits for one in runs])) for name, runs in effects.items()}
    tokens = {name: float(np.mean([one.other_tokens for one in runs])) for name, runs in effects.items()}
    ratio = {name: max(one.ratio for one in runs) for name, runs in effects.items()}
    steady = [name for name in effects if name not in (FREE, FREE_HALF, GREEDY)]
    return [
        at_least(f"answers with other log-probabilities, {FREE}", bits[FREE], 0.4),
        at_most(f"answers with other tokens, {FREE}", tokens[FREE], 0.05),
        at_least(f"answers with other tokens, {FREE_HALF}", tokens[FREE_HALF], 0.15),
        at_least(f"answers with other tokens, {FREE_HALF}, greedy", tokens[GREEDY], 0.02),
        at_least(f"ratio off 1 on the first pass, {FREE_HALF}", ratio[FREE_HALF], 0.005),
        at_most(f"ratio off 1 on the first pass, {FREE}", ratio[FREE], 1e-3),
        at_most("answers with other bits, hone's runners", sum(bits[name] for name in steady), 1e-9),
        at_most("ratio off 1 on the first pass, hone's runners", max(ratio[name] for name in steady), 1e-12),
        at_most("ratio off 1 on the first pass, bitwise trainer", bitwise, 1e-12),
    ]  # fmt: skip


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    effects: dict[str, list[CompanyEffect]] = {name: [] for name in (FREE, FREE_HALF, GREEDY, TILES)}
    bitwise = 0.0
    for run_seed in range(10 * seed, 10 * seed + (2 if quick else 3)):
        models = sharp_models(run_seed)
        compiled = {} if unavailable_reason() else _COMPILED
        for name, make in {
            **_RUNNERS,
            **{name: partial(_compiled_runner, kind) for name, kind in compiled.items()},
        }.items():
            effects.setdefault(name, []).append(_compare(make, models, seed=run_seed))
        effects[GREEDY].append(_compare(_RUNNERS[FREE_HALF], models, seed=run_seed, greedy=True, widths=_WIDTHS[-1:]))
        bitwise = max(bitwise, bitwise_ratio(models.full, seed=run_seed))
    share = {name: 100 * np.array([one.other_tokens for one in runs]) for name, runs in effects.items()}
    bits = {name: float(np.mean([one.other_bits for one in runs])) for name, runs in effects.items()}
    ratio = {name: max(one.ratio for one in runs) for name, runs in effects.items()}
    return ExperimentResult(
        header=("rows", "other log-probabilities", "other tokens", "ratio off 1 on the first pass, at most"),
        rows=[
            *(
                (name, f"{bits[name]:.0%}", f"{share[name].mean():.0f}%", format_number(ratio[name]))
                for name in effects
            ),
            (_BITWISE, "", "", format_number(bitwise)),
        ],
        panels=[
            line_plot(
                "share of the answers that differ from those alone", "tokens", range(1, TOKENS + 1),
                {
                    name: np.stack([one.differing() for one in effects[name]])
                    for name in (FREE_HALF, FREE, TILES)
                },
            ),
            bar_plot("answers with other tokens, %", share),
        ],
        verdict=(
            f"Among strangers {bits[FREE]:.0%} of the answers of an ordinary forward pass in float32 have "
            f"log-probabilities with other last bits, and {share[FREE].mean():.0f}% other tokens; in bfloat16 "
            f"{share[FREE_HALF].mean():.0f}% are other answers after {TOKENS} tokens, and {share[GREEDY].mean():.0f}% "
            f"of the greedy ones. A ratio on the first pass over the data is off 1 by up to {ratio[FREE_HALF]:.2g} "
            f"there, and by {ratio[FREE]:.1g} in float32. With hone's runners no bit of any answer changes with "
            "company, and the ratio is 1."
        ),
        claims=claims_of(effects, bitwise),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Same question, other company",
    question="Does an answer depend on the questions that are answered beside it?",
    run=_run,
    source="He et al., Defeating Nondeterminism in LLM Inference, 2025",
)
