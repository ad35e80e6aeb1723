"""Checks of the engine on this machine: whether it is built, and whether it is exact.

Belongs here: a small model, a few requests, and their expected results. Does not: the display of a result.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hone.core.errors import DivergedError, ResourceError
from hone.core.generation import Completion, Request, SamplingParams, ScoreRequest, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.native import library
from hone.engine.native.library import build
from hone.engine.open_engine import choose_runner
from hone.engine.protocol import RunnerChoice, RunnerKind
from hone.engine.scheduler import SchedulerLimits
from hone.engine.session import TokenizerRules
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.native import library as training
from hone.models.native import perceptron
from hone.models.native.library import uses_amx_tiles
from hone.models.packing import pack_rows, row_targets
from hone.native.build import LIMIT, SWITCH, find_compiler, instruction_set_limit, is_disabled
from hone.text.evaluate.open_policy import has_fast_bfloat16

MAX_MEAN_NATS: Final = 2e-6
MAX_NATS: Final = 1e-4
"""Largest accepted difference of recorded log-probabilities from the trainer's, in float32."""
MAX_BFLOAT16_RATIO: Final = 1.1
"""Largest accepted ratio in bfloat16: mean error of the engine to mean error of the trainer, both against float32."""
_VOCAB: Final = 96
_CONTEXT: Final = 96
_ANSWER: Final = 16
_SEED: Final = 5
_SHAPE: Final = ModelConfig(
    family="qwen3", vocab_size=_VOCAB, hidden_size=96, intermediate_size=256, layers=3, heads=4, kv_heads=2, head_dim=24
)

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """State of the compiled code, with reasons."""

    usable: bool
    compiler: str
    """Version of the compiler, or a note that there is none."""
    build_note: str
    """Duration of the build, or the path of the cached library."""
    runner_note: str
    """Default runner of a run, and the reason."""
    trainer_note: str = ""
    """Report that the trainer uses compiled kernels, or the reason for plain torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCheck:
    """Result of one check of one runner."""

    runner: str
    name: str
    compared_with: str
    result: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _InvarianceVariant:
    """Change of the execution that must keep the results equal to the bit."""

    name: str
    compared_with: str
    limits: SchedulerLimits
    reverse_order: bool = False
    threads: int | None = None


def kernel_report() -> KernelReport:
    """Build the compiled runner and the trainer's kernels in parallel if needed, and report the result.

    Does not raise: compiled code is optional."""
    if is_disabled():
        note = f"torch: {SWITCH}=0 switches compiled code off"
        return KernelReport(
            usable=False, compiler="not asked", build_note="not built", runner_note=note, trainer_note=note
        )
    if find_compiler() is None:
        note = "torch: without a C++ compiler there is no compiled code; install g++ or clang++ for much faster "
        return KernelReport(
            usable=False,
            compiler="none found ($CXX, c++, g++, clang++)",
            build_note="not built",
            runner_note=f"{note}rollouts",
            trainer_note=f"{note}updates",
        )
    with ThreadPoolExecutor(max_workers=1) as beside:
        trainer = beside.submit(_trainer_kernels)
        built = _runner()
    return replace(built, trainer_note=trainer.result())


def _trainer_kernels() -> str:
    loaded = training.available_kernels()
    if loaded is None:
        return f"torch: {training.why_unavailable()}"
    by = "the processor's tiles" if uses_amx_tiles() else "torch"
    rounds = ", of bfloat16 too" if perceptron.supports_bfloat16() else ""
    small = f"compiled{rounds}" if perceptron.available_functions() else "torch"
    return (
        f"compiled, {loaded.isa}: for policies in float32 and bfloat16 on a CPU; products of float32 by {by}; "
        f"ReLU networks of control: {small}"
    )


def _runner() -> KernelReport:
    try:
        built = build()
        loaded = library.load_library(built.path)
        runs = loaded.instruction_sets()
        kinds: tuple[library.NumberKind, ...] = ("float32", "bfloat16", "int8")
        best = {kind: loaded.choose(None, kind=kind) for kind in kinds}
    except ResourceError as error:
        return KernelReport(
            usable=False, compiler="failed", build_note=str(error), runner_note="torch: compiled code is unavailable"
        )
    left = [name for name in library.ISA_NAMES if name not in runs]
    shown = kinds[:1] if len(set(best.values())) == 1 else kinds
    sets = ", ".join(f"{best[kind]} in {kind}" for kind in shown)
    why = f"the most capable compiled variant that runs here ({', '.join(runs)})"
    if left:
        limit = instruction_set_limit()
        lacks = "this CPU or compiler lacks" if limit is None else f"this CPU lacks, or {LIMIT}={limit} rules out,"
        why += f"; {lacks} {', '.join(left)}"
    took = f"in {built.seconds_s:.1f} s" if built.seconds_s else "earlier, taken from the cache"
    return KernelReport(
        usable=True, compiler=built.compiler, build_note=f"{took}: {built.path}", runner_note=f"native, {sets}: {why}"
    )


def check_runners(*, native: bool) -> Iterator[RunnerCheck]:
    """Check parity and invariance of the runners on a CPU: the compiled one if `native`, and torch's."""
    asked: list[tuple[RunnerKind, Dtype]] = [("torch", "float32")]
    if native:
        kinds: tuple[Dtype, ...] = ("float32", "bfloat16") if has_fast_bfloat16("cpu") else ("float32",)
        asked = [*(("native", dtype) for dtype in kinds), *asked]
    for kind, dtype in asked:
        try:
            yield from _check(kind, _model(dtype), dtype)
        except (DivergedError, ResourceError) as error:
            yield RunnerCheck(runner=f"{kind} {dtype}", name="runs", compared_with="", result=str(error), passed=False)


def _check(kind: RunnerKind, model: Decoder, dtype: Dtype) -> Iterator[RunnerCheck]:
    chosen = _choose(kind, model)
    limits = _limits(chosen)
    requests = _requests()
    engine = _engine(chosen, limits)
    first = _answers(engine, requests)
    name = chosen.runner.name
    yield _parity(name, model, requests, first, dtype)
    yield _scores(name, engine, requests, first)
    if not chosen.runner.exact:
        yield RunnerCheck(
            runner=name, name="invariance", compared_with="", result="not promised on this machine", passed=True
        )
        return
    for way in _invariance_variants(limits, native=kind == "native"):
        other = _choose(kind, model, threads=way.threads)
        asked = requests[::-1] if way.reverse_order else requests
        again = _answers(_engine(other, way.limits), asked)
        differ = sum(not _same(first[key], again[key]) for key in first)
        result = "the same bits" if not differ else f"{differ} of {len(first)} answers differ"
        yield RunnerCheck(runner=name, name=way.name, compared_with=way.compared_with, result=result, passed=not differ)


def _invariance_variants(limits: SchedulerLimits, *, native: bool) -> list[_InvarianceVariant]:
    """Variants of the execution: separate for compiled code, combined for torch, which is slow."""
    few = limits.least_pages + 2
    slots, chunks, pages = f"{limits.slots} and 3", f"{limits.pass_tokens} and 16 tokens", f"{limits.pages} and {few}"
    if not native:
        everything = replace(limits, slots=3, pass_tokens=16, pages=few)
        note = f"{slots} slots, backwards, chunks of 16, {few} pages"
        return [
            _InvarianceVariant(
                name="slots, order, chunks, preemption", compared_with=note, limits=everything, reverse_order=True
            )
        ]
    threads = torch.get_num_threads()
    other = 2 if threads == 1 else 1
    return [
        _InvarianceVariant(name="slots", compared_with=slots, limits=replace(limits, slots=3)),
        _InvarianceVariant(name="order", compared_with="forwards and backwards", limits=limits, reverse_order=True),
        _InvarianceVariant(name="chunks", compared_with=chunks, limits=replace(limits, pass_tokens=16)),
        _InvarianceVariant(name="preemption", compared_with=f"{pages} pages", limits=replace(limits, pages=few)),
        _InvarianceVariant(name="threads", compared_with=f"{threads} and {other}", limits=limits, threads=other),
    ]


def _model(dtype: Dtype) -> Decoder:
    """Make a model with logits of standard deviation 1, so that answers differ."""
    return new_model(_SHAPE, seed=_SEED, dtype=dtype)


def _choose(kind: RunnerKind, model: Decoder, *, threads: int | None = None) -> RunnerChoice:
    return choose_runner(kind, model, vocab_used=_VOCAB, threads=threads)


def _limits(chosen: RunnerChoice) -> SchedulerLimits:
    size = chosen.runner.page_tokens
    return SchedulerLimits(slots=8, pages=9 * -(-_CONTEXT // size) + 1, page_tokens=size, sequence_tokens=_CONTEXT)


def _engine(chosen: RunnerChoice, limits: SchedulerLimits) -> EmbeddedEngine:
    return EmbeddedEngine(chosen, TokenizerRules(eos=(0,), vocab=_VOCAB), limits=limits, seed=11)


def _requests() -> list[Request]:
    """Requests with prompts of 3 to 69 tokens, two answers each; the third uses truncated sampling."""
    made: list[Request] = []
    for number, length in enumerate((3, 17, 40, 69)):
        prompt = generator(7, "selfcheck", number).integers(1, _VOCAB, size=length).astype(np.int32)
        sampling = SamplingParams(max_tokens=_ANSWER, temperature=0.8, top_p=0.9 if number == 2 else 1.0)
        made.append(Request(id=f"prompt {number}", prompt=prompt, samples=2, sampling=sampling))
    return made


def _answers(engine: EmbeddedEngine, requests: Sequence[Request]) -> dict[tuple[str, int], Completion]:
    return {(done.request_id, done.sample_index): done for done in generate(engine, requests)}


def _same(one: Completion, other: Completion) -> bool:
    pairs: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = [
        (one.tokens, other.tokens),
        (one.logp, other.logp),
        (one.sampled_logp, other.sampled_logp),
    ]
    return all(np.array_equal(left, right) for left, right in pairs)


def _parity(
    name: str, model: Decoder, requests: Sequence[Request], answers: dict[tuple[str, int], Completion], dtype: Dtype
) -> RunnerCheck:
    """Compare recorded log-probabilities with the trainer's forward pass over whole texts."""
    asked = {request.id: request for request in requests}
    exact = new_model(_SHAPE, seed=_SEED)
    exact.load_state_dict(model.state_dict())  # the rounded weights, computed in float32
    ours: list[NDArray[np.floating]] = []
    theirs: list[NDArray[np.floating]] = []
    for (request, _), answer in answers.items():
        prompt, temperature = asked[request].prompt, asked[request].sampling.temperature
        text = np.concatenate([prompt, answer.tokens])
        truth = _trainer_logp(exact, text, temperature)[len(prompt) - 1 :]
        ours.append(np.abs(answer.logp - truth))
        theirs.append(np.abs(_trainer_logp(model, text, temperature)[len(prompt) - 1 :] - truth))
    gap, own = np.concatenate(ours), float(np.concatenate(theirs).mean())
    mean, most = float(gap.mean()), float(gap.max())
    result, against = f"mean {mean:.1e}, max {most:.1e} nats", f"the trainer, {len(gap)} tokens"
    passed = mean <= MAX_MEAN_NATS and most <= MAX_NATS
    if dtype == "bfloat16":
        passed = mean <= MAX_BFLOAT16_RATIO * own
        result = f"mean {mean:.1e} nats from float32; the trainer {own:.1e}"
    return RunnerCheck(runner=name, name="parity", compared_with=against, result=result, passed=passed)


@torch.inference_mode()
def _trainer_logp(model: Decoder, tokens: NDArray[np.int32], temperature: float) -> NDArray[np.float32]:
    """Log-probabilities `[n - 1]` in nats of every token but the first."""
    packed = pack_rows([tokens])
    targets = row_targets(packed)
    look = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen, temperature, vocab_size_used=_VOCAB)
    return look.logp.float().numpy()


def _scores(
    name: str, engine: EmbeddedEngine, requests: Sequence[Request], answers: dict[tuple[str, int], Completion]
) -> RunnerCheck:
    asked = {request.id: request for request in requests}
    scores = [
        ScoreRequest(prompt=asked[request].prompt, tokens=answer.tokens, sampling=asked[request].sampling)
        for (request, _), answer in answers.items()
    ]
    differ = sum(
        not (np.array_equal(scored.logp, answer.logp) and np.array_equal(scored.sampled_logp, answer.sampled_logp))
        for scored, answer in zip(engine.score(scores), answers.values(), strict=True)
    )
    result = "the same bits" if not differ else f"{differ} of {len(answers)} answers differ"
    return RunnerCheck(
        runner=name,
        name="scores",
        compared_with="what was recorded",
        result=result,
        passed=not differ or not engine.exact,
    )
