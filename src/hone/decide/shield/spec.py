"""Tables of a shield's file: rules, a safety game, or an invariant.

Belongs here: what a user writes. `certificate.py` proves it and opens the shield.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.decide.shield.model import ControlModelConfig


class ActionRule(Config):
    """A condition without which actions are not allowed."""

    actions: list[str] = Field(min_length=1)
    """The actions."""
    only_if: str
    """Condition over sensors and constants: `gap >= 2 * speed`."""


class RuleShieldConfig(Config):
    """Rules without a model: a person vouches for them, and nothing is proved but that the fallback is never
    forbidden."""

    kind: Literal["rules"]
    """Names this alternative."""
    sensors: list[str] = Field(min_length=1)
    """Features of the context that rules read."""
    actions: list[str] = Field(min_length=1)
    """All actions; an action that is not listed is never allowed."""
    fallback: str
    """Action that is taken where no action is known to be safe; no rule forbids it."""
    rules: list[ActionRule] = Field(min_length=1)
    """An action is allowed if all of its conditions hold."""
    constants: dict[str, float] = Field(default={})
    """Named numbers."""


class GameShieldConfig(Config):
    """A safety game on the grid of a model."""

    kind: Literal["game"]
    """Names this alternative."""
    fallback: str
    """Action that is taken where no action is known to be safe; it is proved to keep every safe state safe."""
    model: ControlModelConfig
    """The system."""


class InvariantShieldConfig(Config):
    """An inductive invariant of a model, proved for all real numbers."""

    kind: Literal["invariant"]
    """Names this alternative."""
    fallback: str
    """Action that is taken where no action is known to be safe; it is proved to keep the invariant."""
    invariant: list[str] = Field(min_length=1)
    """Conditions over variables and constants that hold together."""
    model: ControlModelConfig
    """The system; steps of its grid are only drawn."""


ShieldSpec: TypeAlias = Annotated[
    RuleShieldConfig | GameShieldConfig | InvariantShieldConfig, Field(discriminator="kind")
]
_SPEC: TypeAdapter[ShieldSpec] = TypeAdapter(ShieldSpec)


def shield_spec(values: Mapping[str, object], *, place: str) -> ShieldSpec:
    """Check the tables of a shield. Raises ConfigError with every fault, each naming `place` and the key."""
    try:
        return _SPEC.validate_python(dict(values))
    except ValidationError as error:
        raise ConfigError(*(
            f"{place}: {'.'.join(map(str, fault['loc'][1:])) or 'kind'}: {fault['msg']}" for fault in error.errors()
        )) from None  # fmt: skip
