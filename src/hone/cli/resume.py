"""Settings of a resume that nobody gave: they are those of the run, not the defaults of a newer hone.

Belongs here: the comparison of a config's defaults with a saved run's. `commands/train.py` plans and trains.
"""

from collections.abc import Mapping
from pathlib import Path

from hone.cli.stages import STAGE, pipeline_name
from hone.config.explain import format_value
from hone.config.overrides import ConfigDocument
from hone.config.toml import KeyPath
from hone.core.config import ConfigSetting
from hone.core.errors import DataError
from hone.run.store.folder import CONFIG
from hone.run.store.manifest import read_config, with_current_keys

SAVED_DEFAULT = "default of the saved run"
"""Origin of a setting that a resume takes over from its run."""


def keep_saved_defaults(
    document: ConfigDocument, settings: Mapping[str, Mapping[str, ConfigSetting]], root: Path
) -> list[str]:
    """Set each key of the document that is left to its default to the default that its run in `root` was started with.

    `settings` are the resolved settings by the name of the run or stage. Returns a note for each key that is set.
    """
    folder = root / pipeline_name(document) if STAGE in document.values else root
    notes: list[str] = []
    for index, (name, resolved) in enumerate(settings.items()):
        place: KeyPath = (STAGE, index) if STAGE in document.values else ()
        for key, saved in _changed_defaults(folder / name / CONFIG, resolved).items():
            document.set_value((*place, *key.split(".")), saved.value, source=SAVED_DEFAULT)
            notes.append(
                f"{name}: {key} stays {format_value(saved.value)}, the default when the run was started; it is "
                f"{format_value(resolved[key].value)} now"
            )
    return notes


def _changed_defaults(path: Path, resolved: Mapping[str, ConfigSetting]) -> dict[str, ConfigSetting]:
    """Saved settings that were defaults then, are defaults now, and differ; none if the run's file cannot be read."""
    try:
        saved = with_current_keys(read_config(path), resolved)
    except DataError:  # the run is missing or damaged, which the resume reports
        return {}
    return {
        key: saved[key]
        for key, item in resolved.items()
        if key in saved
        and item.origin == "default"
        and saved[key].origin in ("default", SAVED_DEFAULT)
        and saved[key].value != item.value
        and not any(part.isdigit() or part == "kind" for part in key.split("."))
    }
