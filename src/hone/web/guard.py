"""Guard of the page: who may ask, from where, and how a browser must treat the answer.

Belongs here: one layer of ASGI around the routes. A request must name a host of the list (against DNS rebinding), must
not come from another site's page, and must carry the token, which the printed link brings once and a cookie keeps.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES: Final = 24
"""Bytes of chance in a token."""
WRITE_HEADER: Final = "x-hone-watch"
"""Header of a request that changes something: another site's form cannot set it."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_READING: Final = ("GET", "HEAD")
_OWN_SITE: Final = ("same-origin", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may ask."""

    token: str
    hosts: Sequence[str]
    """Values of the header `Host`, with the port: `127.0.0.1:8765`, `localhost:8765`."""
    may_write: bool = False
    """Requests that start work (a chat) are answered."""

    @property
    def cookie(self) -> str:
        """Name of the cookie: servers on several ports of a host share their cookies."""
        return f"hone_watch_{self.hosts[0].rpartition(':')[2]}"


class Guard:
    """Application that passes on what `rules` allow."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAFE_HEADERS)
            await send(message)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not passed on; None for one that is."""
        rules, headers = self._rules, Headers(scope=scope)
        if headers.get("host", "") not in rules.hosts:
            return _refuse(421, "this address is not served here; open the link that hone watch printed")
        origin = headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in rules.hosts]:
            return _refuse(403, "requests of other sites' pages are refused")
        if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            return _refuse(403, "requests of other sites' pages are refused; paste the link into the address bar")
        if scope["method"] not in _READING and not (
            rules.may_write and scope["method"] == "POST" and headers.get(WRITE_HEADER) == "1"
        ):
            return _refuse(405, "this page only reads", {"allow": "GET, HEAD"})
        return self._missing_token(scope, headers)

    def _missing_token(self, scope: Scope, headers: Headers) -> Response | None:
        rules = self._rules
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = query.pop("token", [""])[0]
        if token and scope["path"] == "/" and _equal(token, rules.token):
            rest = urlencode(query, doseq=True)
            answer = RedirectResponse(f"/?{rest}" if rest else "/", 303)
            answer.set_cookie(rules.cookie, rules.token, httponly=True, samesite="strict", path="/")
            return answer
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(rules.cookie)
        except CookieError:
            cookie = None
        if cookie is None or not _equal(cookie.value, rules.token):
            return _refuse(
                401, "open the link with the token that hone watch printed; it opens this page once and for all"
            )
        return None


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _refuse(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(reason + "\n", status, headers=headers)
