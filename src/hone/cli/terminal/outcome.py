"""Result of a pipeline on the screen: its stages' evaluations, their differences, and answers before and after."""

from typing import TYPE_CHECKING

from hone.cli.terminal.screen import TerminalScreen

if TYPE_CHECKING:
    from hone.run.pipeline import PipelineResult


def show_outcome(screen: TerminalScreen, outcome: "PipelineResult") -> None:
    """Print the evaluations and comparisons of the stages, and ten answers before and after."""
    screen.line()
    screen.title("on the same held-out questions")
    for one in outcome.evaluations:
        screen.line(f"{one.stage}: {one.mean:.1%} (95% interval {one.low:.1%} to {one.high:.1%}, n = {one.n})")
    for pair in outcome.comparisons:
        screen.line(
            f"{pair.before} -> {pair.after}: {pair.difference:+.1%} (95% interval {pair.low:+.1%} to {pair.high:+.1%}, "
            f"paired p = {pair.p_value:.2g})"
        )
    if outcome.side_by_side:
        screen.line()
        screen.table(
            ("question", "answer", "before", "", "after", ""),
            [
                (
                    one.prompt.strip(),
                    one.reference,
                    one.before,
                    _score_mark(one.before_score),
                    one.after,
                    _score_mark(one.after_score),
                )
                for one in outcome.side_by_side
            ],
        )
    screen.line(f"finished in {outcome.seconds:.0f} s: {outcome.folder}, report in {outcome.folder / 'report.html'}")


def _score_mark(score: float | None) -> str:
    """Mark of a score: right, wrong, or not scored."""
    return "?" if score is None else "ok" if score >= 1 else "x"
