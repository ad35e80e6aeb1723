"""Every recipe on text: it runs the parts that it declares, a resume is bitwise the straight run, and it learns."""

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from pydantic import ValidationError
from recipe_runs import files, job_of, lay_out, restored, saved, scores_of, settings, text_recipes

from hone.recipes.registry import load_recipe
from hone.run.job import RecipeParts
from hone.text.rl import require_groups, require_on_policy

RECIPES = text_recipes()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def teach(place: Path, *, steps: int = 25) -> None:
    """A teacher that knows the answers, for the recipe that needs one."""
    teacher = job_of("grpo", settings("grpo", steps=steps, full=False))
    scores_of(teacher, steps=steps)
    (place / "teacher").mkdir()
    teacher.save_policy(place / "teacher")


def called(run: Callable[[], Any]) -> set[CodeType]:
    """The code of every Python function that `run` calls."""
    found: set[CodeType] = set()

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def declared(parts: RecipeParts) -> dict[str, CodeType]:
    """The code of each part; of a class, of its instances' call."""
    functions = [*parts.credit, *parts.loss, *parts.weights]
    return {
        part.__name__: (part.__call__ if isinstance(part, type) else part).__code__  # type: ignore[attr-defined]
        for part in functions
    }


@pytest.mark.parametrize("name", RECIPES)
def test_it_runs_what_it_declares_and_a_resume_is_the_same_run(name: str, place: Path) -> None:
    if name == "on_policy_distillation":
        teach(place, steps=1)
    tables = settings(name, steps=3)
    straight = job_of(name, tables)
    code = called(lambda: scores_of(straight, steps=3))
    saved(straight, place / "straight")
    assert [part for part, body in declared(load_recipe(name).parts).items() if body not in code] == []
    halfway = job_of(name, tables)
    scores_of(halfway, steps=2)
    saved(halfway, place / "halfway")
    resumed = restored(job_of(name, tables), place / "halfway")
    scores_of(resumed, steps=3, first=3)
    saved(resumed, place / "resumed")
    assert files(place / "resumed") == files(place / "straight")
    assert files(place / "halfway") != files(place / "straight"), "the third step must have moved something"


LEARNED = 0.25
"""The rise of the mean score (0 to 1) over 25 steps that is asked for; the least that was seen is 0.3."""


OTHER_WIRING = {"dppo", "on_policy_distillation", "ppo_text", "self_correction", "trpo_text", "online_dpo"}
"""Recipes with a config union, a check or a learner of their own."""


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in OTHER_WIRING])
def test_a_recipe_file_has_at_most_six_imports(name: str) -> None:
    tree = ast.parse(inspect.getsource(sys.modules[load_recipe(name).config.__module__]))
    assert sum(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)) <= 6


def test_parts_are_read_from_the_method() -> None:
    """Through closures, helpers, partials and tables of alternatives; estimators and sums of terms are no parts."""
    made = {name: load_recipe(name).parts.describe() for name in ("dapo", "gspo", "kl_cov", "reinforce")}
    assert made == {
        "dapo": "DynamicSampling(Live(text task, engine)) -> with_shaped_scores(overlong_penalty(group_relative)) -> "
        "clipped_surrogate + kl_penalty + entropy_bonus, token_mean",
        "gspo": "Live(text task, engine) -> group_relative -> gspo + kl_penalty + entropy_bonus, sequence_mean",
        "kl_cov": "Live(text task, engine) -> group_relative -> kl_cov_mask + kl_cov, token_mean",
        "reinforce": "Live(text task, engine) -> KlRewardCredit(batch_relative) -> reinforce_loss, sequence_sum",
    }


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one == "trpo_text" else ()) for one in RECIPES]
)
def test_it_learns(name: str, place: Path) -> None:
    """Four questions with one right letter of five each, in a run of half a second."""
    if name == "on_policy_distillation":
        teach(place)
    # the punishment of long answers begins one token before the limit: there must be room for a letter and an end
    longer = {"max_tokens": 4 if name == "dapo" else 2}
    scores = scores_of(job_of(name, settings(name, steps=25, full=False, rollout=longer)), steps=25)
    assert sum(scores[-3:]) / 3 - sum(scores[:3]) / 3 > LEARNED


@pytest.mark.parametrize("name", RECIPES)
def test_it_says_what_it_is(name: str) -> None:
    entry = load_recipe(name)
    assert entry.parts.source and entry.parts.credit and entry.parts.loss and entry.parts.weights
    assert entry.summary and entry.paper and entry.limitation.endswith(".")
    assert entry.config.__doc__


@pytest.mark.parametrize("name", [name for name in RECIPES if load_recipe(name).config.requires])
def test_one_answer_to_compare_is_refused(name: str) -> None:
    """By the recipes that compare answers; the others need none."""
    config = load_recipe(name).config
    one = settings(name, steps=3, rollout={"samples_per_prompt": 1})
    if require_groups in config.requires:
        with pytest.raises(ValidationError, match=r"rollout.samples_per_prompt"):
            config.model_validate(one)
    else:
        config.model_validate(one)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("rloo", {"learner": {"minibatches": 2}}, r"learner.epochs x learner.minibatches = 2.*no ratio"),
        ("gpg", {"learner": {"epochs": 3}}, r"learner.epochs x learner.minibatches = 3"),
        ("passk", {"algorithm": {"k": 9}}, r"samples_per_prompt = 8 is less than algorithm.k = 9"),
        ("pkpo", {"algorithm": {"k": 1}}, r"algorithm.k = 1 .*minus_one"),
        ("pkpo", {"algorithm": {"k": 8, "baseline": "leave_one_out"}}, r"needs at least 9"),
        (
            "grpo",
            {"algorithm": {"advantage": {"compare": "turn", "scale": "none", "center": "batch"}}},
            r"leave center = 'batch', scale = 'none' out",
        ),
        ("gigpo", {"algorithm": {"discount": 1.5}}, r"algorithm.discount"),
        ("decoupled_ppo", {"learner": {"ratio": {"correction": "icepop"}}}, r"algorithm.weight_cap"),
        ("decoupled_ppo", {"learner": {"ratio": {"denominator": "recorded"}}}, r"learner.ratio.denominator"),
        ("dppo", {"learner": {"ratio": {"correction": "icepop"}}}, r"twice is wrong"),
        (
            "ppo_text",
            {"algorithm": {"critic": {"warmup_steps": 3}}},
            r"warmup_steps = 3 of steps = 3.*never be trained",
        ),
        (
            "ppo_text",
            {"algorithm": {"critic": {"loss": {"kind": "sigmoid", "low": 1.0}}}},
            r"low = 1 is not below high",
        ),
        ("trpo_text", {"model": {"compute": "auto"}}, r'set model.compute = "float32"'),
        ("trpo_text", {"rollout": {"max_staleness": 1}}, r"rollout.max_staleness = 1.*leave it out"),
        ("opo", {"rollout": {"max_staleness": 1}}, r"rollout.max_staleness = 1.*no ratio"),
        ("grpo", {"algorithm": {"kl_estimator": "k1"}}, r"expected gradient of logp - logp_ref is 0"),
        ("grpo", {"algorithm": {"clip_low": 1.5}}, r"algorithm.clip_low"),
        ("cispo", {"algorithm": {"ratio_cap": 0.0}}, r"algorithm.ratio_cap"),
        ("rloo", {"algorithm": {"kl_in_reward": {"kind": "adaptive", "target_nats": 0.0}}}, r"target_nats"),
    ],
)
def test_configs_that_cannot_be_meant_are_refused_with_their_keys(name, changes, said) -> None:
    with pytest.raises(ValidationError, match=said):
        load_recipe(name).config.model_validate(settings(name, steps=3, full=False, **changes))


def test_what_has_no_published_default_is_asked_for() -> None:
    for name, key in (("dro", "beta"), ("passk", "k"), ("pkpo", "k"), ("on_policy_distillation", "teacher")):
        tables = settings(name, steps=3, full=False)
        del tables["algorithm"][key]
        with pytest.raises(ValidationError, match=rf"algorithm.{key}\n  Field required"):
            load_recipe(name).config.model_validate(tables)


OTHER: dict[str, Any] = {
    "clip_low": 0.01, "clip_high": 0.01, "kl": 0.5, "entropy": 0.3, "kl_estimator": "k2", "scale": "none",
    "aggregation": "token_sum", "advantage": {"scale": "none", "center": "batch"},
    "negative_cap": 1.28, "baseline": "none", "norm": 3.0, "overlong_share": 0.0, "max_rounds": 1,
    "ratio_cap": 1.01, "ratio_floor": 0.99, "positive_steepness": 9.0, "negative_steepness": 9.0, "log_low": 0.01,
    "log_high": 0.01, "beta": 5.0, "positive_power": 0.1, "positive_rate": 9.0, "negative_power": 0.1,
    "negative_rate": 9.0, "share": 0.9, "above": -9.0, "below": 0.05, "penalty": 9.0, "max_second_moment": 1e-5,
    "max_nats": 1e-4, "trust": {"kind": "tv", "max_increase": 1e-4}, "likeliest": 2, "fork_share": 0.1,
    "mix": 0.9, "boost": 9.0, "weight_cap": 0.5, "k": 3, "threshold": 2.0, "weight": 0.1,
    "estimator": {"kind": "maclaurin", "terms": 8}, "ratio_level": "sequence", "entropy_share": 0.3, "ddof": 0,
    "epsilon": 0.5, "over": "decisions", "whiten": "answers", "whiten_rewards": "standardise", "weight_floor": 1.05,
    "region": {"max_kl_nats": 0.1}, "gae": {"policy_lambda": 0.0}, "critic": {"lr": 0.5},
    "divergence": {"kind": "jsd"},
    "correction": {"nudge": "e", "first_stage_steps": 3},
    "kl_in_reward": {"kind": "fixed", "weight": 0.5}, "step_weight": 9.0,
}  # fmt: skip
"""Another value for each key of an algorithm."""
OWN: dict[tuple[str, str], Any] = {
    ("luspo", "clip_low"): 0.9,
    ("gspo", "negative_cap"): 1.0005,
    ("gspo_token", "negative_cap"): 1.0005,
    ("luspo", "negative_cap"): 1.003,
    ("pkpo", "baseline"): "leave_one_out",
    ("ppo_text", "whiten"): "none",
    ("gigpo", "scale"): "none",
}
"""Where a recipe's key takes other values than its namesakes."""
NO_EFFECT = {
    "micro_batch_tokens", "teacher", ("passk_best", "clip_low"), ("passk_best", "negative_cap"), ("gigpo", "discount"),
}  # fmt: skip
"""Memory only; the teacher, which has a test of its own; where no advantage is ever negative; and answers of one turn,
which have no later one."""
FIRST: dict[str | tuple[str, str], dict[str, Any]] = {
    ("pkpo", "clip_low"): {"baseline": "leave_one_out"},  # else no advantage is negative
    ("pkpo", "negative_cap"): {"baseline": "leave_one_out"},
    ("rloo", "epsilon"): {"whiten": "answers"},
    "kl_estimator": {"kl": 0.5},
    "above": {"share": 0.9},
    "below": {"share": 0.9, "above": -9.0},
    "boost": {"fork_share": 0.1},
    "mix": {"fork_share": 0.1},
}
"""What has to be set for a key to matter."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if "algorithm" in load_recipe(name).config.model_fields])
def test_every_key_of_an_algorithm_is_live(name: str, place: Path) -> None:
    """Another value makes another policy: no key is accepted and then forgotten."""
    if name == "on_policy_distillation":
        teach(place, steps=1)
    config = load_recipe(name).config
    shape = {} if "learner" not in config.model_fields or require_on_policy in config.requires else {"epochs": 4}
    length = {"max_tokens": 4}

    def policy_with(algorithm: dict[str, Any], folder: str) -> dict[str, bytes]:
        tables = settings(
            name, steps=4, full=False, rollout=length, **({"learner": shape} if shape else {}),
            **({"algorithm": algorithm} if algorithm else {}),
        )  # fmt: skip
        job = job_of(name, tables)
        scores_of(job, steps=4)
        (place / folder).mkdir()
        job.save_policy(place / folder)
        return files(place / folder)

    dead: list[str] = []
    for key in config.model_fields["algorithm"].annotation.model_fields:
        if NO_EFFECT & {key, (name, key)}:
            continue
        first = FIRST.get((name, key), FIRST.get(key, {}))
        before = policy_with(first, f"before_{key}")
        if policy_with({**first, key: OWN.get((name, key), OTHER[key])}, f"after_{key}") == before:
            dead.append(key)
    assert dead == []
