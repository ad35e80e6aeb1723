"""Servers that speak vLLM's and SGLang's protocols, with a small model behind them, and that misbehave when told to.

The shapes of requests and replies are those recorded from vLLM 0.32 and documented for SGLang 0.5.
"""

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model
from hone.models.packing import pack_rows


class Gone(Exception):  # noqa: N818 - it is no error of the server's
    """The connection ends without an answer."""


class FakeServer:
    """A server over `folder`'s weights; `dialect`: whose protocol it speaks."""

    def __init__(self, folder: Path, dialect: str, *, decode=None, missing=(), takes_weights=True) -> None:
        self.first, self.dialect, self.decode = folder, dialect, decode
        self.missing, self.takes_weights = set(missing), takes_weights
        self.faults: deque[str] = deque()
        """What goes wrong with the next answers."""
        self.asked: list[dict[str, Any]] = []
        self.loads = 0
        self.temperature_in_logp = True
        self.slow_s = 0.0
        self.lock = threading.Lock()
        self.life = 0
        self.port = 0
        self.begin()

    def begin(self) -> None:
        """A new process: its first weights, listening."""
        self.model: Decoder = load_model(self.first)
        self.label, self.mode, self.aborts = "default", "", 0
        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), handler_of(self))
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def end(self) -> None:
        """The process dies: what it was writing is never answered."""
        self.life += 1
        self.http.shutdown()
        self.http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def logits(self, tokens: list[int]) -> torch.Tensor:
        with self.lock, torch.no_grad():
            return self.model.logits(self.model.hidden(pack_rows([np.array(tokens, np.int32)])))

    def write(self, prompt: list[int], *, most: int, temperature: float, seed: int, ends, stops) -> dict[str, Any]:
        """Tokens, their log-probabilities and labels, and why it ended."""
        life, aborts = self.life, self.aborts
        tokens: list[int] = []
        logp: list[float] = []
        labels: list[str] = []
        reason = "length"
        while len(tokens) < most:
            while self.mode == "freeze" and self.aborts == aborts and self.life == life:
                time.sleep(0.002)
            if self.life != life:
                raise Gone
            if self.aborts != aborts:
                reason = "abort"
                break
            label = self.label
            row = self.logits([*prompt, *tokens])[-1].double()
            scaled = torch.log_softmax(row / (temperature or 1.0), dim=-1).numpy()
            noise = np.random.default_rng([seed, len(tokens)]).gumbel(size=len(scaled))
            token = int(scaled.argmax() if temperature == 0 else (scaled + noise).argmax())
            told = scaled if self.temperature_in_logp else torch.log_softmax(row, dim=-1).numpy()
            tokens.append(token)
            logp.append(float(told[token]))
            labels.append(label)
            if token in ends or (stops and any(stop in self.decode(tokens) for stop in stops)):
                reason = "stop"
                break
            time.sleep(self.slow_s)
        top = self._top(prompt, temperature)
        return {"tokens": tokens, "logp": logp, "labels": labels, "reason": reason, "top": top}

    def _top(self, prompt: list[int], temperature: float) -> float:
        row = self.logits(prompt)[-1].double() / ((temperature or 1.0) if self.temperature_in_logp else 1.0)
        return float(torch.log_softmax(row, dim=-1).max())

    def scores(self, tokens: list[int]) -> list[float]:
        """Of every token but the first."""
        logp = torch.log_softmax(self.logits(tokens).double(), dim=-1)
        return [float(logp[place, token]) for place, token in enumerate(tokens[1:])]

    def load(self, folder: str) -> None:
        if self.takes_weights:
            with self.lock:
                self.model = load_model(Path(folder))
        self.loads += 1

    # ------------------------------------------------------------------------------------------ protocols

    def reply(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        bare, _, query = path.partition("?")
        if bare in self.missing:
            return 404, {"detail": "Not Found"}
        if bare == "/health":
            return 200, {}
        posted = VLLM if self.dialect == "vllm" else SGLANG
        if bare in posted:
            return (405, {"detail": "Method Not Allowed"}) if method == "GET" else posted[bare](self, body, query)
        told: dict[str, dict[str, Any]] = {
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": "tiny", "max_model_len": 200}]},
            "/get_server_info": {"version": "0.5.6", "context_length": 200},
        }
        return (200, told[bare]) if bare in told else (404, {"detail": "Not Found"})


def vllm_generate(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    if "enable-scale-out" in server.missing:
        return 403, {"error": {"message": "Scale-out endpoints are disabled. Restart with --enable-scale-out"}}
    params, prompt = body["sampling_params"], body["token_ids"]
    server.asked.append(body)
    done = server.write(
        prompt,
        most=params["max_tokens"],
        temperature=params["temperature"],
        seed=params["seed"],
        ends=params.get("stop_token_ids", []),
        stops=params.get("stop", []),
    )
    top = [{"token_id": 0, "logprob": done["top"]}]
    content = [
        {"token_id": token, "logprob": logp, "rank": 1, "top_logprobs": top}
        for token, logp in zip(done["tokens"], done["logp"], strict=True)
    ]
    spans: list[dict[str, Any]] = []
    for place, label in enumerate(done["labels"]):
        if not spans or spans[-1]["version"] != label:
            spans.append({"version": label, "start": place, "end": place})
        spans[-1]["end"] = place + 1
    choice = {
        "index": 0,
        "finish_reason": done["reason"],
        "token_ids": done["tokens"],
        "weight_versions": None if "weight_versions" in server.missing else spans,
        "logprobs": {"content": content},
    }
    reply: dict[str, Any] = {"choices": [choice], "prompt_logprobs": None}
    if "prompt_logprobs" in params:
        scores = server.scores(prompt)
        reply["prompt_logprobs"] = [
            None,
            *({str(token): {"logprob": logp, "rank": 1}} for token, logp in zip(prompt[1:], scores, strict=True)),
        ]
    return 200, reply


def vllm_rpc(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    assert body["method"] == "reload_weights"
    server.load(body["kwargs"]["weights_path"])
    return 200, {"results": [None]}


def vllm_label(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    if server.takes_weights:
        server.label = body["new_version"]
    return 200, {"success": True}


def vllm_pause(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    return pause(server, "freeze" if query == "mode=keep" else "abort")


def pause(server: FakeServer, mode: str) -> tuple[int, dict[str, Any]]:
    server.mode = mode
    if mode == "abort":
        server.aborts += 1
    return 200, {"status": "paused"}


def resume(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    server.mode = ""
    return 200, {"status": "resumed"}


def nothing(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    return 200, {"success": True}


def sglang_generate(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    params, prompt = body["sampling_params"], body["input_ids"]
    server.asked.append(body)
    done = server.write(
        prompt,
        most=params["max_new_tokens"],
        temperature=params["temperature"],
        seed=params.get("sampling_seed", 0),
        ends=params.get("stop_token_ids", []),
        stops=params.get("stop", []),
    )
    pairs = [[logp, token, None] for token, logp in zip(done["tokens"], done["logp"], strict=True)]
    meta = {
        "id": "0",
        "finish_reason": {"type": done["reason"]},
        "prompt_tokens": len(prompt),
        "weight_version": done["labels"][-1] if done["labels"] else server.label,
        "output_token_logprobs": pairs,
    }
    if "top_logprobs_num" in body:
        meta["output_top_logprobs"] = [[[done["top"], 0, None]] for _ in pairs]
    if body.get("logprob_start_len") == 0:
        scored = zip(server.scores(prompt), prompt[1:], strict=True)
        meta["input_token_logprobs"] = [[None, prompt[0], None], *([logp, token, None] for logp, token in scored)]
    return 200, {"text": "", "output_ids": done["tokens"], "meta_info": meta}


def sglang_load(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    if not Path(body["model_path"]).is_dir():
        return 400, {"success": False, "message": "no such folder", "num_paused_requests": 0}
    server.load(body["model_path"])
    if server.takes_weights:
        server.label = body["weight_version"]
    return 200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}


def sglang_pause(server: FakeServer, body: dict[str, Any], query: str) -> tuple[int, dict[str, Any]]:
    return pause(server, "freeze" if body["mode"] == "in_place" else "abort")


VLLM = {
    "/inference/v1/generate": vllm_generate,
    "/collective_rpc": vllm_rpc,
    "/update_weight_version": vllm_label,
    "/pause": vllm_pause,
    "/resume": resume,
    "/reset_prefix_cache": nothing,
}
SGLANG = {
    "/generate": sglang_generate,
    "/update_weights_from_disk": sglang_load,
    "/pause_generation": sglang_pause,
    "/continue_generation": resume,
}


def spoil(fault: str, reply: dict[str, Any]) -> dict[str, Any]:
    """A reply of vLLM's that cannot be right."""
    choice = reply["choices"][0]
    content = choice["logprobs"]["content"]
    match fault:
        case "no log-probabilities":
            choice["logprobs"] = None
        case "a log-probability too few":
            content.pop()
        case "a positive log-probability":
            content[0]["logprob"] = 0.5
        case "another token's log-probability":
            content[0]["token_id"] += 1
        case "an id out of the vocabulary":
            choice["token_ids"][0] = content[0]["token_id"] = 23_000
        case "too many tokens":
            choice["token_ids"] += [3] * 500
            content += [{"token_id": 3, "logprob": -1.0}] * 500
        case "no token":
            choice["token_ids"], choice["logprobs"]["content"] = [], []
        case "two answers":
            reply["choices"] *= 2
        case "an unknown end":
            choice["token_ids"], choice["logprobs"]["content"] = [5], [{"token_id": 5, "logprob": -1.0}]
            choice["finish_reason"] = "repetition"
        case _:
            raise AssertionError(fault)
    choice["weight_versions"] = None
    return reply


def fault_of(server: FakeServer, method: str, path: str, body: dict[str, Any]) -> str:
    """What goes wrong with this request: with answers only, and not with those that a probe asks for."""
    asked = body.get("token_ids") or body.get("input_ids")
    writing = method == "POST" and path in ("/inference/v1/generate", "/generate") and asked != [0, 0]
    return server.faults.popleft() if writing and server.faults else ""


def answer_of(server: FakeServer, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes, bool]:
    """Status, content, and whether it is cut off. Raises Gone where nothing is answered."""
    fault = fault_of(server, method, path, body)
    if fault.startswith("status "):
        return int(fault[7:]), b'{"error": "overloaded,\n try later"}', False
    if fault in ("silence", "hang up"):
        time.sleep(1.0 if fault == "silence" else 0.0)
        raise Gone
    status, reply = server.reply(method, path, body)
    if fault == "no JSON":
        return 200, b"<html>\n<body>a proxy's page</body>", False
    reply = reply if fault in ("", "cut off") else spoil(fault, reply)
    return status, json.dumps(reply).encode(), fault == "cut off"


def handler_of(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format, *args) -> None:
            """Silent."""

        def do_GET(self) -> None:
            self.answer("GET", {})

        def do_POST(self) -> None:
            self.answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

        def answer(self, method: str, body: dict[str, Any]) -> None:
            self.close_connection = True
            try:
                status, content, cut = answer_of(server, method, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if cut else content)
            except (Gone, ConnectionError):
                return

    return Handler
