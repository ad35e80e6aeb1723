"""Clients of a service: tokens with scopes, tenants, and rates.

A token belongs to one tenant and may do what its scopes name. The service keeps only the sha256 of a token. Without
any client the service answers everybody, and listens on this machine only.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from hone.decide.gateway.requests import RequestError

AccessScope = Literal["decide", "reward", "features", "read", "ship", "administer"]
ALL_SCOPES: Final[tuple[AccessScope, ...]] = ("decide", "reward", "features", "read", "ship", "administer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceClient:
    """A caller with a token."""

    name: str
    tenant: str
    token_sha256: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerAccess:
    """What a caller may do."""

    client: str
    tenant: str
    """Tenant that the caller is bound to; empty: any tenant of the service."""
    scopes: frozenset[str]

    def require_scope(self, scope: AccessScope) -> None:
        """Raise RequestError (403) if the caller lacks a scope."""
        if scope not in self.scopes:
            message = (
                f"the token of client {self.client!r} lacks the scope {scope}; it has {', '.join(sorted(self.scopes))}"
            )
            raise RequestError(message, status=403, code="wrong_scope")

    def tenant_of(self, asked: str, tenants: Sequence[str]) -> str:
        """The tenant of a request: the caller's own, or the one that it names. Raises RequestError (403, 404)."""
        if self.tenant:
            if asked and asked != self.tenant:
                message = f"the token of client {self.client!r} belongs to another tenant than {asked!r:.60}"
                raise RequestError(message, status=403, code="wrong_tenant", field="tenant")
            return self.tenant
        tenant = asked or tenants[0]
        if tenant not in tenants:
            raise RequestError(f"no tenant {tenant!r:.60} here", status=404, code="unknown_tenant", field="tenant")
        return tenant


ANYBODY: Final = CallerAccess(client="", tenant="", scopes=frozenset(ALL_SCOPES))


class AccessList:
    """The clients of a service, found by the hash of their token: how long that takes tells nothing of a token."""

    def __init__(self, clients: Sequence[ServiceClient] = ()) -> None:
        self._clients = {
            client.token_sha256: CallerAccess(client=client.name, tenant=client.tenant, scopes=client.scopes)
            for client in clients
        }

    @property
    def open(self) -> bool:
        """True if no client is declared: everybody may do everything."""
        return not self._clients

    def caller(self, authorization: str) -> CallerAccess:
        """The caller of an `Authorization` header. Raises RequestError (401)."""
        if not self._clients:
            return ANYBODY
        kind, _, token = authorization.partition(" ")
        digest = token_digest(token.strip())
        client = self._clients.get(digest)
        if kind.lower() != "bearer" or client is None:
            message = "this service wants a token: Authorization: Bearer TOKEN"
            raise RequestError(message, status=401, code="unauthorized")
        return client


def token_digest(token: str) -> str:
    """sha256 of a token, as the service keeps it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(slots=True)
class TokenBucket:
    """Rate limit: `rate_per_s` on average, `burst` at once. Pure: the time is an argument."""

    rate_per_s: float
    burst: float
    level: float = field(default=-1.0)
    """Requests that may come now; negative before the first."""
    at_s: float = 0.0

    def take(self, count: float, now_s: float) -> float:
        """Take `count`; 0 if they were there, else the seconds until they will be, and nothing is taken."""
        if self.level < 0.0:
            self.level, self.at_s = self.burst, now_s
        self.level = min(self.burst, self.level + max(0.0, now_s - self.at_s) * self.rate_per_s)
        self.at_s = now_s
        wanted = min(count, self.burst)  # a batch above the burst passes when the bucket is full
        if wanted > self.level:
            return (wanted - self.level) / self.rate_per_s
        self.level -= wanted
        return 0.0


class TenantLimits:
    """A rate limit for each tenant."""

    def __init__(self, rates: Mapping[str, TokenBucket]) -> None:
        self._buckets = dict(rates)

    @property
    def active(self) -> bool:
        """True if some tenant has a limit."""
        return bool(self._buckets)

    def check(self, tenant: str, count: int, now_s: float) -> float:
        """Seconds that the tenant must wait before `count` more requests; 0: they may come now."""
        bucket = self._buckets.get(tenant)
        return 0.0 if bucket is None else bucket.take(count, now_s)


FIRST_HOLD_S: Final = 0.1
LONGEST_HOLD_S: Final = 1.0
HOLD_SPACING_S: Final = 0.01
MOST_HELD: Final = 500


@dataclass(slots=True)
class HeldRefusals:
    """Refusals of one tenant that are answered late, so that a client that repeats at once costs little.

    One that comes alone is held until the tenant may send again, at most 0.1 s. Those of a flood leave 10 ms apart,
    each within a second. Above 500 at a time none is held: it is sent at once, and its connection closed. Pure: the
    time is an argument.
    """

    held: int = 0
    free_s: float = float("-inf")
    """Earliest time at which the next one may leave."""

    def begin(self, retry_after_s: float, now_s: float) -> float | None:
        """Seconds to hold a refusal, until `end`; None: send it at once and close its connection."""
        if self.held >= MOST_HELD:
            return None
        self.held += 1
        hold_s = max(min(retry_after_s, FIRST_HOLD_S), self.free_s - now_s)
        if hold_s > LONGEST_HOLD_S:
            return LONGEST_HOLD_S
        self.free_s = now_s + hold_s + HOLD_SPACING_S
        return hold_s

    def end(self) -> None:
        """Forget a refusal that was held."""
        self.held -= 1
