"""Memory of one optimizer step of hone's decoder, to the byte where the kernels are hone's own.

Every formula counts tensors that the forward pass keeps for the backward pass, and those that are alive at the moment
of the peak. Symbols of the formulas: T tokens of a micro-batch, h hidden features, a and g heads of queries and keys,
d features of a head, f inner features of the MLP, S tokens of a text, V vocabulary, L layers, P parameters; b bytes of
the products' numbers (4 or 2).
"""

from dataclasses import dataclass
from typing import Final, Literal

from hone.planner.gathered_weights import GatheredWeights, gathered_moments
from hone.planner.planned_decoder import PlannedDecoder

KernelPath = Literal["compiled", "torch", "fused"]
"""`compiled`: hone's CPU kernels; `torch`: matrix products with the scores of a text in memory; `fused`: torch's fused
attention, on a GPU."""
NumberType = Literal["float32", "bfloat16"]
NUMBER_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2}
LOGITS_AT_ONCE: Final = {"cpu": 1 << 22, "gpu": 1 << 27}
"""Logits of a chunk (`hone.models.language.token_logprobs`); tests hold the two to be equal."""
COMPILED_TEXT_TOKENS: Final = 2048
"""Tokens of the longest text that the compiled attention takes (`hone.models.native.attention`)."""
_LEAST_ROWS: Final = 16
_TILE: Final = 32
_TILE_ROWS: Final = 512
"""Rows that a product by tiles lays out at once (`hone.models.native.products`)."""
_WIDENED_ROWS: Final = 1024
"""Rows of bfloat16 numbers that are widened at once (the same)."""
_STREAM: Final = 4
"""Bytes of a number of the residual stream, which keeps the weights' type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings of an optimizer step that its memory depends on."""

    tokens: int
    """Tokens of a micro-batch, T."""
    text_tokens: int
    """Tokens of its longest text, S; only `torch` attention depends on it."""
    weights: NumberType = "float32"
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
    def gathers(self) -> bool:
        """Weights are gathered for each pass: they are cut among ranks, in one way or both."""
        return self.shards * self.tensor > 1 or self.virtual_shares > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of a step beyond weights, gradients and the optimizer's state."""

    activations: int
    """Kept from the forward pass to the backward pass, rounded weights aside."""
    rounded_weights: int
    """bfloat16 copies of the weights, kept by products in mixed precision."""
    recomputed: int
    """One layer's activations, computed again."""
    logits: int
    """Most logits that are alive at once, and the gradients that stand beside them."""
    backward: int
    """Most that a layer's backward pass holds beyond what is kept."""
    peak: int
    """Most bytes at once."""
    moment: str
    """Where the peak is: `logits`, `norm` (the last one), `layer` or `embedding`."""


def saved_per_token(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes that a layer keeps for each token.

    compiled: 8h + 2bh + b(a + 2g)d + bad + 3bf + 8a + 8: the stream twice, two norms' results, the joint projection of
    queries, keys and values, attention's result, both inputs of the gate and its result, and statistics.
    """
    h, a, g, d, f = shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate
    b = NUMBER_BYTES[settings.compute]
    common = 2 * _STREAM * h + 2 * b * h + 8
    if settings.path == "compiled":
        attention = b * (2 * a + 2 * g) * d + 8 * a
    else:
        scores = b * a * settings.text_tokens if settings.path == "torch" else 4 * a
        normed = b * (a + 2 * g) * d + 4 * (a + g) if shape.qk_norm else 0
        attention = 2 * b * (a + g) * d + normed + scores
    return common + attention + (_expert_bytes(shape, b) if shape.experts else 3 * b * f)


def _table_bytes(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes for each token of attention's index tables, and of its mask where layers are computed again."""
    if settings.path == "compiled":
        return 0
    mask = NUMBER_BYTES[settings.compute] * settings.text_tokens if settings.checkpointing else 0
    return 16 * (shape.heads + shape.kv_heads) + (mask if settings.path == "torch" else 0)


def _expert_bytes(shape: PlannedDecoder, b: int) -> int:
    """Bytes for each token in a layer of experts: the router's input in float32 in the place of the norm's result, k
    copies of the experts' inputs and float32 copies of their results, both inputs of the gate and its result, and the
    router's numbers."""
    k, h = shape.experts_per_token, shape.hidden
    return (b + 4) * k * h + (4 - b) * h + 3 * b * k * shape.intermediate + 12 * shape.experts + 24 * k + 4


def step_memory(shape: PlannedDecoder, settings: StepSettings) -> StepMemory:
    """Memory of a step: what is kept, and the largest of four moments at which the most is alive.

    `logits`: the loss's backward pass; `norm`: the last norm's; `layer`: the last layer's, when everything kept is
    still there; `embedding`: the end, where the vocabulary's gradients meet.
    """
    shape = shape.part(settings.tensor)
    h, tokens = shape.hidden, settings.tokens
    mixed = settings.compute != settings.weights
    outside = (_STREAM * h + 4 + 4 * shape.head_dim + _table_bytes(shape, settings)) * tokens
    outside += _STREAM * h * _decisions(settings)
    rounded = 2 * _kept_weights(shape) if mixed and not settings.rounds_again else 0
    kept, recomputed = _kept_and_recomputed(shape, settings, outside=outside, rounded=rounded)
    kept_weights = 0 if settings.checkpointing else shape.layers * rounded
    vocabulary = _STREAM * shape.vocabulary_weights if settings.trained_vocabulary else 0
    waiting = vocabulary if shape.tied and settings.predicts_tokens else 0
    everything = kept + kept_weights
    if settings.gathers and not shape.tied:  # the gradient of the output projection waits for that of the embedding
        waiting = vocabulary if settings.predicts_tokens else 0
    logits = 0
    if settings.predicts_tokens:
        logits = _logit_bytes(shape, settings) + _STREAM * h * _decisions(settings) + vocabulary
    moments = {
        "logits": everything + 4 * tokens + logits,
        "layer": everything + recomputed + _layer_backward(shape, settings, mixed=mixed) + waiting,
        "norm": everything + _norm_backward(shape, settings) + waiting,
        "embedding": (_STREAM * h + 4 * shape.head_dim) * tokens + waiting + vocabulary,
    }
    if settings.gathers:
        moments = gathered_moments(
            moments, gathered_weights(shape, settings), kept=everything,
            layer_kept=(everything - outside) // shape.layers, waiting=waiting,
            passing=_first_norm(shape, settings), accumulates=settings.accumulates,
        )  # fmt: skip
    moment = max(moments, key=lambda name: moments[name])
    return StepMemory(
        activations=kept,
        rounded_weights=kept_weights,
        recomputed=recomputed,
        logits=logits,
        backward=_layer_backward(shape, settings, mixed=mixed),
        peak=moments[moment],
        moment=moment,
    )


def _kept_and_recomputed(
    shape: PlannedDecoder, settings: StepSettings, *, outside: int, rounded: int
) -> tuple[int, int]:
    """Bytes kept from the forward pass, with `outside` of the layers, and those of a layer that are made again, with
    `rounded` weights."""
    h, tokens, b = shape.hidden, settings.tokens, NUMBER_BYTES[settings.compute]
    per_layer = saved_per_token(shape, settings) * tokens
    if settings.checkpointing:
        deltas = (shape.layers - 1) * b if settings.path == "compiled" else 0
        inputs = (shape.layers * _STREAM + deltas) * h * tokens
        apart = settings.path == "compiled" and shape.layers > 1  # else a layer's input is what its norm keeps
        return inputs + outside, per_layer + rounded - (0 if apart else _STREAM * h * tokens)
    if settings.offload:
        return outside, per_layer
    untrained = 0 if settings.trained_vocabulary else _STREAM * h * tokens  # no gradient passes the first norm
    return shape.layers * per_layer + outside - untrained, 0


def gathered_weights(shape: PlannedDecoder, settings: StepSettings) -> GatheredWeights:
    """Bytes of whole weights of a decoder whose weights are cut among ranks; of a part of its layers by `tensor`."""
    size = NUMBER_BYTES[settings.weights]
    rest = shape.vocabulary_weights * (1 if shape.tied or not settings.predicts_tokens else 2) + shape.hidden
    layers = shape.parameters - shape.vocabulary_weights * (1 if shape.tied else 2) - shape.hidden
    return GatheredWeights(
        layer=size * layers // shape.layers, rest=size * rest, layers=shape.layers, tied=shape.tied,
        shards=settings.shards, virtual_shares=settings.virtual_shares,
        trained=settings.trained_vocabulary,
    )  # fmt: skip


def _first_norm(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes at the end of a layer's backward pass: its input, the norm's result, and the gradients of the stream and of
    the joint projection of queries, keys and values."""
    b = NUMBER_BYTES[settings.compute]
    projection = b * (shape.query_width + 2 * shape.key_width)
    return (2 * _STREAM * shape.hidden + b * shape.hidden + projection) * settings.tokens


def _decisions(settings: StepSettings) -> int:
    """Tokens of a micro-batch that were chosen."""
    return -(-settings.tokens * (settings.chosen_tokens or settings.text_tokens) // settings.text_tokens)


def _freed_before(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes of the last norm and of the states that were asked, which the last layer's backward pass finds freed."""
    return _STREAM * shape.hidden * (settings.tokens + _decisions(settings)) + 4 * settings.tokens


def _kept_weights(shape: PlannedDecoder) -> int:
    """Weights of a layer whose rounded copies products keep: experts round theirs one after another, in both passes."""
    return shape.attention_weights if shape.experts else shape.layer_weights


def _layer_backward(shape: PlannedDecoder, settings: StepSettings, *, mixed: bool) -> int:
    """Most bytes of the last layer's backward pass, less those that it has freed by then."""
    if shape.experts:
        return _experts_backward(shape, settings, mixed=mixed)
    h, f, tokens = shape.hidden, shape.intermediate, settings.tokens
    b = NUMBER_BYTES[settings.compute]
    freed = _freed_before(shape, settings)
    kept = mixed and not settings.rounds_again
    gate_freed = 2 * f * h if kept else 0  # the rounded weights of the projection after the gate
    if settings.path == "compiled":
        return _compiled_backward(shape, settings, mixed=mixed) - freed
    gate = (_STREAM * h + 3 * b * f) * tokens - gate_freed - freed
    if settings.path == "fused":
        return gate
    mlp = _mlp_backward(shape, settings, mixed=mixed) - freed
    if settings.checkpointing and mixed and settings.widens:  # gates and ups, when the layer is computed again
        mlp = max(mlp, (2 * _STREAM * h - b * f) * tokens + _weight_gradient(2 * f, h, settings, mixed=True) - freed)
    return max(gate, mlp, _softmax_backward(shape, settings, mixed=mixed) - freed)


def _mlp_backward(shape: PlannedDecoder, settings: StepSettings, *, mixed: bool) -> int:
    """Most bytes of the backward pass of a layer's last product, and of its gates' and ups' in one, with the gradients
    of their weights."""
    h, f, tokens = shape.hidden, shape.intermediate, settings.tokens
    b = NUMBER_BYTES[settings.compute]
    rounded = 2 if mixed and not settings.rounds_again else 0
    stays = _STREAM if settings.gathers else 0
    stream = _STREAM * h + (2 * h if mixed else 0)  # its gradient, and that rounded
    down = (stream + b * f) * tokens + _weight_gradient(h, f, settings, mixed=mixed)
    both = (_STREAM * h + b * h - b * f) * tokens + (stays - rounded) * f * h
    both += _weight_gradient(2 * f, h, settings, mixed=mixed)
    # The layer's result, when it is computed again: torch leaves its own last product out then, but not hone's.
    custom = mixed or settings.tile_scratch
    again = (stream + b * h) * tokens + (2 * f * h if mixed and settings.rounds_again else 0)
    if mixed and settings.widens:
        again += _STREAM * h * f + _beside_gradient(h, f, settings)
    return max(down, both, again if settings.checkpointing and custom else 0)


def _compiled_backward(shape: PlannedDecoder, settings: StepSettings, *, mixed: bool) -> int:
    """Most bytes of a layer's backward pass by compiled kernels: `mlp`, `gate`, `attention`, or a product of attention
    with the gradient of its weights, each less what those before it have freed. Cut weights' gradients stay until the
    layer is finished."""
    h, f, tokens = shape.hidden, shape.intermediate, settings.tokens
    b = NUMBER_BYTES[settings.compute]
    queries, joint = shape.query_width, shape.query_width + 2 * shape.key_width
    rounded = 2 if mixed and not settings.rounds_again else 0
    stays = _STREAM if settings.gathers else 0
    stream = _STREAM * h + (2 * h if mixed else 0)  # its gradient, and that rounded
    by_attention = 3 * b * f + b * h + _STREAM * h + 4  # freed for each token when attention's turn comes
    mlp = _mlp_backward(shape, settings, mixed=mixed)
    gate = (_STREAM * h + 2 * b * f) * tokens + (stays - rounded) * f * h
    output = (stream + b * queries - by_attention) * tokens + 3 * (stays - rounded) * f * h
    output += _weight_gradient(h, queries, settings, mixed=mixed)
    states = (_STREAM * h + b * h - b * queries - 8 * shape.heads - by_attention) * tokens
    states += (stays - rounded) * (3 * f + queries) * h + _weight_gradient(joint, h, settings, mixed=mixed)
    attention = (_STREAM * h + b * joint - by_attention) * tokens + (stays - rounded) * (3 * f + queries) * h
    if shape.qk_norm:  # a sum for each text and key head
        attention += 2 * _STREAM * shape.key_width * -(-tokens // settings.text_tokens)
    return max(mlp, gate, output, attention, states)


def _weight_gradient(outputs: int, inputs: int, settings: StepSettings, *, mixed: bool) -> int:
    """Bytes of the gradient of a weight `[outputs, inputs]` while it is made, apart from where it stays: the first step
    of a run adds it to zeros, and only later ones write it there. Where bfloat16 is widened, the gradient of the inputs
    takes as much before it, for the weight itself, and what the weight was rounded to again."""
    again = 2 * outputs * inputs if mixed and settings.widens and settings.rounds_again else 0
    return _STREAM * outputs * inputs + (_beside_gradient(outputs, inputs, settings) if mixed else 0) + again


def _beside_gradient(outputs: int, inputs: int, settings: StepSettings) -> int:
    """Bytes that mixed precision takes beside a weight's gradient: room for tiles, for rows that are widened, or for
    the same numbers in bfloat16, which are then widened."""
    if settings.tile_scratch and outputs % _TILE == 0 and inputs % _TILE == 0:
        return 2 * _TILE_ROWS * inputs
    if settings.widens:
        return _STREAM * min(settings.tokens, _WIDENED_ROWS) * (outputs + inputs)
    return 2 * outputs * inputs


def _experts_backward(shape: PlannedDecoder, settings: StepSettings, *, mixed: bool) -> int:
    """The same of a layer of experts, the largest of: `combine`, where the gradients of k results are added in float32,
    each in place beside the next; `gate`, the gradient that the gate is given, in parts and joined; `down` and `later`,
    the gradient of all experts' weights of a product beside one expert's; `scores` of attention.

    The first step of a run makes the gradients of weights apart, and adds them to zeros; later ones write them to where
    they stay.
    """
    h, f, k, tokens = shape.hidden, shape.intermediate, shape.experts_per_token, settings.tokens
    b = NUMBER_BYTES[settings.compute]
    freed = _freed_before(shape, settings)
    results = (4 - b) * k * h
    # Of three results or more, the sum's gradient is still there when the second of them is made.
    combine = (4 * min(k, 2) * k * h + (4 * h if k > 2 else 0) - (4 * h if b == 4 else 0) + 4 * k - 4) * tokens
    stack = _STREAM * shape.experts * f * h
    held = stack if settings.gathers else 0
    below = (4 * h - results - 8 * k) * tokens - freed
    down = below + b * k * f * tokens + stack + (_beside_gradient(h, f, settings) if mixed else b * f * h)
    # The gate's inputs and its result are freed by then.
    later = below - b * k * f * tokens + held + 2 * stack
    later += _beside_gradient(2 * f, h, settings) if mixed else 2 * b * f * h
    if settings.path == "compiled":
        return max(combine, down, below + 2 * b * k * f * tokens + held, later)
    gate = (3 * b * k * f - 4 * h * (k - 1) - 8 * k) * tokens - freed
    scores = 0 if settings.path == "fused" else _softmax_backward(shape, settings, mixed=mixed) - freed
    return max(combine, down, gate, later, scores)


def _norm_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes of the last norm's backward pass: the compiled one makes its result only."""
    widths = 1 if settings.path == "compiled" else 4
    return (widths * _STREAM * shape.hidden + 4) * settings.tokens


def _softmax_backward(shape: PlannedDecoder, settings: StepSettings, *, mixed: bool) -> int:
    """Bytes while the scores' gradients are alive twice; the MLP of the layer is freed by then."""
    h, f, b = shape.hidden, shape.intermediate, NUMBER_BYTES[settings.compute]
    inner = _expert_bytes(shape, b) if shape.experts else 3 * b * f
    freed = (_STREAM + b) * h + 4 + inner + b * shape.query_width
    weights = 2 * ((0 if shape.experts else 3 * h * f) + shape.query_width * h)
    weights = weights if mixed and not settings.rounds_again else 0
    scores = 2 * b * shape.heads * settings.text_tokens
    return (_STREAM * h + scores - freed) * settings.tokens - weights


def _logit_bytes(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Logits alive at once: logits and their log-softmax, 8 bytes each; with the entropy's gradient 21."""
    most = LOGITS_AT_ONCE["gpu" if settings.path == "fused" else "cpu"]
    rows = min(_decisions(settings), max(_LEAST_ROWS, most // shape.vocab))
    return (21 if settings.entropy else 8) * rows * shape.vocab
