"""An expert that is a user's function, in a process of its own: asked for actions, it answers for many observations.

Belongs here: asking the process under a deadline, and the child, which is this module as a command. The function is
`f(observations [n, *observation]) -> actions [n, *action]`, on numpy arrays; nothing of its file is imported in the
trainer.
"""

import json
import traceback
from collections.abc import Callable
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.errors import HoneError, UserCodeError
from hone.process.child import ChildLostError, RestartingChild
from hone.process.parent import connect_to_parent
from hone.process.user_files import load_reference

Array = NDArray[np.generic]


class ExpertProcess:
    """Asks the expert `reference`, `path/to/file.py:name`. The process is started by the first question."""

    def __init__(self, reference: str, *, deadline_s: float = 60.0, clock: Clock | None = None) -> None:
        self.reference = reference
        self.deadline_s = deadline_s
        self.process = RestartingChild(
            "hone.control.expert_process", clock=clock or SystemClock(), arguments=[reference]
        )

    def numpy_policy(self) -> Self:
        """The expert itself: it answers on numpy arrays."""
        return self

    def best(self, seen: Array) -> Array:
        """Actions `[n, *action]` for observations `[n, *observation]`.

        Raises UserCodeError where the function raises, answers something else, or takes too long.
        """
        request = json.dumps({"seen": seen.tolist(), "type": str(seen.dtype)}).encode() + b"\n"
        try:
            answer: dict[str, Any] = json.loads(self.process.call(request, deadline_s=self.deadline_s))
        except ChildLostError as lost:
            slow = (
                f"no answer within {self.deadline_s:g} s, so it was killed; make it faster, or raise expert.deadline_s"
            )
            raise UserCodeError(f"expert {self.reference!r}: {slow if lost.timeout else lost}") from None
        if "fault" in answer:
            self.close()
            raise UserCodeError(f"expert {self.reference!r} failed: {answer['fault']}")
        actions = np.array(answer["actions"])
        if len(actions) != len(seen) or actions.dtype.kind not in "if" or not np.isfinite(actions).all():
            raise UserCodeError(
                f"expert {self.reference!r} returned {actions.dtype}{list(actions.shape)} for {len(seen)} "
                "observations; it must return one action of finite numbers for each"
            )
        return actions

    def close(self) -> None:
        """Kill the process, with everything that the function started."""
        self.process.close()


def _run_expert_worker() -> None:
    """The child: one line of JSON in, one out, until the trainer closes the channel."""
    channel = connect_to_parent()
    function: Callable[[Array], Any] | None = None
    for line in channel.lines():
        request = json.loads(line)
        try:
            function = function or cast("Callable[[Array], Any]", load_reference(channel.arguments[0], kind="expert"))
            actions = np.asarray(function(np.array(request["seen"], np.dtype(request["type"])))).tolist()
            answer: dict[str, Any] = {"actions": actions}
        except HoneError as error:
            answer = {"fault": str(error)}
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is reported to the trainer
            answer = {"fault": f"{type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"}
        channel.reply(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    _run_expert_worker()
