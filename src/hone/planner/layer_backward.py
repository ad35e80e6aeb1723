"""Memory of the backward pass of a decoder's last layer, and of its forward pass where that takes more.

Symbols are those of `training_step`; s bytes of a weight, its gradient and a number of the stream.
"""

from typing import Final

from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.step_settings import StepSettings

_TILE: Final = 32
_TILE_ROWS: Final = 512
"""Rows that a product by tiles lays out at once (`hone.models.native.library`)."""
WIDENED_ROWS: Final = 1024
"""Rows of bfloat16 numbers that are widened at once (the same)."""
_CHUNK: Final = 64
"""Tokens of a chunk of linear attention (`hone.models.language.linear_attention`)."""
_WIDE: Final = 4
"""Bytes of a number in float32."""


def layer_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of the last layer's backward pass, less those that it has freed by then."""
    if shape.experts:
        return _experts_backward(shape, settings)
    h, f, tokens = shape.hidden, shape.intermediate, settings.tokens
    b, s = settings.product_bytes, settings.stream_bytes
    freed = _freed_before(shape, settings)
    if settings.path == "compiled":
        return _compiled_backward(shape, settings) - freed
    # The rounded weights of the projection after the gate are freed.
    gate = (s * h + 3 * b * f) * tokens - settings.rounded_bytes * f * h - freed
    if settings.path == "fused":
        return gate
    mlp = _mlp_backward(shape, settings) - freed
    if settings.widens_products:
        mlp = max(mlp, _widened_forward(shape, settings) - freed)
    parts = _output_backward(shape, settings), _attention_backward(shape, settings), _norms_backward(shape, settings)
    return max(gate, mlp, max(parts) - freed)


def _mlp_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of the backward pass of a layer's last product, and of its gates' and ups' in one, with the gradients
    of their weights."""
    h, f, tokens = shape.hidden, shape.intermediate, settings.tokens
    b, s = settings.product_bytes, settings.stream_bytes
    stream = s * h + (2 * h if settings.mixed else 0)  # its gradient, and that rounded
    down = (stream + b * f) * tokens + _weight_gradient(h, f, settings)
    both = (s * h + b * h - b * f) * tokens + _of_weights(settings) * f * h + _weight_gradient(2 * f, h, settings)
    # The layer's result, when it is computed again: torch leaves its own last product out then, but not hone's.
    again = (stream + b * h) * tokens + (2 * f * h if settings.mixed and settings.rounds_again else 0)
    if settings.widens_products:
        again += _WIDE * h * f + _beside_gradient(h, f, settings)
    return max(down, both, again if settings.checkpointing and settings.by_hone else 0)


def _compiled_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of a layer's backward pass by compiled kernels: `mlp`, `gate`, or attention's."""
    h, f, b, s = shape.hidden, shape.intermediate, settings.product_bytes, settings.stream_bytes
    gate = (s * h + 2 * b * f) * settings.tokens + _of_weights(settings) * f * h
    return max(_mlp_backward(shape, settings), gate, _compiled_attention_backward(shape, settings))


def _compiled_attention_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of attention's backward pass by compiled kernels: of itself, or of a product with the gradient of its
    weights, each less what those before it have freed. Cut weights' gradients stay until the layer is finished."""
    h, tokens, b, s = shape.hidden, settings.tokens, settings.product_bytes, settings.stream_bytes
    queries, joint = shape.query_width, shape.query_width + 2 * shape.key_width
    freed = inner_bytes(shape, b) + b * h + s * h + 4  # for each token
    done = _inner_gradients(shape, settings) + _of_weights(settings) * queries * h
    states = (s * h + b * h - b * queries - 8 * shape.heads - freed) * tokens + done
    states += _weight_gradient(joint, h, settings)
    attention = (s * h + b * joint - freed) * tokens + done
    if shape.qk_norm:  # a sum for each text and key head
        attention += 2 * _WIDE * shape.key_width * -(-tokens // settings.text_tokens)
    return max(_output_backward(shape, settings), attention, states)


def _output_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of the backward pass of the projection after attention, less those that the MLP's has freed."""
    h, b = shape.hidden, settings.product_bytes
    # The stream's gradient takes the place of a norm's input; beside it, in mixed precision, is the same rounded.
    stream = 2 * h if settings.mixed else 0
    alive = stream + b * shape.query_width - (inner_bytes(shape, b) + b * h + 4)
    made = _weight_gradient(h, shape.query_width, settings)
    return alive * settings.tokens + _inner_gradients(shape, settings) + made


def _of_weights(settings: StepSettings) -> int:
    """Bytes for each weight whose gradient is done: it stays if weights are cut, and their rounded copy is freed."""
    return (settings.stream_bytes if settings.gathers else 0) - settings.rounded_bytes


def _inner_gradients(shape: PlannedDecoder, settings: StepSettings) -> int:
    """The same of all weights of an MLP or of experts, which keep no rounded copies."""
    weights = 3 * shape.intermediate * shape.hidden
    if not shape.experts:
        return _of_weights(settings) * weights
    return (settings.stream_bytes if settings.gathers else 0) * shape.experts * weights


def _rounded_after_attention(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes of the rounded weights of the projection after attention and of the MLP; experts keep none."""
    inner = 0 if shape.experts else 3 * shape.intermediate
    return settings.rounded_bytes * (inner + shape.query_width) * shape.hidden


def _weight_gradient(outputs: int, inputs: int, settings: StepSettings) -> int:
    """Bytes of the gradient of a weight `[outputs, inputs]` while it is made, apart from where it stays: the first step
    of a run adds it to zeros, and only later ones write it there. Where bfloat16 is widened, the gradient of the inputs
    takes as much before it, for the weight itself, and what the weight was rounded to again; and a gradient that is
    rounded stands beside itself in float32. A weight in codes has no gradient, and is decoded in its place."""
    numbers = outputs * inputs
    if settings.code_bits:
        return settings.product_bytes * numbers
    if settings.widens_products:
        again = 2 * numbers if settings.mixed and settings.rounds_again else 0
        rounds = 0 if settings.mixed else 2 * numbers
        return _WIDE * numbers + max(_beside_gradient(outputs, inputs, settings) + again, rounds)
    return settings.stream_bytes * numbers + (_beside_gradient(outputs, inputs, settings) if settings.mixed else 0)


def _beside_gradient(outputs: int, inputs: int, settings: StepSettings) -> int:
    """Bytes that bfloat16 products take beside a weight's gradient: room for tiles, for rows that are widened, or for
    the same numbers in bfloat16, which are then widened."""
    if settings.tile_scratch and outputs % _TILE == 0 and inputs % _TILE == 0:
        return 2 * _TILE_ROWS * inputs
    if settings.widens:
        return _WIDE * min(settings.tokens, WIDENED_ROWS) * (outputs + inputs)
    return 2 * outputs * inputs


def _experts_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """The same of a layer of experts, the largest of: `combine`, where the gradients of k results are added in float32,
    each in place beside the next; `gate`, the gradient that the gate is given, in parts and joined; `down` and `later`,
    the gradient of all experts' weights of a product beside one expert's; `attention`.

    The first step of a run makes the gradients of weights apart, and adds them to zeros; later ones write them to where
    they stay.
    """
    h, f, k, tokens = shape.hidden, shape.intermediate, shape.experts_per_token, settings.tokens
    b, s = settings.product_bytes, settings.stream_bytes
    freed = _freed_before(shape, settings)
    # The experts of every token go first: only the gradient that they give their input is left.
    freed += (3 * b * shape.shared - b * h) * tokens if shape.shared else 0
    results = (4 - b) * k * h
    # Of three results or more, the sum's gradient is still there when the second of them is made.
    combine = (4 * min(k, 2) * k * h + (4 * h if k > 2 else 0) - (4 * h if b == 4 else 0) + 4 * k - 4) * tokens
    combine += (4 - s) * h * tokens  # the sum's gradient is in float32, whatever the stream's is
    stack = s * shape.experts * f * h
    held = stack if settings.gathers else 0
    below = (s * h - results - 8 * k) * tokens - freed
    down = below + b * k * f * tokens + stack + _one_expert(h, f, settings)
    # The gate's inputs and its result are freed by then.
    later = below - b * k * f * tokens + held + 2 * stack + _one_expert(2 * f, h, settings)
    if settings.path == "compiled":
        attention = _compiled_attention_backward(shape, settings) - freed
        return max(combine, down, below + 2 * b * k * f * tokens + held, later, attention)
    gate = (3 * b * k * f - 4 * h * (k - 1) - 8 * k) * tokens - freed
    if settings.path == "fused":
        return max(combine, down, gate, later)
    attention = max(_attention_backward(shape, settings), _norms_backward(shape, settings)) - freed
    return max(combine, down, gate, later, attention)


def _one_expert(outputs: int, inputs: int, settings: StepSettings) -> int:
    """Bytes of the gradient of one expert's weight, where it is not made in its place, and beside it."""
    made = settings.product_bytes * outputs * inputs
    if settings.mixed:
        return _beside_gradient(outputs, inputs, settings)
    return 3 * made + _beside_gradient(outputs, inputs, settings) if settings.widens_products else made


def _attention_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes while the scores' gradients are alive twice, or of texts too long for scores, the gradients of queries,
    keys and values; the MLP of the layer is freed by then."""
    h, b, s, w = shape.hidden, settings.product_bytes, settings.stream_bytes, settings.attention_bytes
    freed = (s + b) * h + 4 + inner_bytes(shape, b) + b * shape.query_width
    scores = 2 * w * shape.heads * settings.text_tokens
    if settings.fused_attention:  # of the result, too, which was put into its place
        scores = (w * 2 * (shape.heads + shape.kv_heads) + w * shape.heads) * shape.head_dim
    return (s * h + scores - freed) * settings.tokens - _rounded_after_attention(shape, settings)


def states_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes while the last layer of linear attention is computed again in its backward pass, less those that were
    freed by then: the layers behind it aside, its MLP, and what the last layer's backward pass finds freed.

    The numbers in float32 for each token of a text of at least one chunk were measured with a tracker, and solved for:
    11 for each feature of all keys, 8 of all values, 5 of all heads' keys, 3 for each head and token of its chunk, and
    4 for a number of the states of each chunk.
    """
    b, s, h = settings.product_bytes, settings.stream_bytes, shape.hidden
    chunk = min(_CHUNK, settings.text_tokens)
    keys, of_heads = shape.groups * shape.state_key, shape.states * shape.state_key
    numbers = 11 * keys + 8 * shape.state_values + 5 * of_heads + 3 * shape.states * chunk
    numbers += 4 * of_heads * shape.state_value // chunk
    numbers += shape.channels + shape.state_values if b != _WIDE else 0  # the projections, widened
    freed = inner_bytes(shape, b) + (s + b) * h + 4  # and the gradient of the stream is there
    return (_WIDE * numbers + s * h - freed) * settings.tokens - _freed_before(shape, settings)


def attention_forward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of torch's attention in the last layer's forward pass, which outweighs the backward pass where
    attention is wider than the MLP: queries, keys and values are padded, or the scores' softmax is made. Less what
    comes after it, and is counted."""
    h, b, s, w = shape.hidden, settings.product_bytes, settings.stream_bytes, settings.attention_bytes
    later = (s + b) * h + 4 + inner_bytes(shape, b)
    joint = 0 if shape.qk_norm else b * shape.key_width  # else what the norms keep
    padding = 4 * b * shape.query_width + 2 * b * shape.key_width
    softmax = w * (shape.heads * settings.text_tokens + 3 * shape.query_width + 2 * shape.key_width)
    mask = w * settings.text_tokens
    alive = (max(padding, softmax) + mask + joint - later) * settings.tokens
    return alive - _rounded_after_attention(shape, settings) - _freed_before(shape, settings)


def norm_temporaries(*, wide_input: bool, wide_gradient: bool) -> int:
    """Bytes for each number in the backward pass of torch's norm beside its input and its gradient: four tensors of
    float32 numbers, or a result in bfloat16; and what is widened."""
    return (16 if wide_input else 18) + (0 if wide_gradient else 4)


def _norms_backward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes in the backward passes of the MLP's norm and, after attention, of the norm of queries."""
    h, a, g, d = shape.hidden, shape.heads, shape.kv_heads, shape.head_dim
    b, s, w = settings.product_bytes, settings.stream_bytes, settings.attention_bytes
    by_mlp = inner_bytes(shape, b)
    rounded = _rounded_after_attention(shape, settings)
    mlp = (s + norm_temporaries(wide_input=s == 4, wide_gradient=b == 4)) * h - by_mlp
    mlp = mlp * settings.tokens - rounded + settings.rounded_bytes * a * d * h  # before attention's projection
    if not shape.qk_norm:
        return mlp
    scores = 4 * a + w * a * d if settings.fused_attention else w * a * settings.text_tokens
    freed = by_mlp + b * h + 4 + (w * (a + 2 * g) + b * a) * d + scores
    queries = b * (a + 2 * g) * d + norm_temporaries(wide_input=b == 4, wide_gradient=b == 4) * a * d - freed
    return max(mlp, queries * settings.tokens - rounded)


def _widened_forward(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Most bytes of the last layer's forward pass, in the product of its gates and ups: beside its float32 copies,
    attention's mask, which the backward pass does not need."""
    h, f, b = shape.hidden, shape.intermediate, settings.product_bytes
    # Weights rounded again stand beside their product; rounded weights that are kept are counted, but those of the next
    # product are not there yet.
    rounded = 2 * h * f if settings.mixed else 0
    copies = 2 * rounded if settings.rounds_again else -rounded
    counted = settings.fused_attention or settings.checkpointing  # kept from pass to pass
    mask = 0 if counted else settings.attention_bytes * settings.text_tokens
    return (mask - b * f) * settings.tokens + _WIDE * 2 * f * h + _beside_gradient(2 * f, h, settings) + copies


def _freed_before(shape: PlannedDecoder, settings: StepSettings) -> int:
    """Bytes of the last norm and of the states that were asked, which the last layer's backward pass finds freed."""
    return settings.stream_bytes * shape.hidden * (settings.tokens + settings.decisions) + 4 * settings.tokens


def inner_bytes(shape: PlannedDecoder, b: int) -> int:
    """Bytes for each token in the MLP of a layer, or in its experts."""
    return _expert_bytes(shape, b) if shape.experts else 3 * b * shape.intermediate


def _expert_bytes(shape: PlannedDecoder, b: int) -> int:
    """Bytes for each token in a layer of experts: the router's input in float32 in the place of the norm's result, k
    copies of the experts' inputs and float32 copies of their results, both inputs of the gate and its result, and the
    router's numbers; and of the experts of every token the same as of an MLP."""
    k, h = shape.experts_per_token, shape.hidden
    return (
        (b + 4) * k * h
        + (4 - b) * h
        + 3 * b * k * shape.intermediate
        + 12 * shape.experts
        + 24 * k
        + 4
        + 3 * b * shape.shared
    )
