"""Messages of Tinker's protocol (SDK 0.38): what a client sends, checked, and the bytes of results.

Forward and backward passes and samples travel in protobuf, by the SDK's own schema; all else is JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as wire

from hone.core.errors import DataError, ErrorCollector
from hone.core.ragged import Ints

PROTOBUF: Final = "application/x-protobuf"
_DTYPES: Final = {wire.DTYPE_FLOAT32: np.dtype(np.float32), wire.DTYPE_INT64: np.dtype(np.int64)}
_UNRANKED: Final = -99999.0
"""Log-probability of an empty cell of a table of the likeliest tokens."""
_FAULTS_SHOWN: Final = 5
_MOST_NUMBERS: Final = 1 << 24
"""Numbers of a sparse tensor, zeros included: a few bytes could ask for any memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One row: N tokens, and the loss's inputs, of N rows each."""

    tokens: Ints
    """`[N]` int64 token ids that the model reads."""
    inputs: Mapping[str, NDArray[np.generic]]
    """By name: `target_tokens` `[N]` or `[N, K]` int64; `weights`, `logprobs`, `advantages` and others float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardCall:
    """A forward pass over rows, with the gradient of a loss."""

    model_id: str
    seq_id: int
    loss: str
    options: Mapping[str, float | str]
    """`loss_fn_config`."""
    forward_only: bool
    message: wire.ForwardBackwardRequest

    def data(self) -> list[Datum]:
        """The rows. Raises DataError that names every faulty one."""
        faults, rows = ErrorCollector(DataError), list[Datum]()
        for place, one in enumerate(self.message.data):
            try:
                tokens = np.array(list(_read_tokens(one.model_input)), np.int64)
                inputs = {name: _read_tensor(tensor, name) for name, tensor in one.loss_fn_inputs.items()}
            except DataError as fault:
                faults.extend(f"datum {place}: {message}" for message in fault.messages)
                continue
            faults.extend(f"datum {place}: {message}" for message in _shape_faults(tokens, inputs))
            rows.append(Datum(tokens=tokens, inputs=inputs))
        if not self.message.data:
            faults.add("there are no datums; give at least one")
        if len(faults.messages) > _FAULTS_SHOWN:
            more = len(faults.messages) - _FAULTS_SHOWN
            faults.messages = [*faults.messages[:_FAULTS_SHOWN], f"and {more} more faults"]
        faults.raise_if_any()
        return rows


def read_call(body: bytes) -> ForwardBackwardCall:
    """The head of a call; its rows are read by `data`. Raises DataError for bytes that are no such message."""
    message = wire.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise DataError(f"the body is no ForwardBackwardRequest: {error}") from None
    if not message.model_id or message.seq_id < 1:
        raise DataError("a ForwardBackwardRequest needs model_id and seq_id from 1 on")
    options: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        options[name] = value.number if value.WhichOneof("value") == "number" else value.text
    return ForwardBackwardCall(
        model_id=message.model_id,
        seq_id=message.seq_id,
        loss=message.loss_fn,
        options=options,
        forward_only=message.forward_only,
        message=message,
    )


def _read_tokens(chunks: Sequence[wire.Chunk]) -> Iterator[int]:
    for chunk in chunks:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise DataError(f"model_input has a chunk {kind!r}; this model reads text only (encoded_text)")
        if len(chunk.encoded_text.tokens) % 4:
            raise DataError(f"model_input has {len(chunk.encoded_text.tokens)} bytes of int32 tokens")
        yield from np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()


def _read_tensor(tensor: wire.Tensor, name: str) -> NDArray[np.generic]:
    """An array of its shape; a sparse one filled with zeros. Raises DataError."""
    where, kind = f"loss_fn_inputs[{name!r}]", _DTYPES.get(tensor.dtype)
    shape = tuple(int(size) for size in tensor.shape)
    if kind is None:
        raise DataError(f"{where} has dtype {tensor.dtype}; known: float32 (1) and int64 (2)")
    if any(size < 0 for size in shape) or len(shape) > 2:
        raise DataError(f"{where} has shape {shape}; known: [N] and [N, K]")
    sparse = tensor.HasField("sparse_csr")
    values = tensor.sparse_csr.values if sparse else tensor.dense
    if len(values) % kind.itemsize:
        raise DataError(f"{where} has {len(values)} bytes, no multiple of {kind.itemsize}")
    flat = np.frombuffer(values, kind)
    if not sparse:
        shape = shape or (len(flat),)
        if int(np.prod(shape)) != len(flat):
            raise DataError(f"{where} has {len(flat)} numbers, which do not fill its shape {list(shape)}")
        return flat.reshape(shape)
    if len(shape) != 2:
        raise DataError(f"{where} is sparse and has shape {list(shape)}; a sparse tensor is [N, K]")
    height, width = shape
    rows = np.frombuffer(tensor.sparse_csr.crow_indices[: len(tensor.sparse_csr.crow_indices) // 8 * 8], np.int64)
    columns = np.frombuffer(tensor.sparse_csr.col_indices[: len(tensor.sparse_csr.col_indices) // 8 * 8], np.int64)
    counts = np.diff(rows)
    fits = len(rows) == height + 1 and len(columns) == len(flat) and bool((counts >= 0).all())
    if not fits or rows[0] != 0 or rows[-1] != len(flat) or height * width > _MOST_NUMBERS:
        raise DataError(f"{where}: its sparse indices do not describe a matrix of shape {list(shape)}")
    if len(columns) and not 0 <= columns.min() <= columns.max() < width:
        raise DataError(f"{where}: a column is outside of its {width}")
    whole = np.zeros(shape, kind)
    whole[np.repeat(np.arange(height), counts), columns] = flat
    return whole


def _shape_faults(tokens: Ints, inputs: Mapping[str, NDArray[np.generic]]) -> Iterator[str]:
    if not len(tokens):
        yield "model_input is empty"
    targets = inputs.get("target_tokens")
    if targets is None:
        yield "loss_fn_inputs['target_tokens'] is missing"
        return
    if targets.dtype != np.int64:
        yield f"loss_fn_inputs['target_tokens'] must be int64, got {targets.dtype}"
    for name, array in inputs.items():
        expected = (targets.shape,) if name == "weights" else (targets.shape, targets.shape[:1])
        if array.shape not in expected:
            yield (
                f"loss_fn_inputs[{name!r}] has shape {list(array.shape)}, loss_fn_inputs['target_tokens'] "
                f"{list(targets.shape)}"
            )
        if array.dtype == np.float32 and not np.isfinite(array).all():
            yield f"loss_fn_inputs[{name!r}] holds numbers that are not finite"
    if len(targets) != len(tokens):
        yield f"loss_fn_inputs['target_tokens'] has {len(targets)} rows, model_input {len(tokens)} tokens"


# ------------------------------------------------------------------------------------------------------------- results


def forward_backward_output(logprobs: Sequence[NDArray[np.float32]], metrics: Mapping[str, float]) -> bytes:
    """Result of a pass: log-probabilities `[N]` or `[N, K]` of each row's targets in nats, and metrics whose names end
    with their reduction, such as `loss:sum`."""
    message = wire.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(metrics))
    for shape, group in groupby(logprobs, lambda one: one.shape[1:]):
        arrays = list(group)
        record = message.loss_fn_outputs.add(num_datums=len(arrays))
        field = record.fields["logprobs"]
        field.dtype = wire.DTYPE_FLOAT32
        field.trailing_shape.extend(shape)
        field.data = b"".join(one.tobytes() for one in arrays)
        field.offsets = np.cumsum([0, *(one.nbytes for one in arrays)]).astype(np.int64).tobytes()
    return message.SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens:
    """The k likeliest tokens at n positions; positions without any are empty."""

    tokens: NDArray[np.int32]
    """`[n, k]`."""
    logprobs: NDArray[np.float32]
    """`[n, k]` nats."""

    def after_first(self) -> "TopTokens":
        """The same with an empty position before all others: nothing predicts the first token of a text."""
        k = self.tokens.shape[1]
        empty = np.full((1, k), _UNRANKED, np.float32)
        return TopTokens(
            tokens=np.concatenate([np.zeros((1, k), np.int32), self.tokens]),
            logprobs=np.concatenate([empty, self.logprobs]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSequence:
    """One sample of n tokens."""

    tokens: NDArray[np.int32]
    """`[n]`, the stop token included."""
    logprobs: NDArray[np.float32]
    """`[n]` nats, of the policy at temperature 1."""
    stopped: bool
    """False: it has the most tokens that were asked for."""
    likeliest: TopTokens | None = None


def sample_response(
    answers: Sequence[SampledSequence],
    *,
    prompt_logprobs: NDArray[np.float32] | None = None,
    prompt_likeliest: TopTokens | None = None,
) -> bytes:
    """Result of a sample request; `prompt_logprobs` `[P]` nats, NaN where a token was not scored."""
    message = wire.SampleResponse()
    for one in answers:
        reason = wire.STOP_REASON_STOP if one.stopped else wire.STOP_REASON_LENGTH
        sequence = message.sequences.add(
            stop_reason=reason, tokens=one.tokens.tobytes(), logprobs=one.logprobs.tobytes()
        )
        if one.likeliest is not None:
            sequence.topk_sampled_logprobs.CopyFrom(_top_tokens(one.likeliest))
    if prompt_logprobs is not None:
        message.prompt_logprobs = prompt_logprobs.astype(np.float32).tobytes()
    if prompt_likeliest is not None:
        message.topk_prompt_logprobs.CopyFrom(_top_tokens(prompt_likeliest))
    return message.SerializeToString(deterministic=True)


def _top_tokens(top: TopTokens) -> wire.TopkLogprobs:
    count, k = top.tokens.shape
    return wire.TopkLogprobs(
        token_ids=top.tokens.astype(np.int32).tobytes(),
        logprobs=top.logprobs.astype(np.float32).tobytes(),
        k=k,
        length=count,
    )
