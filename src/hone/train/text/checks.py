"""Checks of a text config before a run: model, tokenizer, data and rewards fit each other."""

from collections.abc import Callable
from functools import cache, partial

from hone.core.errors import run_all_checks
from hone.envs.text.dataset import ExampleDataset, find_overlap
from hone.evaluate.text.open_policy import ModelSource, open_tokenizer
from hone.evaluate.text.text_eval import EvaluationConfig, prepare_evaluation
from hone.models.language.tokenizers import Tokenizer
from hone.rewards.config import RewardsConfig
from hone.rewards.workers import check_functions

STAGE_PREFIX = "stage:"
"""A model path `stage:NAME` means the policy that an earlier stage of the same pipeline leaves behind."""


def check_text(
    model: ModelSource,
    examples: Callable[[], ExampleDataset],
    check_lengths: Callable[[ExampleDataset, Tokenizer, int], list[str]],
    *,
    evaluation: EvaluationConfig | None,
    rewards: RewardsConfig | None = None,
) -> list[str]:
    """Everything that can be known to be wrong before a model is loaded, at once; returns warnings.

    `fitting` lays the examples out in a context of so many tokens, and returns its own warnings. What depends on
    something that cannot be read says nothing of its own: its fault is said once.
    """
    read = cache(examples)
    opened = cache(partial(open_tokenizer, model))
    known = model.path is None or not model.path.startswith(STAGE_PREFIX)  # else the folder is not there yet
    checks: dict[str, Callable[[], list[str]]] = {"train": lambda: list(read().warnings)}
    if known:
        checks["model"] = lambda: _end_of_text_warnings(opened()[0])
        checks["fits"] = lambda: check_lengths(read(), *opened())
    if evaluation is not None:
        held_out = cache(evaluation.task.examples)
        checks["evaluation"] = lambda: [*held_out().warnings, *_overlap_warnings(read(), held_out(), evaluation)]
        if known:
            checks["asked"] = lambda: prepare_evaluation(evaluation, opened()[0], context=opened()[1]).warnings
        checks["judged by"] = lambda: _usable_rewards(evaluation.rewards, held_out())
    if rewards is not None and (evaluation is None or rewards != evaluation.rewards):  # starting a process takes time
        checks["rewards"] = lambda: _usable_rewards(rewards, read())
    return list(dict.fromkeys(warning for found in run_all_checks(checks).values() for warning in found))


def _usable_rewards(rewards: RewardsConfig, examples: ExampleDataset) -> list[str]:
    check_functions(rewards, examples.column_names())
    return []


def _overlap_warnings(train: ExampleDataset, held_out: ExampleDataset, evaluation: EvaluationConfig) -> list[str]:
    """Warns of prompts that are in both sets; a generated training set leaves the held-out ones out later."""
    both = find_overlap(train, held_out)
    if evaluation.task.is_generated or not both.count:
        return []
    return [f"{both.count} prompts stand in the training and in the evaluation set: {', '.join(both.ids[:5])}"]


def _end_of_text_warnings(tokenizer: Tokenizer) -> list[str]:
    if tokenizer.pad_id not in tokenizer.eos_ids:
        return []
    return ["the tokenizer pads with its end of text; hone masks by length, so the end of text is learned all the same"]
