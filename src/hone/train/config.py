"""Config fields that every run has."""

from pydantic import Field

from hone.core.config import Config


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

    def has_search(self) -> bool:
        """Whether the run's answers are searched for once it has finished."""
        return False
