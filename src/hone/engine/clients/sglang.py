"""SGLang's protocol: `/generate` with token ids, weights by `update_weights_from_disk`.

Written for the documented protocol of SGLang 0.5 and tested with recorded replies, never with a server: no build of it
runs on a CPU. One label covers a whole answer, so that weights may change only between answers.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import ScoreRequest
from hone.engine.clients.http import HttpClient, Json, ServerError
from hone.engine.clients.wire import (
    GenerateRequest,
    GenerateResponse,
    ServerFeature,
    ServerFeatures,
    json_object,
    list_field,
    logp_array,
    token_id_array,
)

_GENERATE: Final = "/generate"
_LOAD: Final = "/update_weights_from_disk"
_OTHER_METHOD: Final = 405


class SglangProtocol:
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
