"""The engine on a CUDA device: its log-probabilities are the trainer's, and companions change no bit."""

import numpy as np
import pytest
import torch
from shared_prompts import pack_shared_prompts

from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.protocol import RunnerKind
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model

pytestmark = pytest.mark.gpu
VOCAB = 24
CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=512,
)


def request(number: int) -> Request:
    """Prompt `number` of 9 n + 3 tokens; four answers of up to 30 + 5 n."""
    prompt = np.random.default_rng(number).integers(1, VOCAB, size=9 * number + 3).astype(np.int32)
    return Request(id=f"p{number}", prompt=prompt, samples=4, sampling=SamplingParams(max_tokens=30 + 5 * number))


ASKED = [request(number) for number in range(9)]


def engine_of(model: Decoder, *, slots: int, fixed: int | None = None, kind: RunnerKind = "torch") -> EmbeddedEngine:
    chosen = choose_runner(kind, model, vocab_used=VOCAB, fixed_tokens=fixed)
    limits = default_limits(slots=slots, page_tokens=chosen.runner.page_tokens, sequence_tokens=200, vocab=VOCAB)
    return EmbeddedEngine(chosen, TokenizerRules(eos=(0,), vocab=VOCAB), limits=limits, seed=0)


def by_sample(completions: list[Completion]) -> dict[tuple[str, int], Completion]:
    return {(done.request_id, done.sample_index): done for done in completions}


@pytest.mark.parametrize("runner", ["torch", "torch_compiled"])
@pytest.mark.parametrize("compute", ["bfloat16", "mixed", "float32"])
def test_answers_on_cuda_are_what_the_trainer_says(compute: str, runner: RunnerKind) -> None:
    model = new_model(CONFIG, seed=1).to("cuda", torch.bfloat16 if compute == "bfloat16" else torch.float32)
    if compute == "mixed":
        model.set_compute_dtype("bfloat16")
    gaps: list[np.ndarray] = []
    for asked in ASKED:
        done = sorted(generate(engine_of(model, slots=5, kind=runner), [asked]), key=lambda one: one.sample_index)
        packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in done])], device="cuda")
        with torch.no_grad():
            logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp.float().cpu().numpy()
        gaps.append(np.abs(np.concatenate([one.logp for one in done]) - logp))
    found = np.concatenate(gaps)
    mean, largest = {"bfloat16": (0.02, 0.5), "mixed": (0.01, 0.1), "float32": (1e-5, 1e-3)}[compute]
    assert found.mean() < mean
    assert found.max() < largest


def test_float32_answers_on_cuda_are_those_of_the_cpu() -> None:
    """Draws are keyed, and probabilities agree to rounding: the same tokens."""
    model = new_model(CONFIG, seed=1)
    here = by_sample(list(generate(engine_of(model, slots=36), ASKED)))
    there = by_sample(list(generate(engine_of(model.to("cuda"), slots=36), ASKED)))
    same = [np.array_equal(done.tokens, there[name].tokens) for name, done in here.items()]
    assert np.mean(same) > 0.9


def test_a_fixed_size_of_passes_makes_answers_independent_of_their_company() -> None:
    model = new_model(CONFIG, seed=1).to("cuda", torch.bfloat16)
    many = by_sample(list(generate(engine_of(model, slots=36, fixed=512), ASKED)))
    few = by_sample(list(generate(engine_of(model, slots=3, fixed=512), ASKED[::-1])))
    for name, done in many.items():
        assert np.array_equal(done.tokens, few[name].tokens)
        assert np.array_equal(done.logp, few[name].logp)
