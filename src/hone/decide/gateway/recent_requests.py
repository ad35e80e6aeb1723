"""A bounded memory of recent requests: a repeated one gets the same answer, and changes nothing.

Belongs here: the answers by the caller's id, and the keys of rewards. Does not: what survives a restart; the service
fills the memory from the log's end.
"""

from collections import OrderedDict
from hashlib import blake2b

from hone.core.decisions import ActionSet, Floats
from hone.decide.gateway.requests import Decided, RequestError, shown

Identity = tuple[str, str]
"""Tenant, and id or key."""


class RecentRequests:
    """Answers of the last `capacity` decisions, and as many keys of rewards; the oldest leave first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._decided: OrderedDict[Identity, tuple[bytes, Decided]] = OrderedDict()
        self._rewarded: OrderedDict[Identity, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._decided)

    def answer(self, tenant: str, decision_id: str, digest: bytes) -> Decided | None:
        """The answer that the same request got; None: the id is new. Raises RequestError (409) for another request."""
        known = self._decided.get((tenant, decision_id))
        if known is None:
            return None
        if known[0] != digest:
            told = (
                f"id {shown(decision_id)} was used for another request (unit, context or actions differ): give each "
                "decision an id of its own"
            )
            raise RequestError(told, status=409, code="id_reused", field="id")
        return known[1]

    def knows(self, tenant: str, decision_id: str) -> bool:
        """True if the decision is remembered."""
        return (tenant, decision_id) in self._decided

    def remember(self, tenant: str, digest: bytes, answer: Decided) -> None:
        """Keep an answer."""
        self._decided[tenant, answer.id] = digest, answer
        if len(self._decided) > self._capacity:
            self._decided.popitem(last=False)

    def repeated_reward(self, tenant: str, key: str, digest: bytes, *, strict: bool) -> bool:
        """True if this reward was taken under its key. Raises RequestError (409) for another content if `strict`."""
        known = self._rewarded.get((tenant, key))
        if strict and known is not None and known != digest:
            told = f"key {shown(key)} was used for another reward: give each reward a key of its own"
            raise RequestError(told, status=409, code="key_reused", field="key")
        return known == digest

    def remember_reward(self, tenant: str, key: str, digest: bytes) -> None:
        """Keep the key of a reward that was logged."""
        self._rewarded[tenant, key] = digest
        if len(self._rewarded) > self._capacity:
            self._rewarded.popitem(last=False)


def request_digest(unit: str, context: Floats, actions: ActionSet) -> bytes:
    """Hash of a decision request: equal for equal unit, features and actions."""
    digest = blake2b(unit.encode(), digest_size=16)
    digest.update(b"\x00" + context.tobytes() + b"\x00" + "\x00".join(actions.names).encode())
    if actions.features is not None:
        digest.update(b"\x00" + actions.features.tobytes())
    return digest.digest()


def reward_digest(decision_id: str, kind: str, value: float, at_s: float | None) -> bytes:
    """Hash of a reward as it was told."""
    return blake2b(repr((decision_id, kind, value, at_s)).encode(), digest_size=16).digest()


def numbered_key(source: str, seq: int) -> str:
    """Key of a reward that has a number of its own; no caller's key holds the character between."""
    return f"{source}\x00{seq}"
