"""`[learner]` with one key changes that key of the recipe's own default and no other: every table of every recipe."""

import pytest
from pydantic import BaseModel

from hone.core.config import fill_defaults
from hone.recipes.registry import load_recipe, recipe_names


def test_a_recipe_has_defaults_that_a_plain_table_would_lose() -> None:
    """Else nothing is tested below."""
    default = load_recipe("sac").config.model_fields["replay"].default
    learner = load_recipe("a2c").config.model_fields["learner"].default
    assert (default.batch, learner.max_grad_norm) != (0, type(learner)(lr=1).max_grad_norm)


@pytest.mark.parametrize("recipe", recipe_names())
def test_one_key_of_a_table_leaves_the_others_as_the_recipe_has_them(recipe: str) -> None:
    config = load_recipe(recipe).config
    for table, field in config.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if not isinstance(default, BaseModel):
            continue
        for key, value in default.model_dump().items():
            filled = fill_defaults(config, {table: {key: value}})[table]
            got = type(default).model_validate(filled)
            assert got == default, f"[{table}] {key} = {value} lost something"
