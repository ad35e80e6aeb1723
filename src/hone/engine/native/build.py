"""Compiles the runner with the system's compiler, once for each source, compiler and machine, into the user's cache.

Belongs here: which compiler, which flags, where the library lies, and that two processes may build at the same time.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ResourceError

SOURCE: Final = Path(__file__).parent / "source"
SWITCH: Final = "HONE_NATIVE"
"""Environment variable: `0` keeps the compiled runner from being built or used."""

_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread")
_CHECKED: Final = ("-g", "-O1", "-DHONE_CHECKED", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_PARTS: Final = ("pool.cpp", "sample.cpp", "engine.cpp", "publish.cpp")
_AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma")
_LINES_SHOWN: Final = 6
_PATIENCE_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """A library that lies in the cache."""

    path: Path
    compiler: str
    """First line of what the compiler says about itself."""
    instruction_sets: tuple[str, ...]
    """Compiled in; this CPU may run fewer."""
    seconds_s: float
    """Of this build; 0 where the library lay in the cache already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """An instruction set's own source file and flags. A compiler that does not know the flags leaves the set out."""

    name: str
    file: str
    flags: tuple[str, ...]


def _sets() -> tuple[_Set, ...]:
    portable = _Set(name="portable", file="isa.cpp", flags=("-DHONE_ISA=portable",))
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return (portable,)
    return (
        portable,
        _Set(name="avx2", file="isa.cpp", flags=("-DHONE_ISA=avx2", "-mavx2", "-mfma")),
        _Set(name="avx512", file="isa.cpp", flags=("-DHONE_ISA=avx512", *_AVX512)),
        _Set(name="avx512_bf16", file="tile_bf16.cpp", flags=(*_AVX512, "-mavx512bf16")),
        _Set(name="amx", file="tile_amx.cpp", flags=("-mamx-tile", "-mamx-bf16")),
    )


def switched_off() -> bool:
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "off", "false", "no")


def find_compiler() -> str | None:
    """The first of `$CXX`, c++, g++ and clang++ that is on the path."""
    candidates = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def cache_folder() -> Path:
    """`$HONE_CACHE`, or `hone` in the platform's folder for caches."""
    if own := os.environ.get("HONE_CACHE"):
        return Path(own)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hone"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hone"


def build(*, force: bool = False, checked: bool = False, clock: Clock | None = None) -> BuildInfo:
    """The library, from the cache or compiled now (seconds). `checked`: bounds checks and sanitizers, for tests.

    Safe to call from several processes at once: one builds, the others wait for it. Raises ResourceError where there is
    no compiler, the cache cannot be written, or the compiler fails, with its last lines.
    """
    time = clock or SystemClock()
    began = time.monotonic_s()
    compiler = find_compiler()
    if compiler is None:
        raise ResourceError("no C++ compiler found (looked for $CXX, c++, g++, clang++); install one, such as g++")
    version = _version(compiler)
    flags = (*_FLAGS, *(_CHECKED if checked else ()))
    path = cache_folder() / "native" / f"hone-{_key(version, flags)}.so"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            fresh = force or not path.exists()
            if fresh:
                _compile(compiler, flags, path)
            seconds = time.monotonic_s() - began if fresh else 0.0
            names = tuple(path.with_suffix(".sets").read_text(encoding="utf-8").split())
    except OSError as error:
        raise ResourceError(
            f"the compiled runner cannot be kept in {path.parent}: {error}; name another folder by HONE_CACHE"
        ) from error
    return BuildInfo(path=path, compiler=version, instruction_sets=names, seconds_s=seconds)


def _version(compiler: str) -> str:
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=False)
    lines = said.stdout.splitlines()
    if said.returncode != 0 or not lines:
        raise ResourceError(f"{compiler} --version failed: {said.stderr.strip()[-200:]}; name another compiler by $CXX")
    return lines[0]


def _key(version: str, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    parts = [*sorted(SOURCE.iterdir())]
    for part in parts:
        digest.update(part.name.encode() + b"\0" + part.read_bytes() + b"\0")
    for text in (version, platform.machine(), sys.platform, *flags, repr(_sets())):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits for another process that builds the same library. A lock dies with its process."""
    import fcntl  # noqa: PLC0415 - not on every platform, and a platform without it fails here, not at import

    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, flags: Sequence[str], path: Path) -> None:
    """Objects side by side, then the library under a temporary name, then one rename."""
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        folder = Path(temporary)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            sets = {
                part.name: pool.submit(_object, compiler, (*flags, *part.flags), part.file, folder / f"{part.name}.o")
                for part in _sets()
            }
            parts = [pool.submit(_object, compiler, flags, name, folder / f"{name}.o") for name in _PARTS]
        faults = [fault for part in parts if (fault := part.result())]
        if fault := sets["portable"].result():
            faults.append(fault)
        names = [name for name, part in sets.items() if not part.result()]
        has = [f"-DHONE_HAS_{name.upper()}" for name in names]
        faults += [fault for fault in [_object(compiler, (*flags, *has), "api.cpp", folder / "api.o")] if fault]
        library = folder / "library.so"
        if not faults:
            objects = [str(file) for file in sorted(folder.glob("*.o"))]
            faults += _call([compiler, *flags, "-shared", "-o", str(library), *objects])
        if faults:
            raise ResourceError(f"{compiler} could not compile the runner: {faults[0]}")
        listed = folder / "sets"
        listed.write_text(" ".join(names), encoding="utf-8")
        listed.replace(path.with_suffix(".sets"))
        library.replace(path)


def _object(compiler: str, flags: Sequence[str], file: str, target: Path) -> str:
    """An empty string, or the compiler's last lines."""
    return "".join(_call([compiler, *flags, "-c", str(SOURCE / file), "-o", str(target)]))


def _call(command: list[str]) -> list[str]:
    """Nothing, or one text with what went wrong."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return [f"no end after {_PATIENCE_S} s"]
    if said.returncode == 0:
        return []
    return [" | ".join(said.stderr.strip().splitlines()[-_LINES_SHOWN:]) or f"exit status {said.returncode}"]
