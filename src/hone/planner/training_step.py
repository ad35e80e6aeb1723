"""Memory of one optimizer step of hone's decoder, to the byte where the kernels are hone's own.

Every formula counts tensors that the forward pass keeps for the backward pass, and those that are alive at the moment
of the peak. Symbols of the formulas: T tokens of a micro-batch, h hidden features, a and g heads of queries and keys,
d features of a head, f inner features of the MLP, S tokens of a text, V vocabulary, L layers, P parameters; b bytes of
the products' numbers (4 or 2), s bytes of the weights', which the residual stream and the gradients keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Final

from hone.planner.layer_backward import (
    WIDENED_ROWS,
    attention_forward,
    inner_bytes,
    layer_backward,
    norm_temporaries,
    states_backward,
)
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.step_settings import NUMBER_BYTES as NUMBER_BYTES
from hone.planner.step_settings import KernelPath as KernelPath
from hone.planner.step_settings import NumberType as NumberType
from hone.planner.step_settings import StepSettings as StepSettings

# ----------------------------------------------------------------------------------------------------- gathered weights
# Memory of weights that are cut over ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`), while one rank computes.
#
# The embedding, the output projection and the last norm are gathered from the forward to the end of the backward pass.
# A layer is gathered for its own pass; in the backward pass that of the layer below is on its way meanwhile, and the
# gradients of the layer above are still being sent. Gradients are whole until their layer is finished, and cut then.


@dataclass(frozen=True, slots=True, kw_only=True)
class _GatheredWeights:
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


def _gathered_moments(
    moments: Mapping[str, int],
    weights: _GatheredWeights,
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
    bytes_at = {name: size + rest for name, size in moments.items()}
    bytes_at["logits"] += layer if shards > 1 else 0  # the last layer is on its way
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
        bytes_at |= {name: max(size, bytes_at[name] if done else 0) for name, size in now.items()}
    finished = layers * layer // shards if grows else 0
    bytes_at["embedding"] += layer + finished + (waiting if weights.tied else 0)  # two gradients, and their sum
    bytes_at["rest sent"] = (weights.sent(rest) if weights.trained else rest) + finished
    always = weights.partial_sums + (weights.gradients if accumulates else 0)
    return {name: size + always for name, size in bytes_at.items()}


# -------------------------------------------------------------------------------------------------------- training step


LOGITS_AT_ONCE: Final = {"cpu": 1 << 22, "gpu": 1 << 27}
"""Logits of a chunk (`hone.models.language.token_logprobs`); tests hold the two to be equal."""
COMPILED_TEXT_TOKENS: Final = 2048
"""Tokens of the longest text that the compiled attention takes (`hone.models.native.library`)."""
_LEAST_ROWS: Final = 16
LEAST_RECEIVED: Final = 1 << 20
"""Parameters from which on layers hand their gradients over (`hone.learner.flat_parameters`); tests hold the two to be
equal."""
HALF_BLOCK: Final = (1024, 1 << 19)
"""Rows, and logits of a block where products are of bfloat16; tests hold them to be equal to `token_logprobs`'s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of a step beyond weights, gradients and the optimizer's state."""

    activations: int
    """Kept from the forward pass to the backward pass, rounded weights aside."""
    rounded_weights: int
    """bfloat16 copies of the weights, kept by products in mixed precision."""
    recomputed: int
    """One layer's activations, computed again."""
    peak: int
    """Most bytes at once."""
    moment: str
    """Where the peak is: `logits`, `norm` (the last one), `layer`, `states` (of linear attention) or `embedding`."""


def saved_per_token(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes that a layer keeps for each token.

    compiled: 2sh + 2bh + b(a + 2g)d + bad + 3bf + 8a + 8: the stream twice, two norms' results, the joint projection of
    queries, keys and values, attention's result, both inputs of the gate and its result, and statistics.
    """
    h, a, g, d = shape.hidden, shape.heads, shape.kv_heads, shape.head_dim
    b, s, w = settings.product_bytes, settings.stream_bytes, settings.attention_bytes
    before, after = shape.layer_norms
    streams = 1 if before == 1 else 2  # attention and MLP in parallel add to it once
    rounded = 2 if before == 0 and settings.mixed else before  # without a norm, the stream itself, rounded
    common = streams * s * h + rounded * b * h + 4 * before + after * (b * h + 4)
    if settings.path == "compiled":
        attention = b * (2 * a + 2 * g) * d + 8 * a
        attention += b * (a + 2 * g) * d + 8 if shape.norms_whole else 0  # normalised before the kernel, and joined
    else:
        bounded = 2 if shape.bounds_scores else 1  # a bound of the scores is kept beside them
        scores = 4 * a if settings.fused_attention else bounded * w * a * settings.text_tokens
        scores += w * a * d if settings.fused_attention and settings.path == "torch" else 0  # its result
        normed = b * (a + 2 * g) * d + 4 * (a + g) if shape.qk_norm else 0
        result = b * a * d
        if shape.latent:  # both norms' inputs and results, plain queries, mixed latents and their values
            result = b * (2 * shape.query_latent + d + a * (shape.plain + shape.latent + shape.value))
            result += 8 if shape.query_latent else 4
        if shape.states:  # the joint projection, or norms of float32 copies; mixed values, their gate, and both
            joint = (2 * a + 2 * g) * d * b if b == 4 else 4 * (a + g) * d
            normed, result = joint + 4 * (a + g), 3 * b * a * d
        attention = w * (a + 2 * g) * d + result + normed + scores
        if shape.is_linear:  # projections, and the result; all between is computed again
            attention = b * (shape.channels + 2 * shape.state_values + 2 * shape.states)
    return common + attention + inner_bytes(shape, b) + b * settings.update_rank


def _table_bytes(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes for each token of attention's index tables, and of its mask where the backward pass needs it: where layers
    are computed again, and in fused attention."""
    if settings.path == "compiled":
        return 0
    mask = settings.attention_bytes * settings.text_tokens if settings.checkpointing or settings.fused_attention else 0
    return 16 * (shape.heads + shape.kv_heads) + (mask if settings.path == "torch" else 0)


def step_memory(shape: PlannedDecoder, settings: StepSettings) -> StepMemory:
    """Memory of a step: what is kept, and the largest of four moments at which the most is alive.

    `logits`: the loss's backward pass; `norm`: the last norm's; `layer`: the last layer's, when everything kept is
    still there; `embedding`: the end, where the vocabulary's gradients meet.
    """
    shape = shape.part(settings.tensor)
    h, tokens, s = shape.hidden, settings.tokens, settings.stream_bytes
    outside = (s * h + 4 + 4 * shape.head_dim + _table_bytes(shape, settings)) * tokens
    outside += s * h * settings.decisions
    rounded = _kept_weights(shape, settings)
    kept, recomputed = _kept_and_recomputed(shape, settings, outside=outside, rounded=rounded)
    kept_weights = sum(count * _kept_weights(one, settings) for count, one in shape.kinds_of_layers)
    kept_weights = 0 if settings.checkpointing else kept_weights
    vocabulary = s * shape.vocabulary_weights if settings.trained_vocabulary else 0
    received = shape.parameters >= LEAST_RECEIVED and not settings.gathers
    in_place = received and settings.has_half_head  # the head adds its gradient to the sum at once
    waiting = vocabulary if shape.tied and settings.predicts_tokens and not in_place else 0
    everything = kept + kept_weights
    if settings.gathers and not shape.tied:  # the gradient of the output projection waits for that of the embedding
        waiting = vocabulary if settings.predicts_tokens else 0
    logits = 0
    if settings.predicts_tokens:
        logits = _logit_bytes(shape, settings) + s * h * settings.decisions + vocabulary
        logits += s * shape.vocabulary_weights if settings.code_bits else 0  # decoded for both passes
    layer = layer_backward(shape, settings) + waiting
    if settings.path == "torch" and not settings.fused_attention:
        layer = max(layer, attention_forward(shape, settings) + (waiting if settings.checkpointing else 0))
    moments = {
        "logits": everything + 4 * tokens + logits,
        "layer": everything + recomputed + layer,
        "norm": everything + _norm_backward(shape, settings) + waiting,
        "embedding": (s * h + 4 * shape.head_dim) * tokens + waiting + vocabulary,
    }
    if shape.linear_layers:
        last = shape.kinds_of_layers[-1][1]
        behind = 0 if last.is_linear or settings.checkpointing else saved_per_token(last, settings) * tokens
        moments["states"] = everything + recomputed - behind + states_backward(shape, settings) + waiting
    if settings.gathers:
        # At the end of a layer's pass: its input, its norm's result, the gradients of the stream and of the projection.
        joint = shape.query_width + 2 * shape.key_width
        passing = (2 * s * h + settings.product_bytes * (h + joint)) * tokens
        moments = _gathered_moments(
            moments, gathered_weights(shape, settings), kept=everything,
            layer_kept=(everything - outside) // shape.layers, waiting=waiting,
            passing=passing, accumulates=settings.accumulates,
        )  # fmt: skip
    moment = max(moments, key=lambda name: moments[name])
    return StepMemory(
        activations=kept,
        rounded_weights=kept_weights,
        recomputed=recomputed,
        peak=moments[moment],
        moment=moment,
    )


def _kept_and_recomputed(
    shape: PlannedDecoder, settings: StepSettings, *, outside: int, rounded: int
) -> tuple[int, int]:
    """Bytes kept from the forward pass, with `outside` of the layers, and those of a layer that are made again, with
    `rounded` weights."""
    h, tokens, b, s = shape.hidden, settings.tokens, settings.product_bytes, settings.stream_bytes
    per_layer = saved_per_token(shape, settings) * tokens
    if settings.checkpointing:
        deltas = (shape.layers - 1) * b if settings.path == "compiled" else 0
        inputs = (shape.layers * s + deltas) * h * tokens
        apart = settings.path == "compiled" and shape.layers > 1  # else a layer's input is what its norm keeps
        return inputs + outside, per_layer + rounded - (0 if apart else s * h * tokens)
    if settings.offload:
        return outside, per_layer
    untrained = 0 if settings.trained_vocabulary else s * h * tokens  # no gradient passes the first norm
    of_layers = sum(count * saved_per_token(one, settings) for count, one in shape.kinds_of_layers)
    return of_layers * tokens + outside - untrained, 0


def gathered_weights(shape: PlannedDecoder, settings: StepSettings) -> _GatheredWeights:
    """Bytes of whole weights of a decoder whose weights are cut among ranks; of a part of its layers by `tensor`."""
    size = NUMBER_BYTES[settings.weights]
    rest = shape.vocabulary_weights * (1 if shape.tied or not settings.predicts_tokens else 2) + shape.hidden
    layers = shape.parameters - shape.vocabulary_weights * (1 if shape.tied else 2) - shape.hidden
    return _GatheredWeights(
        layer=size * layers // shape.layers, rest=size * rest, layers=shape.layers, tied=shape.tied,
        shards=settings.shards, virtual_shares=settings.virtual_shares,
        trained=settings.trained_vocabulary,
    )  # fmt: skip


def _kept_weights(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes of copies of a layer's weights that products keep: rounded ones, but for those of experts, which round
    theirs one after another in both passes; and a router in bfloat16, whose product is of float32 numbers. Beside codes
    they are the low-rank updates, put together, and rounded."""
    keys = shape.heads * shape.latent * shape.plain  # of latent attention, transposed
    if settings.code_bits:  # keys and values of latents are decoded
        decoded = settings.product_bytes * (2 * keys + shape.heads * shape.latent * shape.value)
        return decoded + (settings.stream_bytes + (2 if settings.mixed else 0)) * settings.update_numbers
    transposed = settings.stream_bytes * keys
    if not settings.mixed:
        return transposed + (4 * shape.experts * shape.hidden if settings.weights == "bfloat16" else 0)
    weights = shape.layer_weights
    if shape.experts:
        weights = shape.attention_weights + 3 * shape.hidden * shape.shared
    return transposed + settings.rounded_bytes * weights


def _norm_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes of the last norm's backward pass: the compiled one makes its result only; torch's takes float32 numbers,
    copies of its input and its gradient among them where these are bfloat16."""
    if settings.path == "compiled":
        return (settings.stream_bytes * shape.hidden + 4) * settings.tokens
    wide = settings.weights == "float32"
    return (norm_temporaries(wide_input=wide, wide_gradient=wide) * shape.hidden + 4) * settings.tokens


def _logit_bytes(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Logits alive at once: logits and their log-softmax, 8 bytes each; with the entropy's gradient 21; of a block 4
    and 9. Where bfloat16 is widened, the gradients of the states or of the vocabulary may take more beside the logits'
    own, in 6 bytes."""
    if settings.has_half_head:
        rows = max(1, min(settings.decisions, HALF_BLOCK[0]))
        logits = min(rows * shape.vocab, max(HALF_BLOCK[1], 32 * rows))
        block = (9 if settings.entropy else 4) * logits
        if settings.weights == "float32":
            return block + 28 * rows
        # Sums in float32 of the gradients of states, and of a block's weights.
        return (
            max(block, 4 * logits + 4 * logits // rows * shape.hidden)
            + 21 * rows
            + 2 * shape.hidden * settings.decisions
        )
    most = LOGITS_AT_ONCE["gpu" if settings.path == "fused" else "cpu"]
    rows = min(settings.decisions, max(_LEAST_ROWS, most // shape.vocab))
    loss = (21 if settings.entropy else 8) * rows * shape.vocab
    if settings.mixed or not settings.widens_products:
        return loss
    sizes = [(rows, shape.hidden, shape.vocab), (rows, shape.vocab, shape.hidden), (shape.vocab, rows, shape.hidden)]
    logits, *gradients = (_widened_product(*each) for each in sizes)
    beside = 10 if settings.entropy else 6
    return max(loss, 2 * rows * shape.vocab + logits, beside * rows * shape.vocab + max(gradients))


def _widened_product(rows: int, depth: int, columns: int) -> int:
    """Bytes of float32 copies in a product `[rows, depth] @ [depth, columns]` of bfloat16 numbers that is rounded once,
    the largest size in parts."""
    rows, columns = min(rows, columns), max(rows, columns)
    if depth > columns:
        return 4 * rows * columns + 4 * min(WIDENED_ROWS, depth) * (rows + columns)
    return 4 * rows * depth + 4 * min(WIDENED_ROWS, columns) * (rows + depth)
