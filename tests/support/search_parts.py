"""Parts of searches in tests: tiny scorer models, requests, and a scripted scorer of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.generation import Request, SamplingParams
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import ScalarHeadModel, ScoredTokens, new_scalar_head
from hone.models.language.tokenizers import Tokenizer, character_tokenizer

TOKENIZER = character_tokenizer(["ab;"])
SHAPE = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24}


def config(max_positions: int = 64, tokenizer: Tokenizer = TOKENIZER) -> ModelConfig:
    return ModelConfig(family="qwen3", vocab_size=tokenizer.size, max_positions=max_positions, **SHAPE)


def scorer_model(reads: ScoredTokens = "last", *, max_positions: int = 64) -> ScalarHeadModel:
    return new_scalar_head(new_model(config(max_positions), seed=3), seed=4, reads=reads).eval()


def request(id_: str = "q0", prompt: str = "a") -> Request:
    return Request(id=id_, prompt=TOKENIZER.encode(prompt), samples=1, sampling=SamplingParams(max_tokens=8))


@dataclass
class TextScores:
    """Scores of a scripted scorer."""

    score: np.ndarray
    status: np.ndarray
    functions: Mapping[str, np.ndarray]
    turn_scores: Mapping[int, Sequence[float]]


@dataclass
class ScriptedScorer:
    """Implements `Scorer` by a table of texts; others have no score."""

    table: Mapping[str, float] | None = None

    def submit(self, answers: Sequence[ScorerInput]) -> list[str]:
        return [answer.text for answer in answers]

    def gather(self, tickets: Sequence[list[str]]) -> TextScores:
        texts = [text for ticket in tickets for text in ticket]
        known = [self.right(text) for text in texts]
        status = np.array([0 if value is not None else 1 for value in known], np.uint8)
        return TextScores(np.array([value or 0.0 for value in known]), status, {}, {})

    def right(self, text: str) -> float | None:
        return float(text.endswith("b")) if self.table is None else self.table.get(text)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...
