"""Configs made of Python objects, as the same values that a TOML file has.

Belongs here: functions, classes, environments, rows and tables -> a reference or a file that another process and a
later resume find. What has no name of its own is written to the folder `.python` under the runs, under a hash of its
content.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, cast

import numpy as np

from hone.config.resolve import read_document
from hone.config.toml import ConfigDocument, KeyPath, TomlFile, parse_overrides
from hone.core.config import Config
from hone.core.errors import ConfigError, ErrorCollector
from hone.process.source_capture import importable_name, module_text
from hone.recipes.registry import short_name
from hone.run.store.durable import replace_file
from hone.text.evaluate.evaluation_request import EvaluationTask

ConfigInput: TypeAlias = str | Path | Mapping[str, Any] | Config
"""A config file, a dictionary of its tables, or a recipe's config."""

RewardInput: TypeAlias = str | Callable[..., object]
"""A reward function, its reference, or a built-in one's name."""
TaskInput: TypeAlias = Any
"""Problems: a file, a reasoning-gym task's name, rows (a list of dicts), or a table of pandas, datasets or pyarrow."""
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
        return {key: self.value(value, (*at, key)) for key, value in given.items() if key not in wrong}

    def value(self, value: object, at: KeyPath) -> object:
        """One value; a fault is collected, and the value is then left out."""
        try:
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
        if (rows := self._rows(value, at)) is not None:
            return rows
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
        """The name of a function or class: `module:name`, or `file.py:name` with its text written to the file."""
        if not isinstance(thing, FunctionType | type):
            raise ConfigError(
                f"{thing!r} is a {type(thing).__name__}; give a function written with def, or a class "
                "(arguments that are bound beforehand go to the table `options`, or `kwargs` of an environment)"
            )
        name = importable_name(thing)
        if name is not None:
            return name
        return f"{self._write(thing.__name__, '.py', module_text(thing).encode())}:{thing.__name__}"

    def _rows(self, value: object, at: KeyPath) -> str | None:
        """The file of a dataset that is given as rows or as a table; None for any other value."""
        table = _arrow_table(value)
        if table is not None:
            import pyarrow as arrow  # noqa: PLC0415 - as above
            from pyarrow import parquet  # noqa: PLC0415 - as above

            sink = arrow.BufferOutputStream()
            parquet.write_table(table, sink)
            return str(self._write("rows", ".parquet", cast("bytes", sink.getvalue().to_pybytes())))
        if at and at[-1] == "source" and isinstance(value, list | tuple):
            rows = cast("Sequence[object]", value)
            try:
                lines = [json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain_number) for row in rows]
            except (TypeError, ValueError) as error:
                raise ConfigError(f"its rows must be dicts of text, numbers, lists and dicts: {error}") from None
            return str(self._write("rows", ".jsonl", ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")))
        return None

    def _write(self, name: str, ending: str, content: bytes) -> Path:
        path = self.folder / f"{name}_{hashlib.sha256(content).hexdigest()[:12]}{ending}"
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        return path


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
