"""Description of a run: its resolved config with the origin of each value, and its manifest.

Belongs here: the contents of `config.json` and `manifest.json`, and the comparison of two configs.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError, DataError
from hone.core.strict_json import Json
from hone.run.store.durable import read_json_object, to_json
from hone.run.store.records import parse_record, record_json

V = TypeVar("V")

RUN_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Facts about a run besides its config: recorded, shown in the report, compared at a resume."""

    hone_version: str
    dataset_fingerprint: str | None = None
    recipe: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    code: Mapping[str, str] | None = None
    """Sha256 of each source file of user code; None if an older hone wrote the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """A difference that a resume accepted."""

    after_step: int
    """Last step before it."""
    change: str
    """`learner.lr: 0.01 -> 0.001`, or a line about a source file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of `manifest.json`, which marks a folder as a run and names its format."""

    format: int
    config_hash: str
    created_at: str
    metadata: RunMetadata
    changes: tuple[RunChange, ...] = ()
    """Differences that resumes accepted, in their order."""

    def to_json(self) -> dict[str, Json]:
        """Convert to JSON values."""
        return {
            "format": self.format,
            "config_hash": self.config_hash,
            **record_json(self.metadata),
            "created_at": self.created_at,
            "changes": [record_json(change) for change in self.changes],
        }


def settings_json(config: Mapping[str, ConfigSetting]) -> dict[str, Json]:
    """Contents of `config.json`: dotted key -> value and origin."""
    return {key: {"value": setting.value, "origin": setting.origin} for key, setting in config.items()}


def config_hash(config: Mapping[str, ConfigSetting]) -> str:
    """Hash (sha256) of keys and values, independent of order and origins."""
    values = {key: config[key].value for key in sorted(config)}
    return hashlib.sha256(to_json(values)).hexdigest()


def config_diff(old: Mapping[str, ConfigSetting], new: Mapping[str, ConfigSetting]) -> list[str]:
    """List `key: old -> new` for every differing key, sorted; `(absent)` for a missing side."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before = _shown(old, key)
        after = _shown(new, key)
        if before != after:
            lines.append(f"{key}: {before} -> {after}")
    return lines


def _shown(config: Mapping[str, ConfigSetting], key: str) -> str:
    if key not in config:
        return "(absent)"
    return json.dumps(config[key].value)


def read_config(path: Path) -> dict[str, ConfigSetting]:
    """Read `config.json`, under the present keys. Raises DataError naming the file and the key."""
    settings: dict[str, ConfigSetting] = {}
    for key, entry in read_json_object(path).items():
        match entry:
            case {"value": value, "origin": str(origin)}:
                settings[key] = ConfigSetting(value=value, origin=origin)
            case _:
                raise DataError(f"{path}: {key} must contain a value and its origin")
    return present_settings(settings)


def read_manifest(path: Path) -> Manifest:
    """Read `manifest.json`. Raises DataError for a missing or damaged file, and for a newer format."""
    document = read_json_object(path)
    version = document.get("format")
    if isinstance(version, int) and version > RUN_FORMAT:
        raise DataError(f"{path} has run format {version}, this hone reads up to {RUN_FORMAT}; upgrade hone")
    match document:
        case {"format": int(version), "config_hash": str(digest), "created_at": str(created_at), "versions": dict()}:
            facts = parse_record(RunMetadata, document, path)
            changes = tuple(parse_record(list[RunChange], document.get("changes", []), path))
            return Manifest(format=version, config_hash=digest, created_at=created_at, metadata=facts, changes=changes)
        case _:
            raise DataError(f"{path} is not the manifest of a run")


# --------------------------------------------------------------------------------------------------------- earlier keys
# Keys of configs that runs of 0.1.0 saved, read as the present ones: such runs open, resume and are evaluated.
#
# A file that a user wrote is not translated: a key that is gone is refused there, with the nearest present one.


MOVED: Final = (
    (r"rewards\.(workers|deadline_s|start_deadline_s|memory_bytes|confined)", r"user_code.\1"),
    (r"task\.world\.(deadline_s|start_deadline_s|memory_bytes|confined)", r"user_code.\1"),
    (r"evaluation\.(?:rewards|task\.world)\.(workers|(?:start_)?deadline_s|memory_bytes|confined)", r"user_code.\1"),
    (r"(.*\b)?task\.(?:config|world\.options|agents\.environment)(\..*)?", r"\1task.options\2"),
    (r"(.*\b)?task\.(?:world|tools)\.(?:message|result)_tokens", r"\1task.message_tokens"),
    (r"(.*\b)?task\.agents\.tool_format", r"\1task.tools.format"),
    (r"alarms\.limits\.(.*)", r"alarms.\1"),
    (r"algorithm\.aggregation_length", "algorithm.aggregation.constant_length"),
    (r"model\.experts\.(weight|bias_rate)", "model.experts.strength"),
    (r"rollout\.max_staleness\.replay_interleaving", "rollout.max_staleness.interleaving"),
    (r"run\.samples_every", "run.rollouts_every"),
    (r"learn\.said", "learn.policy"),
    (r"rewards\.(max_abs_score|missing_allowed)", r"user_code.\1"),
    (r"evaluation\.rewards\.(max_abs_score|missing_allowed)", r"user_code.\1"),
    (r"(?:.*\b)?task\.agents((?:\.(?:python|deadline_s))?)", r"user_code.agents\1"),
)
"""Pattern of a whole key, and the key that says the same now."""

GONE: Final = (
    r"(.*\b)?rewards\.(missing_window|max_unscored_batches)",
    r"(.*\b)?task\.(on_duplicate_id|agents\.patience_s|tools\.invalid_in_a_row)",
    r"(.*\b)?task\.(world\.)?isolate",
    r"alarms\.(off|limits)",
    r"cluster\.rollout\.(transport|threads|store_mib)",
)
"""Patterns of keys without one that says the same."""

SPOKEN: Final = {
    "model.activation_checkpointing": ("model.activations", {True: "recompute"}),
    "model.round_weights_again": ("model.activations", {True: "round_again"}),
    "model.activation_offload": ("model.activations", {True: "offload"}),
    "rollout.max_staleness.record_interleaving": ("rollout.max_staleness.interleaving", {True: "record"}),
    "evaluation.greedy": ("evaluation.temperature", {True: 0.0}),
}
"""Keys with another value under a present key; a value that is not named leaves the present key as it is."""


def present_settings(saved: Mapping[str, ConfigSetting]) -> dict[str, ConfigSetting]:
    """Settings of a saved run under the present keys. Where two earlier keys became one, a value that was set counts
    before a default, and an earlier pattern of `MOVED` before a later one."""
    present: dict[str, ConfigSetting] = {}
    ranks: dict[str, tuple[bool, int]] = {}
    for key, setting in saved.items():
        if any(re.fullmatch(pattern, key) for pattern in GONE):
            continue
        if key == "algorithm.aggregation_length" and setting.value is None:
            continue
        new, rank = key, -1
        if key in SPOKEN:
            new, values = SPOKEN[key]
            if not isinstance(setting.value, bool) or setting.value not in values:
                continue
            setting = ConfigSetting(value=values[setting.value], origin=setting.origin)
            # Other activations round again too: where both were set, they count.
            rank = 0 if key == "model.round_weights_again" else -2
        for place, (pattern, replacement) in enumerate(MOVED):
            if re.fullmatch(pattern, key):
                new, rank = re.sub(pattern, replacement, key), place
                break
        order = (setting.origin == "default", rank)
        if new not in present or order < ranks[new]:
            present[new], ranks[new] = setting, order
    _join_settings(present)
    nested = {key.rpartition(".")[0] for key in present}
    return {key: one for key, one in present.items() if key not in nested}


def _join_settings(present: dict[str, ConfigSetting]) -> None:
    """Two keys of which one says how the other's number is meant are one key now."""
    rank_stabilised, alpha = present.pop("model.lora.rslora", None), present.get("model.lora.alpha")
    rank = present.get("model.lora.rank")
    if rank_stabilised is not None and rank_stabilised.value is True and alpha is not None and rank is not None:
        assert isinstance(alpha.value, int | float) and isinstance(rank.value, int)
        number = alpha.value * math.sqrt(rank.value)
        present["model.lora.alpha"] = ConfigSetting(value=number, origin=rank_stabilised.origin)
    strength, balance = present.pop("model.experts.strength", None), present.get("model.experts.balance")
    if balance is not None and balance.value == "none":
        present["model.experts.balance"] = ConfigSetting(value=None, origin=balance.origin)
    elif balance is not None and isinstance(balance.value, str):
        del present["model.experts.balance"]
        number = 0.001 if strength is None else strength.value
        present[f"model.experts.balance.{balance.value}"] = ConfigSetting(value=number, origin=balance.origin)


# --------------------------------------------------------------------------------------------------------------- resume


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
class _ResumeDifferences:
    """Differences of a resume from its run, a line each; `settings` by config key."""

    settings: Mapping[str, str]
    dataset: tuple[str, ...] = ()
    code: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """All differences."""
        return [*self.settings.values(), *self.dataset, *self.code]


def resume_differences(
    old: Mapping[str, ConfigSetting], new: Mapping[str, ConfigSetting], before: RunMetadata, now: RunMetadata
) -> _ResumeDifferences:
    """Compare a saved run with its resume. Keys and fingerprints that are younger than the run do not count."""
    added = {key for key in new if key not in old and new[key].origin == "default"}
    lines = {line.split(":", 1)[0]: line for line in config_diff(old, new)}
    same = before.dataset_fingerprint == now.dataset_fingerprint
    return _ResumeDifferences(
        settings={key: line for key, line in lines.items() if key not in added},
        dataset=() if same else (f"dataset: {before.dataset_fingerprint} -> {now.dataset_fingerprint}",),
        code=() if before.code is None or now.code is None else tuple(_code_differences(before.code, now.code)),
    )


def refuse_differences(what: str, found: _ResumeDifferences, allowed: AllowedChanges) -> None:
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
