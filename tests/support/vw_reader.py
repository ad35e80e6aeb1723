"""Decisions that Vowpal Wabbit's own reader finds: run in its environment, where hone is not installed.

[{"kind": "cb" | "cb_adf" | "dsjson", "text": "..."}, ...] on standard input -> for each a list of decisions
{"executed", "cost", "probability", "weight", "features": [[...] of each example]}, or the text of an error.
"""

import json
import sys

from vowpalwabbit import LabelType, Workspace
from vowpalwabbit.pyvw import CBLabel

NO_COST = 3.4e38
ARGUMENTS = {
    "cb": "--cb 9 --quiet --noconstant",
    "cb_adf": "--cb_explore_adf --quiet --noconstant",
    "dsjson": "--cb_explore_adf --dsjson --quiet --noconstant",
}


def blocks(kind: str, text: str) -> list[list[str] | str]:
    """Examples of a text, apart."""
    lines = text.splitlines()
    if kind != "cb_adf":
        return [line for line in lines if line.strip()]
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def decision(examples: list, kind: str) -> dict | None:
    """The labelled action of a decision; None: there is none."""
    labels = [CBLabel.from_example(one) for one in examples]
    features = [
        sorted(one.feature_weight(n, k) for n in range(one.num_namespaces()) for k in range(one.num_features_in(n)))
        for one in examples
    ]
    shared = bool(labels[0].costs) and labels[0].costs[0].probability == -1 and kind != "cb"
    known = [
        (place - shared if kind != "cb" else cost.label - 1, cost)
        for place, label in enumerate(labels)
        for cost in label.costs
        if cost.cost < NO_COST
    ]
    if len(known) != 1:
        return None
    executed, cost = known[0]
    return {"executed": executed, "cost": cost.cost, "probability": cost.probability, "weight": labels[0].weight,
            "features": features, "shared": shared}  # fmt: skip


def main() -> None:
    """Answer one request."""
    answers: list[object] = []
    for asked in json.load(sys.stdin):
        reader = Workspace(ARGUMENTS[asked["kind"]])
        decisions: list[object] = []
        try:
            for block in blocks(asked["kind"], asked["text"]):
                parsed = reader.parse(block, LabelType.CONTEXTUAL_BANDIT)
                examples = parsed if isinstance(parsed, list) else [parsed]
                decisions.append(decision(examples, asked["kind"]))
                reader.finish_example(parsed)
            answers.append([one for one in decisions if one is not None])
        except RuntimeError as error:
            answers.append(str(error))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
