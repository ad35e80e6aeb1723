"""`hone serve training FILE.toml`: a training service, or its plan."""

from pathlib import Path
from typing import Final

from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ResourceError

_PACKAGES: Final = ("starlette", "uvicorn", "tinker", "zstandard", "google")


def serve_training_file(call: CommandCall, file: str) -> int:
    """Serve a training service's file, or print its plan; returns the exit code."""
    try:
        from hone.text.training_service.run_training_service import (  # noqa: PLC0415 - torch takes seconds, see --help
            TrainingPlace,
            plan_lines,
            read_service_file,
            serve_training,
        )
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise ResourceError(
            f"hone serve training needs {error.name}: pip install 'hone-rl[training-service]'"
        ) from None
    screen = standard_screen()
    if call.switch("dry_run"):
        for line in plan_lines(read_service_file(Path(file))):
            screen.line(line)
        return 0
    place = TrainingPlace(
        host=call.text("host"),
        port=int(parse_number(call.text("port"), "--port", least=0)),
        claim=int(parse_number(call.text("claim"), "--claim", least=0)),
        use=Path(call.text("use")) if call.text("use") else None,
    )
    return serve_training(Path(file), place, screen.line)
