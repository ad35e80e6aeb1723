"""Report section about a control policy: an episode, a map, and scores under perturbations.

Belongs here: the text of the section. `store.animation` encodes the animation, `policy_map` draws the map.
"""

import base64

from hone.run.report.html import EMPTY, Html, element, format_number, join, styled, table, text
from hone.run.report.policy_map import draw_policy_map
from hone.run.report.run_data import RunData
from hone.run.report.svg import IntervalRow, interval_plot
from hone.run.store.animation import EpisodeRecording
from hone.run.store.robustness import PerturbedScore


def policy_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a language model."""
    parts: list[Html] = []
    if stage.episode is not None:
        parts.append(_episode_animation(*stage.episode))
    if stage.map is not None:
        parts.append(draw_policy_map(stage.map))
    head = [element(level, text("The policy"))] if parts else []
    return join([*head, *parts, _robustness(stage.robustness, level)])


def _episode_animation(about: EpisodeRecording, png: bytes | None) -> Html:
    if png is None:
        return styled("p", "note", text(f"No animation of an episode: {about.note or 'it would be too large'}."))
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    words = f"An episode of step {about.step:,}: {about.steps:,} steps, return {format_number(about.score)}"
    words += f"; {about.note}" if about.note else ""
    image = Html(
        f'<img alt="{words}" src="{source}">'
    )  # the only picture that is not SVG; encoded here, so it is valid
    return styled("div", "card film", styled("p", "note", text(f"{words}.")), image)


def _robustness(rows: tuple[PerturbedScore, ...], level: str) -> Html:
    if not rows:
        return EMPTY
    plot = interval_plot([IntervalRow(label=row.name, mean=row.mean, low=row.low, high=row.high) for row in rows])
    lines = [
        [
            text(row.name),
            text(f"{format_number(row.mean)} ({format_number(row.low)} to {format_number(row.high)})"),
            text(
                f"{format_number(row.difference)} ({format_number(row.difference_low)} to "
                f"{format_number(row.difference_high)})"
            ),
            text(format_number(row.p_value)),
        ]
        for row in rows
    ]
    heads = ("world", "score", "difference on the same seeds", "paired p")
    words = f"Mean return of {rows[0].n:,} episodes in perturbed environments, with 95% intervals"
    card = styled("div", "card", styled("p", "note", text(words)), plot)
    return join([element(level, text("Robustness")), card, table(heads, lines, style="fit", numeric=(3,))])
