"""The base of every config: typed, frozen, and closed to keys that it does not know.

A config class lives beside what it configures, has at most about 12 fields, says alternatives as tagged unions,
and its defaults are a vetted run. Numbers given as strings are refused, not coerced.
"""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen, strict about unknown keys and types (an int is still welcome where a float is asked)."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
