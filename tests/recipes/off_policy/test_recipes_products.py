"""learner.products = "bfloat16": a run with rounded products learns by other bits, and resumes to the bit."""

from pathlib import Path
from typing import Any

import pytest
from control_runs import StepRecorder

from hone.core.errors import ConfigError
from hone.models.native.perceptron import supports_bfloat16
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

BOX = {"env": {"id": "Pendulum-v1"}, "network": {"hidden": [32, 32]}, "replay": {"warmup": 40, "batch": 40}}
RUNS: dict[str, dict[str, Any]] = {
    "sac": BOX,
    "td3": BOX,
    "dqn": {
        "env": {"id": "CartPole-v1"}, "network": {"hidden": [32, 32], "layer_norm": False},
        "replay": {"warmup": 40, "batch": 40, "collect": 4}, "learner": {"updates_per_iteration": 2},
    },
}  # fmt: skip


def job_of(recipe: str, products: str = "bfloat16", **more: Any) -> TrainingJob[Any]:
    given = {**RUNS[recipe], **more}
    given["learner"] = {**given.get("learner", {}), "products": products}
    config = load_recipe(recipe).config.model_validate({**given, "recipe": recipe, "name": "x", "steps": 8})
    opened = config.open()
    try:
        return opened.build(config)
    except ConfigError:
        opened.close()
        raise


@pytest.mark.skipif(not supports_bfloat16(), reason="takes a processor with AVX-512 BF16 or AMX, and a compiler")
@pytest.mark.parametrize("recipe", list(RUNS))
def test_a_run_of_rounded_products_resumes_to_the_bit(recipe: str, tmp_path: Path) -> None:
    whole, first, second, exact = job_of(recipe), job_of(recipe), job_of(recipe), job_of(recipe, "float32")
    here, there, other = StepRecorder(), StepRecorder(), StepRecorder()
    train(whole.recipe, steps=8, callback=here)
    train(exact.recipe, steps=8, callback=other)
    train(first.recipe, steps=4, callback=there)
    first.save_policy(tmp_path)
    second.load_policy(tmp_path)
    second.recipe.learner.restore(first.recipe.learner.state())
    second.recipe.source.restore(first.recipe.source.state())
    train(second.recipe, steps=8, callback=there, first_step=5)
    assert here.lines == there.lines
    assert here.lines != other.lines
    for job in (whole, first, second, exact):
        job.close()


def test_a_network_that_would_not_round_is_refused_with_the_keys() -> None:
    with pytest.raises(ConfigError, match=r"network\.layer_norm = false.*network\.hidden"):
        job_of("dqn", network={"hidden": [32, 32]})
