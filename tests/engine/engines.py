"""Small engines and requests for the tests of this folder."""

import numpy as np

from hone.core.generation import Request, SamplingParams
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import SchedulerLimits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.models.language.config import ModelConfig

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


def request(number: int, *, samples: int = 1, length: int = 0, **sampling) -> Request:
    """Prompt `number`: `length` (or a few) tokens that depend on the number alone."""
    rng = np.random.default_rng(number)
    prompt = rng.integers(1, VOCAB, size=length or rng.integers(1, 40)).astype(np.int32)
    return Request(
        id=f"p{number}", prompt=prompt, samples=samples, sampling=SamplingParams(**{"max_tokens": 12} | sampling)
    )


def engine(
    model,
    *,
    slots=4,
    seed=0,
    decode=None,
    eos=(0,),
    vocab=VOCAB,
    page_tokens=16,
    context=200,
    pages=0,
    kind="torch",
    **changes,
) -> EmbeddedEngine:
    """An engine of the torch runner; `pages` 0: enough. `changes`: of `SchedulerLimits`, or of the Engine."""
    most = -(-context // page_tokens)
    given = {name: changes.pop(name) for name in ("on_publish", "canary", "clock") if name in changes}
    fixed = changes.pop("fixed_tokens", None)
    limits = SchedulerLimits(
        slots=slots,
        pages=pages or most * (slots + 2),
        page_tokens=page_tokens,
        sequence_tokens=context,
        **changes,
    )
    if kind.startswith("native"):
        chosen = choose_runner(kind, model, vocab_used=vocab, threads=1)
        assert chosen.runner.page_tokens == page_tokens
    else:
        runner = TorchRunner(model, vocab_used=vocab, page_tokens=page_tokens, fixed_tokens=fixed)
        chosen = RunnerChoice(runner=runner, own_weights=False)
    return EmbeddedEngine(
        chosen, TokenizerRules(eos=eos, vocab=vocab, decode=decode), limits=limits, seed=seed, **given
    )


def by_name(completions):
    return {(done.request_id, done.sample_index): done for done in completions}


def same(a, b) -> bool:
    return (
        np.array_equal(a.tokens, b.tokens)
        and np.array_equal(a.logp, b.logp)
        and np.array_equal(a.sampled_logp, b.sampled_logp)
        and a.finish_reason == b.finish_reason
    )
