"""A service's shield: the table `[shield]` of its file, opened before the first decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from hone.core.clock import Clock
from hone.core.config import Config
from hone.core.decisions import ActionSet, ActionShield
from hone.core.errors import ConfigError, DataError, ErrorCollector, did_you_mean
from hone.decide.shield.certificate import read_certificate
from hone.decide.shield.guard import (
    DEADLINE_S,
    ActionMatcher,
    Bools,
    Floats,
    GuardedShield,
    SensorReader,
    sensor_reader,
)
from hone.decide.shield.model import RuleShieldConfig, ShieldExpression, parse_expression

# ---------------------------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuleShield:
    """Actions allowed by rules."""

    certificate: str
    """Empty: rules prove nothing."""
    sensors: tuple[str, ...]
    reader: SensorReader
    matcher: ActionMatcher
    constants: Mapping[str, float]
    rules: tuple[tuple[ShieldExpression, Bools], ...]
    """Condition, and the actions `[K]` that it stands for."""

    def allowed(self, context: Floats, actions: ActionSet) -> Bools:
        """Actions `[K]` whose conditions all hold; none where a sensor is missing or not finite.

        Raises FloatingPointError for a condition that divides by 0.
        """
        flags = np.ones(len(self.matcher.known), np.bool_)
        values = self.reader.read(context)
        if values is None:
            return np.zeros(len(actions), np.bool_)
        known = {**self.constants, **dict(zip(self.sensors, values, strict=True))}
        for condition, affected in self.rules:
            if not condition.holds(known):
                flags &= ~affected
        return self.matcher.match(flags, actions)

    def fallback(self, context: Floats, actions: ActionSet) -> int:
        """The action that no rule forbids."""
        del context
        return self.matcher.place_of_fallback(actions)


def rule_shield(config: RuleShieldConfig, features: Sequence[str]) -> _RuleShield:
    """Shield of checked rules. Raises ConfigError with every fault, a rule that forbids the fallback included."""
    faults = ErrorCollector(ConfigError)
    known = frozenset({*config.sensors, *config.constants})
    rules: list[tuple[ShieldExpression, Bools]] = []
    for number, rule in enumerate(config.rules):
        faults.extend(
            f"rules[{number}].actions: unknown action {name!r}{did_you_mean(name, config.actions)}"
            for name in rule.actions
            if name not in config.actions
        )
        if config.fallback in rule.actions:
            faults.add(
                f"rules[{number}].actions: {config.fallback} is the fallback, which must be allowed in every state"
            )
        try:
            condition = parse_expression(rule.only_if, place=f"rules[{number}].only_if", known=known, condition=True)
        except ConfigError as fault:
            faults.extend(fault.messages)
        else:
            rules.append((condition, np.array([name in rule.actions for name in config.actions])))
    if config.fallback not in config.actions:
        faults.add(f"fallback = {config.fallback!r}: unknown action{did_you_mean(config.fallback, config.actions)}")
    faults.raise_if_any()
    return _RuleShield(
        certificate="", sensors=tuple(config.sensors), reader=sensor_reader(config.sensors, features),
        matcher=ActionMatcher(tuple(config.actions), config.fallback), constants=dict(config.constants),
        rules=tuple(rules),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- service


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

    def open(
        self, folder: Path, features: Sequence[str], clock: Clock, *, actions: ActionSet | None = None
    ) -> GuardedShield:
        """Shield for contexts with these features, behind its deadline; paths start from `folder`.

        Raises DataError for a certificate that is damaged, is not the approved one, or whose proof fails, ConfigError
        for missing sensors and a fallback that is none of `actions`, ResourceError where an invariant lacks z3.
        """
        shield = GuardedShield(inner=_opened(self, folder, features), clock=clock, deadline_s=self.deadline_s)
        if actions is not None:
            shield.fallback(np.zeros(len(features)), actions)
        return shield


def _opened(config: ShieldConfig, folder: Path, features: Sequence[str]) -> ActionShield:
    if config.rules is not None:
        return rule_shield(config.rules, features)
    path = folder / config.certificate
    try:
        return read_certificate(path).open(features, expected=config.sha256)
    except DataError as error:
        raise DataError(*(line if str(path) in line else f"{path}: {line}" for line in error.messages)) from error
