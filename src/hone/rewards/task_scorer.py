"""The scorer of a reasoning-gym task. Imported by workers only: reasoning-gym takes 2 s to import."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from reasoning_gym.factory import create_dataset

from hone.process.wire import decode, encode
from hone.rewards.functions import completion_text, extract_answer

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset


def reasoning_gym(  # noqa: PLR0913 - the columns of its examples, by name
    completion: object,
    question: str,
    answer: object,
    metadata: Mapping[str, object],
    task: str,
    task_config: Mapping[str, object],
    pattern: str = "",
    full_marks_only: bool = False,  # noqa: FBT001, FBT002 - passed by name from the config's options
) -> float:
    """The task's own score of the answer that `extract_answer(completion, pattern)` finds, in [0, 1].

    Many tasks give partial credit, and some of it is for length only: chain_sum gives a wrong answer that contains
    the right one `len(right) / len(answer)`. `full_marks_only` turns everything below 1 into 0.
    """
    extracted = extract_answer(completion_text(completion), pattern)
    entry = {"question": question, "answer": answer, "metadata": metadata}
    score = float(_scorer(task, encode(task_config)).score_answer(extracted, entry))
    return float(score >= 1.0) if full_marks_only else score


@lru_cache(maxsize=64)
def _scorer(task: str, config: bytes) -> "ProceduralDataset":
    """The task's dataset object, which holds its scorer; its items are never drawn here."""
    settings = cast("dict[str, object]", decode(config))
    return create_dataset(task, **{**settings, "seed": 0, "size": 1})
