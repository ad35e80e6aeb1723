"""Compilation of C++ with the system's compiler, cached per source, compiler and machine; loading; the allocator.

Belongs here: compiler, flags, the path of the library, locking between processes, and types of a library's functions.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, NativeBuildWarning, ResourceError

INCLUDE: Final = Path(__file__).parent / "include"
"""Headers for all sources."""
SWITCH: Final = "HONE_NATIVE"
"""Environment variable: `0` disables compiled code."""
LIMIT: Final = "HONE_NATIVE_ISA"
"""Environment variable: the most capable instruction set that compiled code may use, one of `LEVELS`."""
LEVELS: Final = ("portable", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx")
AVX2: Final = ("-mavx2", "-mfma")
AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *AVX2)

_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread")
_CHECKED: Final = ("-g1", "-O0", "-DHONE_CHECKED", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_LINES_SHOWN: Final = 6
_BETWEEN_LINES: Final = " | "
_PATIENCE_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSet:
    """Instruction set with its own source file and flags; left out if the compiler does not support the flags."""

    name: str
    file: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSource:
    """Sources of one library."""

    name: str
    """Name of the library's file."""
    description: str
    """Name in error messages, such as "the compiled runner"."""
    folder: Path
    files: tuple[str, ...]
    """Files compiled without instruction-set flags."""
    instruction_sets: tuple[InstructionSet, ...]
    """Instruction sets; the first one must compile everywhere. None: the other files are all."""
    dispatch_file: str = "api.cpp"
    """File compiled with `-DHONE_HAS_<SET>` for each available set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLibrary:
    """Library in the cache."""

    path: Path
    compiler: str
    """First line of the compiler's version."""
    instruction_sets: tuple[str, ...]
    """Compiled sets; this CPU may support fewer."""
    seconds_s: float
    """Duration of this build; 0 if the library was cached."""


def on_x86() -> bool:
    """True if the processor is x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def is_disabled() -> bool:
    """True if the environment variable disables compiled code."""
    return os.environ.get(SWITCH, "1").strip().lower() in ("0", "off", "false", "no")


def instruction_set_limit() -> str | None:
    """The value of `$HONE_NATIVE_ISA`, if it is set. Raises ConfigError for one that is not of `LEVELS`."""
    limit = os.environ.get(LIMIT, "").strip().lower()
    if limit and limit not in LEVELS:
        raise ConfigError(f"{LIMIT}={limit} is not an instruction set; known: {', '.join(LEVELS)}")
    return limit or None


def within_limit(instruction_sets: Iterable[str]) -> tuple[str, ...]:
    """Leave out the sets above `$HONE_NATIVE_ISA`, so that a processor can stand in for one that lacks them.

    Raises ConfigError as `instruction_set_limit` does.
    """
    most = LEVELS.index(instruction_set_limit() or LEVELS[-1])
    return tuple(name for name in instruction_sets if LEVELS.index(name) <= most)


def find_compiler() -> str | None:
    """Find the first of `$CXX`, c++, g++ and clang++ on the path."""
    candidates = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    return next((path for name in candidates if name and (path := shutil.which(name))), None)


def cache_folder() -> Path:
    """Cache folder: `$HONE_CACHE`, or `hone` in the platform's cache folder."""
    if own := os.environ.get("HONE_CACHE"):
        return Path(own)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hone"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hone"


def build(
    source: NativeSource, *, force: bool = False, checked: bool = False, clock: Clock | None = None
) -> BuiltLibrary:
    """Get the library from the cache or compile it (seconds). `checked`: bounds checks and sanitizers, for tests.

    Safe to call from several processes at once: one builds, the others wait. Raises ResourceError without a compiler,
    for an unwritable cache, or if the compiler fails, with its last lines. A set that does not compile is left out by
    a build with a `NativeBuildWarning`: the file, the compiler's first error, what is used instead.
    """
    time = clock or SystemClock()
    began = time.monotonic_s()
    compiler = find_compiler()
    if compiler is None:
        raise ResourceError("no C++ compiler found (looked for $CXX, c++, g++, clang++); install one, such as g++")
    version = _version(compiler)
    flags = (*_FLAGS, f"-I{INCLUDE}", *(_CHECKED if checked else ()))
    path = cache_folder() / "native" / f"{source.name}-{_key(source, version, checked=checked)}.so"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            fresh = force or not path.exists()
            notes = _LibraryBuild(source, compiler, flags).to(path) if fresh else []
            seconds = time.monotonic_s() - began if fresh else 0.0
            names = tuple(path.with_suffix(".sets").read_text(encoding="utf-8").split())
    except OSError as error:
        raise ResourceError(
            f"{source.description} cannot be written to {path.parent}: {error}; set another folder with HONE_CACHE"
        ) from error
    for note in notes:
        warnings.warn(note, NativeBuildWarning, stacklevel=2)
    return BuiltLibrary(path=path, compiler=version, instruction_sets=names, seconds_s=seconds)


def _version(compiler: str) -> str:
    result = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=False)
    lines = result.stdout.splitlines()
    if result.returncode != 0 or not lines:
        raise ResourceError(
            f"{compiler} --version failed: {result.stderr.strip()[-200:]}; set another compiler with $CXX"
        )
    return lines[0]


def _key(source: NativeSource, version: str, *, checked: bool) -> str:
    digest = hashlib.sha256()
    for part in [*sorted(INCLUDE.iterdir()), *sorted(source.folder.iterdir())]:
        digest.update(part.name.encode() + b"\0" + part.read_bytes() + b"\0")
    flags = (*_FLAGS, *(_CHECKED if checked else ()))
    for text in (version, platform.machine(), sys.platform, *flags, repr(source.files), repr(source.instruction_sets)):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the build of a library between processes; the system releases the lock of a dead process."""
    import fcntl  # noqa: PLC0415 - not on every platform, and a platform without it fails here, not at import

    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class _LibraryBuild:
    source: NativeSource
    compiler: str
    flags: tuple[str, ...]

    def to(self, path: Path) -> list[str]:
        """Compile objects in parallel, link under a temporary name, rename. Returns a line for each set left out."""
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            folder = Path(temporary)
            with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
                sets = {
                    part.name: pool.submit(self._object, part.file, folder / f"{part.name}.o", *part.flags)
                    for part in self.source.instruction_sets
                }
                parts = [pool.submit(self._object, name, folder / f"{name}.o") for name in self.source.files]
            faults = [fault for part in parts if (fault := part.result())]
            if self.source.instruction_sets and (fault := sets[self.source.instruction_sets[0].name].result()):
                faults.append(fault)
            messages = {name: part.result() for name, part in sets.items()}
            names = [name for name, fault in messages.items() if not fault]
            has = [f"-DHONE_HAS_{name.upper()}" for name in names]
            faults += [fault for fault in [self._object(self.source.dispatch_file, folder / "front.o", *has)] if fault]
            library = folder / "library.so"
            if not faults:
                objects = [str(file) for file in sorted(folder.glob("*.o"))]
                faults += _call([self.compiler, *self.flags, "-shared", "-o", str(library), *objects])
            if faults:
                raise ResourceError(f"{self.compiler} failed on {self.source.description}: {faults[0]}")
            listed = folder / "sets"
            listed.write_text(" ".join(names), encoding="utf-8")
            listed.replace(path.with_suffix(".sets"))
            library.replace(path)
        return self._left_out(messages)

    def _left_out(self, said: Mapping[str, str]) -> list[str]:
        """A line for each instruction set with a fault in `said`; the first set has none."""
        notes, used = list[str](), ""
        for part in self.source.instruction_sets:
            if not said[part.name]:
                used = part.name
                continue
            file = self.source.folder / part.file
            notes.append(
                f"{self.source.description}: {file} does not compile for {part.name} with {self.compiler}: "
                f"{_first_error(said[part.name])}; processors that have it run code for {used} at most, more slowly"
            )
        return notes

    def _object(self, file: str, target: Path, *flags: str) -> str:
        """Compile one object; returns an empty string, or the compiler's last lines."""
        source = str(self.source.folder / file)
        return "".join(_call([self.compiler, *self.flags, *flags, "-c", source, "-o", str(target)]))


def _first_error(said: str) -> str:
    """The first error in lines of a compiler, or the first line."""
    lines = said.split(_BETWEEN_LINES)
    return next((line.strip() for line in lines if "error:" in line), lines[0])


def _call(command: list[str]) -> list[str]:
    """Run the compiler; returns nothing, or one message: lines from its first error on."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return [f"timeout after {_PATIENCE_S} s"]
    if result.returncode == 0:
        return []
    lines = result.stderr.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if "error:" in line), len(lines))
    begin = max(0, min(first, len(lines) - _LINES_SHOWN))
    return [_BETWEEN_LINES.join(lines[begin : begin + _LINES_SHOWN]) or f"exit status {result.returncode}"]


# ----------------------------------------------------------------------------------------------------------------- open


LibraryFunctions: TypeAlias = "dict[str, Callable[..., Any]]"


def load_functions(path: Path, what: str, signatures: Mapping[str, tuple[Any, Sequence[Any]]]) -> LibraryFunctions:
    """Load functions by name -> (result type, argument types). Raises ResourceError if `path` cannot be loaded."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ResourceError(f"{what} {path} cannot be loaded: {error}") from error
    functions: LibraryFunctions = {}
    for name, (result, arguments) in signatures.items():
        function = library[name]
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


# --------------------------------------------------------------------------------------------------------------- memory


# malloc.h of glibc.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_MAX: Final = -4

_KEPT_BYTES: Final = 1 << 30
_STEP_BYTES: Final = 1 << 26


def return_freed_memory() -> None:
    """Return what is free in the process to the system; nothing without glibc."""
    if sys.platform.startswith("linux"):
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> bool:
    """Keep freed memory, up to 1 GiB, in the process instead of returning it to the system; False without glibc.

    By default every large tensor is mapped on allocation and unmapped when freed, so that each step of a small model
    causes page faults again. Measured on an update: 3 to 10% of its CPU time.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    wanted = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _STEP_BYTES))
    taken = [mallopt(name, value) == 1 for name, value in wanted]
    return all(taken)
