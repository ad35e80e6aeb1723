"""The build of a job whose learner is spread over ranks: which networks are cut, and which parameters are stepped.

Without such a build every network is its own, and one process holds all of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from numpy.typing import NDArray
from torch import nn

from hone.core.episodes import Episodes
from hone.learner.parameter_store import ParameterStore

P = TypeVar("P", bound=nn.Module)
Question: TypeAlias = Callable[[Episodes], NDArray[Any]]
"""Episodes -> a column of numbers, from networks."""


class RankedBuild(Protocol[P]):
    """Ranks that a job is being built for, and the kind of network that is cut over them."""

    def trained(self, policy: P) -> P:
        """The policy that is stepped in place of `policy`: its twin with parameters cut over the ranks."""
        ...

    def share_out(self, network: P) -> P:
        """`network` itself, cut over the ranks in place: no rank has it whole, and all of them ask it together."""
        ...

    def parameter_store(self, network: nn.Module) -> ParameterStore | None:
        """The parameters of a network that was cut; None for any other, which every rank holds whole."""
        ...

    def question(self, ask: Question) -> Question:
        """`ask` of networks that were cut, for the driver: all ranks answer it together."""
        ...


_BUILD: Final[ContextVar[RankedBuild[Any] | None]] = ContextVar("_BUILD", default=None)


def trained_policy(policy: P) -> P:
    """The policy that a learner steps: `policy` itself, or its sharded twin in a build for several ranks."""
    build = _BUILD.get()
    return policy if build is None else build.trained(policy)


def shared_network(network: P) -> P:
    """A network beside the policy (a critic, a frozen reference): cut over the ranks in a build for several of them."""
    build = _BUILD.get()
    return network if build is None else build.share_out(network)


def shared_question(ask: Question) -> Question:
    """A question to networks of `shared_network`, which the driver may ask outside of an update."""
    build = _BUILD.get()
    return ask if build is None else build.question(ask)


def sharded_store(network: nn.Module) -> ParameterStore | None:
    """The parameter store of a network that is cut over ranks; None for one that this process holds whole."""
    build = _BUILD.get()
    return None if build is None else build.parameter_store(network)


@contextmanager
def building_for(build: RankedBuild[Any]) -> Iterator[None]:
    """Context in which a job is built for the ranks of `build`."""
    token = _BUILD.set(build)
    try:
        yield
    finally:
        _BUILD.reset(token)
