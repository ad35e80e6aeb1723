"""Streams and alarms of River: run in River's environment, where hone is not installed.

    {"streams": [[...], ...]} on standard input -> alarms of ADWIN on them
    {"stagger": [seed, ...]}                    -> errors of a served model on STAGGER, and alarms
    {"occupancy": true}                         -> the four sensors of occupancy with the marked changes, and alarms

The answer on standard output: {"streams": [...], "changes": [[...], ...], "alarms": [[[place, width], ...], ...]}
"""

import json
import sys
import time

from river.datasets import synth
from river.drift import ADWIN
from river.drift.datasets import Occupancy
from river.naive_bayes import GaussianNB
from river.preprocessing import OneHotEncoder

TRAINED, CHANGE, END = 1000, 3000, 5000


def alarms(stream: list[float]) -> list[list[int]]:
    """Place and remaining width of each alarm of ADWIN with its default settings."""
    detector, found = ADWIN(), []
    for place, value in enumerate(stream):
        detector.update(value)
        if detector.drift_detected:
            found.append([place, int(detector.width)])
    return found


def stagger_errors(seed: int) -> list[float]:
    """Errors of a naive Bayes model that learnt 1,000 rows of one concept, on 2,000 more and on 2,000 of another."""
    model = OneHotEncoder() | GaussianNB()
    first, second = (iter(synth.STAGGER(classification_function=k, seed=seed + 1000 * k)) for k in (0, 1))
    errors: list[float] = []
    for place in range(END):
        x, y = next(first if place < CHANGE else second)
        errors.append(float(model.predict_one(x) != y) if place else 0.0)
        if place < TRAINED:
            model.learn_one(x, y)
    return errors[TRAINED:]


def occupancy() -> tuple[list[list[float]], list[list[int]]]:
    """Each sensor's values, divided by their range, and the changes that most annotators marked."""
    data = Occupancy()
    rows = [list(y.values()) for _, y in data]
    marked = [place for places in data.annotations.values() for place in places]
    agreed: list[int] = []
    for place in sorted(set(marked)):
        if sum(abs(place - other) <= 5 for other in marked) >= 3 and (not agreed or place - agreed[-1] > 20):
            agreed.append(place)
    columns = [[float(row[k]) for row in rows] for k in range(4)]
    scaled = [[(value - min(column)) / (max(column) - min(column)) for value in column] for column in columns]
    return scaled, [agreed] * 4


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    if "stagger" in request:
        streams = [stagger_errors(seed) for seed in request["stagger"]]
        changes = [[CHANGE - TRAINED]] * len(streams)
    elif "occupancy" in request:
        streams, changes = occupancy()
    else:
        streams, changes = request["streams"], [[]] * len(request["streams"])
    begin = time.process_time()
    found = [alarms(stream) for stream in streams]
    spent = time.process_time() - begin
    us = spent / sum(map(len, streams)) * 1e6
    json.dump({"streams": streams, "changes": changes, "alarms": found, "us": us}, sys.stdout)


if __name__ == "__main__":
    main()
