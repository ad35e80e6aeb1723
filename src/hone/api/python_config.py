"""Configs made of Python objects, as the same values that a TOML file has.

Belongs here: functions, classes, environments, rows and tables -> a reference or a file that another process and a
later resume find. What has no name of its own is written to the folder `.python` under the runs, under a hash of its
content.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import chain, islice
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias, cast

import numpy as np

from hone.config.resolve import read_document
from hone.config.toml import ConfigDocument, KeyPath, TomlFile, parse_overrides
from hone.core.config import Config
from hone.core.errors import ConfigError, ErrorCollector, UserCodeError
from hone.process.source_capture import importable_name, module_text
from hone.process.user_files import describe_error, user_traceback
from hone.recipes.registry import short_name
from hone.run.store.durable import replace_file, writing
from hone.text.evaluate.evaluation_request import EvaluationTask

ConfigInput: TypeAlias = str | Path | Mapping[str, Any] | Config
"""A config file, a dictionary of its tables, or a recipe's config."""

RewardInput: TypeAlias = str | Callable[..., object]
"""A reward function, its reference, or a built-in one's name."""
TaskInput: TypeAlias = Any
"""Problems: a file, a reasoning-gym task's name, rows (a list of dicts, or a stream: an iterator, an iterable, or a
function that gives one), a table of pandas, datasets or pyarrow, or the class of a world."""
MAX_STREAM_ROWS = 1_000_000
"""Most rows of a stream that are taken without a `task.size`."""
FOLDER = ".python"
"""Folder under the runs for code and rows that were given as Python objects."""
_NAME = "the config"


def document_of(config: ConfigInput, overrides: Sequence[str], runs: Path) -> ConfigDocument:
    """The document that a config file or Python objects describe, with `key=value` overrides, not validated yet.

    Raises ConfigError with every object that cannot be handed to another process.
    """
    if isinstance(config, str | Path):
        return read_document(config, overrides)
    tables = config.model_dump(exclude_unset=True) if isinstance(config, Config) else config
    writer = _ObjectWriter(folder=runs / FOLDER, faults=ErrorCollector(ConfigError))
    values = writer.table(tables, ())
    writer.faults.raise_if_any()
    recipe = values.get("recipe")
    if "stage" not in values and isinstance(recipe, str):
        values.setdefault("name", short_name(recipe))
    return ConfigDocument.from_file(TomlFile(name=_NAME, values=values, lines={}), parse_overrides(overrides))


def evaluation_task(task: TaskInput, rewards: Sequence[RewardInput], runs: Path) -> EvaluationTask:
    """Problems and rewards for an evaluation. Raises ConfigError as `document_of`."""
    writer = _ObjectWriter(folder=runs / FOLDER, faults=ErrorCollector(ConfigError))
    source = writer.value(task, ("task", "source"))
    names = [writer.value(reward, ("rewards", place)) for place, reward in enumerate(rewards)]
    writer.faults.raise_if_any()
    return EvaluationTask(task=str(source), rewards=tuple(map(str, names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ObjectWriter:
    """Converter of Python objects to config values."""

    folder: Path
    faults: ErrorCollector

    def table(self, given: Mapping[str, Any], at: KeyPath) -> dict[str, object]:
        wrong = [key for key in given if not isinstance(key, str)]
        for key in wrong:
            self.faults.add(f"{_place(at)}: the key {key!r} is not text")
        size = given.get("size")
        return {
            key: self.value(value, (*at, key), size if isinstance(size, int) else None)
            for key, value in given.items()
            if key not in wrong
        }

    def value(self, value: object, at: KeyPath, size: int | None = None) -> object:
        """One value; a fault is collected, and the value is then left out. `size`: rows to take of a stream."""
        try:
            if at and at[-1] in ("source", "rows") and not isinstance(value, str | Mapping | Path):
                return self._source(value, size)
            return self._value(value, at)
        except ConfigError as fault:
            self.faults.extend([f"{_place(at)}: {message}" for message in fault.messages])
            return None

    def _value(self, value: object, at: KeyPath) -> object:
        if isinstance(value, Config):
            return self.table(value.model_dump(exclude_unset=True), at)
        if isinstance(value, Mapping):
            return self.table(cast("Mapping[str, Any]", value), at)
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list | tuple):
            return [self.value(item, (*at, index)) for index, item in enumerate(cast("Sequence[object]", value))]
        if at and at[-1] == "env":
            return self._env(value)
        plain = self._reference(value) if callable(value) else value
        if len(at) > 1 and "functions" in at[-2:] and isinstance(plain, str):  # a reward is a table with the key `use`
            return {"use": plain} if at[-2] == "functions" else [{"use": plain}]
        return plain

    def _env(self, value: object) -> object:
        """An environment's table: of a class or a function that makes one, of an id, or of an environment that
        `gymnasium.make` made."""
        import gymnasium  # noqa: PLC0415 - most configs are without an environment

        if isinstance(value, str):
            return {"id": value}
        if not isinstance(value, gymnasium.Env):
            return {"id": self._reference(value)} if callable(value) else value
        spec = value.spec
        if spec is None or spec.additional_wrappers or spec.id not in gymnasium.registry:
            raise ConfigError(
                f"one {type(value).__name__} object cannot be the many environments that a run steps and evaluates in; "
                "give its class, or a function without parameters that makes one: env=make_env"
            )
        return {"id": spec.id, "kwargs": {key: item for key, item in spec.kwargs.items() if item is not None}}

    def _reference(self, thing: Callable[..., object]) -> str:
        """The name of a callable: `module:name`, or `file.py:name` with its text written to the file."""
        if isinstance(thing, FunctionType | type) and (name := importable_name(thing)) is not None:
            return name
        if isinstance(thing, BuiltinFunctionType):
            raise ConfigError(f"{thing!r} is written in C; give a function of your own that calls it")
        name, text = module_text(thing)
        return f"{self._write(name, '.py', text.encode())}:{name}"

    def _source(self, value: object, size: int | None) -> object:
        """The file of a dataset that is given as rows, as a stream of them or as a table; the reference of a world."""
        table = _arrow_table(value)
        if table is not None:
            import pyarrow as arrow  # noqa: PLC0415 - as above
            from pyarrow import parquet  # noqa: PLC0415 - as above

            sink = arrow.BufferOutputStream()
            parquet.write_table(table, sink)
            return str(self._write("rows", ".parquet", cast("bytes", sink.getvalue().to_pybytes())))
        made = value.func if isinstance(value, partial) else value
        if isinstance(made, type) and not issubclass(made, Iterable):
            return f"dialogue:{self._reference(cast('Callable[..., object]', value))}"
        if callable(value) and not isinstance(value, Iterable):
            parameters = () if isinstance(made, type) else signature(value).parameters.values()
            required = [one.name for one in parameters if one.default is one.empty]
            if required:
                raise ConfigError(
                    f"a function that gives rows is called without arguments, and this one needs "
                    f"{', '.join(required)}: give functools.partial(function, ...); a world is given by its class"
                )
            make = cast("Callable[[], Iterable[object]]", value)
            value = chain.from_iterable(one() for one in (make,))  # called where its faults are told
        if not isinstance(value, Iterable):
            return value
        rows = cast("Iterable[object]", value)
        if isinstance(value, Sequence):
            return str(self._stream(_json_lines(rows, len(value))))
        most = MAX_STREAM_ROWS if size is None else size
        return str(self._stream(_json_lines(rows if size is None else islice(rows, size), most)))

    def _stream(self, lines: Iterator[bytes]) -> Path:
        """The file of rows, which are written one by one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder) / "rows.jsonl"
            with writing(path), path.open("wb") as file:
                for line in lines:
                    digest.update(line)
                    file.write(line)
                file.flush()
                os.fsync(file.fileno())
            return path.replace(self.folder / f"rows_{digest.hexdigest()[:12]}.jsonl")

    def _write(self, name: str, ending: str, content: bytes) -> Path:
        path = self.folder / f"{name}_{hashlib.sha256(content).hexdigest()[:12]}{ending}"
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        return path


def _json_lines(rows: Iterable[object], most: int) -> Iterator[bytes]:
    """Rows as lines of JSON. Raises ConfigError for no rows, more than `most`, and rows that JSON does not have, and
    UserCodeError where the iterator fails."""
    stream, count = iter(rows), 0
    while True:
        try:
            row = next(stream, stream)
        except Exception as error:
            raise UserCodeError(
                f"task.source: its iterator failed after {count:,} rows with {describe_error(error)}",
                user_traceback(error),
            ) from error
        if row is stream:
            break
        if count == most:
            raise ConfigError(f"more than {most:,} rows, and no end in sight; say how many to take by task.size")
        count += 1
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain_number)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"its rows must be dicts of text, numbers, lists and dicts: row {count}: {error}"
            ) from None
        yield f"{line}\n".encode("utf-8", "surrogatepass")
    if not count:
        raise ConfigError("it gave no rows; an iterator gives its rows once: make a new one for each call")


def _plain_number(value: object) -> object:
    """A number of numpy's as Python's. Raises TypeError for anything else that JSON does not have."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is neither text nor a number")


def _arrow_table(value: object) -> Any:  # noqa: ANN401 - a pyarrow.Table, which has no types
    """A pyarrow table of a table of pyarrow, pandas or datasets; None for another value. Imports none of them."""
    pyarrow, pandas, datasets = (sys.modules.get(name) for name in ("pyarrow", "pandas", "datasets"))
    if pyarrow is not None and isinstance(value, pyarrow.Table):
        return value
    if pandas is not None and isinstance(value, pandas.DataFrame):
        import pyarrow as arrow  # noqa: PLC0415 - as above

        return arrow.Table.from_pandas(value, preserve_index=False)
    if datasets is not None and isinstance(value, datasets.Dataset):
        return cast("Any", value).with_format("arrow")[:]
    return None


def _place(at: KeyPath) -> str:
    return ".".join(map(str, at)) or _NAME
