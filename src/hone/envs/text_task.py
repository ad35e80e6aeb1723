"""Where prompts come from, as a user writes it: a reasoning-gym task by name, or a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from hone.core.config import Config
from hone.envs.dataset import Examples, Need, Turns, read_examples
from hone.envs.tasks import PREFIX, reasoning_gym_examples


class TaskConfig(Config):
    """Prompts, and what belongs to each."""

    source: str = Field(min_length=1)
    """`reasoning_gym:TASK`, or a `.jsonl`, `.json` or `.parquet` file."""
    size: int = Field(default=1000, ge=1)
    """Examples to make, for a reasoning-gym task; a file is read whole."""
    seed: int = Field(default=0, ge=0)
    """Which examples a reasoning-gym task makes."""
    config: dict[str, JsonValue] = {}
    """The reasoning-gym task's own settings."""
    distinct: bool = True
    """Make no question twice (reasoning-gym)."""
    template: str = "{prompt}"
    """What a plain-text prompt is put into; conversations use the tokenizer's chat template."""
    on_bad_row: Literal["error", "drop"] = "error"
    """What to do with rows of a file that cannot be used."""
    on_long_prompt: Literal["error", "drop", "truncate"] = "error"
    """What to do with prompts that the model's context has no room for; `truncate` keeps their last tokens."""

    @property
    def generated(self) -> bool:
        return self.source.startswith(PREFIX)

    @model_validator(mode="after")
    def _no_settings_for_files(self) -> "TaskConfig":
        if not self.generated and self.config:
            raise ValueError(f"config is for {PREFIX}TASK sources, but source is the file {self.source}")
        if "{prompt}" not in self.template:
            raise ValueError("template must contain {prompt}")
        return self

    def examples(self, *, need: Need = "prompt", apart_from: Sequence[Examples] = ()) -> Examples:
        """Make or read them. Questions of `apart_from` are left out of a made set, so that it is held out for real.

        Raises ConfigError or DataError.
        """
        if self.generated:
            return reasoning_gym_examples(
                self.source,
                size=self.size,
                seed=self.seed,
                config=self.config,
                distinct=self.distinct,
                apart_from=apart_from,
            )
        return read_examples(Path(self.source), need=need, on_bad_row=self.on_bad_row)

    def fill(self, prompt: Turns) -> Turns:
        """The prompt in its template; conversations as they are."""
        return self.template.replace("{prompt}", prompt) if isinstance(prompt, str) else prompt
