"""What a recipe hands to the driver: the wired parts, and how its policy is saved, shown and judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.store.samples import SampleRow
from hone.train.loop import Recipe

P = TypeVar("P")


def _nothing() -> None:
    """Nothing to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[P]):
    """A recipe, ready to be run."""

    recipe: Recipe[P]
    save_policy: Callable[[Path], None]
    """Writes the policy, as it is shipped, into an empty folder."""
    load_policy: Callable[[Path], None]
    """Takes up, in place, the weights that `save_policy` wrote."""
    view: Callable[[int, Episodes, Credits], Sequence[SampleRow]] | None = None
    """Step and its episodes -> the answers as a person reads them."""
    judge: Callable[[], Metrics] | None = None
    """Scores the policy on held-out work: `eval/score` and what belongs to it."""
    judge_every: int = 0
    """Steps between judgements; 0: at the end only."""
    fingerprint: str | None = None
    """Of the dataset; a resume with another one is refused."""
    warnings: Sequence[str] = ()
    table: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the config comes to, derived: prompts x samples -> sequences -> minibatches -> optimizer steps."""
    close: Callable[[], None] = _nothing
    """Ends worker processes."""
