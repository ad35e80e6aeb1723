"""Sizes of a low-rank adapter, from the sizes of its decoder alone."""

from collections.abc import Sequence
from typing import Final

from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.training_step import NUMBER_BYTES, NumberType

ATTENTION_LAYERS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_LAYERS: Final = ("gate_proj", "up_proj", "down_proj")
_LAYER_GROUPS: Final = {"all": (*ATTENTION_LAYERS, *MLP_LAYERS), "attention": ATTENTION_LAYERS, "mlp": MLP_LAYERS}


def adapter_sizes(shape: PlannedDecoder, rank: int, layers: str | Sequence[str]) -> tuple[int, int]:
    """Trained numbers of a low-rank adapter, rank x (inputs + outputs) of each layer; and the weights of the decoder's
    parameters that hold adapted layers: queries, keys and values are one, and so are gate and up. Experts have none."""
    wanted = set(_LAYER_GROUPS.get(layers, ()) if isinstance(layers, str) else layers)
    hidden, query, key, inner = shape.hidden, shape.query_width, shape.key_width, shape.intermediate
    sides = {
        "q_proj": query + hidden, "k_proj": key + hidden, "v_proj": key + hidden, "o_proj": query + hidden,
    }  # fmt: skip
    held = hidden * (query + 2 * key) * bool(wanted & {"q_proj", "k_proj", "v_proj"})
    held += hidden * query * ("o_proj" in wanted)
    if not shape.experts:
        sides |= dict.fromkeys(MLP_LAYERS, hidden + inner)
        held += 2 * hidden * inner * bool(wanted & {"gate_proj", "up_proj"}) + hidden * inner * ("down_proj" in wanted)
    return shape.layers * rank * sum(sides[name] for name in wanted if name in sides), shape.layers * held


def adapter_copies(trained: int, adapted: int, weights: NumberType) -> dict[str, int]:
    """Bytes of what is held beside the merged weights: those that they are merged from, and the factors with their
    gradients."""
    size = NUMBER_BYTES[weights]
    return {"base of the adapted weights": adapted * size, "adapter with its gradients": 2 * trained * size}
