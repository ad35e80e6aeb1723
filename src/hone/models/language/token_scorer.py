"""A token scorer: a scalar-head model and the tokenizer it reads with, as one thing that is trained, saved and shipped.

It is to a reward model, a verifier of steps or a critic what `TokenPolicy` is to a policy.
"""

from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from hone.models.language.decoder import Decoder
from hone.models.language.scalar_head import ScalarHeadModel
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.models.packing import PackedBatch


class TokenScorer(nn.Module):
    """v(tokens up to and with one) -> a number."""

    def __init__(self, model: ScalarHeadModel, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer

    @property
    def decoder(self) -> Decoder:
        """The network below the head."""
        return self.model.decoder

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

    def load(self, folder: Path) -> None:
        """Load, in place, the weights of a folder that `save` wrote. Raises DataError when they do not fit."""
        self.model.load(folder)


LanguageNetwork: TypeAlias = TokenPolicy | TokenScorer
"""A decoder with a head and its tokenizer: what runs on text train, save and ship."""
