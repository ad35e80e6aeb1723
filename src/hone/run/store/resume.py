"""Differences between a saved run and its resume: which of them are accepted, and the record of those that were.

Belongs here: the comparison of settings, dataset and code. Which keys may change is the caller's decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError
from hone.run.store.manifest import RunMetadata, config_diff


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedChanges:
    """Differences from a saved run that its resume accepts. A key that ends in a dot stands for its whole table."""

    keys: Sequence[str] = ()
    """Config keys that may change."""
    keys_on_request: Sequence[str] = ()
    """Config keys that may change if `config` is set."""
    config: bool = False
    """`--allow-changed-config` was given."""
    code: bool = False
    """`--allow-changed-code` was given."""
    otherwise: str = ""
    """Advice for settings that cannot change."""

    def accepts_key(self, key: str) -> bool:
        """True if the value of `key` may differ."""
        return _matches(key, self.keys) or (self.config and _matches(key, self.keys_on_request))


NO_CHANGES = AllowedChanges()
"""A resume of exactly the saved run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeDifferences:
    """Differences of a resume from its run, a line each; `settings` by config key."""

    settings: Mapping[str, str]
    dataset: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """All differences."""
        return [*self.settings.values(), *self.dataset, *self.code]


def resume_differences(
    old: Mapping[str, ConfigSetting], new: Mapping[str, ConfigSetting], before: RunMetadata, now: RunMetadata
) -> ResumeDifferences:
    """Compare a saved run with its resume. Keys and fingerprints that are younger than the run do not count."""
    added = {key for key in new if key not in old and new[key].origin == "default"}
    lines = {line.split(":", 1)[0]: line for line in config_diff(old, new)}
    same = before.dataset_fingerprint == now.dataset_fingerprint
    return ResumeDifferences(
        settings={key: line for key, line in lines.items() if key not in added},
        dataset=() if same else (f"dataset: {before.dataset_fingerprint} -> {now.dataset_fingerprint}",),
        code=() if before.code is None or now.code is None else tuple(_code_differences(before.code, now.code)),
    )


def refuse_differences(what: str, found: ResumeDifferences, allowed: AllowedChanges) -> None:
    """Raise ConfigError naming every difference that is not allowed, and how to go on. `what` begins the message."""
    settings = {key: line for key, line in found.settings.items() if not allowed.accepts_key(key)}
    code = () if allowed.code else found.code
    if not (settings or found.dataset or code):
        return
    on_request = [key for key in settings if _matches(key, allowed.keys_on_request)]
    hints = [
        (on_request, f"--allow-changed-config accepts {', '.join(on_request)} from the next step on, and records it"),
        (code, "--allow-changed-code goes on with the code as it is now, and records it"),
        (len(settings) > len(on_request), allowed.otherwise),
    ]
    others = "settings" if settings or found.dataset else "code"
    raise ConfigError(
        f"{what} with other {others}; undo these changes, or give a new --name:",
        *(f"  {line}" for line in [*settings.values(), *found.dataset, *code]),
        *(hint for applies, hint in hints if applies and hint),
    )


def _code_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each file that changed, is gone or is new."""
    lines: list[str] = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old is None:
            lines.append(f"code: {name} is new among the files that the run imports")
        elif new is None:
            lines.append(f"code: {name} is no longer among the files that the run imports")
        elif old != new:
            lines.append(f"code: {name} has changed (sha256 {old[:12]} -> {new[:12]})")
    return lines


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(key == pattern or (pattern.endswith(".") and key.startswith(pattern)) for pattern in patterns)
