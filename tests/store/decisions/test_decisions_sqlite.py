"""The SQLite engine: what it makes of files, and of other processes."""

from pathlib import Path

import numpy as np
import pytest

from hone.core.decisions import ActionSet, Choice, Decision, Outcome
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.store.decisions.opening import open_decision_log


def test_a_log_of_a_file_is_what_it_was_when_it_is_opened_again(tmp_path: Path) -> None:
    actions = ActionSet(names=("a", "b"), features=np.array([[0.5, -0.0], [np.nan, 1e-300]]))
    decision = Decision(
        id="d1", tenant="shop", unit="u1", at_s=5.0, context=np.array([0.1, np.inf]), actions=actions,
        choice=Choice(action=1, logp=-0.5), executed=1, executed_logp=-0.5, version="v1", source="web", seq=0,
    )  # fmt: skip
    outcome = Outcome(decision_id="d1", tenant="shop", value=1.0, at_s=6.0, source="till", seq=1)
    log = open_decision_log(tmp_path / "new" / "decisions.db")
    ack = log.append([decision, outcome])
    log.close()
    assert (ack.stored, [one.watermark for one in ack.watermarks]) == (2, [-1, 0])
    log = open_decision_log(str(tmp_path / "new" / "decisions.db"), full_sync=True)
    first, second = (one.record for one in log.read())
    assert second == outcome
    assert isinstance(first, Decision)
    assert (first.id, first.actions.names, first.choice) == ("d1", ("a", "b"), decision.choice)
    assert first.context.tobytes() == decision.context.tobytes()
    assert first.actions.features is not None and actions.features is not None
    assert first.actions.features.tobytes() == actions.features.tobytes()
    log.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, but long enough to look like one " * 40)
    with pytest.raises(DataError, match="not a decision log"):
        open_decision_log(tmp_path / "notes.db")
    with pytest.raises(ResourceError, match="cannot"):
        open_decision_log(tmp_path)
    with pytest.raises(ConfigError, match="kafka://; known"):
        open_decision_log("kafka://localhost")
