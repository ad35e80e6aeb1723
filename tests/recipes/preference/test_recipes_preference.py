"""Every recipe of preferences: it runs the parts that it declares, a resume is bitwise the straight run, it learns."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from recipe_runs import files, job_of, restored, saved

from hone.core.errors import ConfigError, DataError
from hone.recipes.registry import OTHER_NAMES, load_recipe, recipe_names
from hone.run.job import RecipeParts, TrainingJob
from hone.run.loop import train
from hone.text.preference import preference_job
from hone.text.preference.preference_job import KL_TO_START, PreferenceRunConfig

RECIPES = [name for name in recipe_names() if issubclass(load_recipe(name).config, PreferenceRunConfig)]
LOSSES = ("dpo", "conservative", "robust", "ipo", "hinge", "exo", "discopop", "nca", "sppo", "apo_zero", "apo_down")
LOSSES += ("bco_pair", "aot", "aot_unpaired")
MODEL = {
    "compute": "float32",
    "new": {
        "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24,
        "max_positions": 16, "alphabet": "abcde",
    },
}  # fmt: skip
ROWS = {
    "preference": [
        {"prompt": a, "chosen": b, "rejected": c * size}
        for size, (a, b, c) in enumerate(("abc", "bcd", "cda", "dab"), 1)
    ],
    "unpaired": [
        {"prompt": a, "completion": b, "label": good}
        for a, b, c in ("abc", "bcd", "cda", "dab")
        for b, good in ((b, True), (c, False))
    ],
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind, rows in ROWS.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{kind}.jsonl").write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(name: str, *, steps: int, **changes: Any) -> dict[str, Any]:
    kind = load_recipe(name).config.answers
    tables: dict[str, Any] = {
        "recipe": name,
        "name": name,
        "steps": steps,
        "batch": 4,
        "model": MODEL,
        "task": {"source": f"{kind}.jsonl"},
        "learner": {"lr": 0.02, "minibatches": 2},
        "samples": {"prompts": 3, "every": 2},
        "run": {"threads": 1},
    }
    for table, keys in changes.items():
        tables[table] = tables.get(table, {}) | keys
    return tables


def metrics_of(job: TrainingJob[Any], *, steps: int, first: int = 1) -> list[dict[str, float]]:
    """Figures of each step but times, while it trains; every one must be a number."""
    found: list[dict[str, float]] = []

    def report(step: int, episodes: Any, credits: Any, metrics: Mapping[str, float]) -> None:
        told = {**metrics, **job.recipe.source.metrics()}
        assert [name for name, value in told.items() if not np.isfinite(value)] == []
        found.append({name: value for name, value in told.items() if not name.startswith("time/")})

    train(job.recipe, steps=steps, callback=report, first_step=first)
    return found


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
    functions = [*parts.credit, *parts.loss, *parts.weights]
    return {part.__name__: part.__code__ for part in functions}  # type: ignore[attr-defined]


def same_after_resume(name: str, tables: Mapping[str, Any], place: Path) -> list[dict[str, float]]:
    straight = job_of(name, tables)
    told = metrics_of(straight, steps=4)
    saved(straight, place / "straight")
    halfway = job_of(name, tables)
    metrics_of(halfway, steps=2)
    saved(halfway, place / "halfway")
    resumed = restored(job_of(name, tables), place / "halfway")
    assert metrics_of(resumed, steps=4, first=3) == told[2:]
    saved(resumed, place / "resumed")
    assert files(place / "resumed") == files(place / "straight")
    assert files(place / "halfway") != files(place / "straight"), "the last steps must have moved something"
    return told


@pytest.mark.parametrize("name", RECIPES)
def test_it_runs_what_it_declares_and_a_resume_is_the_same_run(name: str, place: Path) -> None:
    tables = settings(name, steps=4)
    code = called(lambda: same_after_resume(name, tables, place))
    assert [part for part, body in declared(load_recipe(name).parts).items() if body not in code] == []


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_on_pairs_resumes_to_the_bit(kind: str, place: Path) -> None:
    told = same_after_resume("dpo", settings("dpo", steps=4, algorithm={"loss": {"kind": kind}}), place)
    assert all(
        {"preference/chosen_nats", "preference/rejected_nats", "preference/margin_nats"} <= set(one) for one in told
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        {"length_normalised": True},
        {"ld_alpha": 0.5},
        {"divergence": {"kind": "forward_kl"}},
        {"divergence": {"kind": "jensen_shannon"}},
        {"divergence": {"kind": "alpha", "alpha": 0.3}},
        {"wpo_cap": 1.0},
    ],
)
def test_every_setting_changes_the_run(algorithm: dict[str, Any], place: Path) -> None:
    plain, changed = (
        metrics_of(job_of("dpo", settings("dpo", steps=3, algorithm=one)), steps=3)[-1]["policy/grad_norm"]
        for one in ({}, algorithm)
    )
    assert plain != changed


@pytest.mark.parametrize("kind", ["kto", "bco", "apo_zero"])
def test_every_loss_on_labelled_answers_resumes_to_the_bit(kind: str, place: Path) -> None:
    same_after_resume("kto", settings("kto", steps=4, algorithm={"loss": {"kind": kind}}), place)


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns(name: str, place: Path) -> None:
    """Four questions with a right and a wrong letter each: the right ones become likelier than the wrong ones."""
    told = metrics_of(job_of(name, settings(name, steps=20)), steps=20)
    margins = [one["preference/chosen_nats"] - one["preference/rejected_nats"] for one in told]
    assert margins[-1] - margins[0] > 1.0
    accuracy = [
        value for metric, value in told[-1].items() if metric in ("preference/accuracy", "reward_model/accuracy")
    ]
    assert len(accuracy) == 1 and accuracy[0] > 0.9


def test_the_distance_is_told_at_the_steps_that_were_asked_for_and_at_the_last(place: Path) -> None:
    told = metrics_of(job_of("dpo", settings("dpo", steps=5)), steps=5)
    assert [KL_TO_START in one for one in told] == [False, True, False, True, True]
    assert told[-1][KL_TO_START] > 0
    none = settings("dpo", steps=2, samples={"prompts": 0})
    assert all(KL_TO_START not in one for one in metrics_of(job_of("dpo", none), steps=2))


def test_no_second_model_is_loaded_for_the_reference(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str | None] = []
    before = preference_job.TextPolicies.frozen

    def counted(self: Any, path: str | None, *, key: str) -> Any:
        opened.append(path)
        return before(self, path, key=key)

    monkeypatch.setattr(preference_job.TextPolicies, "frozen", counted)
    none = settings("dpo", steps=3, samples={"prompts": 0})
    halfway = job_of("dpo", none)
    metrics_of(halfway, steps=2)
    saved(halfway, place / "halfway")
    metrics_of(restored(job_of("dpo", none), place / "halfway"), steps=3, first=3)
    assert opened == []


def test_a_longer_run_asks_the_start_for_what_is_still_unknown(place: Path) -> None:
    """A log of four pairs, two drawn in each of two steps, then resumed for six: the same as six at once."""
    short, long = (settings("dpo", steps=steps, samples={"prompts": 0}) | {"batch": 1} for steps in (2, 6))
    for tables in (short, long):
        tables["learner"] = {"lr": 0.02}
    straight = job_of("dpo", long)
    told = metrics_of(straight, steps=6)
    saved(straight, place / "straight")
    first = job_of("dpo", short)
    metrics_of(first, steps=2)
    saved(first, place / "short")
    resumed = restored(job_of("dpo", long), place / "short")
    later = metrics_of(resumed, steps=6, first=3)
    for one, other in zip(later, told[2:], strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_another_reference_is_compared_with(place: Path) -> None:
    teacher = job_of("dpo", settings("dpo", steps=10))
    metrics_of(teacher, steps=10)
    (place / "teacher").mkdir()
    teacher.save_policy(place / "teacher")
    tables = settings("dpo", steps=4, algorithm={"reference": "teacher"})
    first = metrics_of(job_of("dpo", tables), steps=1)[0]
    assert first["preference/margin_nats"] < -0.5, "the reference already prefers the chosen answers"
    same_after_resume("dpo", tables, place)


def test_a_reference_with_other_tokens_is_refused_before_a_model_is_loaded(place: Path) -> None:
    other = settings("dpo", steps=1)
    other["model"] = {**MODEL, "new": {**MODEL["new"], "alphabet": "abcdefgh"}}
    (place / "other").mkdir()
    job_of("dpo", other).save_policy(place / "other")
    tables = settings("dpo", steps=4, algorithm={"reference": "other"})
    config = load_recipe("dpo").config.model_validate(tables)
    with pytest.raises(DataError, match=r"algorithm.reference = 'other': its tokenizer .* is not the policy's"):
        load_recipe("dpo").check(config)
    missing = load_recipe("dpo").config.model_validate(settings("dpo", steps=4, algorithm={"reference": "nowhere"}))
    with pytest.raises(DataError, match="nowhere"):
        load_recipe("dpo").check(missing)


def test_a_resume_finds_the_same_start_or_stops(place: Path) -> None:
    tables = settings("dpo", steps=4)
    halfway = job_of("dpo", tables)
    metrics_of(halfway, steps=2)
    saved(halfway, place / "halfway")
    other = {**tables, "seed": 5}
    with pytest.raises(DataError, match="the reference policy"):
        restored(job_of("dpo", other), place / "halfway")


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"loss": {"kind": "nca"}, "divergence": {"kind": "forward_kl"}}, "divergence = .forward_kl. needs a loss"),
        ({"loss": {"kind": "aot"}, "wpo_cap": 1.0}, "wpo_cap = 1: loss.kind = .aot. joins the ranks"),
        ({"loss": {"kind": "robust", "smoothing": 0.5}}, "less than 0.5"),
        ({"loss": {"kind": "dpp"}}, "dpp"),
        ({"loss": {"beta": 0.0}}, "greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(algorithm: dict[str, Any], said: str, place: Path) -> None:
    with pytest.raises(ValidationError, match=said):
        load_recipe("dpo").config.model_validate(settings("dpo", steps=2, algorithm=algorithm))


def test_a_loss_by_the_name_of_its_paper_is_told_its_recipe(place: Path) -> None:
    for name, told in OTHER_NAMES.items():
        with pytest.raises(ConfigError, match="unknown recipe") as fault:
            load_recipe(name)
        assert told in str(fault.value)
        recipe, _, rest = told.removeprefix("recipe = ").partition(" with algorithm.")
        key, _, kind = rest.partition(".kind = ")
        config = load_recipe(recipe.strip('"')).config
        known = config.model_fields["algorithm"].annotation.model_fields
        assert key in known
        if kind:
            tables = settings(recipe.strip('"'), steps=1, algorithm={"loss": {"kind": kind.strip('"')}})
            config.model_validate(tables)


@pytest.mark.parametrize("name", RECIPES)
def test_it_says_what_it_is(name: str, place: Path) -> None:
    entry = load_recipe(name)
    assert entry.parts.source and entry.parts.credit and entry.parts.loss and entry.parts.weights
    assert entry.summary and entry.paper and entry.limitation.endswith(".")
    assert entry.config.__doc__
    figures = entry.config.model_validate(settings(name, steps=2)).derive()
    assert figures["optimizer steps"] == "2 x 2 = 4"
