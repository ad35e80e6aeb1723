"""The page `report.html` of a run or a pipeline, made from the files on disk.

Belongs here: the sections, their order and text. `run_data` reads, `html` makes markup, `svg` draws, `report.css`
holds colours and fonts.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from hone.core.config import ConfigSetting
from hone.core.errors import hide_passwords
from hone.estimators.means import wilson_interval
from hone.run.report.dialogue_section import (
    dialogue_section,
    dialogue_turns,
    judge_section,
    preference_section,
    search_section,
    survivorship_section,
)
from hone.run.report.html import (
    EMPTY,
    MISSING,
    Html,
    collapsible,
    element,
    format_duration,
    format_number,
    join,
    page,
    styled,
    table,
    text,
    with_minus_sign,
)
from hone.run.report.policy_map import policy_section
from hone.run.report.run_data import ReportData, RunData, read_report_data
from hone.run.report.svg import CurveSeries, IntervalRow, band_plot, curve_plot, interval_plot, legend
from hone.run.report.timing_section import memory_section, timing_section
from hone.run.store.durable import replace_file
from hone.run.store.evaluations import EvaluationScore, PairedDifference, SideBySide
from hone.run.store.records import CalibrationRecord, SelectionRow
from hone.run.store.rollouts import SampleRow

# -------------------------------------------------------------------------------------------------- calibration section


_KINDS = {"pairs": "pairs of answers", "outcomes": "answers", "steps": "labelled tokens of steps"}
_FIGURES = {
    "score": "accuracy",
    "base_rate": "accuracy of the more frequent label alone",
    "auc": "AUC",
    "ece": "expected calibration error",
    "ece_fitted": "the same at the fitted temperature, each half of the data at the other half's",
    "temperature": "fitted temperature: scores divided by it are best calibrated",
    "cross_entropy_nats": "cross-entropy, nats",
    "length_bias": "length bias: how much more it prefers long answers than the labels do",
}


def calibration_section(found: CalibrationRecord | None, level: str) -> Html:
    """Render the section; empty for a run without a scorer."""
    if found is None:
        return EMPTY
    parts = [element(level, text("The scorer on held-out answers")), _reliability(found)]
    if found.selection:
        parts.append(_selection(found.selection))
    rows = [
        [text(words), text(format_number(found.figures[name]))]
        for name, words in _FIGURES.items()
        if not math.isnan(found.figures.get(name, math.nan))
    ]
    parts.append(styled("div", "card", table(("figure", "value"), rows, style="fit", numeric=(1,))))
    return join(parts)


def _reliability(found: CalibrationRecord) -> Html:
    """Observed share against predicted chance, with the diagonal of a calibrated scorer."""
    bins = [one for one in found.bins if one.n]
    if not bins:
        return EMPTY
    ends = np.array([min(one.low for one in bins), max(one.high for one in bins)])
    count = sum(one.n for one in bins)
    what = "how sure it is of its preference" if found.kind == "pairs" else "the chance that it gives"
    words = (
        f"Observed share of {count:,} {_KINDS.get(found.kind, found.kind)} by {what}, with 95% intervals. A calibrated "
        "scorer follows the diagonal."
    )
    intervals = [wilson_interval(min(one.n, round(one.observed * one.n)), one.n) for one in bins]
    observed = CurveSeries(
        name="observed",
        colour=0,
        x=np.array([one.predicted for one in bins]),
        middle=np.array([one.observed for one in bins]),
        low=np.array([one.low for one in intervals]),
        high=np.array([one.high for one in intervals]),
    )
    perfect = CurveSeries(name="calibrated", colour=1, x=ends, middle=ends, low=ends, high=ends)
    plot = band_plot([observed, perfect], x_label="predicted chance")
    rows = [
        [text(f"{one.low:.1f} to {one.high:.1f}"), text(f"{one.predicted:.3f}"), text(f"{one.observed:.3f}"),
         text(f"{one.n:,}")]
        for one in bins
    ]  # fmt: skip
    as_table = table(("bin", "predicted", "observed", "count"), rows, style="fit", numeric=(1, 2, 3))
    return styled(
        "div", "card", styled("p", "note", text(words)), legend(["observed", "calibrated"]), plot,
        collapsible("As a table", as_table),
    )  # fmt: skip


def _selection(rows: tuple[SelectionRow, ...]) -> Html:
    """Worth of the selected answer over the number of answers."""
    curves: dict[str, Callable[[SelectionRow], float]] = {
        "best-scored answer": lambda row: row.best,
        "majority vote": lambda row: row.vote,
        "vote weighted by the scorer": lambda row: row.weighted_vote,
        "best answer there is (pass@n)": lambda row: row.oracle,
    }
    x = np.log2([row.n for row in rows])
    series = [
        CurveSeries(name=name, colour=colour, x=x, middle=middle, low=middle, high=middle)
        for colour, (name, curve) in enumerate(curves.items())
        for middle in [np.array([curve(row) for row in rows])]
    ]
    ends = {"low": np.array([row.low for row in rows]), "high": np.array([row.high for row in rows])}
    series[0] = replace(series[0], **ends)
    words = "Mean label of the answer that is selected from n held-out ones to a question."
    heads = ("n", *curves)
    lines = [[text(f"{row.n}"), *(text(f"{curve(row):.3f}") for curve in curves.values())] for row in rows]
    whole = collapsible("As a table", table(heads, lines, style="fit", numeric=(0, 1, 2, 3, 4)))
    plot = band_plot(series, x_label="log2 n")
    return styled("div", "card", styled("p", "note", text(words)), legend(list(curves)), plot, whole)


# ------------------------------------------------------------------------------------------------------------- run page


_MAX_SAMPLES = 24
_MAX_PAIRS = 10
_LOG_TAIL = 40
_WARNING_LEVELS = (" WARNING ", " ERROR ")


def write_report(folder: Path) -> Path:
    """Write `report.html` for the run or pipeline in `folder`; returns its path.

    Raises DataError if `folder` is not a folder, ResourceError for the disk. The report names damaged files.
    """
    path = folder / "report.html"
    # render the report as an HTML document
    data = read_report_data(folder)
    # The evaluations of the pipeline itself replace those of its stages.
    inner = () if data.folder_data.evaluations else _inner(data)
    measured = [*data.folder_data.evaluations, *(e for stage in inner for e in stage.evaluations)]
    compared = [*data.folder_data.paired, *(p for stage in inner for p in stage.paired)]
    body = [_head(data, measured), _evaluation(measured, compared), _side_by_side(data.folder_data.side_by_side)]
    if data.pipeline is None:
        body += [*_stage_sections(data.folder_data, "h2")]
    else:
        for position, stage in enumerate(data.stages, start=1):
            recipe = stage.manifest.metadata.recipe if stage.manifest else ""
            words = ", ".join(
                [*({recipe} - {"", stage.name}), f"{stage.steps:,} steps", format_duration(stage.wall_s())]
            )
            title = join([text(f"{position}. {stage.name}"), element("small", text(words))])
            body += [
                element("h2", title, attributes={"class": "stage", "id": _anchor(stage)}),
                *_stage_sections(stage, "h3"),
            ]
        body += [_log(data.folder_data, "h2"), _problems(data.folder_data, "h2")]
    replace_file(path, page(data.name, *body).encode("utf-8", "replace"))
    return path


def _inner(data: ReportData) -> tuple[RunData, ...]:
    return () if data.pipeline is None else data.stages


def _head(data: ReportData, measured: Sequence[EvaluationScore]) -> Html:
    recipes = [stage.manifest.metadata.recipe or stage.name for stage in data.stages if stage.manifest]
    kind = f"pipeline: {' → '.join(recipes)}" if data.pipeline else f"run: {' '.join(recipes)}"
    parts = [styled("p", "kicker", text(kind)), element("h1", text(data.name)), _tiles(data, measured)]
    newest = next((stage.manifest for stage in reversed(data.stages) if stage.manifest), None)
    if newest:
        versions = [f"{name} {version}" for name, version in newest.metadata.versions.items()]
        about = [newest.created_at, newest.metadata.machine, f"hone {newest.metadata.hone_version}", *versions]
        if newest.metadata.dataset_fingerprint:
            about.append(f"data {newest.metadata.dataset_fingerprint[:12]}")
        parts.append(styled("p", "about", text("  ·  ".join(part for part in about if part))))
    if data.pipeline:
        links = (element("a", text(s.name), attributes={"href": f"#{_anchor(s)}"}) for s in data.stages)
        parts.append(element("nav", *links))
    return element("header", *parts)


def _tiles(data: ReportData, measured: Sequence[EvaluationScore]) -> Html:
    tiles: list[Html] = []
    for metric in dict.fromkeys(e.metric for e in measured):
        means = [e for e in measured if e.metric == metric]
        words = (
            [format_number(means[0].mean), format_number(means[-1].mean)]
            if len(means) > 1
            else [format_number(means[0].mean)]
        )
        names = f"{means[0].stage} to {means[-1].stage}" if len(means) > 1 else means[0].stage
        tiles.append(_tile(words, f"{metric}, {names}"))
    for name in ("reward/mean", "return/mean", "loss/mean", "loss"):
        values = data.stages[-1].metrics.values.get(name)
        known = values[np.isfinite(values)] if values is not None else np.zeros(0)
        if len(known):
            size = max(len(known) // 20, 1)
            ends = [format_number(float(known[:size].mean())), format_number(float(known[-size:].mean()))]
            tiles.append(_tile(ends, f"{name}, first to last"))
            break
    tiles.append(_tile([" + ".join(f"{stage.steps:,}" for stage in data.stages)], "steps"))
    tiles.append(_tile([format_duration(sum(stage.wall_s() for stage in data.stages))], "training time"))
    return styled("div", "tiles", *tiles)


def _tile(words: Sequence[str], caption: str) -> Html:
    arrow = element("i", text(" → "))
    value = join([text(words[0]), *(join([arrow, text(word)]) for word in words[1:])])
    return styled("div", "tile", element("b", value), element("span", text(caption)))


# ---------------------------------------------------------------------------------------- measurements


def _evaluation(measured: Sequence[EvaluationScore], compared: Sequence[PairedDifference]) -> Html:
    if not measured:
        return EMPTY
    parts = [element("h2", text("Evaluation"))]
    parts += [styled("p", "verdict", *_verdict(pair)) for pair in compared]
    parts += [styled("p", "bad", text(f"{line}.")) for line in measured[-1].warnings]
    for metric in dict.fromkeys(e.metric for e in measured):
        rows = [e for e in measured if e.metric == metric]
        plot = interval_plot([IntervalRow(label=e.stage, mean=e.mean, low=e.low, high=e.high) for e in rows])
        parts.append(styled("div", "card", styled("p", "note", text(f"{metric}: mean and 95% interval")), plot))
    rows = [
        [
            text(e.stage),
            text(e.metric),
            *map(text, (format_number(e.mean), f"{format_number(e.low)} to {format_number(e.high)}", f"{e.n:,}")),
        ]
        for e in measured
    ]
    heads = ("policy", "metric", "mean", "95% interval", "problems")
    parts.append(collapsible("As a table", table(heads, rows, style="fit", numeric=(2, 3, 4))))
    return join(parts)


def _verdict(pair: PairedDifference) -> list[Html]:
    change = f"{pair.after} against {pair.before}: "
    size = f"{'+' if pair.difference > 0 else ''}{format_number(pair.difference)}"
    chance = "p < 0.001" if pair.p_value < 0.001 else f"p = {format_number(pair.p_value)}"
    rest = (
        f" on the same {pair.n:,} problems (95% interval {format_number(pair.low)} to "
        f"{format_number(pair.high)}, {chance})"
    )
    significant = not (pair.low <= 0 <= pair.high)
    note = "." if significant else "; the interval includes 0: not significant."
    return [text(change), element("b", text(size)), text(rest + note)]


def _side_by_side(pairs: Sequence[SideBySide]) -> Html:
    if not pairs:
        return EMPTY
    shown = [_pair(pair) for pair in pairs[:_MAX_PAIRS]]
    rest = f"{_MAX_PAIRS} of {len(pairs)}" if len(pairs) > _MAX_PAIRS else f"{len(pairs)}"
    return join([element("h2", text("Before and after")), styled("p", "note", text(f"{rest} prompts")), *shown])


def _pair(pair: SideBySide) -> Html:
    question = styled(
        "div",
        "question",
        styled("div", "words", text(pair.prompt)),
        styled("div", "ref", text(f"reference {pair.reference}")),
    )
    best = max((score for score in (pair.before_score, pair.after_score) if score is not None), default=0.0)
    answers = (
        _answer("before", pair.before, pair.before_score, best),
        _answer("after", pair.after, pair.after_score, best),
    )
    return styled("article", "pair", question, styled("div", "answers", *answers))


def _answer(title: str, words: str, score: float | None, best: float) -> Html:
    shown = "no score" if score is None else f"score {format_number(score)}"
    style = "answer plus" if score is not None and score >= best and score > 0 else "answer minus"
    head = element("header", element("span", text(title)), element("b", text(shown)))
    return styled("div", style, head, _words(words))


def _words(words: str) -> Html:
    return styled("div", "words", text(words)) if words.strip() else styled("div", "words empty", text("(nothing)"))


# ------------------------------------------------------------------------------------------------ one stage


def _anchor(stage: RunData) -> str:
    return f"stage-{stage.name}"


def _stage_sections(stage: RunData, level: str) -> list[Html]:
    return [
        _problems(stage, level),
        join([styled("p", "bad", text(f"{finding}.")) for finding in stage.findings]),
        policy_section(stage, level),
        calibration_section(stage.calibration, level),
        preference_section(stage, level),
        judge_section(stage, level),
        search_section(stage.search, level),
        dialogue_section(stage, level),
        _curves(stage, level),
        timing_section(stage, level),
        survivorship_section(stage, level),
        memory_section(stage, level),
        _samples(stage.samples, level),
        _config(stage, level),
        _log(stage, level),
    ]


def _curves(stage: RunData, level: str) -> Html:
    moving, constant = stage.curves()
    if not moving and not constant:
        return join([element(level, text("Curves")), styled("p", "note", text("No metrics yet."))])
    cards: list[Html] = []
    for name, values in moving.items():
        known = values[np.isfinite(values)]
        prefix, _, rest = name.rpartition("/")
        title = join([element("i", text(f"{prefix}/" if prefix else "metric")), text(rest)])
        full: dict[str, str | float] = {"title": name}
        head = element(
            "header", element("span", title, attributes=full), element("b", text(format_number(float(known[-1]))))
        )
        cards.append(styled("div", "curve", head, curve_plot(stage.metrics.steps, values)))
    parts = [element(level, text("Curves")), styled("div", "curves", *cards)]
    if constant:
        words = ", ".join(f"{name} {format_number(value)}" for name, value in constant.items())
        parts.append(styled("p", "note", text(f"Constant: {words}.")))
    return join(parts)


def _samples(samples: Sequence[SampleRow], level: str) -> Html:
    if not samples:
        return EMPTY
    groups = [list(rows) for _, rows in groupby(samples, key=lambda row: row.group)]
    # Groups with a gradient come first: equal scores give no advantage.
    groups.sort(key=_spread, reverse=True)
    largest = max(map(abs, _advantages(samples)), default=0.0)
    parts = [element(level, text(f"Samples of step {samples[-1].step:,}"))]
    legend = "Colours show the advantage: blue became more likely, red less. Groups with the widest spread come first."
    parts.append(styled("p", "note", text(legend)))
    if any(row.turns for row in samples):
        names = (("policy", "drawn by the policy"), ("world", "said by the world or a tool"))
        speakers = join([styled("span", f"said {style}", text(words)) for style, words in names])
        parts.append(styled("p", "note", speakers))
    left = _MAX_SAMPLES
    for group in groups:
        if left > 0:
            parts.append(_group(group[:left], largest))
            left -= len(group)
    if len(samples) > _MAX_SAMPLES:
        parts.append(styled("p", "note", text(f"{_MAX_SAMPLES} of {len(samples):,} samples of this step.")))
    return join(parts)


def _advantages(rows: Sequence[SampleRow]) -> list[float]:
    return [row.advantage for row in rows if row.advantage is not None and math.isfinite(row.advantage)]


def _spread(rows: Sequence[SampleRow]) -> float:
    known = _advantages(rows)
    return max(known) - min(known) if known else -1.0


def _group(rows: Sequence[SampleRow], largest: float) -> Html:
    lines = [
        [
            _advantage(row.advantage, largest),
            text(format_number(row.score) if row.score is not None else row.status),
            dialogue_turns(row.turns) if row.turns else _words(row.completion),
            text(f"{row.tokens:,}"),
            text(row.finish),
        ]
        for row in rows
    ]
    heads = ("advantage", "score", "completion", "tokens", "finish")
    asked = styled("div", "asked", _words(rows[0].prompt))
    return join([asked, table(heads, lines, style="samples", numeric=(1, 3))])


def _advantage(value: float | None, largest: float) -> Html:
    if value is None or not math.isfinite(value):
        return styled("span", "chip", text(MISSING))
    share = 55 * abs(value) / largest if largest else 0.0
    colour = f"color-mix(in srgb, var(--{'plus' if value > 0 else 'minus'}) {share:.0f}%, transparent)"
    shown = with_minus_sign(f"{value:+.2f}")
    return element("span", text(shown), attributes={"class": "chip", "style": f"background: {colour}"})


def _config(stage: RunData, level: str) -> Html:
    if not stage.config:
        return EMPTY
    changed = {key: setting for key, setting in stage.config.items() if setting.origin != "default"}
    defaults = {key: setting for key, setting in stage.config.items() if setting.origin == "default"}
    parts = [element(level, text("Configuration"))]
    parts += [_settings(changed)] if changed else []
    parts += [collapsible(f"{len(defaults)} defaults", _settings(defaults))] if defaults else []
    if stage.manifest is not None:
        changes = (f"Changed after step {one.after_step:,}: {one.change}." for one in stage.manifest.changes)
        parts += [styled("p", "note", text(line)) for line in changes]
    if stage.certificate is not None:
        style = "note" if stage.certificate.passed else "bad"
        parts.append(
            styled("p", style, text(f"Loss, checked on a smaller copy of the model: {stage.certificate.summary()}."))
        )
    return join(parts)


def _settings(config: dict[str, ConfigSetting]) -> Html:
    rows = [[text(key), text(_value(setting)), text(setting.origin)] for key, setting in config.items()]
    return table(("key", "value", "from"), rows, style="config")


def _value(setting: ConfigSetting) -> str:
    match setting.value:
        case str(words):
            return hide_passwords(words)
        case None:
            return MISSING
        case other:
            return hide_passwords(json.dumps(other))


def _log(stage: RunData, level: str) -> Html:
    if not stage.log:
        return EMPTY
    alarms = [line for line in stage.log if any(alarm in line for alarm in _WARNING_LEVELS)]
    parts = [element(level, text("Log"))]
    earlier = [line for line in alarms if line not in stage.log[-_LOG_TAIL:]]
    if earlier:
        parts += [styled("p", "note", text("Earlier warnings")), _lines(earlier[-_LOG_TAIL:])]
        parts += [styled("p", "note", text(f"The last {_LOG_TAIL} of {len(stage.log):,} lines"))]
    parts.append(_lines(stage.log[-_LOG_TAIL:]))
    return join(parts)


def _lines(lines: Sequence[str]) -> Html:
    shown = (
        styled("div", "bad" if any(alarm in line for alarm in _WARNING_LEVELS) else "line", text(line))
        for line in lines
    )
    return styled("div", "log words", *shown)


def _problems(stage: RunData, level: str) -> Html:
    if not stage.problems:
        return EMPTY
    lines = (styled("div", "bad", text(problem)) for problem in stage.problems)
    return join([element(level, text("Could not be read")), styled("div", "log words", *lines)])
