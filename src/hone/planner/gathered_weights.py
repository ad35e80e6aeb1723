"""Memory of weights that are cut over ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`), while one rank computes.

The embedding, the output projection and the last norm are gathered from the forward to the end of the backward pass. A
layer is gathered for its own pass; in the backward pass that of the layer below is on its way meanwhile, and the
gradients of the layer above are still being sent. Gradients are whole until their layer is finished, and cut then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredWeights:
    """Bytes of whole weights on one rank; gradients are as large."""

    layer: int
    """Weights of a layer."""
    rest: int
    """Weights outside of the layers."""
    layers: int
    tied: bool
    """The output projection is the embedding."""
    shards: int
    """Ranks that each weight is cut among."""
    virtual_shares: int = 0
    """Shares of each rank, under virtual ranks."""
    trained: bool = True
    """They are trained; the gradients of those below an adapter become its own at once."""

    @property
    def whole(self) -> int:
        """Bytes of all weights."""
        return self.layers * self.layer + self.rest

    @property
    def gradients(self) -> int:
        """Bytes of a rank's part of all gradients."""
        return self.whole // self.shards if self.trained else 0

    @property
    def partial_sums(self) -> int:
        """Sums of gradients that wait for those of other shares of this rank: one for each level of the tree."""
        levels = int(log2(self.virtual_shares)) if self.virtual_shares > 1 else 0
        return levels * self.gradients

    def sent(self, whole: int) -> int:
        """Bytes while gradients of `whole` bytes are added up over the ranks: they, and the copy that is sent; under
        virtual ranks that copy, this rank's part, what came from all of them, and the sums of its tree."""
        return 3 * whole + whole // self.shards if self.virtual_shares else 2 * whole


def gathered_moments(
    moments: Mapping[str, int],
    weights: GatheredWeights,
    *,
    kept: int,
    layer_kept: int,
    waiting: int,
    passing: int,
    accumulates: bool,
) -> dict[str, int]:
    """Bytes at the moments of a step of one rank, gradients included, from those of a step with whole weights.

    `kept`: bytes from the forward pass for the backward pass, `layer_kept` of them a layer's; `waiting`: gradients of
    the vocabulary that are finished with the last layer's pass; `passing`: bytes of the end of a layer's pass;
    `accumulates`: gradients of earlier micro-batches are there. Three moments are new: `layer end`; `layer sent`, where
    the gradients of a layer are added up over the ranks; and `rest sent`, where those outside of the layers are.
    """
    layer, rest, layers, shards = weights.layer, weights.rest, weights.layers, weights.shards
    grows = weights.trained and not accumulates
    found = {name: size + rest for name, size in moments.items()}
    found["logits"] += layer if shards > 1 else 0  # the last layer is on its way
    for done in sorted({0, min(1, layers - 1), max(0, layers - 2), layers - 1}):
        below = layer if done < layers - 1 and shards > 1 else 0
        above = layer if done else 0
        finished = done * layer // shards if grows else 0
        beside = rest + below + finished
        left = kept - (done + 1) * layer_kept + waiting + beside
        now = {
            "layer": moments["layer"] - done * layer_kept + beside + layer + above,
            "layer end": left + passing + 2 * layer + above,
            "layer sent": left + weights.sent(layer) + (layer // shards if accumulates else 0),
        }
        found |= {name: max(size, found[name] if done else 0) for name, size in now.items()}
    finished = layers * layer // shards if grows else 0
    found["embedding"] += layer + finished + (waiting if weights.tied else 0)  # two gradients, and their sum
    found["rest sent"] = (weights.sent(rest) if weights.trained else rest) + finished
    always = weights.partial_sums + (weights.gradients if accumulates else 0)
    return {name: size + always for name, size in found.items()}
