"""Report section about dialogues: reasons of their ends, turns, calls of tools and waits, and their texts.

Belongs here: the figures that say why a run does not learn, and the colours of who said what.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Turn
from hone.core.dialogue import STOP_REASONS
from hone.run.report.html import EMPTY, Html, element, format_duration, format_number, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import thinned
from hone.run.report.svg_lines import CurveSeries, band_plot, legend

STOPS = "stops/"
LAST = 10
"""Steps at the end whose means are told."""
MEANINGS: Mapping[str, str] = {
    "done": "the world ended it, or a turn without a call",
    "turns": "as many turns as task.turns allows",
    "context": "no room for another turn: rollout.context",
    "max_tokens": "a turn was cut: rollout.max_tokens",
    "invalid_calls": "calls that could not be read, one after another",
    "deadline": "the world gave no answer in time; no score",
    "world_died": "the world failed; no score",
}
_FIGURES = (
    ("turns/mean", "turns of a dialogue", "mean"),
    ("turns/forked", "dialogues of several rows", "share; the chat template rewrote their history"),
    ("tools/called", "dialogues with a call", "share"),
    ("tools/invalid", "dialogues with a call that could not be read", "share"),
    ("tools/repeats", "dialogues that repeat a call ten times", "share"),
)
_WAITS = (
    ("world/wait_s", "wait for an answer of the world", "mean"),
    ("world/p95_s", "the same, of the slowest twentieth", "95th percentile"),
)
_MOST_LOST, _LEAST_CALLED, _MOST_CUT = 0.05, 0.05, 0.2

Floats = NDArray[np.float64]


def dialogue_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run without dialogues."""
    values = stage.metrics.values
    stops: dict[str, Floats] = {one: values[f"{STOPS}{one}"] for one in STOP_REASONS if f"{STOPS}{one}" in values}
    if not stops:
        return EMPTY
    seen = {name: own for name, own in stops.items() if np.nansum(own) > 0}
    steps = stage.metrics.steps.astype(np.float64)
    curves = [_curve(name, colour, steps, own) for colour, (name, own) in enumerate(seen.items())]
    card = styled(
        "div",
        "card",
        *(_plot(curves) if len(curves) > 1 else []),
        _table(values, seen),
    )
    warnings = [styled("p", "bad", text(one)) for one in dialogue_findings(values)]
    return join([element(level, text("Dialogues")), *warnings, card])


def dialogue_findings(values: Mapping[str, Floats]) -> list[str]:
    """Sentences on what keeps a run from learning: lost and cut dialogues, tools that nobody calls."""

    def late(name: str) -> float:
        return _last(values[name]) if name in values else np.nan

    lost = np.nansum([late(f"{STOPS}deadline"), late(f"{STOPS}world_died")])
    found: list[str] = []
    if lost > _MOST_LOST:
        found.append(f"{lost:.0%} of the last dialogues have no score: their world failed or gave no answer in time.")
    for reason, key in (("max_tokens", "rollout.max_tokens"), ("context", "rollout.context"), ("turns", "task.turns")):
        if (cut := late(f"{STOPS}{reason}")) > _MOST_CUT:
            found.append(f"{cut:.0%} of the last dialogues were cut by {key}.")
    if (called := late("tools/called")) < _LEAST_CALLED:
        found.append(
            f"Tools were called in {called:.1%} of the last dialogues: does the prompt say how, and does "
            "task.tools.format fit the chat template?"
        )
    if (invalid := late("tools/invalid")) > _MOST_CUT:
        found.append(f"{invalid:.0%} of the last dialogues had a call that could not be read.")
    return found


def dialogue_turns(turns: Sequence[Turn]) -> Html:
    """Turns of a dialogue, each in the colour of who said it: the policy's tokens were drawn, the world's were not."""
    return styled("div", "turns", *(_turn(speaker, words) for speaker, words in turns))


def speakers_legend() -> Html:
    """Legend of the colours of `dialogue_turns`."""
    names = (("policy", "drawn by the policy"), ("world", "said by the world or a tool"))
    return join([styled("span", f"said {style}", text(words)) for style, words in names])


def _turn(speaker: str, words: str) -> Html:
    style = "policy" if speaker == "policy" else "world"
    who = styled("span", "who", text(style))
    return styled("div", f"said {style}", who, styled("div", "words", text(words.strip("\n")))) if words else EMPTY


def _plot(curves: Sequence[CurveSeries]) -> list[Html]:
    words = "Share of the dialogues by the reason of their end, by step."
    return [styled("p", "note", text(words)), legend([one.name for one in curves]), band_plot(curves, x_label="step")]


def _table(values: Mapping[str, Floats], stops: Mapping[str, Floats]) -> Html:
    rows = [[text(f"stop: {name}"), text(f"{_last(own):.1%}"), text(MEANINGS[name])] for name, own in stops.items()]
    rows += [
        [text(title), text(format_number(_last(values[name]))), text(meaning)]
        for name, title, meaning in _FIGURES
        if name in values
    ]
    rows += [
        [text(title), text(format_duration(_last(values[name]))), text(meaning)]
        for name, title, meaning in _WAITS
        if name in values
    ]
    return table(("figure", f"last {LAST} steps", "meaning"), rows, style="fit", numeric=(1,))


def _curve(name: str, colour: int, steps: Floats, values: Floats) -> CurveSeries:
    known = np.isfinite(values)
    x, middle = thinned(steps[known], values[known])
    nothing = np.full(len(x), np.nan)
    return CurveSeries(name=name, colour=colour, x=x, middle=middle, low=nothing, high=nothing)


def _last(values: Floats) -> float:
    """Mean over the last steps; of a figure that was not measured then, the last value, or NaN."""
    late = values[-LAST:]
    known = late[np.isfinite(late)] if np.isfinite(late).any() else values[np.isfinite(values)][-1:]
    return float(known.mean()) if len(known) else float("nan")
