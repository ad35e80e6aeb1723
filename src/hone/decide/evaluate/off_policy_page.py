"""HTML page of an off-policy report: verdicts, a forest plot, the weights' tail, overlap by segment, propensities."""

from pathlib import Path

from hone.decide.estimators.estimate import OffPolicyEstimate
from hone.decide.evaluate.off_policy import LOGGED, OffPolicyReport, PolicyEstimates
from hone.run.report.html import EMPTY, Html, element, format_number, join, page, styled, table, text, with_minus_sign
from hone.run.report.svg import IntervalRow, LabelledBar, histogram, horizontal_bars, interval_plot
from hone.run.store.durable import replace_file

_COLOURS = {"ok": "p2", "weak": "p1", "refuse": "p4"}


def write_off_policy_page(path: Path, report: OffPolicyReport, *, source: str) -> None:
    """Write a report as an HTML document, atomically; `source` names the log. Raises ResourceError."""
    names = [one.policy for one in report.policies]
    title = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    about = (
        f"{source} · {report.used:,} of {report.rows:,} decisions used · {report.logged.units:,} units · "
        f"versions {', '.join(report.versions[:6])}"
    )
    counted = "Decisions of the log by the probability of their executed action. Rows near 0 become large weights."
    plot = histogram(report.propensity_counts, low=0.0, high=1.0, x_label="logged probability")
    assumptions = [words for one in report.policies for each in one.estimates for words in each.assumptions]
    html = page(
        f"Estimate of {title}",
        element("header", styled("p", "kicker", text("off-policy estimate")), element("h1", text(title))),
        styled("p", "about", text(about)),
        _verdicts(report),
        _forest(report),
        _differences(report),
        join([_policy(one) for one in report.policies]),
        element("h2", text("Propensities")),
        styled("div", "card", styled("p", "note", text(counted)), plot),
        element("h2", text("Assumptions")),
        *(styled("p", "note", text(f"{words}.")) for words in dict.fromkeys(assumptions)),
    )
    replace_file(path, html.encode("utf-8", "replace"))


def _verdicts(report: OffPolicyReport) -> Html:
    parts: list[Html] = []
    for one in report.policies:
        parts.append(
            styled("p", "verdict", element("b", text(one.deciding.verdict)), text(f": {one.verdict_words(report)}."))
        )
        parts += [
            styled("p", "note", text(f"{reason.verdict}, {reason.rule}: {reason.words}."))
            for reason in one.deciding.reasons
        ]
    return join(parts)


def _forest(report: OffPolicyReport) -> Html:
    rows = [_interval_row(LOGGED, report.logged)]
    rows += [
        _interval_row(f"{one.policy}, {estimate.estimator}", estimate)
        for one in report.policies
        for estimate in one.estimates
    ]
    words = (
        f"Value of each candidate by each estimator, {report.logged.level:.0%} intervals. The blue one of a "
        "candidate decides. Dashed: the mean reward of the log."
    )
    each = len(report.policies[0].estimates)
    deciding = [1 + each * place for place in range(len(report.policies))]
    plot = interval_plot(rows, unit_axis=False, level=report.logged.value, emphasised=deciding)
    heads = ("policy", "estimator", "value", "low", "high", "effective rows", "largest weight", "overlap", "verdict")
    lines = [
        [text(one.policy), text(estimate.estimator), *_numbers(estimate), text(estimate.verdict)]
        for one in report.policies
        for estimate in one.estimates
    ]
    return join(
        [
            element("h2", text("Estimates")),
            styled("div", "card", styled("p", "note", text(words)), plot),
            table(heads, lines, style="fit", numeric=range(2, 8)),
        ]
    )


def _numbers(found: OffPolicyEstimate) -> list[Html]:
    figures = [with_minus_sign(f"{value:.4g}") for value in (found.value, found.low, found.high)]
    figures += [format_number(found.ess), format_number(found.largest_weight), f"{found.overlap:.1%}"]
    return [text(words) for words in figures]


def _interval_row(name: str, found: OffPolicyEstimate) -> IntervalRow:
    return IntervalRow(label=name, mean=found.value, low=found.low, high=found.high, words=f"{found.value:.4g}")


def _differences(report: OffPolicyReport) -> Html:
    rows = [_interval_row(f"{one.second} - {one.first}", one.estimate) for one in report.differences]
    words = "Differences on the same decisions, by unit. An interval that holds 0 shows no difference."
    notes = [styled("p", "note", text(f"{one.words}.")) for one in report.differences]
    plot = interval_plot(rows, unit_axis=False, level=0.0, emphasised=())
    card = styled("div", "card", styled("p", "note", text(words)), plot)
    return join([element("h2", text("Comparisons")), card, *notes])


def _policy(one: PolicyEstimates) -> Html:
    tail = one.tail
    quantiles = (("median", tail.median), ("90%", tail.q90), ("99%", tail.q99), ("largest", tail.largest))
    bars = [LabelledBar(name=name, value=value, words=format_number(value)) for name, value in quantiles]
    words = (
        f"Importance weights: a weight of 1 is a decision that both policies take alike. The largest 1% of the rows "
        f"have {tail.top_share:.0%} of all weight."
    )
    return join(
        [
            element("h2", text(one.policy)),
            styled("div", "card", styled("p", "note", text(words)), horizontal_bars(bars)),
            _segments(one),
        ]
    )


def _segments(one: PolicyEstimates) -> Html:
    if not one.segments:
        return EMPTY
    bars = [
        LabelledBar(
            name=each.segment or "(none)",
            value=each.estimate.overlap,
            words=f"{each.estimate.overlap:.0%} of {each.estimate.n:,} rows",
            style=_COLOURS[each.estimate.verdict],
        )
        for each in one.segments
    ]
    heads = ("segment", "rows", "value", "low", "high", "effective rows", "largest weight", "overlap", "verdict")
    lines = [
        [text(each.segment or "(none)"), text(f"{each.estimate.n:,}"), *_numbers(each.estimate),
         text(each.estimate.verdict)]
        for each in one.segments
    ]  # fmt: skip
    words = (
        "Overlap by segment: the share of the candidate's choices that the log can show. Green: ok; orange: weak; red: "
        "refused."
    )
    card = styled("div", "card", styled("p", "note", text(words)), horizontal_bars(bars, longest=1.0))
    return join([card, table(heads, lines, style="fit", numeric=range(1, 8))])
