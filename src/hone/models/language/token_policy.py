"""A token policy: a decoder and the tokenizer it speaks with, as one thing that is trained, saved and shipped."""

from pathlib import Path

from torch import Tensor, nn

from hone.models.language.decoder import Decoder
from hone.models.language.expert_config import ExpertTrainingConfig
from hone.models.language.hf_checkpoint import load_weights, save_model
from hone.models.language.lora import LoraAdapter, weights_sha256
from hone.models.language.peft_folder import load_factors, read_peft_folder, require_same_adapter, save_adapter
from hone.models.language.token_logprobs import SamplingMask, TokenLogprobs, TopKTokens
from hone.models.language.tokenizers import Tokenizer
from hone.models.packing import PackedBatch


class TokenPolicy(nn.Module):
    """pi(token | tokens before it) = softmax(logits / temperature)."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        temperature: float = 1.0,
        *,
        adapter: LoraAdapter | None = None,
        expert_training: ExpertTrainingConfig | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size_used = tokenizer.size
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.adapter = adapter
        """The adapter that is trained in place of `decoder`'s weights, which hold it merged."""
        self.expert_training = expert_training or ExpertTrainingConfig()
        """How a mixture of experts is trained; without effect on a dense decoder."""

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

    def chosen_experts(self, packed: PackedBatch) -> Tensor:
        """`[T, L, k]` experts that each token goes to, in a mixture of experts."""
        routing = self.decoder.states(packed).routing
        assert routing is not None, "a dense decoder has no experts"
        return routing.chosen()

    def fingerprint(self) -> str:
        """sha256 of all weights."""
        return weights_sha256(self)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights, config, tokenizer; of a policy with an adapter, PEFT's folder of it."""
        if self.adapter is None:
            self.save_merged(folder)
        else:
            save_adapter(self.adapter, folder)
            self.tokenizer.save(folder)

    def save_merged(self, folder: Path) -> None:
        """Write a Hugging Face folder with all weights, an adapter merged into them."""
        save_model(self.decoder, folder, tokenizer_from=None)
        self.tokenizer.save(folder)

    def load(self, folder: Path) -> None:
        """Load, in place, the weights of a folder that `save` wrote. Raises DataError when they do not fit."""
        if self.adapter is None:
            load_weights(self.decoder, folder)
            return
        saved = read_peft_folder(folder)
        require_same_adapter(folder, self.adapter.settings, saved.settings(self.decoder.config))
        load_factors(self.adapter, saved)

    def base_policy(self) -> "TokenPolicy":
        """The policy without its adapter, which shares all weights that are not adapted. There is an adapter."""
        assert self.adapter is not None
        return TokenPolicy(self.adapter.base_decoder(), self.tokenizer, self.temperature)
