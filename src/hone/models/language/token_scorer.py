"""A token scorer: a scalar-head model and the tokenizer it reads with, as one thing that is trained, saved and shipped.

It is to a reward model, a verifier of steps or a critic what `TokenPolicy` is to a policy.
"""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from hone.core.errors import DataError
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter
from hone.models.language.scalar_head import ScalarHeadModel
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer, read_json
from hone.models.packing import PackedBatch

SCORE_RANGE_FILE: Final = "score_range.json"
"""File of a scorer's folder beside those of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """Scores that a scorer gives to answers that it was trained on: beyond them nobody knows what they mean."""

    mean: float
    std: float
    n: int


class TokenScorer(nn.Module):
    """v(tokens up to and with one) -> a number."""

    def __init__(
        self,
        model: ScalarHeadModel,
        tokenizer: Tokenizer,
        score_range: ScoreRange | None = None,
        *,
        adapter: LoraAdapter | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.score_range = score_range
        """Scores of training answers, saved with the weights; None: unknown."""
        self.adapter = adapter
        """The adapter that is trained, beside the head, in place of the decoder's weights, which hold it merged."""

    @property
    def decoder(self) -> Decoder:
        """The network below the head."""
        return self.model.decoder

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of the head by name."""
        return dict(self.model.score.named_parameters(prefix="score"))

    def scores(self, packed: PackedBatch, at: Tensor) -> Tensor:
        """`[n]` the numbers at positions `at` `[n]`, differentiable."""
        return self.model.scores(packed, at)

    def fingerprint(self) -> str:
        """sha256 of all weights."""
        digest = sha256()
        for parameter in self.parameters():
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights, config, tokenizer.

        A padding token that also ends texts is not written: transformers would score the token before it.
        """
        tokenizer = self.tokenizer
        self.model.save(folder, pad_id=None if tokenizer.pad_id in tokenizer.eos_ids else tokenizer.pad_id)
        tokenizer.save(folder)
        if self.score_range is not None:
            text = json.dumps(asdict(self.score_range), indent=2) + "\n"
            (folder / SCORE_RANGE_FILE).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Load, in place, the weights of a folder that `save` wrote. Raises DataError when they do not fit."""
        self.model.load(folder)


def read_score_range(folder: Path) -> ScoreRange | None:
    """Scores of a scorer's training answers; None for a folder that does not say. Raises DataError for a damaged
    file."""
    if not (folder / SCORE_RANGE_FILE).is_file():
        return None
    found = read_json(folder / SCORE_RANGE_FILE)
    mean, std, count = (found.get(name) for name in ("mean", "std", "n"))
    if not (isinstance(mean, int | float) and isinstance(std, int | float) and isinstance(count, int)):
        raise DataError(f"{folder / SCORE_RANGE_FILE}: expected the numbers mean, std and n; got {found}")
    return ScoreRange(mean=float(mean), std=float(std), n=count)


LanguageNetwork: TypeAlias = TokenPolicy | TokenScorer
"""A decoder with a head and its tokenizer: what runs on text train, save and ship."""
