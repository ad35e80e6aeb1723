"""`hone estimate`: the value of policies on a log of decisions, verdict first, before any of them is deployed.

Belongs here: options, the layout on the screen, files. `hone.decide.evaluate.off_policy` computes the figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import cast, get_args

from hone.cli.commands.log import join_of, moment_of
from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import SystemClock
from hone.core.decisions import DecisionPolicy, DecisionTable
from hone.core.errors import ConfigError, DataError, did_you_mean, run_all_checks
from hone.core.strict_json import Json
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.estimators.estimate import (
    ESTIMATORS,
    SELF_NORMALISED,
    EstimateSettings,
    EstimatorName,
    OffPolicyEstimate,
)
from hone.decide.estimators.reward_models import RewardModelKind, RewardModelSettings
from hone.decide.estimators.terms import IntervalKind
from hone.decide.estimators.trajectories import TRAJECTORY_ESTIMATORS
from hone.decide.evaluate.off_policy import (
    DEFAULT_ESTIMATORS,
    OffPolicyReport,
    PolicyEstimates,
    estimate_policies,
    estimate_trajectories,
    read_decision_table,
)
from hone.decide.evaluate.off_policy_page import write_off_policy_page
from hone.decide.log.protocol import log_name
from hone.decide.registry import open_registry
from hone.run.store.durable import to_json

_SHOWN_SEGMENTS = 8


def run(call: CommandCall) -> int:
    """Estimate policies and show the judgement; 3 if a candidate is refused."""
    settings, join = _settings(call), join_of(call)
    as_of_s, address = moment_of(call.text("as_of")), call.text("log")
    since_s = moment_of(call.text("since"), "--since") if call.text("since") else -math.inf
    estimate = _trajectories(call, settings) if call.switch("trajectories") else _decisions(call, settings)
    policies = _policies(call)
    table = read_decision_table(
        address, as_of_s=as_of_s, since_s=since_s, join=join, tenant=call.text("tenant"), schema=call.text("schema")
    )
    report = estimate(table, policies)
    source = log_name(address)
    if call.text("registry"):
        since = f" --since {call.text('since')}" if call.text("since") else ""
        made_by = f"hone estimate {source} --estimator {report.policies[0].deciding.estimator}{since}"
        registry = open_registry(Path(call.text("registry")))
        evidence = report.policies[0].evidence(report, made_by=made_by, at_s=SystemClock().now_s())
        registry.add_evidence(call.text("version"), evidence)
    if call.switch("json"):
        # A report as JSON: every figure, with the words of the verdicts and comparisons
        made = cast("dict[str, Json]", _finite(asdict(report)))
        made["verdict"] = report.verdict
        made["words"] = {one.policy: one.verdict_words(report) for one in report.policies}
        made["comparisons"] = [one.words for one in report.differences]
        print(to_json(made, indent=1).decode(), end="")
    else:
        page = Path(call.text("html")) if call.text("html") else _page(address)
        write_off_policy_page(page, report, source=source)
        screen = standard_screen()
        _show_report(screen, report, compare=call.switch("compare"))
        screen.line(f"plots in {page}")
        if call.text("registry"):
            screen.line(f"evidence of version {call.text('version')} added to {call.text('registry')}")
    return DataError.exit_code if report.verdict == "refuse" else 0


def _finite(value: object) -> Json:
    """The same with null in place of numbers that JSON does not have."""
    match value:
        case dict():
            return {str(key): _finite(each) for key, each in cast("dict[str, object]", value).items()}
        case list() | tuple():
            return [_finite(each) for each in cast("Sequence[object]", value)]
        case float():
            return value if math.isfinite(value) else None
        case _:
            return cast("Json", value)


def _show_report(screen: TerminalScreen, report: OffPolicyReport, *, compare: bool) -> None:
    """Print verdicts with their reasons, then the figures; `compare`: every pair of candidates too."""
    for one in report.policies:
        screen.title(f"{one.policy}: {one.deciding.verdict}")
        screen.line(one.verdict_words(report))
        for reason in one.deciding.reasons:
            screen.line(f"  {reason.verdict}, {reason.rule}: {reason.words}")
        screen.line()
    count = f"{report.used:,} of {report.rows:,} decisions used, {report.logged.units:,} units"
    paid = "return" if report.policies[0].deciding.estimator in TRAJECTORY_ESTIMATORS else "reward"
    screen.line(f"{count}; mean {paid} of the log {_interval(report.logged)}")
    screen.line()
    heads = ("policy", "estimator", f"value ({report.logged.level:.0%} interval)", "effective rows", "largest weight",
             "overlap", "verdict")  # fmt: skip
    rows = [_row(one, estimate) for one in report.policies for estimate in one.estimates]
    screen.table(heads, rows)
    screen.line()
    for one in report.policies:
        _show_segments(screen, one)
    if compare and len(report.policies) > 1:
        for difference in report.differences:
            screen.line(difference.words)
        screen.line(f"order: {', '.join(report.ranking)}")
        screen.line()


def _row(one: PolicyEstimates, found: OffPolicyEstimate) -> Sequence[str]:
    return (
        one.policy,
        found.estimator,
        _interval(found),
        compact_number(found.ess),
        compact_number(found.largest_weight),
        f"{found.overlap:.1%}",
        found.verdict,
    )


def _show_segments(screen: TerminalScreen, one: PolicyEstimates) -> None:
    weak = [each for each in one.segments if each.estimate.verdict != "ok"]
    if len(one.segments) < 2 or not weak:
        return
    rows = [
        (each.segment, f"{each.estimate.n:,}", _interval(each.estimate), f"{each.estimate.overlap:.1%}",
         ", ".join(f"{reason.verdict}: {reason.rule}" for reason in each.estimate.reasons))
        for each in weak[:_SHOWN_SEGMENTS]
    ]  # fmt: skip
    screen.table((f"segments of {one.policy} that are not ok", "rows", "value", "overlap", "reasons"), rows)
    screen.line()


def _interval(found: OffPolicyEstimate) -> str:
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


# ---------------------------------------------------------------------------------------------- options


def _policies(call: CommandCall) -> dict[str, DecisionPolicy]:
    """Candidates by the names that they were given; the version's own policy where none was."""
    registry, version = call.text("registry"), call.text("version")
    if bool(registry) != bool(version):
        raise ConfigError("--registry and --version go together: the registry's folder, and the version of the policy")
    folders = call.texts("policy")
    if len(set(folders)) < len(folders):
        raise ConfigError(f"a --policy is named twice: {', '.join(folders)}")
    if registry and folders:
        raise ConfigError("--registry takes evidence of a version's own policy, which it holds: leave --policy out")
    if registry:
        return {version: open_decision_policy(open_registry(Path(registry)).policy_folder(version))}
    if not folders:
        raise ConfigError("--policy is missing: a policy's folder, a checkpoint or a run; several may be given")
    opened: Mapping[str, DecisionPolicy] = run_all_checks(
        {name: lambda name=name: open_decision_policy(Path(name)) for name in folders}
    )
    return dict(opened)


_Estimate = Callable[[DecisionTable, Mapping[str, DecisionPolicy]], OffPolicyReport]


def _decisions(call: CommandCall, settings: EstimateSettings) -> _Estimate:
    """Estimates of single decisions. Raises ConfigError for options that are wrong."""
    first = call.text("estimator") or DEFAULT_ESTIMATORS[0]
    if first not in ESTIMATORS:
        raise ConfigError(f"--estimator {first}{did_you_mean(first, ESTIMATORS)}")
    if call.text("discount") != "1":
        raise ConfigError("--discount belongs to --trajectories: a single decision has nothing to discount")
    sums = settings.interval == "bernstein"
    others: list[EstimatorName] = [
        name for name in DEFAULT_ESTIMATORS if name != first and not (sums and name in SELF_NORMALISED)
    ]
    behaviour = open_decision_policy(Path(call.text("behaviour"))) if call.text("behaviour") else None
    return partial(
        estimate_policies, estimators=(first, *others), settings=settings, segment=call.text("segment"),
        behaviour=behaviour,
    )  # fmt: skip


def _trajectories(call: CommandCall, settings: EstimateSettings) -> _Estimate:
    """Estimates of episodes. Raises ConfigError for options that are wrong, and for those of single decisions."""
    first = call.text("estimator") or "pdis"
    if first not in TRAJECTORY_ESTIMATORS:
        raise ConfigError(f"--estimator {first}{did_you_mean(first, tuple(TRAJECTORY_ESTIMATORS))}")
    others = {"--behaviour": call.text("behaviour"), "--segment": call.text("segment").replace("choice", "")}
    if wrong := [flag for flag, value in others.items() if value]:
        raise ConfigError(*(f"{flag} belongs to single decisions: leave it out with --trajectories" for flag in wrong))
    discount = parse_number(call.text("discount"), "--discount", least=0.0, whole=False)
    names = tuple(dict.fromkeys((first, *TRAJECTORY_ESTIMATORS)))
    return partial(estimate_trajectories, estimators=names, settings=settings, discount=discount)


def _settings(call: CommandCall) -> EstimateSettings:
    interval, model = call.text("interval"), call.text("reward_model")
    if interval not in get_args(IntervalKind):
        raise ConfigError(f"--interval {interval}{did_you_mean(interval, get_args(IntervalKind))}")
    if model not in get_args(RewardModelKind):
        raise ConfigError(f"--reward-model {model}{did_you_mean(model, get_args(RewardModelKind))}")
    level = parse_number(call.text("level"), "--level", least=0.5, whole=False)
    if level >= 1:
        raise ConfigError(f"--level must be below 1, got {call.text('level')}")
    return EstimateSettings(
        level=level,
        interval=cast("IntervalKind", interval),
        model=RewardModelSettings(kind=cast("RewardModelKind", model)),
        seed=int(parse_number(call.text("seed"), "--seed", least=0)),
    )


def _page(address: str) -> Path:
    """Path of the page: beside the log's file, or in the working directory."""
    return (Path() if "://" in address else Path(address).parent) / "estimate.html"
