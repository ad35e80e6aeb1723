"""A log whose answers carry the reference policy's log-probabilities: asked once, kept as a column, saved with the run.

The reference is mostly the policy as the run starts. It is asked before the first step, when the policy is still that
one, so that no second model is ever in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import ranges
from hone.core.state import State, array, substate
from hone.models.language.token_policy import TokenPolicy
from hone.sources.logged import LogSource


@dataclass
class ReferenceLog:
    """Draws from a log, with the reference's log-probability of every token that it draws.

    Implements `Source`. The first draw asks for all answers that `units_drawn` draws take. A run that goes on for
    longer than that opens the reference once more for the answers that are still unknown.
    """

    source: LogSource[TokenPolicy]
    logp: Callable[[TokenPolicy, Episodes], NDArray[np.floating]]
    """Policy and episodes -> log-probability of each token `[N]`, nats."""
    open_reference: Callable[[], TokenPolicy]
    """Loads the frozen reference."""
    is_start: bool
    """The reference is the policy as the run starts, which needs no loading then."""
    units_drawn: int
    """Units that the run draws in all."""
    policy: TokenPolicy | None = None
    """The policy that was published last."""
    column: NDArray[np.float32] | None = field(default=None, init=False)
    """`[N]` nats, of the log's tokens; NaN where nobody asked; None before the first draw."""

    def collect(self) -> Episodes:
        if self.column is None:
            assert self.policy is not None
            self._take(np.full(self.source.log.decisions, np.nan, np.float32))
            reference = self.policy if self.is_start else self.open_reference()
            self._ask(reference, self.source.episodes_of(self.source.first_units(self.units_drawn)))
        unknown = self._unknown(self.source.upcoming())
        if len(unknown):
            self._ask(self.open_reference(), unknown)
        return self.source.collect()

    def publish(self, policy: TokenPolicy) -> None:
        self.policy = policy

    def metrics(self) -> Metrics:
        return self.source.metrics()

    def state(self) -> State:
        column = np.zeros(0, np.float32) if self.column is None else self.column
        return {"log": self.source.state(), "ref_logp": column}

    def restore(self, state: State) -> None:
        """Raises DataError for the column of another log."""
        self.source.restore(substate(state, "log"))
        column = array(state, "ref_logp").astype(np.float32)
        if len(column) != self.source.log.decisions:
            raise DataError(
                f"the saved reference has {len(column)} log-probabilities, the data have {self.source.log.decisions} "
                "tokens to compare: the data are not those that the run began with; put them back, or start a new run"
            )
        self._take(column)

    def _unknown(self, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `episodes` that nobody has asked for."""
        assert self.column is not None
        log = self.source.log
        return np.unique(episodes[np.isnan(self.column[log.offsets[episodes]])])

    def _ask(self, reference: TokenPolicy, episodes: NDArray[np.int64]) -> None:
        """Fill in the column for `episodes` of the log."""
        assert self.column is not None
        log, column = self.source.log, self.column.copy()
        asked = np.unique(episodes)
        column[ranges(log.offsets[asked], log.lengths[asked])] = self.logp(reference, log.take(asked))
        self._take(column)

    def _take(self, column: NDArray[np.float32]) -> None:
        self.column = column
        self.source.log = replace(self.source.log, ref_logp=column)
