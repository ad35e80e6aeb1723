"""A service's shield: the table `[shield]` of its file, opened before the first decision."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from hone.core.clock import Clock
from hone.core.config import Config
from hone.core.decisions import ActionSet, ActionShield
from hone.core.errors import DataError, HoneError
from hone.decide.shield.certificate import open_certificate, read_certificate
from hone.decide.shield.guard import DEADLINE_S, GuardedShield
from hone.decide.shield.rules import rule_shield
from hone.decide.shield.spec import RuleShieldConfig


class ShieldConfig(Config):
    """Shield of a service: a proved one by its certificate, or rules."""

    certificate: str = ""
    """Certificate that `hone shield` wrote, a path from the service's file; its claims are proved again at the start.
    Exactly one of this and `rules`."""
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Hash of the certificate that was approved; another one is refused. Empty: any certificate whose proof holds."""
    rules: RuleShieldConfig | None = None
    """Rules without a proof."""
    deadline_s: float = Field(default=DEADLINE_S, gt=0, le=1)
    """Seconds after which a verdict is not used, and the fallback is taken."""

    @model_validator(mode="after")
    def _one_kind(self) -> "ShieldConfig":
        if bool(self.certificate) == (self.rules is not None):
            raise ValueError("give exactly one of certificate and [shield.rules]")
        return self


def open_shield(
    config: ShieldConfig, folder: Path, features: Sequence[str], clock: Clock, *, actions: ActionSet | None = None
) -> GuardedShield:
    """Shield for contexts with these features, behind its deadline; paths start from `folder`.

    Raises DataError for a certificate that is damaged, is not the approved one, or whose proof fails, ConfigError for
    missing sensors and a fallback that is none of `actions`, ResourceError without z3 where an invariant needs it.
    """
    shield = GuardedShield(inner=_opened(config, folder, features), clock=clock, deadline_s=config.deadline_s)
    if actions is not None:
        shield.fallback(np.zeros(len(features)), actions)
    return shield


def _opened(config: ShieldConfig, folder: Path, features: Sequence[str]) -> ActionShield:
    if config.rules is not None:
        return rule_shield(config.rules, features)
    path = folder / config.certificate
    try:
        return open_certificate(read_certificate(path), features, expected=config.sha256)
    except DataError as error:
        raise _with_place(error, path) from error


def _with_place(error: HoneError, path: Path) -> DataError:
    return DataError(*(line if str(path) in line else f"{path}: {line}" for line in error.messages))
