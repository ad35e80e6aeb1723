"""The table of ceilings in docs/control/exact_solutions.md, computed.

`python tests/control/finite/finite_ceilings.py` writes it; a test fails while the page says something else.
"""

from pathlib import Path

from hone.control.finite.build import mdp_from_gymnasium
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import backward_induction, finite_horizon_value, policy_iteration, start_value

PAGE = Path(__file__).resolve().parents[3] / "docs" / "control" / "exact_solutions.md"
BEGIN, END = "<!-- ceilings:begin -->\n", "<!-- ceilings:end -->"
HORIZON = 500
"""Where Gymnasium sets no limit."""
WORLDS: dict[str, tuple[str, dict[str, object]]] = {
    "FrozenLake-v1": ("FrozenLake-v1", {}),
    "FrozenLake-v1, not slippery": ("FrozenLake-v1", {"is_slippery": False}),
    "FrozenLake8x8-v1": ("FrozenLake8x8-v1", {}),
    "FrozenLake8x8-v1, not slippery": ("FrozenLake8x8-v1", {"is_slippery": False}),
    "Taxi-v4": ("Taxi-v4", {}),
    "CliffWalking-v1": ("CliffWalking-v1", {}),
    "CliffWalkingSlippery-v1": ("CliffWalkingSlippery-v1", {}),
}


def world(name: str, *, discount: float = 1.0) -> FiniteMdp:
    made, options = WORLDS[name]
    return mdp_from_gymnasium(made, discount=discount, options=options)


def ceilings(name: str) -> tuple[FiniteMdp, float, float, float, float]:
    """The world; its best return without a limit; in the limit with the clock, by the policy best without a limit, and
    by the policy best under a discount of 0.99."""
    mdp = world(name)
    horizon = mdp.step_limit or HORIZON
    best = policy_iteration(mdp)
    patient = policy_iteration(mdp.with_discount(0.99)).policy
    return (
        mdp,
        start_value(mdp, best.value),
        start_value(mdp, backward_induction(mdp, horizon).value),
        start_value(mdp, finite_horizon_value(mdp, best.policy, horizon)),
        start_value(mdp, finite_horizon_value(mdp, patient, horizon)),
    )


def table() -> str:
    lines = [
        "| world | S x A | limit | without a limit | best in the limit | best without a limit, in it "
        "| best at 0.99, in it |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in WORLDS:
        mdp, *values = ceilings(name)
        figures = " | ".join(f"{value:.4f}" for value in values)
        lines.append(f"| {name} | {mdp.states} x {mdp.actions} | {mdp.step_limit or f'none ({HORIZON})'} | {figures} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.split(BEGIN)[0] + BEGIN + table() + END + page.split(END)[1], encoding="utf-8")
