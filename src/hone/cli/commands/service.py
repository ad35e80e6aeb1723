"""`hone service FILE.toml`: a backup of a service, its check, its restore; old versions; rows of its feature store;
erasure of a unit from everything that the service keeps."""

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from hone.cli.commands.log import moment_of
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError
from hone.core.strict_json import Json
from hone.decide.gateway.upkeep import (
    backup_service,
    erase_from_service,
    prune_versions,
    restore_service,
    store_features,
    verify_backup,
)

_WORK = ("backup", "verify", "restore", "prune", "features", "erase")


def run(call: CommandCall) -> int:
    """Do the one thing that the options ask for; returns the exit code."""
    asked = [name for name in _WORK if call.text(name)]
    if len(asked) != 1:
        flags = ", ".join(f"--{name}" for name in _WORK)
        raise ConfigError(f"give one of {flags}; got {', '.join(f'--{name}' for name in asked) or 'none'}")
    if not call.text("erase") and (call.text("tenant") or call.text("archive")):
        raise ConfigError(f"--tenant and --archive go with --erase, not with --{asked[0]}")
    file, screen, place = Path(call.text("file")), standard_screen(), Path(call.text(asked[0]))
    if call.text("prune"):
        pruned = prune_versions(file, before_s=moment_of(call.text("prune"), "--prune"), clock=SystemClock())
        screen.line(f"removed {len(pruned.removed)} versions, {pruned.kept} are kept")
    elif call.text("features"):
        screen.line(f"stored {store_features(file, place, SystemClock())} rows of features")
    elif unit := call.text("erase"):
        for line in erase_from_service(file, unit, tenant=call.text("tenant"), archive=call.text("archive")):
            screen.line(line)
    elif call.text("backup"):
        screen.line(f"{place}: {_words(backup_service(file, place, SystemClock()))}")
    elif call.text("verify"):
        screen.line(f"{place} is whole: {_words(verify_backup(place))}")
    else:
        screen.line(f"restored {file} from {place}: {_words(restore_service(place, file))}")
    return 0


def _words(manifest: dict[str, Json]) -> str:
    log, files = cast("dict[str, Json]", manifest["log"]), cast("dict[str, Json]", manifest["files"])
    moment = datetime.fromtimestamp(cast("float", manifest["at_s"]), UTC).isoformat(timespec="seconds")
    return (
        f"service {manifest['service']} of {moment}, {len(files)} files, {log['decisions']} decisions and "
        f"{log['outcomes']} outcomes in {log['address']}"
    )
