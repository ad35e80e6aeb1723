"""The base of every recipe's config: the keys that all runs have, and what a family of recipes says of its runs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from hone.core.config import Config

if TYPE_CHECKING:
    from hone.run.job import OpenedRun, RecipeParts


class RunSettings(Config):
    """Settings of a run: device, threads, checkpoints, logging and tracking."""

    device: str = Field(
        default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$", json_schema_extra={"rule": '"cpu", "cuda" or "cuda:N"'}
    )
    """`cpu`, `cuda` or `cuda:N`."""
    threads: int = Field(default=2, ge=1)
    """Threads of the tensor library; a CPU run is bitwise reproducible for a fixed number of them."""
    log_every: int = Field(default=1, ge=1)
    """Steps per line of metrics.jsonl (figures are means over them)."""
    samples_every: int = Field(default=10, ge=0)
    """Steps between tables of sampled episodes; 0 writes none."""
    checkpoint_every: int = Field(default=50, ge=0)
    """Steps between checkpoints; the last step and an interruption are always saved."""
    disk_wait_s: float = Field(default=300.0, ge=0)
    """Seconds that a run waits for space on a full disk before it ends."""
    certify: bool = True
    """Before the first step, test on a small copy of the model that the loss's gradient does not depend on micro-
    batches, and write the result to `certificate.json`."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    keep_best: int = Field(default=0, ge=0)
    """Best checkpoints kept as well: by the evaluation score where there is an evaluation (only evaluated steps
    count), else by the training score."""
    ranks: int = Field(default=1, ge=1)
    """Processes that share the learner: each computes a part of every batch, and holds a part of a language model's
    weights. Rank 0 is this process; the others are its children, on as many GPUs where the device is `cuda`."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that hold each layer of a language model together, its heads and the columns of its MLP cut among them, for
    the same rows; a divisor of `ranks`. 1: ranks only share out the rows."""
    virtual_ranks: int = Field(default=0, ge=0)
    """Shares that every batch is cut into whatever the number of ranks: the weights then have the same bits on 1, 2, 4
    ... ranks. A power of two that `ranks` divides; 0: as many as ranks."""
    patience_s: float = Field(default=120.0, gt=0)
    """Longest wait of a rank for the others, in seconds; afterwards all of them start again from the last
    checkpoint."""

    @model_validator(mode="after")
    def _check_ranks(self) -> "RunSettings":
        virtual = self.virtual_ranks
        if self.ranks % self.tensor:
            raise ValueError(f"ranks = {self.ranks} must be a multiple of tensor = {self.tensor}")
        if virtual and self.tensor > 1:
            raise ValueError(
                f"virtual_ranks = {virtual} with tensor = {self.tensor}: layers that are cut among ranks have other "
                "bits than whole ones; leave one of the two out"
            )
        if virtual and (virtual & (virtual - 1) or virtual % self.ranks):
            raise ValueError(
                f"virtual_ranks = {virtual} with ranks = {self.ranks}: it must be a power of two that ranks divides; "
                f"nearest: {max(2, 1 << (max(virtual, self.ranks) - 1).bit_length())}, with ranks a power of two"
            )
        return self

    @property
    def shares(self) -> int:
        """Parts that the learner cuts a batch into: one for each virtual rank, or for each group of `tensor` ranks."""
        return self.virtual_ranks or self.ranks // self.tensor


class RunConfig(Config):
    """The keys that every recipe's config starts with."""

    recipe: str
    """Name of the algorithm: a file of `recipes/`."""
    name: str = Field(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$",
        json_schema_extra={"rule": "1 to 128 letters (a-z), digits, _, - and ., and not begin with a dot"},
    )
    """Name of the run's folder under `runs/`."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random numbers of the run."""
    steps: int = Field(ge=1)
    """Iterations of the training loop: collect, score, learn, publish."""
    run: RunSettings = RunSettings()
    """Threads, logging, checkpoints and other settings of the run."""

    def open(self) -> "OpenedRun":
        """Open and check everything that the run needs before its model: environments, logs, data, worker processes.

        Raises HoneError with all faults at once; nothing is open then.
        """
        raise TypeError(f"{type(self).__name__} names no run; its family, or the recipe, defines `open`")

    def derive(self) -> Mapping[str, str]:
        """Figures that follow from the config, shown by `hone plan`; loads no model."""
        return {}

    @classmethod
    def parts(cls) -> "RecipeParts":
        """Parts of the recipe with its default config, read from its code where the family can."""
        raise TypeError(f"{cls.__name__} names no parts; give them to `RecipeSpec`")

    def has_search(self) -> bool:
        """Whether the run's answers are searched for once it has finished."""
        return False
