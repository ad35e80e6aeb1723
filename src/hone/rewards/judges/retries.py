"""Waits between attempts: exponential backoff with jitter from counter-based draws, and the server's own wish."""

from email.utils import parsedate_to_datetime

from hone.core.random import uniforms

FIRST_WAIT_S = 0.5
"""Upper end of the first wait; it doubles with each attempt."""


def backoff_s(attempt: int, *, key: str, most_s: float, first_s: float = FIRST_WAIT_S) -> float:
    """Seconds to wait after attempt number `attempt` (from 1): uniform in [half, whole] of `first_s * 2^(attempt - 1)`.

    The draw is a function of the request's key and the attempt, so that requests that fail together come back apart.
    """
    whole = min(most_s, first_s * 2.0 ** min(attempt - 1, 30))
    return whole * (0.5 + 0.5 * float(uniforms(0, "judge backoff", key, attempt, count=1)[0]))


def wait_before_retry_s(attempt: int, *, key: str, most_s: float, retry_after_s: float | None) -> float | None:
    """Seconds to wait; None where the server asks for more than `most_s`: trying earlier would be rude and useless."""
    wait_s = backoff_s(attempt, key=key, most_s=most_s)
    if retry_after_s is None:
        return wait_s
    return None if retry_after_s > most_s else max(wait_s, retry_after_s)


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """Seconds of a `Retry-After` header: a number, or an HTTP date (RFC 9110, 10.2.3); None for anything else."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (TypeError, ValueError, OverflowError):
        return None
