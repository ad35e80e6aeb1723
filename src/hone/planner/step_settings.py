"""Settings of an optimizer step that its memory depends on."""

from dataclasses import dataclass
from typing import Final, Literal

KernelPath = Literal["compiled", "torch", "fused"]
"""`compiled`: hone's CPU kernels; `torch`: matrix products with the scores of a text in memory; `fused`: torch's fused
attention, on a GPU."""
NumberType = Literal["float32", "bfloat16"]
NUMBER_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2}

FUSED_MIN_KEYS: Final = 1024
"""Longer texts take torch's fused attention on a CPU, too (`hone.models.language.packed_attention`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings of an optimizer step that its memory depends on."""

    tokens: int
    """Tokens of a micro-batch, T."""
    text_tokens: int
    """Tokens of its longest text, S; only `torch` attention depends on it."""
    weights: NumberType = "float32"
    code_bits: int = 0
    """Bits of the codes that linear layers, embedding and head are kept in, beside an adapter: 0: numbers. `weights` is
    then the type of all else."""
    update_rank: int = 0
    """Beside codes, ranks of all low-rank updates of a layer."""
    update_numbers: int = 0
    """Beside codes, numbers of a layer's low-rank updates, put together."""
    compute: NumberType = "float32"
    path: KernelPath = "compiled"
    checkpointing: bool = False
    """Activations are computed again, a layer at a time."""
    rounds_again: bool = False
    """Rounded weights are not kept, but rounded again."""
    offload: bool = False
    """Activations wait in the host's memory, but for those of one layer."""
    entropy: bool = False
    """The loss has an entropy term, or reports the entropy."""
    trained_vocabulary: bool = True
    """The embedding and the output projection are trained; not those under an adapter."""
    chosen_tokens: int = 0
    """Tokens of that text that were chosen, and have logits; 0: all."""
    predicts_tokens: bool = True
    """The loss has logits of the vocabulary; not those of a reward model and a critic, which have no output
    projection."""
    tile_scratch: bool = True
    """The processor multiplies bfloat16 by tiles, whose layout takes some room."""
    widens: bool = False
    """The processor multiplies bfloat16 by float32 matrices (x86 without AVX-512)."""
    halves_head: bool = True
    """The processor multiplies rounded numbers for the output projection, where products are of bfloat16 (AMX, or
    AVX-512 BF16 of AMD)."""
    texts_together: int = 1
    """Texts that no micro-batch parts: 2 of a pair."""
    step_tokens: int = 0
    """Tokens of an optimizer step, of all ranks; 0: one micro-batch."""
    shards: int = 1
    """Ranks that weights are cut among (FSDP), each of them gathering a layer at a time; 1: weights are whole."""
    tensor: int = 1
    """Ranks that compute each layer together, with a part of its heads and MLP columns."""
    virtual_shares: int = 0
    """Shares of a rank under virtual ranks, whose gradients are added as a tree; 0: none."""
    accumulates: bool = False
    """An optimizer step has several micro-batches; whole weights have a gradient of their own anyway."""

    @property
    def least_tokens(self) -> int:
        """Tokens of the smallest micro-batch, of the longest texts that stay together."""
        return self.texts_together * self.text_tokens

    @property
    def stream_bytes(self) -> int:
        """Bytes of a weight, of its gradient, and of a number of the residual stream: all have one type."""
        return NUMBER_BYTES[self.weights]

    @property
    def product_bytes(self) -> int:
        """Bytes of a number that products give, b."""
        return NUMBER_BYTES[self.compute]

    @property
    def attention_bytes(self) -> int:
        """Bytes of a number within torch's attention, which is all in float32 where bfloat16 is widened."""
        return 4 if self.widens_products else self.product_bytes

    @property
    def fused_attention(self) -> bool:
        """Attention never has the scores of a text in memory."""
        return self.path == "fused" or (self.path == "torch" and self.text_tokens > FUSED_MIN_KEYS)

    @property
    def mixed(self) -> bool:
        """Products are of rounded weights."""
        return self.compute != self.weights

    @property
    def rounded_bytes(self) -> int:
        """Bytes of the copy that products keep of each weight, rounded: in mixed precision, unless it is rounded
        again."""
        return 2 if self.mixed and not self.rounds_again and not self.code_bits else 0

    @property
    def by_hone(self) -> bool:
        """Products have backward passes of hone's: in mixed precision, where bfloat16 is widened, and by tiles."""
        return self.mixed or (self.widens if self.compute == "bfloat16" else self.tile_scratch)

    @property
    def has_half_head(self) -> bool:
        """Logits are computed in blocks of the vocabulary."""
        return self.halves_head and self.compute == "bfloat16" and self.path != "fused"

    @property
    def widens_products(self) -> bool:
        """Products take float32 copies of bfloat16 numbers."""
        return self.widens and self.compute == "bfloat16"

    @property
    def decisions(self) -> int:
        """Tokens of a micro-batch that were chosen."""
        return -(-self.tokens * (self.chosen_tokens or self.text_tokens) // self.text_tokens)

    @property
    def gathers(self) -> bool:
        """Weights are gathered for each pass: they are cut among ranks, in one way or both."""
        return self.shards * self.tensor > 1 or self.virtual_shares > 0
