"""Work folders on disk, for rungs without a file system of their own."""

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "hone-sandbox"


def new_folder() -> str:
    """Make a folder among the temporary ones, named after this process."""
    return tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-")


def delete_folder(folder: str) -> None:
    """Delete a folder with all in it, also where a program closed it to itself."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)


def remove_folders(process: int) -> None:
    """Delete what a process left that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-{process}-*"):
        delete_folder(str(folder))
