"""Counters of a server, and their text for Prometheus."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hone.run.http.listening import SecondsHistogram

_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServingCounters:
    """Counts since the server began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.responses: Counter[tuple[str, int]] = Counter()
        """By path and status; a request whose client went away counts as 499."""
        self.prompt_tokens = 0
        self.drawn_tokens = 0
        self.first_token = SecondsHistogram(_BOUNDS_S)
        """From a request to its first token, of streamed ones."""
        self.request = SecondsHistogram(_BOUNDS_S)
        """From a request to its reply, or to the first event of a stream."""

    def count_tokens(self, *, prompt: int, drawn: int) -> None:
        """Count the tokens of an answered request."""
        with self._lock:
            self.prompt_tokens += prompt
            self.drawn_tokens += drawn

    def count_response(self, path: str, status: int, seconds: float) -> None:
        """Count a response."""
        with self._lock:
            self.responses[path, status] += 1
            self.request.add(seconds)

    def text(self, gauges: Sequence[tuple[str, str, float]]) -> str:
        """Prometheus's text format; `gauges`: name, help and value of what is measured now."""
        with self._lock:
            return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Sequence[tuple[str, str, float]]) -> Iterator[str]:
        yield from _head("hone_requests_total", "counter", "Responses by path and status.")
        for (path, status), count in sorted(self.responses.items()):
            yield f'hone_requests_total{{path="{path}",status="{status}"}} {count}'
        totals: Mapping[str, tuple[str, int]] = {
            "hone_prompt_tokens_total": ("Tokens of answered prompts.", self.prompt_tokens),
            "hone_generated_tokens_total": ("Tokens sampled for answers.", self.drawn_tokens),
        }
        for name, (told, value) in totals.items():
            yield from _head(name, "counter", told)
            yield f"{name} {value}"
        for name, told, value in gauges:
            yield from _head(name, "gauge", told)
            yield f"{name} {value:g}"
        yield from _head("hone_time_to_first_token_seconds", "histogram", "Until the first token of a stream.")
        yield from self.first_token.lines("hone_time_to_first_token_seconds")
        yield from _head("hone_request_seconds", "histogram", "Until the reply, or the first event of a stream.")
        yield from self.request.lines("hone_request_seconds")


def _head(name: str, kind: str, told: str) -> list[str]:
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
