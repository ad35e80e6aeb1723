"""Report section about the answers that were dropped, cut or without a reward, by length."""

import math

from hone.run.report.html import EMPTY, MISSING, Html, element, format_number, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import LaneBlock, lane_plot, part_style
from hone.run.store.survivorship import FATES, LengthDecile, Survivorship


def survivorship_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run that learnt from every answer as it ended."""
    found = stage.survivorship
    if found is None or found.total(FATES[1:]).answers == 0:
        return EMPTY
    warnings = [styled("p", "bad", text(f"{line[0].upper()}{line[1:]}")) for line in found.warnings()]
    bias, all_ = found.length_bias_tokens, found.total()
    line = (
        f"The answers that were learnt from are {abs(bias):.3g} tokens {'longer' if bias > 0 else 'shorter'} on "
        f"average than all {all_.answers:,} answers ({bias * all_.answers / max(all_.tokens, 1):+.1%})."
    )
    deciles = found.deciles()
    note = (
        "Each lane is about a tenth of all answers, the shortest first; answers of one length stay together. Kept and "
        "truncated answers were learnt from; unscored ones had no reward, stale ones were too old, and filtered ones "
        "were left out by the recipe's selection of groups."
    )
    card = [styled("p", "note", text(note)), _picture(deciles), _deciles(deciles)]
    card += [styled("p", "note", text("All lengths together:")), _fates(found)]
    return join(
        [
            element(level, text("Answers by length")),
            *warnings,
            styled("p", "verdict", text(line)),
            styled("div", "card", *card),
        ]
    )


def _picture(deciles: list[LengthDecile]) -> Html:
    lanes: list[tuple[str, list[LaneBlock]]] = []
    for one in deciles:
        begin, blocks = 0.0, list[LaneBlock]()
        for place, fate in enumerate(FATES):
            count = one.answers.get(fate, 0)
            if count:
                style = part_style(fate, place)
                blocks.append(
                    LaneBlock(name=fate, start=begin, size=float(count), style=style, title=f"{fate}: {count:,}")
                )
                begin += count
        lanes.append((_lengths(one), blocks))
    return lane_plot(lanes, max(sum(one.answers.values()) for one in deciles), "answers")


def _deciles(deciles: list[LengthDecile]) -> Html:
    fates = [fate for fate in FATES if any(fate in one.answers for one in deciles)]
    rows = [
        [
            text(_lengths(one)),
            *(text(f"{one.answers.get(fate, 0):,}") for fate in fates),
            text(_reward(one.reward_learnt)),
            text(_reward(one.reward_dropped)),
        ]
        for one in deciles
    ]
    heads = ("tokens", *fates, "mean reward, learnt from", "not learnt from")
    return table(heads, rows, style="fit", numeric=tuple(range(1, len(heads))))


def _fates(found: Survivorship) -> Html:
    whole = found.total().answers
    rows: list[list[Html]] = []
    for place, fate in enumerate(FATES):
        one = found.total([fate])
        if one.answers:
            swatch = element("span", attributes={"class": f"swatch {part_style(fate, place)}"})
            cells = [f"{one.answers:,}", f"{one.answers / whole:.1%}", format_number(one.tokens / one.answers)]
            reward = _reward(one.score_sum / one.scored if one.scored else math.nan)
            rows.append([join([swatch, text(fate)]), *map(text, [*cells, reward])])
    heads = ("what became of it", "answers", "share", "mean tokens", "mean reward")
    return table(heads, rows, style="fit", numeric=(1, 2, 3, 4))


def _lengths(one: LengthDecile) -> str:
    return f"{one.shortest:,}" if one.shortest == one.longest else f"{one.shortest:,} to {one.longest:,}"


def _reward(value: float) -> str:
    return MISSING if math.isnan(value) else format_number(value)
