"""The join by DuckDB over parquet files: the rows and counts of the join in memory."""

from collections.abc import Iterable
from contextlib import closing
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from hone.core.decisions import ActionSet, DecisionRecord
from hone.core.errors import DataError
from hone.core.random import generator
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import LargeJoin, read_view
from hone.decide.joins.view import JoinConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.log.retention import export_log
from support.decision_records import ARMS, decision, outcome

FEATURED = ActionSet(names=("left", "right", "stay"), features=np.arange(6.0).reshape(3, 2))


def messy_log(seed: int, count: int = 200) -> list[DecisionRecord]:
    """Decisions over three days with several, late, early, orphan and foreign outcomes, and ids that come again."""
    chance = generator(seed, "messy log")
    log: list[DecisionRecord] = []
    for number in range(count):
        name, at_s = f"d{number - (number % 50 == 7)}", float(chance.integers(0, 250_000))
        arms = FEATURED if number % 5 == 0 else ARMS
        executed = int(chance.integers(0, 3))
        log.append(decision(name, at_s, seq=number, executed=executed, p=0.2, actions=arms, unit=f"u{number % 9}"))
    for number in range(2 * count):
        name, kind = f"d{chance.integers(0, count + 20)}", "view" if number % 11 == 0 else "reward"
        value, at_s = float(chance.normal()), float(chance.integers(0, 300_000))
        log.append(outcome(name, at_s, value, seq=number, kind=kind, source=f"s{number % 3}"))
    return log


def exported(folder: Path, log: Iterable[DecisionRecord]) -> Path:
    with closing(open_decision_log(folder / "log.db")) as stored:
        stored.append(list(log))
        export_log(stored, folder / "files")
    return folder / "files"


def test_every_rule_gives_the_rows_and_counts_of_the_join_in_memory(tmp_path: Path) -> None:
    log = messy_log(1)
    files = exported(tmp_path, log)
    for rule, bounds in (
        ("sum", {}), ("first", {"low": -1.0, "high": 0.5}), ("last", {"high": 1.0}),
        ("max", {"low": -0.75, "high": 0.75, "beyond": "clip"}), ("sum", {"low": -0.6, "beyond": "clip"}),
    ):  # fmt: skip
        join = JoinConfig.model_validate({"window_s": 90_000.0, "rule": rule, "default": -0.5} | bounds)
        small = build_view(log, as_of_s=200_000.0, join=join)
        path = tmp_path / f"{rule}.parquet"
        counts = LargeJoin(folder=files, tenant="shop", as_of_s=200_000.0, join=join).write(path)
        large = read_view(path)
        assert counts == large.counts == small.counts
        assert (small.counts.out_of_range > 50) == bool(bounds)
        assert (large.table.ids, large.table.units) == (small.table.ids, small.table.units)
        assert large.table.action_sets == small.table.action_sets
        for name in ("contexts", "action_set", "executed", "logp", "reward", "known", "at_s"):
            np.testing.assert_allclose(attrgetter(name)(large.table), attrgetter(name)(small.table), rtol=1e-14)
        for name in ("first_delay_s", "reward_so_far", "corrected"):
            np.testing.assert_allclose(attrgetter(name)(large), attrgetter(name)(small), rtol=1e-14)
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_several_schemas_and_other_tenants_are_told(tmp_path: Path) -> None:
    log = [decision("d0", 0.0, seq=0, schema="aa"), decision("d1", 5.0, seq=1, schema="bb", context=(1.0,))]
    files = exported(tmp_path, log)
    job = LargeJoin(folder=files, tenant="shop", as_of_s=50.0, join=JoinConfig(window_s=10.0))
    with pytest.raises(DataError, match=r"2 schemas of features in one view: aa from 0; bb from 5"):
        job.write(tmp_path / "view.parquet")
    with pytest.raises(DataError, match="holds no decisions of tenant 'other'"):
        LargeJoin(folder=files, tenant="other", as_of_s=50.0, join=JoinConfig()).write(tmp_path / "view.parquet")
    one = LargeJoin(folder=files, tenant="shop", as_of_s=50.0, join=JoinConfig(window_s=10.0), schema="bb")
    assert one.write(tmp_path / "view.parquet").decisions == 1
    assert read_view(tmp_path / "view.parquet").table.schemas == ("bb",)
