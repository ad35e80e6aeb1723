"""A generation replica: hone's engine over weights that arrive as bytes, and answers that leave in columns.

Knows nothing of Ray, of the run's data or of its rewards; `hone.parallel` puts one into each actor, and tests run
several in one process.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as TokenizerBackend

from hone.core.errors import DivergedError
from hone.core.fleet import AskAnswers, GenerationAsk, RunnerArithmetic, WeightLayout, weights_digest
from hone.core.generation import OnPublish
from hone.engine.canary import WeightFingerprint
from hone.engine.choose import KvCache, RunnerKind
from hone.engine.engine import EmbeddedEngine
from hone.engine.fleet.ask_session import AskSession
from hone.engine.fleet.flat_weights import unpack_weights
from hone.engine.native.build import build
from hone.engine.open_engine import EngineGuarantees, EngineSize, open_engine
from hone.engine.protocol import GenerationModel
from hone.engine.stops import TokenizerRules
from hone.native.build import is_disabled


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Settings of a replica's engine; they name no data, no rewards and no run."""

    layout: WeightLayout
    runner: RunnerKind
    vocab: int
    """Ids from there on are never sampled."""
    eos: tuple[int, ...]
    tokenizer_json: str = ""
    """Text of `tokenizer.json`, for stop strings; empty: there are none."""
    decodes: bool = False
    """Replicas know stop strings without `tokenizer_json`."""
    slots: int
    sequence_tokens: int
    """Most tokens of a prompt and its answer."""
    seed: int
    threads: int
    batch_invariant: bool = False
    on_publish: OnPublish = "recompute"
    kv_cache: KvCache = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenWeights:
    """Receipt of a replica that has new weights."""

    version: int
    digest: str
    fingerprint: WeightFingerprint | None
    """None: a server that scores no given tokens."""


class GenerationReplica:
    """An engine that answers asks. `answer` may be called by several threads, and `load` by another one meanwhile."""

    def __init__(self, model: GenerationModel, settings: ReplicaSettings) -> None:
        """`model`: its weights are written to."""
        self.model, self.settings = model, settings
        self.engine = _engine(model, settings)
        self.asks = AskSession(self.engine)

    def arithmetic(self) -> RunnerArithmetic:
        """Identity of the replica's arithmetic. Raises ResourceError where the compiled runner cannot be built."""
        name = self.engine.runner.name
        kernels = "torch's kernels"
        if name.startswith("native") and not is_disabled():
            kernels = build().path.stem
        versions = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
        return RunnerArithmetic(runner=name, device=self.model.device.type, build=f"{kernels}, {versions}")

    def load(self, version: int, flat: NDArray[np.uint8], digest: str) -> TakenWeights:
        """Take up weights. Raises DivergedError when the bytes are not those that were sent, or the runner does not
        sample from them."""
        found = weights_digest(flat)
        if found != digest:
            raise DivergedError(
                f"the weights of version {version} arrived damaged: digest {found}, and {digest} was sent"
            )
        unpack_weights(flat, self.settings.layout, self.model.stored_tensors())
        self.engine.publish(version)
        self.asks.forget_turns()
        return TakenWeights(version=version, digest=found, fingerprint=self.engine.fingerprints[version])

    def answer(self, ask: GenerationAsk) -> AskAnswers:
        """Answer an ask. Raises as `AskSession.answer`."""
        torch.set_num_threads(self.settings.threads)  # each thread of a process has a number of its own
        return self.asks.answer(ask)


def _engine(model: GenerationModel, settings: ReplicaSettings) -> EmbeddedEngine:
    backend = TokenizerBackend.from_str(settings.tokenizer_json) if settings.tokenizer_json else None
    decode = None if backend is None else lambda ids: backend.decode([int(one) for one in ids])
    # The engine has weights of its own in any case: new ones are copied into the model while answers are drawn.
    return open_engine(
        model,
        TokenizerRules(eos=settings.eos, vocab=settings.vocab, decode=decode),
        size=EngineSize(slots=settings.slots, sequence_tokens=settings.sequence_tokens, threads=settings.threads),
        seed=settings.seed,
        runner=settings.runner,
        guarantees=EngineGuarantees(
            batch_invariant=settings.batch_invariant, on_publish=settings.on_publish, kv_cache=settings.kv_cache
        ),
    )
