"""The error that ends a run whose rewards fail: the user's code, or memory that ran out."""

from hone.core.errors import HoneError, ResourceError, UserCodeError
from hone.core.out_of_memory import is_memory_text


def reward_fault(*messages: str) -> HoneError:
    """ResourceError with the keys to change where `messages` tell of memory that ran out, else UserCodeError."""
    if not any(map(is_memory_text, messages)):
        return UserCodeError(*messages)
    return ResourceError(
        *messages,
        "memory ran out in a reward worker, it seems: lower rewards.workers, raise rewards.memory_bytes where it is "
        "set, or let the function need less",
    )
