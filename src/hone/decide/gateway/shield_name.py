"""Part that a shield has in the name of a version."""

from hashlib import sha256

from hone.decide.shield.guard import GuardedShield
from hone.decide.shield.service import ShieldConfig


def shield_name(config: ShieldConfig | None, shield: GuardedShield | None) -> str:
    """Part of a version's name: eight digits of the certificate, or of the hash of the rules; empty without one."""
    if config is None or shield is None:
        return ""
    return (shield.certificate or sha256(config.model_dump_json().encode()).hexdigest())[:8]
