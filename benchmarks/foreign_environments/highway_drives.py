"""Drives in highway-env: a reckless driver in its lane, with or without a shield; prints a JSON line.

Arguments: episodes, first seed, a shield's certificate, and `shield` or `none`. Run by an interpreter that has
`highway-env` and z3, with hone's folder on its path. A crash is at the driver's fault if it hit the car in front, which
had entered its lane at a distance that the certificate calls safe, and had braked no harder than it assumes.
"""

import json
import sys
import time
from pathlib import Path

import gymnasium
import highway_env  # noqa: F401 - registers its environments
import numpy as np

from hone.core.decisions import ActionSet
from hone.decide.shield.certificate import checked_model, read_certificate
from hone.decide.shield.guard import project_action

LOW, HIGH = -6.0, 3.0
MARGIN_M = 2.0
"""The gap is measured shorter: highway-env moves cars by their speed before each substep of 1/15 s."""
WANTED = (0.05, 0.05, 0.1, 0.1, 0.7)
SETTINGS = {
    "action": {
        "type": "ContinuousAction", "lateral": False, "acceleration_range": [LOW, HIGH], "speed_range": [0, 30],
    },
    "policy_frequency": 5, "simulation_frequency": 15, "duration": 40, "vehicles_count": 30,
}  # fmt: skip


def sensors(env):
    """Gap, speed and lead's speed, and the car in front; a free road is a car far away."""
    own = env.unwrapped.vehicle
    front = env.unwrapped.road.neighbour_vehicles(own, own.lane_index)[0]
    if front is None:
        return np.array([500.0, max(own.speed, 0.0), 30.0]), None
    gap = front.position[0] - own.position[0] - (front.LENGTH + own.LENGTH) / 2 - MARGIN_M
    return np.array([gap, max(own.speed, 0.0), max(front.speed, 0.0)]), front


def drive(env, shield, judge, actions, seed):
    """One episode -> crashed, at fault, interventions, steps, mean speed."""
    env.reset(seed=seed)
    draws = np.random.default_rng(seed)
    followed, entered_safely, kept_bounds, lead_speed = None, True, True, 0.0
    interventions, speeds, ended = 0, [], False
    while not ended:
        seen, front = sensors(env)
        if front is not followed:
            followed, entered_safely, kept_bounds = front, bool(judge.allowed(seen, actions).any()), True
        elif front is not None:
            kept_bounds &= (front.speed - lead_speed) / 0.2 >= -6.0 - 1e-6
        lead_speed = front.speed if front is not None else 0.0
        wanted = int(draws.choice(5, p=WANTED))
        taken = project_action(shield, seen, actions, wanted) if shield is not None else wanted
        interventions += taken != wanted
        pace = float(actions.features[taken, 0])
        _, _, terminated, truncated, info = env.step(np.array([2 * (pace - LOW) / (HIGH - LOW) - 1]))
        speeds.append(seen[1])
        ended = terminated or truncated
    crashed = bool(info["crashed"])
    own = env.unwrapped.vehicle
    ahead = followed is not None and followed.crashed and followed.position[0] > own.position[0]
    at_fault = crashed and ahead and entered_safely and kept_bounds
    return crashed, at_fault, interventions, len(speeds), float(np.mean(speeds))


def main():
    """Drive the episodes."""
    episodes, first, path, shielded = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "shield"
    certificate = read_certificate(Path(path))
    model = checked_model(certificate.spec)
    judge = certificate.open(model.variables)
    actions = ActionSet(names=model.actions, features=model.action_features())
    env = gymnasium.make("highway-v0", config=SETTINGS)
    drives = [drive(env, judge if shielded else None, judge, actions, seed) for seed in range(first, first + episodes)]
    crashed, at_fault, interventions, steps, speeds = zip(*drives, strict=True)
    print(json.dumps({
        "episodes": episodes, "crashes": sum(crashed), "at_fault": sum(at_fault), "interventions": sum(interventions),
        "steps": sum(steps), "mean_speed": float(np.mean(speeds)), "cpu_s": time.process_time(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
