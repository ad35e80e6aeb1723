"""Off-policy estimates of views that are larger than the memory: parquet read by DuckDB, a batch of rows at a time."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (DuckDB and pyarrow have no type information)

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from hone.core.decisions import LOGP_TOLERANCE, ActionSet, Bools, DecisionPolicy, DecisionTable, Floats, Ints
from hone.core.errors import DataError, ResourceError
from hone.decide.estimators.estimate import MODEL_BASED, EstimateSettings, EstimatorName, OffPolicyEstimate
from hone.decide.estimators.feedback import LoggedFeedback
from hone.decide.estimators.rules import VerdictReason, open_window_reasons
from hone.decide.estimators.streaming import BUCKETS, StreamedEstimates, StreamedRewardModel
from hone.decide.evaluate.off_policy import catalogue_columns, logged_feedback
from hone.decide.joins.parquet import view_action_sets

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

    Duplicates and drift within a version are not looked for; other rules are those of `hone estimate`. Raises DataError
    for files of different actions or without a usable row, ConfigError for an estimator that cannot be streamed,
    ResourceError without DuckDB.
    """
    chosen = settings or EstimateSettings()
    sets = _common_action_sets(paths)
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
    return sums.estimates(log_reasons=_log_reasons(facts, chosen))


def _without_target(table: DecisionTable, bucket: Ints) -> LoggedFeedback:
    """Rows for the reward model, which reads no target."""
    return LoggedFeedback(
        contexts=table.contexts,
        action=catalogue_columns(table)[0],
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


def _common_action_sets(paths: Sequence[Path]) -> tuple[ActionSet, ...]:
    first, *others = paths
    sets = view_action_sets(first)
    for path in others:
        if view_action_sets(path) != sets:
            raise DataError(f"{path} has other sets of actions than {first}: estimate them one by one")
    return sets


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


def _log_reasons(facts: _StreamFacts, settings: EstimateSettings) -> list[VerdictReason]:
    reasons = open_window_reasons(facts.open_rows / facts.rows, settings.rules)
    unsound = facts.rows - facts.sound - facts.open_rows
    if unsound:
        words = f"{unsound} rows have no probability within 0 and 1, or no finite reward: `hone log` names them"
        reasons.append(VerdictReason(rule="propensities", verdict="refuse", words=words))
    return reasons


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
