"""Counters of a service, their text for Prometheus, and log lines of faults that cannot flood a disk."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hone.core.clock import Clock
from hone.run.http.listening import SecondsHistogram

_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_MOST_LINES: Final = 20
"""Lines of one fault a minute; more are counted."""
_MOST_VERSIONS: Final = 100
"""Versions that have a counter of their own; older ones are summed."""


class GatewayCounters:
    """Counts since the service began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.responses: Counter[tuple[str, int]] = Counter()
        self.decisions: Counter[tuple[str, str]] = Counter()
        """By tenant and version."""
        self.rewards: Counter[tuple[str, str]] = Counter()
        """By tenant and status."""
        self.fallbacks: Counter[str] = Counter()
        """By the first word of the reason."""
        self.shadows: Counter[tuple[str, str]] = Counter()
        """Requests that versions in the shadow were to see, by version and result."""
        self.faults: Counter[str] = Counter()
        """Refused requests by code."""
        self.latency = SecondsHistogram(_BOUNDS_S)

    def decided(self, tenant: str, version: str, reason: str) -> None:
        """Count a decision; `reason` is empty unless a fallback answered."""
        with self._lock:
            if (tenant, version) not in self.decisions and len(self.decisions) >= _MOST_VERSIONS:
                self._fold_oldest()
            self.decisions[tenant, version] += 1
            if reason:
                self.fallbacks[reason.partition(":")[0]] += 1

    def _fold_oldest(self) -> None:
        """Add the count of the oldest version to that of its tenant's `older` ones."""
        oldest = next((key for key in self.decisions if key[1] != "older"), None)
        if oldest is not None:
            self.decisions[oldest[0], "older"] += self.decisions.pop(oldest)

    def responded(self, path: str, status: int, seconds: float) -> None:
        """Count a response."""
        with self._lock:
            self.responses[path, status] += 1
            self.latency.add(seconds)

    def text(self, gauges: Sequence[tuple[str, str, float]]) -> str:
        """Prometheus's text format; `gauges`: name, help and value of what is measured now."""
        with self._lock:
            return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Sequence[tuple[str, str, float]]) -> Iterator[str]:
        families = (
            ("hone_gateway_responses_total", "Responses by path and status.", ("path", "status"), self.responses),
            ("hone_decisions_total", "Decisions by tenant and version.", ("tenant", "version"), self.decisions),
            ("hone_rewards_total", "Rewards by tenant and status.", ("tenant", "status"), self.rewards),
            ("hone_shadow_total", "Requests shown to versions in the shadow.", ("version", "result"), self.shadows),
        )
        for name, told, labels, counter in families:
            yield from _head(name, "counter", told)
            for values, count in sorted(counter.copy().items()):
                pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
                yield f"{name}{{{pairs}}} {count}"
        for name, told, label, counted in (
            (
                "hone_fallbacks_total",
                "Decisions that the served policy did not make, by reason.",
                "reason",
                self.fallbacks,
            ),
            ("hone_refused_total", "Refused requests by code.", "code", self.faults),
        ):
            yield from _head(name, "counter", told)
            yield from (f'{name}{{{label}="{_escaped(key)}"}} {count}' for key, count in sorted(counted.items()))
        for name, told, value in gauges:
            yield from _head(name, "gauge", told)
            yield f"{name} {value:g}"
        yield from _head("hone_gateway_seconds", "histogram", "Seconds from a request's first byte to its answer.")
        yield from self.latency.lines("hone_gateway_seconds")


@dataclass(slots=True)
class FaultLines:
    """Log lines of faults as JSON, at most 20 a minute of each code; more are counted in the next line."""

    tell: Callable[[str], None]
    clock: Clock
    _told: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    """Code -> begin of its minute, lines in it."""

    def fault(self, code: str, message: str, fields: Mapping[str, str | int]) -> None:
        """Write a line, unless the code had too many in this minute."""
        now_s = self.clock.monotonic_s()
        began_s, count = self._told.get(code, (now_s, 0))
        suppressed = max(0, count - _MOST_LINES)
        if now_s - began_s >= 60.0:
            began_s, count = now_s, 0
        else:
            suppressed = 0
        self._told[code] = began_s, count + 1
        if count < _MOST_LINES:
            line: dict[str, object] = {
                "at_s": round(self.clock.now_s(), 3),
                "fault": code,
                "message": message,
                **fields,
            }
            if suppressed:
                line["suppressed"] = suppressed
            self.tell(json.dumps(line, ensure_ascii=False))


def _head(name: str, kind: str, told: str) -> list[str]:
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
