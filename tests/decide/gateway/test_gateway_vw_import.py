"""Vowpal Wabbit's logs in the decision log: values worked out by hand, faults by line, an estimate over them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hone.core.errors import DataError
from hone.decide.gateway.vw_import import import_vw_log, read_vw_log
from hone.decide.joins.join import build_view
from hone.decide.log.opening import open_decision_log

CB = """\
1:2:0.4 | a c:0.5
3:0.5:0.2 |user b c:2
# a comment
2:-1:0.5 4 | a
| nothing was executed here
"""
ADF = """\
shared |user age:30 de
0:-1.0:0.75 |item price:2 red
|item price:3

shared |user age:20
|item price:1
0:0.0:0.25 |item price:5 red

shared |user age:20
|item price:1

"""
DSJSON = {
    "_label_cost": -1.0, "_label_probability": 0.8, "_label_Action": 2, "Timestamp": "2026-02-04T16:31:29.2460000Z",
    "EventId": "e-1", "a": [2, 1, 3], "p": [0.8, 0.1, 0.1], "VWState": {"m": "m7"},
    "c": {"User": {"age": 30, "country": "de", "new": True}, "_multi": [{"i": {"p": 1}}, {"i": {"p": 2}}, {"i": {}}]},
}  # fmt: skip


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "vw.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_text_of_cb_is_read_with_costs_as_negative_rewards(tmp_path: Path) -> None:
    path = written(tmp_path, CB.replace("| nothing was executed here\n", "4 | b\n"))
    log = read_vw_log(path, kind="text")
    assert log.features == ("a", "c", "user.b", "user.c")
    decisions, outcomes = log.records[::2], log.records[1::2]
    assert [one.executed for one in decisions] == [0, 2, 1]
    assert [one.actions.names for one in decisions] == [("1", "2", "3")] * 3
    assert [round(math.exp(one.executed_logp), 12) for one in decisions] == [0.4, 0.2, 0.5]
    assert [one.context.tolist() for one in decisions] == [[1, 0.5, 0, 0], [0, 0, 1, 2], [1, 0, 0, 0]]
    assert [one.value for one in outcomes] == [-2, -0.5, 1]
    assert log.unlabelled == 1


def test_the_text_of_adf_keeps_the_features_of_actions(tmp_path: Path) -> None:
    log = read_vw_log(written(tmp_path, ADF), kind="text")
    assert (log.features, log.action_features) == (("user.age", "user.de"), ("item.price", "item.red"))
    first, second = log.records[::2]
    assert (first.executed, second.executed) == (0, 1)
    assert first.actions.features.tolist() == [[2, 1], [3, 0]]
    assert second.context.tolist() == [20, 0]
    assert [one.value for one in log.records[1::2]] == [1.0, 0.0]
    assert log.unlabelled == 1


def test_dsjson_keeps_event_version_and_time(tmp_path: Path) -> None:
    late = {"EventId": "e-1", "RewardValue": 1.0}
    log = read_vw_log(written(tmp_path, f"{json.dumps(DSJSON)}\n{json.dumps(late)}\n"), kind="dsjson")
    decision, outcome = log.records
    assert (decision.id, decision.version, decision.executed) == ("e-1", "vw:m7", 1)
    assert decision.at_s == pytest.approx(1770222689.246)
    assert log.features == ("User.age", "User.country=de", "User.new")
    assert decision.context.tolist() == [30, 1, 1]
    assert decision.actions.features.tolist() == [[1], [2], [0]]
    assert outcome.value == 1.0
    assert log.unlabelled == 1


def test_every_bad_line_is_named_and_nothing_is_converted(tmp_path: Path) -> None:
    lines = ("1:2:0 | a", "1:2:1.5 | a", "0:1:0.5", "", "x:1:0.5 | a", "1:1:0.5 2:1:0.5 | a", "1:1:0.5 | a:b",
             "1:nan:0.5 | a", "1:1:.5 | a")  # fmt: skip
    text = "\n".join(lines)
    with pytest.raises(DataError) as caught:
        read_vw_log(written(tmp_path, text), kind="text")
    found = "\n".join(caught.value.messages)
    for words in ("line 1: probability 0 ", "line 2: probability 1.5", "line 5: label 'x:1:0.5'", "line 6: 2 labelled",
                  "line 7: feature value 'b'", "line 8: cost nan"):  # fmt: skip
        assert words in found
    assert "line 9" not in found
    with pytest.raises(DataError, match="line 1: not JSON"):
        read_vw_log(written(tmp_path, "{"), kind="dsjson")
    with pytest.raises(DataError, match="No such file"):
        read_vw_log(tmp_path / "none.log", kind="text")


def test_an_import_is_idempotent_and_joins(tmp_path: Path) -> None:
    log = open_decision_log(tmp_path / "decisions.db")
    for _ in range(2):
        import_vw_log(written(tmp_path, ADF), log, kind="text")
    assert (log.counts().decisions, log.counts().outcomes) == (2, 2)
    view = build_view((one.record for one in log.read()), as_of_s=1e6)
    assert view.table.reward.tolist() == [1.0, 0.0]
    weights = np.exp(-view.table.logp)
    assert weights.tolist() == pytest.approx([4 / 3, 4.0])
    log.close()
