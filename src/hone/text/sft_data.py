"""Examples to imitate: a dataset's completions, or answers worked out from what a task knows of itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.errors import DataError
from hone.models.language.tokenizers import Tokenizer
from hone.rewards.solutions import check_solution, run_solutions
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.files import MAX_FAULTS_SHOWN
from hone.text.tasks.row_checks import PromptContent
from hone.text.tasks.task import TaskConfig

Tokens = NDArray[np.int32]
ExampleTokens: TypeAlias = tuple[list[Tokens], list[Tokens]]
"""Prompts and completions as tokens."""


class SolutionConfig(Config):
    """Function that makes completions for prompts without one."""

    use: str
    """`path/to/file.py:name`: a function f(prompt, **columns) -> str, called by the names of its parameters."""
    deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that it may take for the whole dataset."""


def solved_examples(
    task: TaskConfig, solution: SolutionConfig | None, *, apart_from: Sequence[ExampleDataset] = ()
) -> ExampleDataset:
    """The task's examples, each with a completion. Raises ConfigError, DataError or UserCodeError."""
    if solution is None:
        examples = task.examples(need="prompt-completion", exclude=apart_from)
        if any(example.completion is None for example in examples):
            raise DataError(f"{task.source} has no completions to imitate; give [solution] use = 'file.py:function'")
        return examples
    check_solution(solution.use)
    examples = task.examples(exclude=apart_from)
    rows = [{"prompt": example.prompt, **example.columns} for example in examples]
    completions = run_solutions(solution.use, rows, deadline_s=solution.deadline_s)
    drafts = [
        replace(example, completion=completion) for example, completion in zip(examples, completions, strict=True)
    ]
    return build_examples(drafts, source=f"{examples.source}, worked by {solution.use}", warnings=examples.warnings)


def encode_examples(
    examples: ExampleDataset, task: TaskConfig, tokenizer: Tokenizer, *, context: int
) -> tuple[ExampleTokens, list[str]]:
    """Prompts and completions as tokens, and warnings; the end of sequence is part of a completion.

    Raises DataError naming the examples that do not fit in the `context`, unless `task.on_long_prompt` says what to do
    with them; an answer is never cut.
    """
    pairs = examples.apply(lambda example: _encode(example, task, tokenizer))
    sizes = [len(prompt) + len(completion) for prompt, completion in pairs]
    long = [f"{example.id} ({size} tokens)" for example, size in zip(examples, sizes, strict=True) if size > context]
    notes: list[str] = []
    if long:
        cut = task.on_long_prompt == "truncate"
        kept = [pair for pair in pairs if (len(pair[1]) if cut else len(pair[0]) + len(pair[1])) <= context]
        said = (
            f"{examples.source}: {len(long)} of {len(examples)} examples are longer than the model's context of "
            f"{context} tokens: {', '.join(long[:MAX_FAULTS_SHOWN])}{', ...' if len(long) > MAX_FAULTS_SHOWN else ''}"
        )
        if task.on_long_prompt == "error" or not kept:
            raise DataError(
                f'{said}; shorten them, take a model with more positions, or set task.on_long_prompt = "drop"'
            )
        dropped = len(pairs) - len(kept)
        notes = [f"{said} ({len(long) - dropped} prompts lost their beginnings, {dropped} examples dropped)"]
        pairs = [(prompt[max(0, len(prompt) + len(answer) - context) :], answer) for prompt, answer in kept]
    return ([prompt for prompt, _ in pairs], [completion for _, completion in pairs]), notes


def _encode(example: Example, task: TaskConfig, tokenizer: Tokenizer) -> tuple[Tokens, Tokens]:
    assert example.completion is not None
    return encode_answer(task.fill_template(example.prompt, example.columns), example.completion, tokenizer)


def encode_answer(prompt: PromptContent, completion: PromptContent, tokenizer: Tokenizer) -> tuple[Tokens, Tokens]:
    """Tokens of a question, and of its answer with the end of sequence; messages go through the chat template.

    Raises DataError for a template that writes the question differently once an answer follows.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        said = np.append(tokenizer.encode(completion), np.int32(tokenizer.eos_id))
        return tokenizer.encode(prompt), said.astype(np.int32)
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    asked = tokenizer.apply_chat(turns)
    whole = tokenizer.apply_chat([*turns, *answer], add_generation_prompt=False)
    if not np.array_equal(whole[: len(asked)], asked):
        raise DataError(
            "the chat template writes the prompt differently once an answer follows, so the answer's tokens cannot be "
            "told apart; use a template that only appends"
        )
    return asked, whole[len(asked) :]
