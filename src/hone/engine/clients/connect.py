"""Builds an engine from a server's config."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import ScoreRequest
from hone.engine.canary import WeightCanary
from hone.engine.clients.config import ServerEngine
from hone.engine.clients.handover import WeightTransfer
from hone.engine.clients.http import HttpClient, Json, ServerError
from hone.engine.clients.remote import RemoteEngine
from hone.engine.clients.vllm import VllmProtocol
from hone.engine.clients.wire import (
    GenerateRequest,
    GenerateResponse,
    ServerFeature,
    ServerFeatures,
    ServerProtocol,
    json_object,
    list_field,
    logp_array,
    token_id_array,
)
from hone.engine.protocol import GenerationModel
from hone.engine.stops import TokenizerRules

# --------------------------------------------------------------------------------------------------------------- sglang


_GENERATE: Final = "/generate"
_LOAD: Final = "/update_weights_from_disk"
_OTHER_METHOD: Final = 405


class _SglangProtocol:
    """Implements `wire.Wire`."""

    def __init__(self, link: HttpClient) -> None:
        self.link = link
        self.refusal = ""

    def probe(self) -> ServerFeatures:
        info = self.link.get("/get_server_info")
        version, context = info.get("version", "of unknown version"), info.get("context_length")
        cold, warm = self._likeliest(0.25), self._likeliest(1.0)
        has: set[ServerFeature] = {"tokens", "score"}
        if cold[1] > warm[1] or warm[1] > -1e-6:  # a lower temperature raises the probability of the most likely token
            has.add("temperature")
        if warm[0]:
            has.add("labels")
        if self.link.status(_LOAD) == _OTHER_METHOD:
            has.add("load")
        if self.link.status("/pause_generation") == self.link.status("/continue_generation") == _OTHER_METHOD:
            has |= {"abort", "freeze"}
        return ServerFeatures(
            server=f"SGLang {version} at {self.link.url}",
            supported=frozenset(has),
            context=context if isinstance(context, int) else None,
        )

    def write(self, ask: GenerateRequest) -> GenerateResponse:
        params: dict[str, object] = {
            "max_new_tokens": ask.max_tokens,
            "temperature": 0.0 if ask.sampling.greedy else ask.sampling.temperature,
            "sampling_seed": ask.seed,
            "stop_token_ids": list(ask.eos),
            "ignore_eos": True,  # `stop_token_ids` ends answers, not the server's own config
            "no_stop_trim": True,
            "skip_special_tokens": False,
        }
        if ask.sampling.stop:
            params["stop"] = list(ask.sampling.stop)
        body = {"input_ids": ask.prefix.tolist(), "sampling_params": params, "return_logprob": True}
        return self._parse_reply(self.link.post(_GENERATE, body, retry="refused"))

    def score(self, text: ScoreRequest) -> NDArray[np.float32]:
        tokens = [*text.prompt.tolist(), *text.tokens.tolist()]
        body = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        place = self.link.url + _GENERATE
        meta = json_object(self.link.post(_GENERATE, body, retry="refused").get("meta_info"), "meta_info", place)
        ids, logp = _pairs(list_field(meta, "input_token_logprobs", place)[-len(text.tokens) :], place)
        if ids.tolist() != text.tokens.tolist():
            raise ServerError(
                f"{place}: {len(text.tokens)} tokens were sent for scoring, and the reply has other tokens: {ids}"
            )
        return logp

    def load(self, folder: Path, label: str) -> None:
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True}
        reply = self.link.post(_LOAD, body, retry="always")
        if reply.get("success") is not True:
            raise ServerError(f"{self.link.url}{_LOAD}: it did not load {folder}: {reply.get('message')}")

    def abort(self) -> None:
        self.link.post("/pause_generation", {"mode": "abort"}, retry="always")

    def freeze(self) -> None:
        self.link.post("/pause_generation", {"mode": "in_place"}, retry="always")

    def resume(self) -> None:
        self.link.post("/continue_generation", {}, retry="always")

    def alive(self) -> bool:
        try:
            return self.link.status("/health") == 200
        except ServerError:
            return False

    def _parse_reply(self, reply: Json) -> GenerateResponse:
        place = self.link.url + _GENERATE
        meta = json_object(reply.get("meta_info"), "meta_info", place)
        tokens = token_id_array(list_field(reply, "output_ids", place), "output_ids", place)
        rows = list_field(meta, "output_token_logprobs", place)
        ids, logp = _pairs(rows, place)
        if len(ids) == len(tokens) and (ids != tokens).any():
            raise ServerError(f"{place}: the log-probabilities belong to other tokens")
        label, reason = meta.get("weight_version"), meta.get("finish_reason")
        return GenerateResponse(
            tokens=tokens,
            logp=logp,
            weight_labels=None if label is None else ((0, str(label)),),
            finish_reason=str(json_object(reason, "finish_reason", place).get("type")),
        )

    def _likeliest(self, temperature: float) -> tuple[bool, float]:
        """Sample one token: whether the answer names its weights, and the log-probability of the most likely token."""
        body = {
            "input_ids": [0, 0],
            "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
            "return_logprob": True,
            "top_logprobs_num": 1,
        }
        place = self.link.url + _GENERATE
        meta = json_object(self.link.post(_GENERATE, body, retry="always").get("meta_info"), "meta_info", place)
        first = list_field(meta, "output_top_logprobs", place)[0]
        _, logp = _pairs(first if isinstance(first, list) else [], place)
        return meta.get("weight_version") is not None, float(logp.max())


def _pairs(rows: object, place: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """`[[log-probability, token id, text], ...]` as two arrays."""
    pairs = [row for row in rows if isinstance(row, list) and len(row) >= 2] if isinstance(rows, list) else None
    if pairs is None or not isinstance(rows, list) or len(pairs) != len(rows):
        raise ServerError(f"{place}: {rows!r} are not pairs of log-probability and token")
    return (
        token_id_array([row[1] for row in pairs], "the tokens of log-probabilities", place),
        logp_array([row[0] for row in pairs], "log-probabilities", place),
    )


# -------------------------------------------------------------------------------------------------------------- connect


def open_protocol(config: ServerEngine, url: str) -> ServerProtocol:
    """Return the protocol of one server. Raises ConfigError for an invalid address."""
    link = HttpClient(config.address(url))
    return VllmProtocol(link) if config.kind == "vllm" else _SglangProtocol(link)


def open_weight_transfer(
    config: ServerEngine, *, model: GenerationModel, save: Callable[[Path], None], vocab: int
) -> WeightTransfer:
    """Build the transfer of the weights of `model`, as `save` writes them, to one server or several."""
    own = config.weights_folder is None
    folder = Path(tempfile.mkdtemp(prefix="hone-weights-") if config.weights_folder is None else config.weights_folder)
    return WeightTransfer(
        save=save,
        folder=folder,
        session=f"hone-{uuid4().hex[:12]}",  # an identity, no chance: no draw depends on it
        canary=WeightCanary(model, vocab=vocab, tolerance=config.canary_nats),
        keep_folder=not own,
    )


def connect_engine(
    config: ServerEngine,
    *,
    model: GenerationModel,
    save: Callable[[Path], None],
    text: TokenizerRules,
    slots: int,
    seed: int,
) -> RemoteEngine:
    """Build an engine over one server for the weights of `model`, as `save` writes them. Sends no request yet."""
    (url,) = config.urls
    return RemoteEngine(
        open_protocol(config, url),
        text,
        slots=slots,
        seed=seed,
        weight_transfer=open_weight_transfer(config, model=model, save=save, vocab=text.vocab),
        on_publish=config.on_publish,
        reconnect_timeout_s=config.reconnect_timeout_s,
    )
