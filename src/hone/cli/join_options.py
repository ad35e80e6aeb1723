"""Options of commands that join a decision log with its outcomes, read from a command's arguments."""

import contextlib
import math
from datetime import UTC, datetime
from typing import get_args

from hone.cli.options import CommandCall, parse_number
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, did_you_mean
from hone.decide.joins.view import JoinConfig, JoinRule


def join_of(call: CommandCall) -> JoinConfig:
    """Rules of the join: `--window`, `--default`, `--rule`, `--kind`. Raises ConfigError."""
    given: dict[str, object] = {}
    if text := call.text("window"):
        given["window_s"] = parse_number(text, "--window", least=1e-9, whole=False)
    if text := call.text("default"):
        given["default"] = parse_number(text, "--default", least=-math.inf, whole=False)
    if rule := call.text("rule"):
        if rule not in get_args(JoinRule):
            raise ConfigError(f"--rule {rule}{did_you_mean(rule, get_args(JoinRule))}")
        given["rule"] = rule
    if kind := call.text("kind"):
        given["kind"] = kind
    return JoinConfig.model_validate(given)


def moment_of(text: str, flag: str = "--as-of") -> float:
    """Seconds since the epoch of an option's time; now, where it is empty. Raises ConfigError."""
    if not text:
        return SystemClock().now_s()
    with contextlib.suppress(ValueError):  # it is no number, but may be a time
        if math.isfinite(seconds := float(text)):
            return seconds
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{flag} must be seconds since 1970 or a time as 2026-11-23T12:00:00Z, got {text!r}"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
