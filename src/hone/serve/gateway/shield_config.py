"""The table `[shield]` of a service file: which actions the service may take at all."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from pydantic import Field, model_validator

from hone.core.clock import Clock
from hone.core.config import Config
from hone.shield.certificate import open_certificate, read_certificate
from hone.shield.guard import GuardedShield
from hone.shield.rules import rule_shield
from hone.shield.spec import RuleShieldConfig


class ShieldTableConfig(Config):
    """Shield of a service: a certificate, which is proved again at the start, or rules."""

    certificate: str = ""
    """File of the certificate, beside the service file."""
    sha256: str = ""
    """sha256 of the certificate that was approved; empty: any that proves its claims."""
    rules: RuleShieldConfig | None = None
    """Rules, in place of a certificate."""
    deadline_s: float = Field(default=0.010, gt=0, le=1)
    """Seconds that the shield may take; after them its fallback is taken."""

    @model_validator(mode="after")
    def _check(self) -> "ShieldTableConfig":
        if bool(self.certificate) == (self.rules is not None):
            raise ValueError("give exactly one of certificate and [shield.rules]")
        return self


def open_shield(config: ShieldTableConfig, beside: Path, features: Sequence[str], clock: Clock) -> GuardedShield:
    """The shield behind its deadline. Raises ConfigError, and DataError for a certificate that proves nothing."""
    if config.rules is not None:
        return GuardedShield(inner=rule_shield(config.rules, features), clock=clock, deadline_s=config.deadline_s)
    certificate = read_certificate(beside / config.certificate)
    inner = open_certificate(certificate, features, expected=config.sha256)
    return GuardedShield(inner=inner, clock=clock, deadline_s=config.deadline_s)


def shield_name(config: ShieldTableConfig | None, shield: GuardedShield | None) -> str:
    """Part of a version's name: eight digits of the certificate, or of the hash of the rules; empty without one."""
    if config is None or shield is None:
        return ""
    return (shield.certificate or sha256(config.model_dump_json().encode()).hexdigest())[:8]
