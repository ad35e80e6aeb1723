"""Rules of a resume: the settings that may change, on request or freely, and those whose schedule ends with the run.

Belongs here: which keys. `hone.run.store.manifest` compares and refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError
from hone.process.user_files import code_references, fingerprint_code
from hone.run.job import RunConfig, installed_recipes
from hone.run.store.checkpoints import CheckpointFolder
from hone.run.store.manifest import AllowedChanges

ALLOWED = AllowedChanges(
    keys=(
        "steps",
        "evaluation",
        "evaluation.",
        "cluster",
        "cluster.",
        "alarms",
        "alarms.",
        "track",
        "track.",
        "run.callbacks",
        "run.callbacks.",
        "run.log_every",
        "run.rollouts_every",
        "run.rollouts_keep_mb",
        "run.checkpoint_every",
        "run.keep_last",
        "run.keep_best",
        "run.disk_wait_s",
        "run.certify",
        "run.ranks",
        "run.patience_s",
    ),
    keys_on_request=("learner.", "algorithm.", "rewards.", "rollout.", "user_code."),
)
"""Changes that a resume accepts. Those without request do not change what a step computes, but for `steps` where a
schedule ends with the run. Seed, model, task, environment, replay buffer, device and threads never change: they made
the state that the resume reads."""
NEW_RUN_ADVICE = (
    "to train another config from this run's weights, start a new run: model.path = the run's folder, and "
    "model.optimizer = true for the state of its optimizer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConsent:
    """Changes that the user accepts for a resume, beyond those that touch no weight."""

    config: bool = False
    """Settings of learner, algorithm, rewards and rollouts (`--allow-changed-config`)."""
    code: bool = False
    """Source files of reward functions, environments and other user code (`--allow-changed-code`)."""


NO_CONSENT = ResumeConsent()


def allowed_changes(consent: ResumeConsent, settings: Mapping[str, ConfigSetting]) -> AllowedChanges:
    """Changes that a resume with `settings` accepts."""
    advice = NEW_RUN_ADVICE if "model.path" in settings or "model.optimizer" in settings else ""
    return replace(ALLOWED, config=consent.config, code=consent.code, otherwise=advice)


def code_fingerprints(settings: Mapping[str, ConfigSetting]) -> dict[str, str]:
    """Sha256 of each source file of the user code that a config names, and of those that it imports; callbacks, which
    only watch, may change."""
    values = [setting.value for key, setting in settings.items() if not key.startswith("run.callbacks")]
    recipe = str(settings["recipe"].value) if "recipe" in settings else ""
    installed = [point.value for point in installed_recipes().get(recipe, ())]
    return fingerprint_code(code_references([*values, *installed]))


def refuse_fewer_steps(checkpoints: CheckpointFolder, steps: int, name: str) -> None:
    """Raise ConfigError if the run `name` has an intact checkpoint of a later step than `steps`."""
    saved = checkpoints.steps()
    if not saved or saved[-1] <= steps or (done := checkpoints.newest_intact().step) <= steps:
        return
    raise ConfigError(
        f"steps = {steps}, but {name} has finished step {done}, and steps are not taken back; nothing was changed. "
        f"Give more than {done} steps to go on"
    )


def ranks_note(changes: Sequence[str], config: RunConfig) -> list[str]:
    """What a resume with another number of ranks does to the results; nothing without one of `changes` in them."""
    if config.run.virtual_ranks or not any("run.ranks" in change for change in changes):
        return []
    return [
        "run.ranks changed: the rest of the run is equal to that on the former number to rounding, not to the bit; "
        "only run.virtual_ranks, given from the first step, makes it equal to the bit"
    ]


def steps_note(before: int, settings: Mapping[str, ConfigSetting]) -> str:
    """Note about a resume with other `steps` than the checkpoint's, `before`."""
    steps, schedules = settings["steps"].value, ", ".join(step_schedules(settings))
    if schedules:
        rest = (
            f"the schedule of {schedules} ends at the last step, so it is not the run that had {steps} from the start"
        )
    else:
        rest = f"no schedule ends at the last step, so it is the run that had {steps} from the start"
    return f"steps was {before} and is {steps}: {rest}"


def step_schedules(settings: Mapping[str, ConfigSetting]) -> list[str]:
    """Settings whose schedule ends with the last step, as `key = value`: with other `steps` it has other values."""

    def ends_with_run(key: str, value: object) -> bool:
        last = key.rpartition(".")[2]
        if last in ("lr_decay", "clip_decay"):
            return value in ("linear", "cosine")
        return key == "algorithm.correction" or (key == "algorithm.outer_rate" and "algorithm.inner_steps" in settings)

    return [f"{key} = {setting.value}" for key, setting in settings.items() if ends_with_run(key, setting.value)]
