"""The car-following shields of the example, as a game and as an invariant, and mutants of them."""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from hone.core.decisions import ActionSet
from hone.decide.shield.certificate import ShieldCertificate, certify
from hone.decide.shield.model import ShieldSpec, shield_spec

CAR = Path(__file__).resolve().parents[2] / "examples" / "decisions" / "shield" / "car.toml"
FEATURES = ("gap", "speed", "lead")
INVARIANT = ["gap >= 0", "0 <= speed <= top", "lead >= 0", "gap + lead**2 / 16 >= speed**2 / 12"]
ACTIONS = ActionSet(names=("full_brake", "brake_hard", "ease", "keep", "accelerate"))


def car_spec(kind: str = "game", **constants: float) -> ShieldSpec:
    """The example's shield with other constants."""
    values: dict[str, Any] = json.loads(json.dumps(tomllib.loads(CAR.read_text("utf-8"))))
    values["kind"] = kind
    values["model"]["constants"] |= constants
    if kind == "invariant":
        values["invariant"] = INVARIANT
    return shield_spec(values, place="car.toml")


@cache
def car_certificate(kind: str = "game") -> ShieldCertificate:
    """The example's certificate, made once."""
    return certify(car_spec(kind))
