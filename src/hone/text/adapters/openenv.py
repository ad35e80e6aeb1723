"""Environments of OpenEnv servers as worlds of dialogues: sessions over WebSockets, `reset(seed)` and `step(action)`.

An observation becomes a user's message, and the policy's text an action. What a server can do is asked before a run.
"""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import Any, Final, cast

from hone.core.conversation import Message
from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import ConfigError, ResourceError

_WAIT_S: Final = 60.0
_CLOSING_S: Final = 2.0
_ATTEMPTS: Final = 40
_AGAIN_S: Final = 0.1
_OWN_FIELDS: Final = ("metadata", "type")

Json = dict[str, Any]


class OpenEnvWorld:
    """One session of an OpenEnv server; implements `DialogueWorld`.

    A row's `seed` is the environment's, so that dialogues about one row begin alike; other columns that `reset` takes
    stand in the column `reset`.
    """

    def __init__(self, address: str, action: str = "", observation: str = "", prompt: str = "") -> None:
        """`action`: field of the action that takes the policy's text; `json`: the text is the whole action. Empty: the
        only text among its fields. `observation`: field of the observation to show; empty: its only text, else all of
        it as JSON. `prompt`: text before the first observation."""
        self._address, self._action, self._observation, self._prompt = address, action, observation, prompt
        self._session: _OpenEnvSession | None = None
        self._paid = False

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Reset the environment; its first observation is the question."""
        if not self._action:
            self._action = text_action(server_schema(self._address), self._address)
        options = cast("Mapping[str, Any]", columns.get("reset") or {})
        result = self._reset({"seed": int(columns.get("seed", seed)), **options})
        return WorldTurn(messages=[self._message(result, self._prompt)], done=bool(result.get("done")))

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Step the environment by the policy's text."""
        assert self._session is not None, "begin comes first"
        result = self._session.call("step", self._step(said.text))
        reward, done = result.get("reward"), bool(result.get("done"))
        self._paid = self._paid or reward is not None
        # An environment may pay at the end only; one that never pays has no score.
        own = (0.0 if self._paid or not done else None) if reward is None else float(reward)
        return WorldTurn(messages=[] if done else [self._message(result)], reward=own, done=done)

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()

    def _reset(self, data: Json) -> Json:
        """Begin a session. A server counts one that was closed for a moment longer: it is asked again."""
        for attempt in range(_ATTEMPTS):
            self._session = _OpenEnvSession(self._address)
            try:
                return self._session.call("reset", data)
            except OpenEnvServerError as error:
                if error.most_sessions is None or attempt == _ATTEMPTS - 1:
                    raise
                self._session.close()
                threading.Event().wait(_AGAIN_S)
        raise AssertionError("the last attempt returns or raises")

    def _step(self, text: str) -> Json:
        if self._action != "json":
            return {self._action: text}
        try:
            action = json.loads(text)
        except ValueError:
            action = None
        return cast("Json", action) if isinstance(action, dict) else {"invalid": text}

    def _message(self, result: Json, before: str = "") -> Message:
        seen = cast("Json", result.get("observation") or {})
        texts = [value for value in seen.values() if isinstance(value, str)]
        if self._observation:
            shown = seen.get(self._observation)
            text = shown if isinstance(shown, str) else json.dumps(shown)
        else:
            text = texts[0] if len(texts) == 1 and len(seen) == 1 else json.dumps(seen)
        return {"role": "user", "content": f"{before}{text}"}


class _OpenEnvSession:
    """One WebSocket of a server: an environment of its own."""

    def __init__(self, address: str) -> None:
        """Raises OpenEnvServerError if the server refuses, or is not there."""
        try:  # an optional package
            from websockets.exceptions import WebSocketException  # noqa: PLC0415
            from websockets.sync.client import connect  # noqa: PLC0415
        except ModuleNotFoundError as missing:
            raise OpenEnvServerError(f"{address} needs {missing.name}: pip install 'hone-rl[tools]'") from None
        self._address, self._broken = address, (OSError, WebSocketException, TimeoutError)
        url = f"{address.rstrip('/').replace('http', 'ws', 1)}/ws"
        try:
            self._open = ExitStack()
            self._socket = self._open.enter_context(connect(url, open_timeout=_WAIT_S, max_size=2**27, proxy=None))
        except self._broken as error:
            raise OpenEnvServerError(f"no OpenEnv server answers at {address}: {error}") from None

    def call(self, kind: str, data: Json | None = None) -> Json:
        """Send a message and return the data of the answer. Raises OpenEnvServerError."""
        try:
            with suppress(*self._broken):  # a server that refuses says why before it closes
                self._socket.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
            reply = cast("Json", json.loads(self._socket.recv(timeout=_WAIT_S)))
        except (*self._broken, ValueError) as error:
            raise OpenEnvServerError(f"{self._address}: no answer to {kind}: {error}") from None
        content = cast("Json", reply.get("data") or {})
        if reply.get("type") == "error":
            code, message = content.get("code"), content.get("message")
            raise OpenEnvServerError(
                f"{self._address} answered {kind} with {code}: {message}", most_sessions=content.get("max_sessions")
            )
        return content

    def close(self) -> None:
        """End the session on both sides."""
        with suppress(*self._broken):
            self._socket.send(json.dumps({"type": "close"}))
            self._socket.recv(timeout=_CLOSING_S)  # ends with the server's own close
        with suppress(*self._broken):
            self._open.close()


class OpenEnvServerError(Exception):
    """A server that refuses, fails or does not answer."""

    def __init__(self, message: str, *, most_sessions: int | None = None) -> None:
        super().__init__(message)
        self.most_sessions = most_sessions
        """Sessions that it allows at the same time, where that is the reason."""


def check_server(address: str, sessions: int, options: Mapping[str, Any]) -> list[str]:
    """Open as many sessions as a run will hold at the same time, and close them; returns no warnings.

    Raises ResourceError where no server answers, or one that allows fewer sessions; ConfigError where its actions have
    no field for a text.
    """
    if not options.get("action"):
        text_action(server_schema(address), address)
    opened = 0
    with ExitStack() as stack:
        try:
            for opened in range(sessions):  # noqa: B007 - told below
                session = _OpenEnvSession(address)
                stack.callback(session.close)
                session.call("state")
        except OpenEnvServerError as error:
            raise ResourceError(f"task.source: {_refusal(error, address, opened, sessions)}") from None
    return []


def _refusal(error: "OpenEnvServerError", address: str, opened: int, sessions: int) -> str:
    if error.most_sessions is None:
        return str(error)
    return (
        f"the OpenEnv server at {address} allows {error.most_sessions} sessions at the same time (max_sessions), "
        f"{opened} were free, and this run holds up to {sessions}: start it with max_concurrent_envs = {sessions}, or "
        "set rollout.max_concurrent to half of what it allows"
    )


@lru_cache
def server_schema(address: str) -> Json:
    """JSON schema of the server's actions. Raises ResourceError where no OpenEnv server answers."""
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/schema", timeout=_WAIT_S) as reply:
            schema = cast("Json", json.loads(reply.read()))
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise ResourceError(f"no OpenEnv server answers at {address}: {error}") from None
    return cast("Json", schema.get("action") or {})


def text_action(schema: Json, address: str) -> str:
    """The only field of an action that takes text. Raises ConfigError."""
    fields = cast("dict[str, Json]", schema.get("properties") or {})
    own = {name: one for name, one in fields.items() if name not in _OWN_FIELDS}
    texts = [name for name, one in own.items() if one.get("type") == "string"]
    required = [name for name in cast("list[str]", schema.get("required") or []) if name in texts]
    chosen = required if len(required) == 1 else texts
    if len(chosen) == 1:
        return chosen[0]
    raise ConfigError(
        f"task.options.action: an action of {address} has the fields {', '.join(sorted(own)) or 'none'}; name "
        'the one that takes the policy\'s text, or "json" where the policy writes the whole action'
    )
