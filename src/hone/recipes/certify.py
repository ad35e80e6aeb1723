"""Complete gradient certificate of a config or a run, including real data-parallel ranks.

Belongs here: a reduced config (a small model of the same family, no evaluation), built as a run builds it, so that
loss, credit, aggregation and corrections are the config's own.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from hone.certify.check import build_certificate, check_prefix, compare_gradients, gradient_in_rank_order
from hone.certify.job import job_gradient_probes
from hone.certify.token_probes import shrunken_model_config, shrunken_new_model
from hone.core.config import STAGE_PREFIX, Config
from hone.core.errors import DataError
from hone.models.language.hf_checkpoint import read_config
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.recipes.data_parallel_check import gradients_over_ranks
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig
from hone.run.run import prepare_device
from hone.run.saved_config import config_tree, policy_folder
from hone.run.store.records import GradientCertificate
from hone.text.evaluate.open_policy import ModelSource, load_policy_tokenizer
from hone.text.open_text import LanguageRunConfig
from hone.text.rl import TextRunConfig

C = TypeVar("C", bound=RunConfig)

CHECKED_RANKS = 2
TASK_EXAMPLES = 64
"""Number of examples of a generated task; their content has no effect."""


def certify(config: RunConfig, *, config_hash: str) -> GradientCertificate | None:
    """Make the certificate of the loss of `config`; None without a gradient learner.

    Raises HoneError for every reason why a run could not start.
    """
    with tempfile.TemporaryDirectory(prefix="hone-stand-in-") as name:
        light = scaled_down_config(config, Path(name))
        prepare_device(light)
        job = load_recipe(light.recipe).build(light)
        try:
            probes = job_gradient_probes(job, light, own_credit=True)
        finally:
            job.close()
        if not probes:
            return None
        summed = gradients_over_ranks(light, ranks=CHECKED_RANKS)
    checks = [
        compare_gradients(
            f"{check_prefix(trial, probes)}{CHECKED_RANKS} ranks over gloo",
            f"{CHECKED_RANKS} processes that weight, select and sum together",
            gradient_in_rank_order(trial, ranks=CHECKED_RANKS),
            summed[trial.name],
        )
        for trial in probes
    ]
    return build_certificate(probes, recipe=config.recipe, config_hash=config_hash, extra_checks=checks)


def scaled_down_config(config: C, folder: Path) -> C:
    """Reduce a config to one CPU thread, a small model of the same family (saved in `folder` if needed) and no
    evaluation of text."""
    changes: dict[str, Config | None] = {"run": config.run.model_copy(update={"device": "cpu", "threads": 1})}
    if isinstance(config, LanguageRunConfig | TextRunConfig):
        changes |= {"model": _scaled_down_source(config.model, folder), "evaluation": None}
        if config.task.is_generated:
            changes["task"] = config.task.model_copy(update={"size": min(config.task.size, TASK_EXAMPLES)})
    return config.model_copy(update=changes)


def _scaled_down_source(model: ModelSource, folder: Path) -> ModelSource:
    if model.new is not None:
        return ModelSource(new=shrunken_new_model(model.new), compute="float32")
    assert model.path is not None
    place = policy_folder(Path(model.path))
    tokenizer = load_policy_tokenizer(place)
    TokenPolicy(new_model(shrunken_model_config(read_config(place)), seed=0), tokenizer).save(folder)
    return ModelSource(path=str(folder), compute="float32")


def with_stage_models(configs: Sequence[C]) -> list[C]:
    """Give each stage of a pipeline the model of the stage that it starts from, so that no stage must be run."""
    models: dict[str, ModelSource] = {}
    staged: list[C] = []
    for config in configs:
        if isinstance(config, LanguageRunConfig | TextRunConfig):
            model = config.model
            origin = models.get((model.path or "").removeprefix(STAGE_PREFIX))
            if origin is not None and model.path is not None and model.path.startswith(STAGE_PREFIX):
                model = origin
                config = config.model_copy(update={"model": model})
            models[config.name] = model
        staged.append(config)
    return staged


def config_of_run(folder: Path) -> RunConfig:
    """Read the config of a run. Raises DataError if this version of hone cannot read it."""
    tree = config_tree(folder)
    try:
        return load_recipe(str(tree.get("recipe"))).config.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise DataError(f"{folder}: this version of hone cannot run its config: {error}") from error
