"""Shield of rules: an action is allowed while the conditions that name it hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, ErrorCollector, did_you_mean
from hone.decide.shield.expressions import ShieldExpression, parse_expression
from hone.decide.shield.sensors import ActionMatcher, Bools, Floats, SensorReader, sensor_reader
from hone.decide.shield.spec import RuleShieldConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleShield:
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


def rule_shield(config: RuleShieldConfig, features: Sequence[str]) -> RuleShield:
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
            condition = parse_expression(rule.only_if, place=f"rules[{number}].only_if", known=known)
        except ConfigError as fault:
            faults.extend(fault.messages)
        else:
            rules.append((condition, np.array([name in rule.actions for name in config.actions])))
    if config.fallback not in config.actions:
        faults.add(f"fallback = {config.fallback!r}: unknown action{did_you_mean(config.fallback, config.actions)}")
    faults.raise_if_any()
    return RuleShield(
        certificate="", sensors=tuple(config.sensors), reader=sensor_reader(config.sensors, features),
        matcher=ActionMatcher(tuple(config.actions), config.fallback), constants=dict(config.constants),
        rules=tuple(rules),
    )  # fmt: skip
