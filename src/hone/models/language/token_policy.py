"""A token policy: a decoder and the tokenizer it speaks with, as one thing that is trained, saved and shipped."""

from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_weights, save_model
from hone.models.language.token_logprobs import SamplingMask, TokenLogprobs, TopKTokens
from hone.models.language.tokenizers import Tokenizer
from hone.models.packing import PackedBatch


class TokenPolicy(nn.Module):
    """pi(token | tokens before it) = softmax(logits / temperature)."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, temperature: float = 1.0) -> None:
        super().__init__()
        self.vocab_size_used = tokenizer.size
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.temperature = temperature

    def token_logprobs(
        self,
        packed: PackedBatch,
        at: Tensor,
        chosen: Tensor,
        *,
        entropy: bool = False,
        extra_tokens: Tensor | None = None,
        sampling_mask: SamplingMask | None = None,
    ) -> TokenLogprobs:
        """Log-probabilities, in nats, of the tokens `chosen` `[n]` after positions `at` `[n]`; on request entropies,
        log-probabilities of further tokens `among` `[n, K]`, and all of it renormalised over the sampling mask `kept`.
        """
        hidden = self.decoder.hidden(packed)[at]
        return self.decoder.token_logprobs(
            hidden,
            chosen,
            self.temperature,
            entropy=entropy,
            extra_tokens=extra_tokens,
            sampling_mask=sampling_mask,
            vocab_size_used=self.vocab_size_used,
        )

    def top_k_tokens(self, packed: PackedBatch, at: Tensor, count: int) -> TopKTokens:
        """The `count` likeliest tokens after positions `at` `[n]`, as data."""
        hidden = self.decoder.hidden(packed)[at]
        return self.decoder.top_k_tokens(hidden, count, self.temperature, vocab_size_used=self.vocab_size_used)

    def fingerprint(self) -> str:
        """sha256 of all weights."""
        digest = sha256()
        for parameter in self.parameters():
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights, config, tokenizer."""
        save_model(self.decoder, folder, tokenizer_from=None)
        self.tokenizer.save(folder)

    def load(self, folder: Path) -> None:
        """Load, in place, the weights of a folder that `save` wrote. Raises DataError when they do not fit."""
        load_weights(self.decoder, folder)
