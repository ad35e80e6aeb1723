"""Trackers of tests, named in configs as `recording_tracker.py:NAME`: they write what they get beside the run."""

import json
import threading


class Recording:
    """Writes one JSON line for each call; a run that goes on finds its last step there."""

    answers_last_step = True

    def start(self, run):
        self.path = run.folder / "recorded.jsonl"
        past = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        self._write({"call": "start", "name": run.name, "identity": run.identity, "steps": run.settings["steps"]})
        steps = [line["step"] for line in past if line["call"] == "log"]
        return max(steps, default=0) if self.answers_last_step else None

    def log(self, rows):
        for row in rows:
            self._write({"call": "log", "step": row.step, "at_s": row.at_s, "metrics": dict(row.metrics)})

    def samples(self, step, at_s, rows):
        self._write({"call": "samples", "step": step, "rows": len(rows), "at_s": at_s})

    def conclude(self, step, at_s, cause):
        self._write({"call": "conclude", "step": step, "at_s": at_s, "cause": cause})

    def finish(self, state):
        self._write({"call": "finish", "state": state})

    def _write(self, line):
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Forgetful(Recording):
    """Cannot say which steps it has."""

    answers_last_step = False


class FailsAtFirst(Recording):
    """The first two batches do not get through."""

    failures = 0

    def log(self, rows):
        if self.failures < 2:
            self.failures += 1
            raise ConnectionError("no route to the tracker")
        super().log(rows)


class Hangs(Recording):
    """Never comes back. It has no step, whatever another tracker wrote into the file that they share."""

    def start(self, run):
        super().start(run)
        return 0

    def log(self, rows):
        threading.Event().wait()


class NoTracker:
    """Lacks what a tracker has."""

    def start(self, run):
        return 0


class OnlyCurves:
    """Has no place for a cause."""

    def __init__(self):
        self.start, self.log = (own := Recording()).start, own.log
        self.samples, self.finish = own.samples, own.finish
