"""Alarms of River's detectors on streams: run in River's environment, where hone is not installed.

{"streams": [[...], ...]} on standard input -> {"adwin": [[[place, width], ...], ...], "us": 0.2} on standard output
"""

import json
import sys
import time

from river.drift import ADWIN


def alarms(stream: list[float]) -> list[list[int]]:
    """Place and remaining width of each alarm of ADWIN with its default settings."""
    detector, found = ADWIN(), []
    for place, value in enumerate(stream):
        detector.update(value)
        if detector.drift_detected:
            found.append([place, int(detector.width)])
    return found


def main() -> None:
    """Answer one request."""
    streams = json.load(sys.stdin)["streams"]
    begin = time.process_time()
    found = [alarms(stream) for stream in streams]
    spent = time.process_time() - begin
    count = sum(map(len, streams))
    json.dump({"adwin": found, "us": spent / count * 1e6}, sys.stdout)


if __name__ == "__main__":
    main()
