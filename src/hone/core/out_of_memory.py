"""Out of memory, recognised: an exception of Python, numpy or torch -> what was being allocated, and what lowers it.

Belongs here: pure functions on exceptions and texts; torch is known by its words and never imported.
"""

import contextlib
import errno
import re
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from hone.core.errors import HoneError, ResourceError

MEMORY_KEYS = (
    "learner.micro_batch_tokens", "rollout.max_concurrent", "rollout.context", "rollout.max_tokens",
    "rollout.prompts_per_step", "rollout.samples_per_prompt", "batch", "model.new.hidden_size", "model.new.layers",
    "replay.capacity", "algorithm.replay_capacity", "replay.batch", "rollout_steps", "env.num_envs", "env.workers",
    "network.hidden", "novelty.hidden", "finite.copies", "pulls", "user_code.workers", "evaluation.max_concurrent",
    "evaluation.episodes",
)  # fmt: skip
"""Config keys that decide how much memory a run takes, the ones that are lowered first before the others."""
_UNSET = {"rollout.context": "unset: a dialogue may take all positions of the model"}
"""What keys that are not set stand for, where that takes memory."""
_WORDS = re.compile(
    r"can't allocate memory|cannot allocate memory|unable to allocate|out of memory|not enough memory|bad_alloc|"
    r"can't start new thread|failed to map segment|MemoryError|killed by SIGKILL",
    re.IGNORECASE,
)
_BYTES = re.compile(r"(?:allocate|tried to allocate) (\d+) bytes", re.IGNORECASE)
_OWN = str(Path(__file__).parents[1])
_PREFIX = "out of memory"
_CHARACTERS_SHOWN = 200


def is_memory_text(text: str) -> bool:
    """True if a message tells of memory that ran out, or of a process that the system killed as it does then."""
    return _WORDS.search(text) is not None


def out_of_memory(error: BaseException) -> str:
    """What could not be allocated, and where; empty for an error of another kind."""
    if isinstance(error, HoneError):
        return ""
    by_code = isinstance(error, OSError) and error.errno == errno.ENOMEM
    by_words = isinstance(error, RuntimeError | ImportError) and is_memory_text(str(error))
    if not (isinstance(error, MemoryError) or by_code or by_words):
        return ""
    text = str(error).split("\n")[0]
    match = _BYTES.search(text)
    reason = f"cannot allocate {int(match[1]) / 2**30:.1f} GiB" if match else text[:_CHARACTERS_SHOWN]
    return f"{_PREFIX}{_place(error)}" + (f": {reason}" if reason else "")


def memory_remedy(settings: Mapping[str, object]) -> str:
    """The keys of a config, with dotted names, that lower its memory: `lower rollout.max_concurrent (64), ...`."""
    values = {
        key: _UNSET.get(key) if settings[key] is None else settings[key] for key in MEMORY_KEYS if key in settings
    }
    known = [f"{key} ({value})" for key, value in values.items() if value is not None]
    return f"lower {', '.join(known)}" if known else "take a smaller model or smaller batches"


@contextlib.contextmanager
def memory_errors(settings: Mapping[str, object], planned: Callable[[], str] = str) -> Generator[None, None, None]:
    """Turn an allocation that fails in the block into ResourceError, with the plan's words, where `planned` has any,
    and the keys of `settings` that lower it."""
    try:
        yield
    except ResourceError as error:  # compiled code reports its own allocations
        text = str(error)
        if not text.startswith(_PREFIX) or "; lower " in text:
            raise
        raise ResourceError("; ".join([text, *_told(planned), memory_remedy(settings)])) from error
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if not (what := out_of_memory(error)):
            raise
        raise ResourceError("; ".join([what, *_told(planned), memory_remedy(settings)])) from error


def _told(planned: Callable[[], str]) -> list[str]:
    words = planned()
    return [words] if words else []


def _place(error: BaseException) -> str:
    """The innermost function of hone's, or of the user's, in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(_OWN)]
    return f" in {own[-1].name} ({Path(own[-1].filename).relative_to(_OWN)})" if own else ""
