"""Alarms of a run: state machines over its lines of metrics, and what they say.

Belongs here: when a run is ill, by its own beginning and its own outcome, never by a bound that fits one task. A rule
looks at a line together with the lines before it. It raises its alarm where its condition holds in 3 of the last 5
lines, calls it red where a severe one held in 8 of the last 10, and ends it after 5 lines without. What depends on the
clock is no part of it, so that a resumed run raises the alarms of an uninterrupted one; whether a run stands still is
asked by its readers (`stall`).

The run writes each change to `events.jsonl`; pages read them there. `benchmarks/alarms.py` records the good and the
bad runs on which the rules are calibrated.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
from pydantic import Field

from hone.core.credit import Metrics
from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.alarm_history import MIN_LINES, RECENT, WINDOW, RunHistory
from hone.run.store.events import read_events
from hone.run.store.metrics import read_metrics, tail_metrics

AlarmName = Literal[
    "not_finite", "entropy_collapse", "dead_groups", "kl", "mismatch", "length", "no_end", "reward_hacking",
    "missing_rewards", "stale", "value", "tools", "memory", "disk",
]  # fmt: skip
Level = Literal["none", "amber", "red"]


AlarmLimits: TypeAlias = dict[AlarmName, Annotated[float, Field(strict=True)] | Literal[False]]
"""Limits other than the default ones, by alarm; false: the alarm is not raised."""


# ---------------------------------------------------------------------------------------------------------------- rules


def _not_finite(run: RunHistory, limit: float) -> str | None:
    del limit
    names = [name for name, value in run.present.items() if not math.isfinite(value) and name in _MUST_BE_FINITE]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not a finite number" if names else None


_MUST_BE_FINITE: Final = frozenset(
    {
        "reward/mean", "policy/loss", "policy/grad_norm", "policy/kl_nats", "policy/entropy_nats", "value/mean",
        "critic/loss", "actor/loss", "values/loss", "all/loss",
    }
)  # fmt: skip


def _entropy_collapse(run: RunHistory, limit: float) -> str | None:
    entropy, score = "policy/entropy_nats", "reward/mean"
    if "answers/tokens_mean" not in run.present or not run.known(entropy, score, "reward/std"):
        return None
    own, spread = run.series[entropy], run.series["reward/std"]
    if not (own.start_mean > 0 and own.recent() < limit * own.start_mean and run.is_flat(score)):
        return None
    solved = run.has_risen(score) and spread.recent() < 0.6 * max(spread.start_mean, 1e-9)
    if solved:
        return None
    return (
        f"entropy fell from {own.start_mean:.3g} to {own.recent():.3g} nats a token, while the score stands at "
        f"{run.series[score].recent():.3g} (it began at {run.series[score].start_mean:.3g})"
    )


def _dead_groups(run: RunHistory, limit: float) -> str | None:
    share, score = "reward/zero_variance_groups", "reward/mean"
    if not run.known(share, score):
        return None
    own, mean = run.series[share], run.series[score]
    if min(own.recent(2 * RECENT), own.recent()) <= limit or run.seen < run.start_lines + RECENT:
        return None  # many a run begins slowly
    if run.has_risen(score):
        return None
    high = mean.best - mean.recent() <= 0.05 * abs(mean.best) and mean.recent() > 0
    kind = "at its highest: they may all be solved" if high else "below what it was at its best: they fail"
    kind = kind if mean.recent() else "0: no answer is right"
    return f"in {own.recent():.0%} of the groups all answers score alike, and teach nothing; the mean score is {kind}"


def _kl(run: RunHistory, limit: float) -> str | None:
    for name, floor in (("policy/kl_nats", 0.02), ("natural/kl_nats", 0.02)):
        if run.known(name) and (own := run.series[name]).latest[-1] > floor:
            usual = own.median_before()
            if own.latest[-1] > limit * usual:
                return f"an update moves the policy by {own.latest[-1]:.3g} nats a decision; {usual:.3g} is usual"
    return None


def _mismatch(run: RunHistory, limit: float) -> str | None:
    if run.known("mismatch/mean"):
        own = run.series["mismatch/mean"]
        if own.latest[-1] > max(limit * own.start_mean, 2e-3):
            return (
                f"engine and trainer differ by {own.latest[-1]:.3g} nats a token; {own.start_mean:.2g} in the beginning"
            )
    weights = run.present.get("mismatch/ratio_ess", 1.0)
    return f"only {weights:.0%} of the tokens count after the correction of the mismatch" if weights < 0.5 else None


def _length(run: RunHistory, limit: float) -> str | None:
    tokens, cut = "answers/tokens_mean", "episodes/truncated"
    if not run.known(tokens, cut):
        return None
    length, truncated = run.series[tokens], run.series[cut]
    grown = length.recent() > 1.3 * length.start_mean and length.recent() > length.start_mean + 3 * length.start_std
    if not (grown and truncated.recent() > max(limit, truncated.start_mean + limit)):
        return None
    return (
        f"answers grew from {length.start_mean:.3g} to {length.recent():.3g} tokens, and {truncated.recent():.0%} of "
        "them are cut by the limit"
    )


def _no_end(run: RunHistory, limit: float) -> str | None:
    cut = run.series.get("episodes/truncated")
    if "answers/tokens_mean" not in run.present or cut is None or run.seen < MIN_LINES:
        return None
    if not (cut.recent() > limit and (cut.start_mean > limit or run.seen <= run.start_lines)):
        return None
    return f"{cut.recent():.0%} of the answers are cut by the limit, as they were from the beginning: they do not end"


def _missing_rewards(run: RunHistory, limit: float) -> str | None:
    missing = run.present.get("reward/missing", 0.0)
    return f"{missing:.0%} of the episodes have no score" if missing > limit else None


def _stale(run: RunHistory, limit: float) -> str | None:
    dropped = run.present.get("async/dropped", 0.0)
    if dropped <= limit:
        return None
    return f"{dropped:.0%} of the answers are dropped, because they are older than the bound"


def _value(run: RunHistory, limit: float) -> str | None:
    if run.known("reward/mean") and run.has_risen("reward/mean"):
        return None  # where every episode is solved, returns hardly vary, and their explained part says nothing
    for name in ("value/explained_variance", "critic/explained_variance"):
        if not run.known(name) or run.present.get("critic/warming_up"):
            continue
        value = run.series[name].recent(2 * RECENT)
        if max(value, run.series[name].recent()) < limit:
            return f"the critic explains {value:.2g} of the returns' variance: less than a constant would"
    return None


def _tools(run: RunHistory, limit: float) -> str | None:
    shares = {
        "of the dialogues ended because their world or a tool did not answer": run.present.get("stops/deadline", 0.0)
        + run.present.get("stops/world_died", 0.0),
        "of the dialogues repeat one call ten times or more": run.present.get("tools/repeats", 0.0),
    }
    for words, share in shares.items():
        if share > limit:
            return f"{share:.0%} {words}"
    return None


def _memory(run: RunHistory, limit: float) -> str | None:
    """Nearly all memory is taken, or will be; or the run takes more than was planned, and ever more."""
    share, plan = run.series.get("machine/memory_share"), run.series.get("machine/memory_to_plan")
    if share is None:
        return None
    now, growth = share.recent(), share.slope()
    size = f"the run's process holds {run.present.get('machine/resident_bytes', 0.0) / GIB:.3g} GiB, {now:.0%} of what"
    if now > limit:
        return f"{size} it may use"
    if growth > 0 and now + growth * share.count * run.ahead > 1:
        return (
            f"{size} it may use, and grows: all of it is taken after {(1 - now) / growth / share.count:.0%} more lines"
        )
    if plan is not None and growth > 0 and plan.recent() > MOST_OF_PLAN and plan.recent() > 1.05 * plan.latest[0]:
        return f"{size} it may use: {plan.recent():.1f} times what was planned for it, and it grows"
    return None


def _disk(run: RunHistory, limit: float) -> str | None:
    """The disk is nearly full, or will be before as many lines have passed as did."""
    free = run.series.get("machine/disk_free_bytes")
    if free is None:
        return None
    now, change = free.recent() / GIB, free.slope() / GIB
    if now < limit:
        return f"{now:.3g} GiB are free where the run writes"
    if change < 0 and now + change * free.count * run.ahead < 0:
        return (
            f"{now:.3g} GiB are free where the run writes, and ever less: none is left after "
            f"{-now / change / free.count:.0%} more lines"
        )
    return None


GIB: Final = 1 << 30
MOST_OF_PLAN: Final = 1.5
"""Multiple of the planned memory, and of what no plan counts, that a run may take and still grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AlarmRule:
    """One alarm: condition, default limit, and what to try."""

    judge: "Callable[[RunHistory, float], str | None]"
    """History with its latest line, and the limit -> the evidence, where the condition holds."""
    limit: float
    limit_is: str
    """Meaning of the limit."""
    advice: str
    metrics: tuple[str, ...]
    """Metrics to look at."""
    cause: str
    """What is wrong with a run that raises it and nothing that brings it about."""
    brings: tuple[AlarmName, ...] = ()
    """Alarms that its fault raises as well, sooner or later."""
    severe: bool = False
    """It may become red."""
    at_once: bool = False
    """One line raises it, red."""
    is_read: bool = False
    """It is of the machine, and judged at lines that have a reading."""


# ------------------------------------------------------------------------------------------------------- reward hacking


@dataclass(slots=True)
class _HackingWatch:
    """Compares the training score with held-out evaluations: the one up, the other down."""

    best: tuple[float, float, float] = (-math.inf, -math.inf, 0.0)
    """Score and lower end of the best evaluation, and the training score then."""
    falls: int = 0
    """Evaluations one after another that are below it."""
    evidence: str | None = None

    def see(self, run: RunHistory) -> None:
        """Take in a line; nothing changes without an evaluation in it."""
        score = run.present.get("eval/score", math.nan)
        reward = run.series.get("reward/mean")
        if not math.isfinite(score) or reward is None:
            return
        low, high = run.present.get("eval/low", score), run.present.get("eval/high", score)
        now = reward.recent()
        if score >= self.best[0]:
            self.best, self.falls, self.evidence = (score, low, now), 0, None
            return
        size = max(abs(now), abs(self.best[2]), 1e-9)
        fell = high < self.best[1] and now >= self.best[2] - 0.02 * size
        self.falls = self.falls + 1 if fell else 0
        self.evidence = (
            f"the held-out score fell from {self.best[0]:.3g} to {score:.3g}, outside of its 95% interval, while the "
            f"training score went from {self.best[2]:.3g} to {now:.3g}"
            if fell
            else None
        )


def _reward_hacking(run: RunHistory, limit: float) -> str | None:
    """Stands for `_HackingWatch`, which looks at evaluations alone."""
    del run, limit


RULES: Final[Mapping[AlarmName, _AlarmRule]] = {
    "not_finite": _AlarmRule(
        judge=_not_finite, limit=0, limit_is="no limit", at_once=True, severe=True,
        advice="lower learner.lr or learner.max_grad_norm; look at the rewards; `hone debug` names the first tensor",
        metrics=("policy/loss", "policy/grad_norm", "reward/mean"),
        cause="numbers overflow, and what follows is no training any more",
    ),
    "entropy_collapse": _AlarmRule(
        judge=_entropy_collapse, limit=0.2, severe=True,
        limit_is="share of the entropy of the beginning below which it has collapsed",
        advice="raise algorithm.clip_high to 0.28, add algorithm.entropy, lower learner.lr, or use a recipe for it "
        "(clip_cov, kl_cov, high_entropy_grpo)",
        metrics=("policy/entropy_nats", "reward/mean"),
        cause="the policy has collapsed: it gives every prompt one answer, and has nothing left to learn from",
        brings=("dead_groups",),
    ),
    "dead_groups": _AlarmRule(
        judge=_dead_groups, limit=0.6, severe=True, limit_is="share of groups in which all answers score alike",
        advice="failed groups: easier prompts, a start from SFT, partial credit, more samples_per_prompt; solved "
        "groups: harder prompts; the recipe dapo leaves both out",
        metrics=("reward/zero_variance_groups", "reward/mean"),
        cause="the prompts do not fit the policy: all answers to one score alike",
    ),
    "kl": _AlarmRule(
        judge=_kl, limit=10, severe=True, limit_is="multiple of its usual KL divergence that an update may move",
        advice="lower learner.lr, take fewer epochs or minibatches, or add algorithm.kl",
        metrics=("policy/kl_nats", "policy/clip_fraction", "policy/grad_norm"),
        cause="updates are too large: each throws away what the policy was",
        brings=("value",),
    ),
    "mismatch": _AlarmRule(
        judge=_mismatch, limit=10, severe=True, limit_is="multiple of the mismatch of the first tenth",
        advice="see docs/concepts/mismatch.md: weights that were not published, quantised rollouts, another kernel; "
        "learner.ratio.correction bounds the harm",
        metrics=("mismatch/mean", "mismatch/ratio_ess", "rollout/canary_gap"),
        cause="the engine has drifted: it samples by other weights or another arithmetic than the trainer has",
        brings=("kl", "entropy_collapse", "dead_groups", "length"),
    ),
    "length": _AlarmRule(
        judge=_length, limit=0.05, limit_is="share of answers cut by the length limit",
        advice="raise rollout.max_tokens, use the recipe dapo, which punishes long answers (algorithm.overlong_share), "
        'or set rollout.learnable.truncated = "mask"; look whether longer answers score more',
        metrics=("answers/tokens_mean", "episodes/truncated"),
        cause="the reward pays for length, whatever the answer is worth",
        brings=("entropy_collapse", "dead_groups"),
    ),
    "no_end": _AlarmRule(
        judge=_no_end, limit=0.9, severe=True, limit_is="share of answers that are cut from the first line on",
        advice="the policy may never have learnt its end token: look at the rows with `hone show DATA --tokens`, check "
        "the chat template, and raise rollout.max_tokens",
        metrics=("episodes/truncated", "answers/tokens_mean"),
        cause="answers do not end: the end token was never trained, or the template has none",
        brings=("length", "dead_groups"),
    ),
    "reward_hacking": _AlarmRule(
        judge=_reward_hacking, limit=2, severe=True, limit_is="evaluations one after another below the best one",
        advice="read rollouts of high scores; make the reward stricter; keep the best checkpoint (run.keep_best = 1)",
        metrics=("reward/mean", "eval/score"),
        cause="the reward is exploited: it pays for what the held-out evaluation does not count",
        brings=("length", "entropy_collapse", "dead_groups"),
    ),
    "missing_rewards": _AlarmRule(
        judge=_missing_rewards, limit=0.02, severe=True, limit_is="share of episodes without a score",
        advice="look at log.txt: a function that raises, times out or returns NaN; raise user_code.deadline_s",
        metrics=("reward/missing",),
        cause="a reward function fails, and the answers that it fails on teach nothing",
        brings=("dead_groups",),
    ),
    "stale": _AlarmRule(
        judge=_stale, limit=0.1, limit_is="share of answers that are dropped for their age",
        advice="raise rollout.max_staleness, shorten answers, or add replicas",
        metrics=("async/dropped", "async/staleness_max"),
        cause="answers come too late: the policy has moved on before they are used",
    ),
    "value": _AlarmRule(
        judge=_value, limit=-0.1, limit_is="explained variance of the critic",
        advice="raise the critic's learning rate or its epochs, normalise rewards, and check the discount",
        metrics=("value/explained_variance", "critic/explained_variance", "value/error_abs"),
        cause="the critic misleads: it predicts worse than a constant",
    ),
    "tools": _AlarmRule(
        judge=_tools, limit=0.1, severe=True, limit_is="share of dialogues that a world or tool keeps from going on",
        advice="look at the dialogues in the rollouts; run the tool by itself; raise its deadline; tell the policy "
        "what a failed call means",
        metrics=("stops/deadline", "stops/world_died", "tools/repeats", "tools/invalid"),
        cause="a tool or world is stuck: dialogues wait for it in vain, or repeat one call",
        brings=("missing_rewards", "no_end", "length", "dead_groups"),
    ),
    "memory": _AlarmRule(
        judge=_memory, limit=0.9, severe=True, is_read=True,
        limit_is="share of the memory that the process may use",
        advice="compare with `hone plan`; lower learner.micro_batch_tokens, rollout.max_concurrent or the replay "
        "buffer; `hone profile` shows the memory's slope, and callbacks or rewards that keep what they see leak",
        metrics=("machine/memory_share", "machine/memory_to_plan", "machine/resident_bytes"),
        cause="memory runs out: something keeps what it should let go, or the plan is too small",
    ),
    "disk": _AlarmRule(
        judge=_disk, limit=1.0, severe=True, is_read=True, limit_is="GiB that must be free where the run writes",
        advice="free some space; keep fewer checkpoints (run.keep_last) and rollouts (run.rollouts_keep_mb); the run "
        "waits run.disk_wait_s for space before it ends",
        metrics=("machine/disk_free_bytes",),
        cause="the disk runs full: checkpoints cannot be saved any more",
    ),
}  # fmt: skip
WATCHED: Final = frozenset(
    {"reward/std", "natural/kl_nats", *(name for rule in RULES.values() for name in rule.metrics)}
)
"""Metrics that the rules look back on."""


# -------------------------------------------------------------------------------------------------------- state machine


RAISE_OF, RAISE_AT, RED_OF, RED_AT = 5, 3, 10, 8
"""Lines that are counted, and those in which a condition must hold, for an alarm and for a red one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AlarmReport:
    """What an alarm tells a person."""

    name: str
    level: str
    """Its level; of one that ended, the last."""
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmChange(_AlarmReport):
    """An alarm that was raised, changed its level, or ended."""

    is_raised: bool
    metrics: tuple[str, ...]

    @property
    def words(self) -> str:
        """A sentence for a person."""
        title = self.name.replace("_", " ")
        return f"{self.level} alarm, {title}: {self.evidence}" if self.is_raised else f"alarm {title} ended"

    def data(self) -> dict[str, Json]:
        """The event's data."""
        return {
            "alarm": self.name,
            "state": "raised" if self.is_raised else "cleared",
            "level": self.level,
            "evidence": self.evidence,
            "try": self.advice,
            "metrics": list(self.metrics),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAlarm(_AlarmReport):
    """An alarm that a run has raised and not ended."""

    step: int
    """Step at which it got this level."""

    @classmethod
    def of_event(cls, step: int, data: Mapping[str, Json]) -> "RaisedAlarm":
        """The alarm that an event's data tell of."""
        name, level, evidence, advice = (str(data.get(key, "")) for key in ("alarm", "level", "evidence", "try"))
        return cls(name=name, level=level, step=step, evidence=evidence, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause of a run's alarms."""

    alarm: str
    """The alarm that no other one explains."""
    words: str
    """Cause and evidence."""
    follows: tuple[str, ...]
    """Alarms that come with it."""
    advice: str

    @property
    def sentence(self) -> str:
        """Cause, evidence, and the alarms that come with it: what the run writes down, and every face shows."""
        names = " and ".join(name.replace("_", " ") for name in self.follows)
        return f"likely cause: {self.words}" + (f"; it explains {names}" if names else "")

    def data(self) -> dict[str, Json]:
        """The event's data."""
        return {"alarm": self.alarm, "cause": self.words, "follows": list(self.follows), "try": self.advice}


NO_CAUSE: Final = "no alarm is raised any more"
"""What stands in the place of a cause once its alarms have ended."""


def diagnose(raised: Sequence[RaisedAlarm]) -> Diagnosis | None:
    """The cause of the raised alarms: the one that no other raised one brings about; of several a red one, then the
    earliest. None without an alarm of `RULES`."""
    known = {one.name: (one, RULES[one.name]) for one in raised if one.name in RULES}
    brought = {name for _, rule in known.values() for name in rule.brings}
    causes = [pair for name, pair in known.items() if name not in brought]
    if not causes:
        return None
    alarm, rule = min(causes, key=lambda pair: (pair[0].level != "red", pair[0].step))
    follows = tuple(name for name in known if name in rule.brings)
    return Diagnosis(alarm=alarm.name, words=f"{rule.cause}; {alarm.evidence}", follows=follows, advice=alarm.advice)


@dataclass(slots=True)
class AlarmWatch:
    """All alarms of a run. It is in no checkpoint: a resumed run shows it the lines of metrics that are there."""

    limits: AlarmLimits
    lines: int
    """Lines of metrics that the whole run is to have."""
    history: RunHistory = field(init=False)
    hacking: _HackingWatch = field(default_factory=_HackingWatch)
    held: dict[str, deque[bool]] = field(init=False)
    """Whether each condition held in the latest lines."""
    levels: dict[str, Level] = field(init=False)
    raised: dict[str, RaisedAlarm] = field(default_factory=dict[str, RaisedAlarm])
    """Alarms that are raised now."""
    diagnosis: Diagnosis | None = None
    """Their cause."""

    def __post_init__(self) -> None:
        self.history = RunHistory(watched=WATCHED, lines=self.lines)
        names = [name for name in RULES if self.limits.get(name) is not False]
        self.held = {name: deque[bool](maxlen=RED_OF) for name in names}
        self.levels = dict.fromkeys(names, "none")

    def see(self, step: int, line: Metrics) -> list[AlarmChange]:
        """Take in the line of metrics of a step; returns the alarms that changed."""
        self.history.add(line)
        self.hacking.see(self.history)
        changes: list[AlarmChange] = []
        for name, rule in RULES.items():
            if name not in self.held or (rule.is_read and rule.metrics[0] not in line):
                continue
            if name == "reward_hacking":
                level, evidence = self._hacking_level()
            else:
                reason = rule.judge(self.history, self.limits.get(name, rule.limit))
                self.held[name].append(reason is not None)
                level, evidence = self._level(name, rule), reason or ""
            if level != (before := self.levels[name]):
                self.levels[name] = level
                changes.append(
                    AlarmChange(
                        name=name,
                        level=before if level == "none" else level,
                        is_raised=level != "none",
                        evidence=evidence,
                        advice=rule.advice,
                        metrics=rule.metrics,
                    )
                )
        for change in changes:
            self.raised.pop(change.name, None)
            if change.is_raised:
                self.raised[change.name] = RaisedAlarm.of_event(step, change.data())
        if changes:
            self.diagnosis = diagnose(list(self.raised.values()))
        return changes

    def _level(self, name: str, rule: _AlarmRule) -> Level:
        held, now = self.held[name], self.levels[name]
        latest = list(held)[-RAISE_OF:]
        if rule.at_once:
            return "red" if any(latest) else "none"
        if now == "none":
            return "amber" if held[-1] and sum(latest) >= RAISE_AT else "none"
        if not any(latest):
            return "none"
        return "red" if rule.severe and held[-1] and (now == "red" or sum(held) >= RED_AT) else now

    def _hacking_level(self) -> tuple[Level, str]:
        limit = self.limits.get("reward_hacking", RULES["reward_hacking"].limit)
        falls = self.hacking.falls
        level: Level = "red" if falls > limit else "amber" if falls >= limit else "none"
        return level, self.hacking.evidence or ""


# -------------------------------------------------------------------------------------------------------------- reading


def replay_alarms(lines: Sequence[tuple[int, Metrics]], *, steps: int, limits: AlarmLimits | None = None) -> list[
    tuple[int, AlarmChange]
]:  # fmt: skip
    """Changes of all alarms over recorded lines `(step, metrics)` of a run of `steps` steps, each with its step."""
    every = lines[0][0] if lines else 1
    watch = AlarmWatch(limits or {}, max(1, steps // every))
    return [(step, change) for step, line in lines for change in watch.see(step, line)]


def read_alarms(run: Path, *, now_s: float | None = None) -> list[RaisedAlarm]:
    """Alarms of a run that are raised now, red ones first: those of its events; of a run of an earlier version, those
    that its metrics raise. With `now_s` also whether it stands still. Raises DataError for unreadable metrics."""
    events, _ = read_events(run)
    changes = [(event.step, event.data) for event in events if event.kind == "alarm"]
    if not events:
        changes = [(step, change.data()) for step, change in replay_alarms(_lines(run), steps=_last_step(run))]
    raised: dict[str, RaisedAlarm] = {}
    for step, data in changes:
        alarm = RaisedAlarm.of_event(step, data)
        raised.pop(alarm.name, None)
        if data.get("state") == "raised":
            raised[alarm.name] = alarm
    if now_s is not None and (words := stall(run, now_s)) is not None:
        advice = "look at the process: a tool, an environment or a rank may hang; run.patience_s and deadlines end it"
        raised["stall"] = RaisedAlarm(name="stall", level="red", step=_last_step(run), evidence=words, advice=advice)
    return sorted(raised.values(), key=lambda one: (one.level != "red", one.step))


def read_diagnosis(run: Path) -> Diagnosis | None:
    """The cause that the run wrote down last; of a run of an earlier version, that of its alarms. None without any.
    Raises DataError for unreadable metrics."""
    events, _ = read_events(run)
    written = [event.data for event in events if event.kind == "diagnosis"]
    if not written:
        return diagnose(read_alarms(run))
    if "alarm" not in (data := written[-1]):
        return None
    follows = data.get("follows")
    return Diagnosis(
        alarm=str(data["alarm"]),
        words=str(data.get("cause", "")),
        follows=tuple(map(str, follows)) if isinstance(follows, list) else (),
        advice=str(data.get("try", "")),
    )


STALL_STEPS: Final = 5
MIN_STALL_S: Final = 60.0
"""A run stands still after so many of its median lines, and so many seconds at least."""


def stall(run: Path, now_s: float) -> str | None:
    """A sentence where a run has not ended and writes no lines any more; None otherwise, or without times."""
    at_s = read_metrics(run / "metrics.jsonl").values.get("time/at_s", np.zeros(0))
    at_s = at_s[np.isfinite(at_s)]
    events, _ = read_events(run)
    if len(at_s) < 2 or any(one.kind in ("finish", "stop", "failure", "refused_update") for one in events[-3:]):
        return None
    usual, since = float(np.median(np.diff(at_s)[-WINDOW:])), now_s - float(at_s[-1])
    if since <= max(STALL_STEPS * usual, MIN_STALL_S):
        return None
    return f"no line for {since:.0f} s; one every {usual:.2g} s is usual"


def _lines(run: Path) -> list[tuple[int, Metrics]]:
    path = run / "metrics.jsonl"
    if not path.exists():
        raise DataError(f"{path} does not exist: there is nothing to judge yet")
    return [(step, metrics) for step, metrics in tail_metrics(path, 0)[0]]


def _last_step(run: Path) -> int:
    steps = read_metrics(run / "metrics.jsonl").steps
    return int(steps[-1]) if len(steps) else 0
