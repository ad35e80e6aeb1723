"""The evaluation of a saved policy: its run's, or another that a user asks for.

Belongs here: problems, rewards and limits, from the run's config and the request. `checkpoint.py` evaluates.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hone.core.errors import ConfigError, DataError
from hone.core.strict_json import Json
from hone.run.saved_config import config_tree, table_of
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.evaluate.evaluation_request import OWN_SEARCH, OWN_TASK, EvaluationTask, SearchOptions
from hone.text.evaluate.text_eval import EvaluationConfig
from hone.text.tasks.reasoning_gym import PREFIX
from hone.text.tasks.task import TaskConfig

FRESH_SEED_OFFSET = 1 << 29
"""Added to the seed of an evaluation on other problems than the run's own."""
DEFAULT_MAX_TOKENS = 256


def evaluation_config(
    run: Path | None, asked: EvaluationTask, *, problems: int, seed: int, search: SearchOptions = OWN_SEARCH
) -> EvaluationConfig:
    """The evaluation of a run's `[evaluation]`, with the task and rewards that were `asked` for in place of its own.

    A run without `[evaluation]`, and a policy outside a run, can be asked for any task: rewards and limits are those
    of the run's training, and the task's own scorer where there are none. With `seed` 0 the problems are the run's own;
    another seed makes other problems, or selects others from a file.

    Raises ConfigError if no task or no reward is known, DataError for a config that this version cannot read.
    """
    tree = {} if run is None else config_tree(run)
    given = tree.get("evaluation")
    own = cast("dict[str, Json]", given) if isinstance(given, dict) else {}
    if not own and not asked.task:
        where = "the policy is not in a run" if run is None else f"{run} was trained without [evaluation]"
        raise ConfigError(f"{where}: name problems with --task FILE, or --task chain_sum (a reasoning-gym task)")
    fields = {
        **own,
        "task": _task(own, tree, asked, problems),
        "rewards": _rewards(own, tree, asked),
        "max_tokens": asked.max_tokens or own.get("max_tokens") or table_of(tree, "rollout").get("max_tokens"),
    }
    fields["max_tokens"] = fields["max_tokens"] or DEFAULT_MAX_TOKENS
    if search != OWN_SEARCH:
        fields["search"] = {**table_of(own, "search"), **search.fields()}
    try:
        config = EvaluationConfig.model_validate(fields)
    except ValidationError as error:
        if search != OWN_SEARCH and all(one["loc"][:1] == ("search",) for one in error.errors()):
            raise ConfigError(*(_search_fault(one) for one in error.errors())) from None
        if asked == OWN_TASK and run is not None:
            raise DataError(f"{run / 'config.json'}: the evaluation table cannot be read: {error}") from None
        raise ConfigError(*(f"--task {asked.task}: {one['msg']}" for one in error.errors())) from None
    fresh = FRESH_SEED_OFFSET + seed if seed else 0
    task = config.task.model_copy(update={"size": problems, "seed": config.task.seed + fresh})
    return config.model_copy(update={"task": task})


def _search_fault(error: ErrorDetails) -> str:
    """A fault of the search that was asked for: the option or key, and what is wrong."""
    _, *place = error["loc"]
    message = error["msg"].removeprefix("Value error, ")
    if place[:1] == ["plans"]:
        return f"--search: {'at least one plan is needed' if error['type'] == 'missing' else message}"
    return f"search{''.join(f'.{part}' for part in place)}: {message}"


def prompt_task(run: Path | None) -> tuple[TaskConfig | None, int]:
    """Template of the prompts that a run was evaluated or trained with, and its limit of tokens."""
    tree = {} if run is None else config_tree(run)
    own = table_of(tree, "evaluation")
    task = own.get("task") or tree.get("task")
    limit = own.get("max_tokens") or table_of(tree, "rollout").get("max_tokens")
    template = DialogueTaskConfig.model_validate(task) if isinstance(task, dict) else None
    return template, limit if isinstance(limit, int) else DEFAULT_MAX_TOKENS


def _task(own: Mapping[str, Json], tree: Mapping[str, Json], asked: EvaluationTask, problems: int) -> Json:
    if not asked.task:
        return own.get("task")
    known = own.get("task") or tree.get("task")
    before = cast("dict[str, Json]", known) if isinstance(known, dict) else {}
    if before.get("source") == asked.source:
        return before
    template = str(before.get("template", "{prompt}"))
    plain = template.count("{") == template.count("{prompt}")  # other columns belong to the other task
    return {"source": asked.source, "size": problems, "template": template if plain else "{prompt}"}


def _rewards(own: Mapping[str, Json], tree: Mapping[str, Json], asked: EvaluationTask) -> Json:
    """The rewards that were asked for, else those of the evaluation, of the training, or of the task itself."""
    known = own.get("rewards") or tree.get("rewards")
    table = cast("dict[str, Json]", known) if isinstance(known, dict) else {}
    if asked.rewards:
        return {**table, "functions": [{"use": name} for name in asked.rewards]}
    made = asked.source.startswith(PREFIX)
    changed = asked.task and made and asked.source != table_of(own or tree, "task").get("source")
    if changed or (not table and made):
        return {**table, "functions": [{"use": "reasoning_gym"}]}
    if not table:
        raise ConfigError(f"--task {asked.task}: name the rewards: --rewards exact_match, --rewards file.py:name")
    return table
