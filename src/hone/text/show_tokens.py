"""Rows of a dataset as the tokens that a run would train: for `hone show --tokens`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hone.config.toml import ConfigDocument, read_toml
from hone.core.errors import ConfigError, DataError
from hone.rewards.config import UserCodeConfig
from hone.text.evaluate.dialogues import task_tokenizer
from hone.text.evaluate.open_policy import ModelSource, open_tokenizer
from hone.text.tasks.chat_rows import asked_row, chat_notes
from hone.text.tasks.dataset import Example, ExampleDataset, dataset_kind, read_examples
from hone.text.tasks.scored_rows import AnswerTokens, row_answer
from hone.text.tasks.task import TaskConfig
from hone.text.trained_spans import DataConfig, TokenSpan, TurnEncoder, template_findings, token_spans

_PARTS = ("model", "task", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShownRows:
    """First rows of a dataset, for display."""

    rows: tuple[tuple[str, tuple[TokenSpan, ...]], ...]
    """Title of each row and its tokens."""
    notes: tuple[str, ...]
    """What the chat template does to them."""


def shown_rows(path: Path, model: str, count: int) -> _ShownRows:
    """The first `count` examples of a file of data, tokenized by the `model` of a folder, or of the data of a config.
    An answer's tokens are marked as its run would train them.

    Raises ConfigError for a config without a file of data or a model of its own, DataError as training would.
    """
    if not path.is_file():
        raise DataError(f"{path} is no file: --tokens shows the rows of a config's data, or of a file of data")
    tables: dict[str, dict[str, object]] = {name: {} for name in _PARTS}
    if path.suffix == ".toml":
        values = ConfigDocument.from_file(read_toml(path), []).values
        tables |= {name: table for name in _PARTS if isinstance(table := values.get(name), dict)}
    else:
        tables["task"] = {"source": str(path)}
    if model:
        tables["model"] = {"path": model}
    return rows_of_tables(tables, path, count)


def rows_of_tables(tables: Mapping[str, Any], path: Path, count: int) -> _ShownRows:
    """The same of the tables `model`, `task` and `data` of a config, which `path` names in errors."""
    tables = {name: table if isinstance(table := tables.get(name), dict) else {} for name in _PARTS}
    if not tables["model"] or not tables["task"].get("source"):
        raise ConfigError(f"{path}: tokens need a model and a file of data; hone show takes the model by --model DIR")
    known = set(TaskConfig.model_fields)
    try:
        task = TaskConfig.model_validate({name: value for name, value in tables["task"].items() if name in known})
        source, data = ModelSource.model_validate(tables["model"]), DataConfig.model_validate(tables["data"])
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"{path}: {key}: {fault['msg']}; hone plan {path} checks the whole config") from None
    if task.is_generated or task.is_captured:
        raise ConfigError(f"task.source = {task.source!r} is no file of data, whose rows --tokens could show")
    kind = dataset_kind(task.source, task.columns)
    examples = read_examples(task.source, need=kind, columns=task.columns, on_bad_row=task.on_bad_row)
    chat = bool(task.chat or task.system) or any(example.is_conversation for example in examples.rows)
    tokenizer, _ = open_tokenizer(source, chat=chat)
    tokenizer = task_tokenizer(task, tokenizer, UserCodeConfig())
    encoder = TurnEncoder(tokenizer, data.train_on)
    first = ExampleDataset(rows=examples.rows[:count], source=examples.source, fingerprint=examples.fingerprint)
    encoded = first.apply(lambda example: _encode(example, task, encoder))
    rows = [
        (f"row {example.row} (id {example.id}){name}: {len(row.tokens)} tokens, {len(row.at)} trained", row)
        for example, answers in zip(first.rows, encoded, strict=True)
        for name, row in answers
    ]
    notes = [*examples.warnings, *chat_notes(task, examples, tokenizer), *template_findings(tokenizer, first, task)]
    notes += encoder.remarks(len(rows))
    shown = tuple((title, tuple(token_spans(row, tokenizer))) for title, row in rows)
    return _ShownRows(rows=shown, notes=tuple(dict.fromkeys(notes)))


def _encode(example: Example, task: TaskConfig, encoder: TurnEncoder) -> list[tuple[str, AnswerTokens]]:
    """Rows of an example, each with a name where there are several."""
    asked = asked_row(task, example.prompt, example.columns, encoder.tokenizer)
    prompt, encoder = asked.content, replace(encoder, tokenizer=asked.tokenizer)
    if example.answers:
        scored = [(f", score {one.score:g}", encoder.answer_row(prompt, one.content)) for one in example.answers]
        return scored if len(scored) > 1 else [("", scored[0][1])]
    if example.completion is not None:
        rows = encoder.rows(prompt, example.completion)
        return [(f", part {n}" if len(rows) > 1 else "", row) for n, row in enumerate(rows, start=1)]
    return [("", row_answer(asked.tokens, np.zeros(0, np.int64)))]
