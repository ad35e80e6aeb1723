"""The peers' side of decision_systems/bandits.py: run by the peers' own Python, with a folder of worlds and a width.

Prints one JSON line a policy: mean expected reward of each world, and the median processor time of a round.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np

ARMS = 10


def mabwiser(contexts, reward, alpha):  # noqa: ANN001, ANN201 - the peer's own environment
    """LinUCB with ridge 1: one table an arm, as hone's. It must be fitted before it predicts: a row of weight 0."""
    from mabwiser.mab import MAB, LearningPolicy  # noqa: PLC0415

    bandit = MAB(arms=list(range(ARMS)), learning_policy=LearningPolicy.LinUCB(alpha=alpha, l2_lambda=1.0))
    bandit.fit(decisions=[0], rewards=[0.0], contexts=np.zeros((1, contexts.shape[1])))
    for row, context in enumerate(contexts):
        arm = bandit.predict(context[None])
        bandit.partial_fit(decisions=[arm], rewards=[reward(row, arm)], contexts=context[None])
        yield arm


def vowpal_wabbit(contexts, reward, alpha):  # noqa: ANN001, ANN201, ARG001
    """SquareCB with its defaults, an interaction of context and arm for each."""
    from vowpalwabbit import Workspace  # noqa: PLC0415

    learner = Workspace("--cb_explore_adf --squarecb -q ca --quiet --random_seed 1")
    draws = np.random.default_rng(1)
    for row, context in enumerate(contexts):
        shared = "shared |c " + " ".join(f"{place}:{value:.6g}" for place, value in enumerate(context) if value)
        asked = learner.predict("\n".join([shared, *(f"|a arm_{arm}" for arm in range(ARMS))]))
        mass = np.array(asked)
        arm = int(draws.choice(ARMS, p=mass / mass.sum()))
        cost = f"0:{-reward(row, arm)}:{mass[arm]} "
        rows = [f"{cost if one == arm else ''}|a arm_{one}" for one in range(ARMS)]
        learner.learn("\n".join([shared, *rows]))
        yield arm


def main() -> None:
    """Play every world by both policies."""
    folder, alpha = Path(sys.argv[1]), float(sys.argv[2])
    for name, package, policy in (
        ("mabwiser_linucb", "mabwiser", mabwiser),
        ("vw_squarecb", "vowpalwabbit", vowpal_wabbit),
    ):
        means, times = [], []
        for path in sorted(folder.glob("*.npz")):
            world = np.load(path)
            contexts, expected, chance = world["contexts"], world["expected"], world["chance"]
            begin = time.process_time()
            pulled = policy(contexts, lambda row, arm: float(chance[row] < expected[row, arm]), alpha)  # noqa: B023
            arms = np.fromiter(pulled, np.int64)
            times.append((time.process_time() - begin) / len(arms) * 1e6)
            means.append(float(expected[np.arange(len(arms)), arms].mean()))
        version = f"{package} {importlib.metadata.version(package)}"
        print(json.dumps({"policy": name, "version": version, "means": means, "us": float(np.median(times))}))


if __name__ == "__main__":
    main()
