"""Plans and states of rollouts as JSON, to the bit: the journal's entries."""

import math
from dataclasses import asdict
from typing import Any, Final, cast

from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.decide.estimators.sequential.confidence_sequences import AsymptoticSequence, BernsteinSequence
from hone.decide.estimators.sequential.e_process import MixtureProcess
from hone.decide.estimators.sequential.matched_arms import MatchedArms
from hone.decide.estimators.sequential.sample_ratio import SampleRatio
from hone.decide.rollout.controller import RolloutState, StageTransition
from hone.decide.rollout.evidence import GuardrailEvidence, RolloutEvidence
from hone.decide.rollout.plan import RolloutGuardrail, RolloutPlan

FORMAT: Final = 1
_Table = dict[str, Any]


def plan_to_json(plan: RolloutPlan, at_s: float) -> dict[str, Json]:
    """The journal's first entry."""
    return cast("dict[str, Json]", {"kind": "plan", "format": FORMAT, "at_s": at_s, "plan": _plain(asdict(plan))})


def state_entry(state: RolloutState, at_s: float, transition: StageTransition | None) -> dict[str, Json]:
    """An entry for a look, or for a transition with the state *after* it."""
    entry: _Table = {"kind": "look" if transition is None else "transition", "at_s": at_s}
    if transition is not None:
        entry["transition"] = asdict(transition)
    return cast("dict[str, Json]", entry | {"state": _plain(asdict(state))})


def _plain(value: Any) -> Any:  # noqa: ANN401 - a JSON document
    """Tuples as lists, infinities as text: strict JSON has neither."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in cast("_Table", value).items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in cast("list[Any]", value)]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def plan_from_json(entry: dict[str, Json], where: str) -> RolloutPlan:
    """Read the journal's first entry. Raises DataError naming `where`."""
    try:
        if entry.get("kind") != "plan" or cast("int", entry["format"]) > FORMAT:
            raise DataError(f"{where} does not begin with a plan of format {FORMAT}; use the hone that wrote it")
        table = cast("_Table", entry["plan"])
        guardrails = tuple(RolloutGuardrail(**one) for one in table["guardrails"])
        return RolloutPlan(
            **table | {"guardrails": guardrails, "stages": tuple(table["stages"]), "needs": tuple(table["needs"])}
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{where} has a damaged plan: {error!r}; restore the registry from a copy") from error


def state_from_json(entry: dict[str, Json], where: str) -> RolloutState:
    """Read the state of an entry, to the bit. Raises DataError naming `where`."""
    try:
        table = cast("_Table", entry["state"])
        return RolloutState(**table | {"evidence": _evidence(table["evidence"]), "until_s": float(table["until_s"])})
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where} has a damaged state: {error!r}; restore the registry from a copy") from error


def transition_from_json(entry: dict[str, Json]) -> StageTransition | None:
    """The transition of an entry; None for a look."""
    table = cast("_Table | None", entry.get("transition"))
    return None if table is None else StageTransition(**table)


def _evidence(table: _Table) -> RolloutEvidence:
    ratio = table["ratio"]
    return RolloutEvidence(
        **table
        | {
            "guardrails": tuple(_guardrail(one) for one in table["guardrails"]),
            "ratio": SampleRatio(**ratio | {"shares": tuple(ratio["shares"]), "counts": tuple(ratio["counts"])}),
        }
    )


def _guardrail(table: _Table) -> GuardrailEvidence:
    process = table["process"]
    return GuardrailEvidence(
        **table
        | {
            "arms": MatchedArms(**table["arms"]),
            "process": MixtureProcess(**process | {"log_wealth": tuple(process["log_wealth"])}),
            "effect": AsymptoticSequence(**table["effect"]),
            "bounded": BernsteinSequence(**table["bounded"]),
        }
    )
