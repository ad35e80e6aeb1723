"""Off-policy evaluation of policies on a table of logged decisions: values, segments, comparisons, a ranking.

Belongs here: a `DecisionTable` and policies -> an `OffPolicyReport`. The estimators and the rules of refusal are in
`hone.decide.estimators`; reading a log is the caller's.
"""

import math

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (DuckDB and pyarrow have no type information)
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from hone.core.decisions import (
    LOGP_TOLERANCE,
    ActionSet,
    Bools,
    DecisionPolicy,
    DecisionTable,
    Evidence,
    Floats,
    Ints,
    Verdict,
)
from hone.core.errors import ConfigError, DataError, ResourceError, UserCodeError, did_you_mean
from hone.decide.estimators.estimate import (
    BUCKETS,
    ESTIMATORS,
    MODEL_BASED,
    SELF_NORMALISED,
    SUPPORT_ASSUMPTION,
    UNITS_ASSUMPTION,
    EstimatedTerms,
    EstimateRows,
    EstimateSettings,
    EstimatorName,
    OffPolicyEstimate,
    StreamedEstimates,
    WeightTail,
    estimate_values,
    judged_terms,
    logged_value,
    terms_estimate,
    weight_tail,
)
from hone.decide.estimators.reward_models import StreamedRewardModel
from hone.decide.estimators.rules import VerdictReason, WeightSummary, usable_rows
from hone.decide.estimators.terms import (
    LoggedFeedback,
    ValueInterval,
    bootstrap_interval,
    effective_sample_size,
    normal_interval,
    standard_error,
)
from hone.decide.estimators.trajectories import TRAJECTORY_ESTIMATORS, LoggedTrajectories, TrajectoryEstimatorName
from hone.decide.joins.columns import log_columns
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import read_view, view_action_sets
from hone.decide.joins.view import JoinConfig, take_decisions
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import log_name
from hone.process.user_files import file_fault

DEFAULT_ESTIMATORS: tuple[EstimatorName, ...] = ("dr", "snips", "ips", "dm")
LOGGED = "the log's policy"
"""Name of the policy that wrote the log, in comparisons."""
_SUM_TOLERANCE = 1e-3
_MOST_SEGMENTS = 20
_BINS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentEstimate:
    """A policy's estimate in a part of the contexts."""

    segment: str
    estimate: OffPolicyEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEstimates:
    """Estimates of one candidate."""

    policy: str
    estimates: tuple[OffPolicyEstimate, ...]
    """One of each estimator; the first one decides."""
    tail: WeightTail
    segments: tuple[_SegmentEstimate, ...]
    """By the estimator that decides; the largest first."""

    @property
    def deciding(self) -> OffPolicyEstimate:
        """The estimate that decides."""
        return self.estimates[0]

    def verdict_words(self, report: "OffPolicyReport") -> str:
        """The judgement of a candidate in one sentence, which stands beside its verdict; figures come second."""
        estimate = self.deciding
        if estimate.verdict == "refuse":
            return f"this log cannot tell the value of {self.policy}"
        against = next(each for each in report.differences if (each.first, each.second) == (LOGGED, self.policy))
        return (
            f"{against.words}; its value is {estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g}, "
            f"{estimate.level:.0%} by {estimate.estimator})"
        )

    def evidence(self, report: "OffPolicyReport", *, made_by: str, at_s: float) -> Evidence:
        """Evidence of kind `offline` for the registry: the deciding estimate of a candidate."""
        estimate = self.deciding
        reasons = "; ".join(reason.words for reason in estimate.reasons)
        return Evidence(
            kind="offline",
            verdict=estimate.verdict,
            words=self.verdict_words(report) + (f" ({reasons})" if reasons else ""),
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            count=estimate.n,
            made_by=made_by,
            at_s=at_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PolicyDifference:
    """`second` - `first` on the same rows, by unit."""

    first: str
    second: str
    estimate: OffPolicyEstimate

    @property
    def words(self) -> str:
        """The comparison in one sentence."""
        one = self.estimate
        figures = f"{one.value:+.4g} ({one.low:+.4g} to {one.high:+.4g})"
        if one.verdict == "refuse" or math.isnan(one.value):
            return f"{self.second} and {self.first} cannot be compared from this log"
        if one.low > 0:
            return f"{self.second} is better than {self.first} by {figures}"
        if one.high < 0:
            return f"{self.second} is worse than {self.first} by {figures}"
        return f"no difference shown between {self.second} and {self.first}: {figures}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyReport:
    """Off-policy estimates of candidates on one log."""

    logged: OffPolicyEstimate
    """Mean reward of the log itself."""
    policies: tuple[PolicyEstimates, ...]
    differences: tuple[_PolicyDifference, ...]
    """Each candidate against the log's policy, then every pair of candidates."""
    ranking: tuple[str, ...]
    """Candidates by their deciding estimate, the best first; those that are refused come last."""
    rows: int
    """Rows of the log."""
    used: int
    """Rows with a known reward and a valid propensity."""
    versions: tuple[str, ...]
    propensity_counts: tuple[int, ...]
    """Rows by the probability of their executed action, in 20 equal bins of 0 to 1."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the candidates' deciding estimates."""
        verdicts = {one.deciding.verdict for one in self.policies}
        return "refuse" if "refuse" in verdicts else "weak" if "weak" in verdicts else "ok"

    def of(self, policy: str) -> PolicyEstimates:
        """Estimates of a candidate by its name. Raises KeyError."""
        return {one.policy: one for one in self.policies}[policy]


def logged_feedback(
    table: DecisionTable, policy: DecisionPolicy, *, name: str = "policy", behaviour: DecisionPolicy | None = None
) -> LoggedFeedback:
    """A table's rows beside a policy's distribution. Actions of all sets are columns of one catalogue, by their names.

    Units are numbered in the order of their first row. Raises UserCodeError for a policy whose probabilities are not a
    distribution, with the row's id.
    """
    executed, places, width = _catalogue_columns(table)
    offered = np.zeros((len(table), width), np.bool_)
    for number, place in enumerate(places):
        rows = np.flatnonzero(table.action_set == number)
        offered[rows[:, None], place] = True
    numbers: dict[str, int] = {}
    return LoggedFeedback(
        contexts=table.contexts,
        action=executed,
        logp=table.logp,
        reward=table.reward,
        target_logp=_distribution(table, policy, places, width, name),
        unit=np.array([numbers.setdefault(unit, len(numbers)) for unit in table.units], np.int64),
        behaviour_logp=None if behaviour is None else _distribution(table, behaviour, places, width, LOGGED),
        offered=offered,
    )


def _catalogue_columns(table: DecisionTable) -> tuple[Ints, tuple[Ints, ...], int]:
    """Executed actions `[n]` as columns of the catalogue of all actions, the columns of each set, and their number."""
    catalogue = {action: None for actions in table.action_sets for action in actions.names}
    column = {action: place for place, action in enumerate(catalogue)}
    places = tuple(np.array([column[action] for action in actions.names]) for actions in table.action_sets)
    executed = np.empty(len(table), np.int64)
    for number, place in enumerate(places):
        rows = table.action_set == number
        executed[rows] = place[table.executed[rows]]
    return executed, places, len(column)


def estimate_policies(
    table: DecisionTable,
    policies: Mapping[str, DecisionPolicy],
    *,
    estimators: Sequence[EstimatorName] = DEFAULT_ESTIMATORS,
    settings: EstimateSettings | None = None,
    segment: str = "choice",
    behaviour: DecisionPolicy | None = None,
) -> OffPolicyReport:
    """Estimate candidates on a log; the first of `estimators` decides, the others stand beside it.

    `segment`: see `segment_labels`. `behaviour`: the policy that wrote the log, if it can be opened; support is then
    exact. Raises ConfigError for unknown names, DataError for a log without a usable row, UserCodeError for a policy
    that fails.
    """
    chosen = settings or EstimateSettings()
    _require_names(policies, estimators, chosen)
    reasons = chosen.rules.audit_table(table)
    used = take_decisions(table, np.flatnonzero(usable_rows(table)))
    if not len(used):
        raise DataError(f"none of the {len(table)} rows can be used", *(reason.words for reason in reasons))
    version = np.unique(np.array(used.versions), return_inverse=True)[1].astype(np.int64)
    logs = {name: logged_feedback(used, one, name=name, behaviour=behaviour) for name, one in policies.items()}
    unit = next(iter(logs.values())).unit
    own = logged_value(used.reward, unit, chosen, log_reasons=reasons)
    deciding: dict[str, EstimatedTerms] = {}
    made: list[PolicyEstimates] = []
    for name, logged in logs.items():
        values = estimate_values(logged, estimators, chosen, log_reasons=reasons, version=version)
        deciding[name] = values[estimators[0]]
        labels = segment_labels(segment, used, logged)
        made.append(
            PolicyEstimates(
                policy=name,
                estimates=tuple(values[one].estimate for one in estimators),
                tail=weight_tail(logged.weight),
                segments=_segments(labels, estimators[0], deciding[name], logged, chosen),
            )
        )
    return OffPolicyReport(
        logged=own.estimate,
        policies=tuple(made),
        differences=_differences(own, deciding, unit, chosen),
        ranking=_ranking(deciding),
        rows=len(table),
        used=len(used),
        versions=tuple(sorted(set(used.versions))),
        propensity_counts=_propensity_counts(used),
    )


# ----------------------------------------------------------------------------------------------- trajectories


EPISODES_ASSUMPTION = "an episode is all decisions of a unit in the log, in the order of time"


def logged_trajectories(
    table: DecisionTable, policy: DecisionPolicy, *, discount: float, name: str = "policy"
) -> tuple[LoggedTrajectories, LoggedFeedback]:
    """Episodes of a table's units beside a policy's probabilities, and the same decisions one by one, both episode by
    episode in the order of their first decisions. Raises UserCodeError for a policy that gives no distribution."""
    logged = logged_feedback(table, policy, name=name)
    order = np.argsort(logged.unit, kind="stable")  # units are numbered by their first row
    rows = logged.rows(order)
    offsets = np.concatenate([[0], np.bincount(rows.unit).cumsum()]).astype(np.int64)
    target = rows.target_logp[np.arange(len(rows)), rows.action]
    return LoggedTrajectories(
        offsets=offsets, logp=rows.logp, target_logp=target, reward=rows.reward, discount=discount
    ), rows


def estimate_trajectories(
    table: DecisionTable,
    policies: Mapping[str, DecisionPolicy],
    *,
    estimators: Sequence[TrajectoryEstimatorName] = tuple(TRAJECTORY_ESTIMATORS),
    settings: EstimateSettings | None = None,
    discount: float = 1.0,
) -> OffPolicyReport:
    """Estimate the discounted return of candidates; a unit's decisions are an episode. The first estimator decides.

    An episode with a decision that cannot be read (an open reward, no probability) is left out as a whole. Raises
    ConfigError for unknown names, a discount outside (0, 1] and `bernstein`, DataError for a log without an episode.
    """
    chosen = settings or EstimateSettings()
    known = tuple(TRAJECTORY_ESTIMATORS)
    unknown = [name for name in estimators if name not in known]
    faults = [f"no estimator of trajectories {name!r}{did_you_mean(name, known)}" for name in unknown]
    faults += ["an estimate needs at least one policy and one estimator"] if not policies or not estimators else []
    faults += [f"a discount is above 0 and at most 1, got {discount:g}"] if not 0 < discount <= 1 else []
    faults += ["trajectories have normal and bootstrap intervals"] if chosen.interval == "bernstein" else []
    if faults:
        raise ConfigError(*faults)
    log_reasons = chosen.rules.audit_table(table)
    usable = usable_rows(table)
    broken = {unit for unit, sound in zip(table.units, usable, strict=True) if not sound}
    used = take_decisions(table, np.flatnonzero([unit not in broken for unit in table.units]))
    if not len(used):
        words = f"none of the {len(set(table.units))} units' episodes can be used"
        raise DataError(words, *(reason.words for reason in log_reasons))
    made: dict[str, tuple[PolicyEstimates, EstimatedTerms]] = {}
    own: EstimatedTerms | None = None
    unit = np.arange(len(set(used.units)))
    for name, policy in policies.items():
        logged, rows = logged_trajectories(used, policy, discount=discount, name=name)
        own = own or logged_value(logged.returns, unit, chosen, log_reasons=log_reasons)
        values = {one: _judged_trajectories(one, logged, rows, chosen, log_reasons) for one in estimators}
        estimates = tuple(one.estimate for one in values.values())
        tail = weight_tail(logged.weights)
        made[name] = (
            PolicyEstimates(policy=name, estimates=estimates, tail=tail, segments=()), values[estimators[0]],
        )  # fmt: skip
    assert own is not None
    deciding = {name: one for name, (_, one) in made.items()}
    return OffPolicyReport(
        logged=own.estimate, policies=tuple(one for one, _ in made.values()),
        differences=_differences(own, deciding, unit, chosen), ranking=_ranking(deciding), rows=len(table),
        used=len(used), versions=tuple(sorted(set(used.versions))),
        propensity_counts=_propensity_counts(used),
    )  # fmt: skip


def _judged_trajectories(
    name: TrajectoryEstimatorName,
    logged: LoggedTrajectories,
    rows: LoggedFeedback,
    settings: EstimateSettings,
    log_reasons: Sequence[VerdictReason],
) -> EstimatedTerms:
    """Estimate of one target from episodes: the rules on single decisions, on the products of their weights, and on the
    episodes' contributions."""
    unit, rules = np.arange(logged.episodes), settings.rules
    with np.errstate(over="ignore", invalid="ignore"):
        weight, parts = logged.weights, TRAJECTORY_ESTIMATORS[name](logged)
        reasons, overlap = rules.audit_weights(rows)
        summary = WeightSummary(
            n=len(weight), mean=float(weight.mean()), error=standard_error(weight, unit),
            ess=effective_sample_size(weight), largest=float(weight.max()), rows="episodes",
        )  # fmt: skip
        own = [one for one in reasons if one.rule not in ("sample size", "largest weight")]
        own = [*log_reasons, *own, *summary.reasons(rules), *rules.rewards(logged.returns)]
        missing = 1 - summary.mean
        if missing > rules.support_deviations * summary.error:
            own += rules.support(missing, f"about {missing:.1%} of the target's episodes have no support in the log")

        def interval() -> ValueInterval:
            if settings.interval == "bootstrap":
                return bootstrap_interval(parts, unit, level=settings.level, draws=settings.draws, seed=settings.seed)
            return normal_interval(parts.influence, unit, level=settings.level)

        judged = EstimateRows(
            unit=unit, weight=weight, overlap=overlap, decisions=len(rows),
            assumptions=(SUPPORT_ASSUMPTION, UNITS_ASSUMPTION, EPISODES_ASSUMPTION),
        )  # fmt: skip
        return judged_terms(name, parts, interval, judged, settings, own)


def _propensity_counts(table: DecisionTable) -> tuple[int, ...]:
    probability = np.exp(np.minimum(table.logp, 0.0))
    return tuple(np.histogram(probability, bins=_BINS, range=(0.0, 1.0))[0].tolist())


# --------------------------------------------------------------------------------------------------- parts


def segment_labels(segment: str, table: DecisionTable, logged: LoggedFeedback) -> list[str]:
    """Segment of each row: `choice` (the candidate's most probable action), `version`, `route`, or `feature:N` (its
    values where they are at most 8, else its quarters). Raises ConfigError for another name."""
    if segment == "choice":
        names = list(dict.fromkeys(action for actions in table.action_sets for action in actions.names))
        return [names[place] for place in logged.target_logp.argmax(axis=1).tolist()]
    if segment == "version":
        return list(table.versions)
    if segment == "route":
        return list(table.routes) or [""] * len(table)
    _, _, number = segment.partition("feature:")
    width = table.contexts.shape[1]
    if not number.isdecimal() or int(number) >= width:
        known = ["choice", "version", "route", *(f"feature:{place}" for place in range(min(width, 3)))]
        raise ConfigError(f"no segment {segment!r}{did_you_mean(segment, known)}; the contexts have {width} features")
    values = table.contexts[:, int(number)]
    if len(np.unique(values)) <= 8:
        return [f"{value:g}" for value in values.tolist()]
    edges = np.quantile(values, [0.25, 0.5, 0.75])
    bounds = [-math.inf, *edges.tolist(), math.inf]
    places = np.searchsorted(edges, values, side="right").tolist()
    return [f"{bounds[place]:.3g} to {bounds[place + 1]:.3g}" for place in places]


def _distribution(
    table: DecisionTable, policy: DecisionPolicy, places: Sequence[Ints], width: int, name: str
) -> Floats:
    made = np.full((len(table), width), -np.inf)
    for number, actions in enumerate(table.action_sets):
        rows = np.flatnonzero(table.action_set == number)
        if len(rows):
            made[rows[:, None], places[number]] = _checked(policy, table, rows, actions, name)
    return made


def _checked(policy: DecisionPolicy, table: DecisionTable, rows: Ints, actions: ActionSet, name: str) -> Floats:
    try:
        logp = np.asarray(policy.logp_rows(table.contexts[rows], actions), np.float64)
    except (ValueError, IndexError, TypeError) as error:
        width = table.contexts.shape[1]
        raise UserCodeError(
            f"{name} failed on {len(rows)} contexts of {width} features and {len(actions)} actions: {error}"
        ) from error
    if logp.shape != (len(rows), len(actions)):
        raise UserCodeError(f"{name} gave {list(logp.shape)}, expected [{len(rows)}, {len(actions)}]")
    sums = np.exp(logp).sum(axis=1)
    wrong = np.flatnonzero(~(np.abs(sums - 1) <= _SUM_TOLERANCE))
    if len(wrong):
        row = int(wrong[0])
        raise UserCodeError(
            f"{name}: the probabilities of {len(wrong)} rows are no distribution; those of decision "
            f"{table.ids[rows[row]] if table.ids else rows[row]!r} add up to {sums[row]:g}"
        )
    return logp


def _require_names(
    policies: Mapping[str, DecisionPolicy], estimators: Sequence[EstimatorName], settings: EstimateSettings
) -> None:
    if not policies or not estimators:
        raise ConfigError("an estimate needs at least one policy and one estimator")
    if LOGGED in policies:
        raise ConfigError(f"{LOGGED!r} is the name of the policy that wrote the log: choose another for a candidate")
    unknown = [name for name in estimators if name not in ESTIMATORS]
    if unknown:
        raise ConfigError(*(f"no estimator {name!r}{did_you_mean(name, ESTIMATORS)}" for name in unknown))
    ratios = [name for name in estimators if name in SELF_NORMALISED]
    if settings.interval == "bernstein" and ratios:
        raise ConfigError(
            f"{', '.join(ratios)}: Bernstein's bound holds for sums, not for ratios; use ips, dr or bootstrap"
        )


def _segments(
    labels: Sequence[str],
    name: EstimatorName,
    found: EstimatedTerms,
    logged: LoggedFeedback,
    settings: EstimateSettings,
) -> tuple[_SegmentEstimate, ...]:
    names, place, counts = np.unique(np.array(labels), return_inverse=True, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:_MOST_SEGMENTS]
    made: list[_SegmentEstimate] = []
    for number in largest.tolist():
        rows = np.flatnonzero(place == number)
        part = logged.rows(rows)
        estimate = terms_estimate(name, found.terms.rows(rows), part, settings)
        made.append(_SegmentEstimate(segment=str(names[number]), estimate=estimate.estimate))
    return tuple(made)


def _differences(
    own: EstimatedTerms, deciding: Mapping[str, EstimatedTerms], unit: Ints, settings: EstimateSettings
) -> tuple[_PolicyDifference, ...]:
    def between(first: EstimatedTerms, second: EstimatedTerms) -> OffPolicyEstimate:
        return first.paired_difference(second, unit, level=settings.level, rules=settings.rules)

    names = list(deciding)
    against = [_PolicyDifference(first=LOGGED, second=name, estimate=between(own, deciding[name])) for name in names]
    pairs = [
        _PolicyDifference(first=first, second=second, estimate=between(deciding[first], deciding[second]))
        for place, first in enumerate(names)
        for second in names[place + 1 :]
    ]
    return (*against, *pairs)


def _ranking(deciding: Mapping[str, EstimatedTerms]) -> tuple[str, ...]:
    def worth(name: str) -> tuple[bool, float]:
        estimate = deciding[name].estimate
        refused = estimate.verdict == "refuse" or math.isnan(estimate.value)
        return (refused, -estimate.value if math.isfinite(estimate.value) else math.inf)

    return tuple(sorted(deciding, key=worth))


# ------------------------------------------------------------------------------------------------------ decision tables


def read_decision_table(
    address: str,
    *,
    as_of_s: float,
    since_s: float = -math.inf,
    join: JoinConfig | None = None,
    tenant: str = "",
    schema: str = "",
) -> DecisionTable:
    """Read decisions with their rewards: a log (`decisions.db`, `postgresql://`, `redis://`), joined as of `as_of_s`
    (seconds since the epoch), or a view's folder or parquet file, as it was joined. Decisions before `since_s` are left
    out: those that a candidate has learnt from flatter it.

    Raises DataError where nothing is there or no decision is left, and for a log of several tenants or schemas without
    a choice.
    """
    path = Path(address)
    if "://" not in address and (fault := file_fault(path)):
        raise DataError(fault)
    if "://" not in address and not path.exists():
        raise DataError(f"{log_name(address)}: there is no such log or view; paths are relative to {Path.cwd()}")
    if "://" not in address and (path.is_dir() or path.suffix == ".parquet"):
        table = read_view(path).table
    else:
        with closing(open_decision_log(address)) as log:
            columns = log_columns(log, tenant=tenant or None)
        table = build_view(columns, as_of_s=as_of_s, join=join, tenant=tenant or None, schema=schema or None).table
    kept = table if since_s == -math.inf else take_decisions(table, np.flatnonzero(table.at_s >= since_s))
    if not len(kept):
        whose = f" of tenant {tenant!r}" if tenant else ""
        since = f"; none of its {len(table)} is at {since_s:g} s or later" if len(table) else ""
        raise DataError(f"{log_name(address)}: no decisions{whose} to read{since}")
    return kept


# ---------------------------------------------------------------------------------------------------- off policy stream


_BATCH = 200_000
_SOUND = f"known and isfinite(reward) and isfinite(logp) and logp <= {LOGP_TOLERANCE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamFacts:
    """Counts of a stream, and the moment that halves it."""

    rows: int
    sound: int
    open_rows: int
    middle_s: float


def estimate_parquet(
    paths: Sequence[Path],
    policy: DecisionPolicy,
    *,
    estimators: Sequence[EstimatorName] = ("dr", "snips", "ips"),
    settings: EstimateSettings | None = None,
) -> dict[EstimatorName, OffPolicyEstimate]:
    """Estimate a policy on parquet files of views that have the same sets of actions, in memory that does not grow.

    Duplicates, drift within a version, support in parts of the log, and propensities beside a model of the log's policy
    are not looked for; other rules are those of `hone estimate`. Raises DataError for files of different actions or
    without a usable row, ConfigError for an estimator that cannot be streamed, ResourceError without DuckDB.
    """
    chosen = settings or EstimateSettings()
    first, *others = paths
    sets = view_action_sets(first)
    for path in others:
        if view_action_sets(path) != sets:
            raise DataError(f"{path} has other sets of actions than {first}: estimate them one by one")
    with _connect() as connection:
        facts = _facts(connection, paths)
        if not facts.sound:
            raise DataError(f"none of the {facts.rows} rows in {', '.join(map(str, paths))} can be used")
        sums = StreamedEstimates(names=estimators, rows=facts.sound, settings=chosen)
        width = len({name for actions in sets for name in actions.names})
        model = StreamedRewardModel(actions=width, settings=chosen.model)
        needs_model = bool(MODEL_BASED & set(estimators))
        if needs_model:
            for table, bucket in _batches(connection, paths, sets):
                model.observe(_without_target(table, bucket))
            model.fit()
        for table, bucket in _batches(connection, paths, sets):
            logged = replace(logged_feedback(table, policy), unit=bucket)
            predicted = model.predict(logged) if needs_model else np.zeros((0, 0))
            sums.add(logged, predicted, table.at_s > facts.middle_s)
    reasons = chosen.rules.open_windows(facts.open_rows / facts.rows)
    unsound = facts.rows - facts.sound - facts.open_rows
    if unsound:
        words = f"{unsound} rows have no probability within 0 and 1, or no finite reward: `hone log` names them"
        reasons.append(VerdictReason(rule="propensities", verdict="refuse", words=words))
    return sums.estimates(log_reasons=reasons)


def _without_target(table: DecisionTable, bucket: Ints) -> LoggedFeedback:
    """Rows for the reward model, which reads no target."""
    return LoggedFeedback(
        contexts=table.contexts,
        action=_catalogue_columns(table)[0],
        logp=table.logp,
        reward=table.reward,
        target_logp=np.zeros((len(table), 0)),
        unit=bucket,
    )


def _connect() -> Any:  # noqa: ANN401 - DuckDB is imported at use
    try:
        import duckdb  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ResourceError("estimates of large views read parquet by DuckDB: pip install duckdb") from error
    return duckdb.connect()


def _facts(connection: Any, paths: Sequence[Path]) -> _StreamFacts:  # noqa: ANN401
    (row,) = connection.sql(
        f"select count(*), count(*) filter (where {_SOUND}), count(*) filter (where not known), "
        "approx_quantile(at_s, 0.5) from read_parquet($1)",
        params=[list(map(str, paths))],
    ).fetchall()
    rows, sound, open_rows, middle = cast("tuple[int, int, int, float | None]", row)
    return _StreamFacts(
        rows=rows, sound=sound, open_rows=open_rows, middle_s=math.nan if middle is None else float(middle)
    )


def _batches(
    connection: Any,  # noqa: ANN401
    paths: Sequence[Path],
    sets: tuple[ActionSet, ...],
) -> Iterator[tuple[DecisionTable, Ints]]:
    """Tables of sound rows without their texts, and the bucket of each row's unit."""
    answer = connection.sql(
        f"select context, action_set, executed, logp, reward, at_s, (hash(unit) % {BUCKETS})::bigint as bucket "
        f"from read_parquet($1) where {_SOUND}",
        params=[list(map(str, paths))],
    )
    for batch in answer.to_arrow_reader(_BATCH):
        columns = {name: batch.column(name) for name in batch.schema.names}
        n = batch.num_rows
        contexts: Floats = columns["context"].flatten().to_numpy(zero_copy_only=False).reshape(n, -1)
        known: Bools = np.ones(n, np.bool_)
        table = DecisionTable(
            contexts=contexts, action_sets=sets, action_set=columns["action_set"].to_numpy(zero_copy_only=False),
            executed=columns["executed"].to_numpy(zero_copy_only=False),
            logp=columns["logp"].to_numpy(zero_copy_only=False),
            reward=columns["reward"].to_numpy(zero_copy_only=False), known=known,
            at_s=columns["at_s"].to_numpy(zero_copy_only=False), ids=(), units=(), versions=(),
        )  # fmt: skip
        yield table, columns["bucket"].to_numpy(zero_copy_only=False).astype(np.int64)
