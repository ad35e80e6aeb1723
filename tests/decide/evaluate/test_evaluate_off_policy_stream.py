"""Estimates of parquet in a stream: equal to those in memory, with buckets of units in place of units."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.greedy import BoltzmannPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.estimators import estimate as streaming
from hone.decide.estimators.estimate import (
    STREAMED,
    EstimateSettings,
    StreamedEstimates,
    estimate_values,
)
from hone.decide.estimators.reward_models import StreamedRewardModel
from hone.decide.evaluate import off_policy as off_policy_stream
from hone.decide.evaluate.off_policy import estimate_parquet, logged_feedback
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import view_bytes
from hone.decide.joins.view import JoinConfig
from hone.decide.simulators.logged_choices import logged_choice_world, logged_records

WORLD = logged_choice_world(1)
LOG = WORLD.log(1200, seed=5)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stream") / "view.parquet"
    path.write_bytes(view_bytes(build_view(logged_records(LOG), as_of_s=1e6, join=JoinConfig())))
    return path


def test_a_stream_gives_the_estimates_of_one_batch_of_buckets() -> None:
    """Three batches with rows of the same buckets; in memory, buckets are the units."""
    logged = replace(logged_feedback(LOG, WORLD.target), unit=np.arange(1200) % 300)
    names = ("ips", "snips", "clipped")
    sums = StreamedEstimates(names=names, rows=1200, settings=EstimateSettings())
    for rows in np.array_split(np.arange(1200), 3):
        sums.add(logged.rows(rows), np.zeros((0, 0)), rows >= 600)
    whole = estimate_values(logged, names, EstimateSettings())
    for name, streamed in sums.estimates().items():
        found = whole[name].estimate
        assert streamed.value == pytest.approx(found.value, rel=1e-12)
        assert streamed.standard_error == pytest.approx(found.standard_error, rel=1e-9)
        assert (streamed.ess, streamed.largest_weight) == pytest.approx((found.ess, found.largest_weight))
        assert (streamed.n, streamed.units, streamed.verdict) == (1200, 300, found.verdict)


def test_the_model_of_a_stream_does_not_depend_on_its_batches() -> None:
    logged = replace(logged_feedback(LOG, WORLD.target), unit=np.arange(1200) % 300)
    whole, parts = (StreamedRewardModel(actions=8, settings=EstimateSettings().model) for _ in range(2))
    whole.observe(logged)
    for rows in np.array_split(np.arange(1200), 5):
        parts.observe(logged.rows(rows))
    whole.fit()
    parts.fit()
    assert parts.predict(logged) == pytest.approx(whole.predict(logged), abs=1e-9)
    changed = replace(logged, reward=np.where(logged.unit == 7, 9.0, logged.reward))
    other = StreamedRewardModel(actions=8, settings=EstimateSettings().model)
    other.observe(changed)
    other.fit()
    own = logged.unit == 7
    assert (other.predict(logged)[own] == whole.predict(logged)[own]).all()  # no unit predicts itself


def test_parquet_is_estimated_in_batches(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_policy_stream, "_BATCH", 500)
    found = estimate_parquet([parquet], WORLD.target, estimators=STREAMED)
    whole = estimate_values(logged_feedback(LOG, WORLD.target), STREAMED, EstimateSettings())
    for name in STREAMED:
        one, other = found[name], whole[name].estimate
        folds = 0.5 * whole["dr"].estimate.standard_error  # other units are in other folds
        near = 1e-9 if name in ("ips", "snips", "clipped") else folds
        assert one.value == pytest.approx(other.value, abs=near)
        assert one.standard_error == pytest.approx(other.standard_error, rel=0.15)
        assert one.n == 1200
    assert found["dm"].verdict == "weak"


def test_unsound_and_open_rows_are_left_out_and_refused(tmp_path: Path) -> None:
    view = build_view(logged_records(LOG), as_of_s=1000.0, join=JoinConfig(window_s=200.0))
    bad = replace(view, table=replace(view.table, logp=np.where(np.arange(len(view.table)) == 3, 0.5, view.table.logp)))
    path = tmp_path / "view.parquet"
    path.write_bytes(view_bytes(bad))
    found = estimate_parquet([path], WORLD.target, estimators=["ips"])["ips"]
    rules = [reason.rule for reason in found.reasons]
    assert found.verdict == "refuse"
    assert rules[:2] == ["open windows", "propensities"]
    assert found.n == int(view.table.known.sum()) - 1


def test_files_that_cannot_be_streamed_are_named(parquet: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got mrdr, normal, ridge"):
        estimate_parquet([parquet], WORLD.target, estimators=["mrdr"])
    with pytest.raises(DataError, match=r"none\.parquet: not a complete parquet file"):
        estimate_parquet([tmp_path / "none.parquet"], WORLD.target)
    uniform = BoltzmannPolicy(LinearGaussianPosterior(8, 5), temperature=1.0)
    assert estimate_parquet([parquet, parquet], uniform)["dr"].n == 2400
    with pytest.raises(ValueError, match="no rows"):
        StreamedEstimates(names=("ips",), rows=1, settings=EstimateSettings()).estimates()
    assert streaming.BUCKETS == 4096
