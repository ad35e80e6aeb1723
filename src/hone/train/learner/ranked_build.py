"""The build of a job whose learner is spread over ranks: which policy is stepped, and by which parameters.

Without such a build every policy is its own, and one process holds all of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from torch import nn

from hone.train.learner.parameter_store import ParameterStore

P = TypeVar("P", bound=nn.Module)


class RankedBuild(Protocol[P]):
    """Ranks that a job is being built for, and the kind of policy that is cut over them."""

    def trained(self, policy: P) -> P:
        """The policy that is stepped in place of `policy`: its twin with parameters cut over the ranks."""
        ...

    def parameter_store(self, policy: nn.Module) -> ParameterStore | None:
        """The parameters of a policy of `trained`; None for any other network, which every rank holds whole."""
        ...


_BUILD: Final[ContextVar[RankedBuild[Any] | None]] = ContextVar("_BUILD", default=None)


def trained_policy(policy: P) -> P:
    """The policy that a learner steps: `policy` itself, or its sharded twin in a build for several ranks."""
    build = _BUILD.get()
    return policy if build is None else build.trained(policy)


def sharded_store(policy: nn.Module) -> ParameterStore | None:
    """The parameter store of a sharded policy; None for a network that this process holds whole."""
    build = _BUILD.get()
    return None if build is None else build.parameter_store(policy)


@contextmanager
def building_for(build: RankedBuild[Any]) -> Iterator[None]:
    """Context in which a job is built for the ranks of `build`."""
    token = _BUILD.set(build)
    try:
        yield
    finally:
        _BUILD.reset(token)
