"""`estimate_decisions`: the same report from a log, a table, a folder and an opened policy."""

from contextlib import closing
from pathlib import Path

import pytest

from hone.api import estimate_decisions
from hone.core.errors import DataError
from hone.decide.bandits.greedy import BoltzmannPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.log.opening import open_decision_log
from hone.decide.simulators.logged_choices import logged_choice_world, logged_records


def test_a_log_and_its_table_give_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = logged_choice_world(1)
    table = world.log(600, seed=3)
    with closing(open_decision_log("decisions.db")) as log:
        log.append(list(logged_records(table)))
    uniform = BoltzmannPolicy(LinearGaussianPosterior(8, 5), temperature=1.0)
    save_policy(uniform, Path("uniform"))
    by_address = estimate_decisions("decisions.db", "uniform", estimators=["snips"])
    assert estimate_decisions(table, {"uniform": uniform}, estimators=["snips"]) == by_address
    assert estimate_decisions(Path("decisions.db"), [Path("uniform")], estimators=["snips"]) == by_address
    assert estimate_decisions("decisions.db", "uniform", since_s=200.0).rows == 400
    with pytest.raises(DataError, match="missing: there is no such folder"):
        estimate_decisions(table, ["missing"])
