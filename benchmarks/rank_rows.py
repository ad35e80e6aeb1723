"""Rows of RESULTS.md from what `ranks.py` measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tables import Row

Measured = dict[str, Any]
BAR = 1e-6
"""Largest difference of a gradient in float32 that is rounding."""
TENSOR_BAR = 5e-6
"""The same where layers are cut among ranks, which add parts of a product."""
DOUBLE_BAR = 1e-12
"""The same in float64."""
RESUME_BAR = 1e-7
"""Largest difference of the weights a step after a resume on another number of ranks."""
PATIENCE_S = 90.0
"""Longest wait for the next step after a rank was lost."""
NATURE = ("has no steps along a gradient", "no language model whose layers", "expert parallelism is not built in")
"""Refusals of what no number of ranks could compute."""


def is_refused(one: Measured) -> bool:
    """Whether a run was refused that ranks could share."""
    return "refused" in one and not any(words in one["refused"] for words in NATURE)


def is_beyond(one: Measured) -> bool:
    """Whether a measurement fails its bar."""
    if "failed" in one or is_refused(one):
        return True
    bar = one.get("bar", BAR)
    return not (one.get("gradient", bar) <= bar and one.get("weights_apart", 0.0) <= RESUME_BAR and one.get("equal", 1))


def result_rows(found: Sequence[Measured]) -> Iterator[Row]:
    """One row for each bar that something was measured for."""
    for ranks, tensor in ((2, 1), (4, 1), (2, 2), (4, 2)):
        place = [one for one in found if one["part"] == "recipes" and (one["ranks"], one["tensor"]) == (ranks, tensor)]
        yield from recipe_rows(place, ranks, tensor)
    for ranks in (2, 4):
        place = [one for one in found if one["part"] == "float64" and one["ranks"] == ranks]
        for tensor in (1, 2):
            some = [one for one in place if one["tensor"] == tensor]
            names = ", ".join(one["run"] for one in some)
            layers = ", each layer held by 2" if tensor > 1 else ""
            title = f"gradient on {ranks} ranks{layers} against one process, float64: {names}"
            yield from worst_row(title, some, DOUBLE_BAR)
    yield from equal_row(found, "shares", "gradient on 2 ranks: bits of the sum of the two shares' gradients")
    yield from equal_row(found, "virtual", "weights and moments with virtual_ranks = 4 on 1, 2 and 4 ranks: equal bits")
    yield from resume_rows([one for one in found if one["part"] == "resume"])
    yield from equal_row(found, "folder", "checkpoint of 2 ranks loaded by transformers, saved and read back: bits")
    yield from equal_row(found, "killed", "a rank killed after step 3: bits of the undisturbed run's weights")
    for one in found:
        if one["part"] == "killed" and "goes_on_s" in one:
            seconds = one["goes_on_s"]
            yield Row(
                row="the same: time until the next step", value=seconds, unit="s", bar=f"<= {PATIENCE_S:g}",
                met=seconds <= PATIENCE_S,
            )  # fmt: skip


def recipe_rows(place: Sequence[Measured], ranks: int, tensor: int) -> Iterator[Row]:
    """The worst gradient of all runs, and the runs that were refused or failed."""
    if not place:
        return
    layers = ", each layer held by 2" if tensor > 1 else ""
    compared = [one for one in place if "gradient" in one]
    title = (
        f"gradient on {ranks} ranks{layers} against one process, float32, largest difference of the largest component "
        f"of its network: one run of {len({one['recipe'] for one in compared})} recipes"
    )
    yield from worst_row(title, compared, BAR if tensor == 1 else TENSOR_BAR)
    away = sorted({one["recipe"] for one in place if is_refused(one) or "failed" in one})
    yield Row(
        row=f"recipes with a gradient that {ranks} ranks{layers} do not train: {', '.join(away) or 'none'}",
        value=len(away), unit="recipes", bar="0", met=not away,
    )  # fmt: skip


def worst_row(title: str, some: Sequence[Measured], bar: float) -> Iterator[Row]:
    """The largest difference of gradients."""
    if some:
        worst = max(some, key=lambda one: one["gradient"])
        value = worst["gradient"]
        yield Row(
            row=title, value=value, unit=f"in {worst['run']}", seeds=len(some), bar=f"<= {bar:g}", met=value <= bar
        )


def equal_row(found: Sequence[Measured], part: str, title: str) -> Iterator[Row]:
    """How many runs of a part have the expected bits."""
    some = [one for one in found if one["part"] == part]
    if some:
        equal = sum(bool(one.get("equal")) for one in some)
        names = ", ".join(dict.fromkeys(one["run"] for one in some))
        unit = f"of {len(some)} runs equal"
        yield Row(row=f"{title}: {names}", value=equal, unit=unit, bar="all", met=equal == len(some))


def resume_rows(some: Sequence[Measured]) -> Iterator[Row]:
    """Resumes on the same number of ranks, and on another."""
    same = [one for one in some if one["ranks"] == one["first"]]
    yield from equal_row(same, "resume", "resume on 2 ranks: weights and moments of the run that went on")
    other: list[Mapping[str, Any]] = [one for one in some if one["ranks"] != one["first"] and "weights_apart" in one]
    if other:
        worst = max(other, key=lambda one: one["weights_apart"])
        pairs = ", ".join(sorted({f"{one['first']} -> {one['ranks']}" for one in other}))
        value = worst["weights_apart"]
        yield Row(
            row=f"resume on another number of ranks ({pairs}): weights after the next step, largest difference of the "
            "largest",
            value=value, unit=f"in {worst['run']}", seeds=len(other), bar=f"<= {RESUME_BAR:g}",
            met=value <= RESUME_BAR,
        )  # fmt: skip
