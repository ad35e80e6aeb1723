"""CISPO against PPO's clip: which decisions still have a gradient after the policy has moved."""

import torch
from torch import Tensor, nn

from hone.lab.exact import gradient
from hone.lab.finding import Experiment, Finding, at_least, at_most, lines
from hone.lab.policies import warm_network
from hone.lab.puzzles import addition
from hone.lab.training import Batch, Objective, Training, averaged
from hone.objectives.policy import cispo, clipped
from hone.objectives.terms import Terms

RARE = 0.5
"""Tokens that had less than this chance are called unlikely."""


def _with_rare(terms: Terms, batch: Batch, silent: Tensor) -> Terms:
    """Adds what share of praised unlikely and likely tokens has lost its gradient (numerators and denominators)."""
    praised = (batch.advantage > 0).float()
    rare = praised * (batch.before.exp() < RARE)
    common = praised - rare

    def told() -> dict[str, Tensor]:
        return {
            **terms.metrics,
            "lab/rare": rare,
            "lab/rare_silent": rare * silent,
            "lab/common": common,
            "lab/common_silent": common * silent,
        }

    return Terms(loss=terms.loss, told=told)


def by_clip(policy: nn.Module, batch: Batch) -> Terms:
    terms = clipped(batch.now(policy), batch.before, batch.advantage)
    return _with_rare(terms, batch, terms.metrics["policy/clip_fraction"])


def by_cispo(policy: nn.Module, batch: Batch) -> Terms:
    terms = cispo(batch.now(policy), batch.before, batch.advantage)
    return _with_rare(terms, batch, torch.zeros_like(batch.advantage))


OBJECTIVES: dict[str, Objective] = {"clipped at 0.2": by_clip, "CISPO, cap 5": by_cispo}


def multipliers(advantage: float, ratios: Tensor) -> dict[str, list[float]]:
    """Factor on A * grad log p at each ratio `[R]`: 1 is the plain policy gradient."""
    then, credit = torch.zeros_like(ratios), torch.full_like(ratios, advantage)
    found: dict[str, list[float]] = {}
    for name, loss in (("clipped at 0.2", clipped), ("CISPO, cap 5", cispo)):
        now = ratios.log().requires_grad_(True)
        found[name] = (-gradient(loss(now, then, credit).loss.sum(), now) / credit).tolist()
    return found


def run(seed: int, *, quick: bool = False) -> Finding:
    steps, runs = (15, 1) if quick else (40, 2)
    puzzle = addition()
    found = {
        name: averaged(
            lambda number: warm_network(puzzle, seed=number),
            Training(puzzle=puzzle, objective=objective, steps=steps, epochs=4, rate=0.004),
            seed=seed,
            runs=runs,
        )
        for name, objective in OBJECTIVES.items()
    }
    clip, capped = OBJECTIVES
    silent = {
        name: tuple(float(each[f"lab/{kind}_silent"].sum() / each[f"lab/{kind}"].sum()) for kind in ("rare", "common"))
        for name, each in found.items()
    }
    solved = {name: float(each["solved"][:, -1].mean()) for name, each in found.items()}
    ratios = torch.linspace(0.05, 8, 160)
    praised, blamed = multipliers(1.0, ratios), multipliers(-1.0, ratios)
    beyond = range(int((ratios <= 1.25).sum()), len(ratios))
    claims = [
        at_most("gradient of a praised decision beyond the clip", max(abs(praised[clip][k]) for k in beyond), 1e-6),
        at_least(
            "gradient of a praised decision under CISPO, least beyond the clip",
            min(praised[capped][k] for k in beyond),
            1.0,
        ),
        at_least("share of praised unlikely tokens without gradient, clip", silent[clip][0], 0.1),
        at_least("unlikely over likely tokens without gradient, clip", silent[clip][0] / silent[clip][1], 1.5),
        at_most("share of praised unlikely tokens without gradient, CISPO", silent[capped][0], 1e-6),
    ]
    return Finding(
        header=("objective", "unlikely praised tokens silent", "likely praised tokens silent", "solved"),
        rows=[(name, f"{silent[name][0]:.1%}", f"{silent[name][1]:.1%}", f"{solved[name]:.1%}") for name in OBJECTIVES],
        panels=[
            lines("factor on the gradient, praised decisions", "ratio", ratios.tolist(), praised),
            lines("factor on the gradient, blamed decisions", "ratio", ratios.tolist(), blamed),
        ],
        verdict=(
            f"In the last of four passes the clip leaves {silent[clip][0]:.0%} of praised unlikely tokens (chance "
            f"below {RARE}) and {silent[clip][1]:.0%} of praised likely ones without gradient, CISPO none; on "
            f"additions that ends at {solved[clip]:.1%} against {solved[capped]:.1%} solved."
        ),
        claims=claims,
        figures={"solved_clip": solved[clip], "solved_cispo": solved[capped]},
    )


EXPERIMENT = Experiment(
    title="CISPO against the clip",
    question="Which tokens still get a gradient once the policy has moved?",
    run=run,
    source="MiniMax-M1, 2025",
)
