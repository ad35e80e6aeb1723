"""Forms of Vowpal Wabbit's files: each is read as its own reader reads it, or refused with its line, or left out."""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hone.core.decisions import Decision, Outcome
from hone.core.errors import DataError
from hone.decide.gateway.vw_import import VwFormat, read_vw_log

LINE: dict[str, Any] = {
    "_label_cost": -1.0, "_label_probability": 0.8, "_label_Action": 2, "_labelIndex": 1, "EventId": "e-1",
    "a": [2, 1, 3], "p": [0.8, 0.1, 0.1], "Timestamp": "2026-02-04T16:31:29.2460000Z",
    "c": {"User": {"age": 30, "new": True}, "_multi": [{"i": {"p": 1}}, {"i": {"p": 2}}, {"i": {"p": 4}}]},
}  # fmt: skip


class Form(NamedTuple):
    """A file and what becomes of it."""

    kind: VwFormat
    text: str
    decisions: tuple[tuple[int, float, float], ...] = ()
    """Executed action, cost and probability of each decision that is read."""
    refused: str = ""
    """What the refusal says."""
    left_out: int = 0
    """Lines that are neither."""


def ds(**changes: Any) -> str:
    """The line of DSJSON with other keys; a key of None is left out."""
    return json.dumps({name: one for name, one in {**LINE, **changes}.items() if one is not None})


READ = (
    Form("cb_adf", "shared |u a:3\n0:1:0.5 |i x:2\n|i y", ((0, 1, 0.5),)),
    Form("cb_adf", "0:1:0.5 |i x\n|i y:2", ((0, 1, 0.5),)),
    Form("cb_adf", "|i x\n1:-1:0.25 |i y", ((1, -1, 0.25),)),
    Form("cb_adf", "7:1:0.5 |i x\n|i y", ((0, 1, 0.5),)),
    Form("cb_adf", "|i x\n\n|i x\n0:1:0.5 |i y\n\n\nshared |u a\n|i x\n0:2:0.1 |i z",
         ((1, 1, 0.5), (1, 2, 0.1)), left_out=1),
    Form("cb_adf", "shared |u a\n|i x\n0:1:0.5 'tag|i y", ((1, 1, 0.5),)),
    Form("cb_adf", "shared 'tag|u a\n|i x\n0:1:0.5 tag|i y", ((1, 1, 0.5),)),
    Form("cb_adf", "shared |u a\n0:1:0.5 |i x |j:2 y:3\n4 |i y", ((0, 1, 0.5),)),
    Form("cb_adf", "shared |u a\n0:1e-1:.5 | x", ((0, 0.1, 0.5),)),
    Form("text", "shared |u a\n|i x\n0:1:0.5 |i y", ((1, 1, 0.5),)),
    Form("text", "0:1:0.5 |i x\n|i y:2", ((0, 1, 0.5),)),
    Form("text", "|i x\n0:1:0.5 |i y:2\n\n|i x", ((1, 1, 0.5),), left_out=1),
    Form("text", "1:2:0.4 | a\n3:1:0.2 |u b c:2", ((0, 2, 0.4), (2, 1, 0.2))),
    Form("text", "1:2:0.4 | a\n| nothing\n3:1:0.2 | b", ((0, 2, 0.4), (2, 1, 0.2)), left_out=1),
    Form("text", "2:2:0.4 | a", ((1, 2, 0.4),)),
    Form("cb", "1:2:0.4 | a\n| b", ((0, 2, 0.4),), left_out=1),
    Form("cb", "1:2:0.4 'tag| a\n4 | b\n2:-1:0.5 4 | a", ((0, 2, 0.4), (1, -1, 0.5)), left_out=1),
    Form("dsjson", ds(), ((1, -1, 0.8),)),
    Form("dsjson", ds(_skipLearn=False, pdrop=0.0), ((1, -1, 0.8),)),
    Form("dsjson", ds(_label_Action=None), ((1, -1, 0.8),)),
    Form("dsjson", ds(_label_Action=1, _labelIndex=0, _label_probability=0.1), ((0, -1, 0.1),)),
    Form("dsjson", ds(p=[0.8000001, 0.1, 0.0999999]), ((1, -1, 0.8),)),
    Form("dsjson", ds(c={"u": {"_text": "big red dog"}, "_multi": [{"i": {"p": 1}}, {"i": {"p": 2}}, {"i": {"p": 4}}]}),
         ((1, -1, 0.8),)),
)  # fmt: skip
READ += (
    Form("dsjson", ds(c={**LINE["c"], "u": {"_text": None, "_tag": None, "v": [1, None, {"a": 2}], "w": []}}),
         ((1, -1, 0.8),)),
    Form("dsjson", ds(_label_cost=3e38), ((1, 3e38, 0.8),)),
    Form("cb", "1:2:0.4 |u:.5 a:3.4e38 |u:-2 b", ((0, 2, 0.4),)),
)  # fmt: skip
LEFT_OUT = (
    Form("dsjson", ds(_skipLearn=True) + "\n" + ds(), ((1, -1, 0.8),), left_out=1),
    Form("dsjson", ds(_skipLearn=True), left_out=1),
    Form("dsjson", ds(_label_cost=None), left_out=1),
    Form("dsjson", '{"EventId": "e-1", "RewardValue": 1.0}', left_out=1),
)
REFUSED = (
    Form("text", "shared|u a\n0:1:0.5 |i x", refused="line 1: 'shared' touches the bar"),
    Form("cb_adf", "shared |u a\n0:1:0.5|i x", refused="line 2: '0:1:0.5' touches the bar"),
    Form("cb", "1:2:0.4| a", refused="line 1: '1:2:0.4' touches the bar"),
    Form("cb", "1:2:0.4", refused="line 1: '1:2:0.4' touches the end"),
    Form("cb_adf", "shared\t|u a\n0:1:0.5\t|i x", refused="line 1: a tab before the bar"),
    Form("text", "1:1:0.5 |i x\n|i y",
         refused='line 1: 2 lines without `shared`.*kind = "cb_adf", or 2 of kind = "cb"'),
    Form("cb_adf", "shared |u a\n0:1 |i x", refused="line 1: label '0:1' has no probability"),
    Form("cb", "1:2 | a", refused="line 1: label '1:2' has no probability"),
    Form("cb", "1:2:0.5:3 | a", refused="line 1: label '1:2:0.5:3' is not action:cost:probability"),
    Form("cb", "x:2:0.5 | a", refused="line 1: label 'x:2:0.5'"),
    Form("cb", "1:2:1.5 | a", refused=r"line 1: probability 1\.5"),
    Form("cb", "1:2:-0.5 | a", refused=r"line 1: probability -0\.5"),
    Form("cb", "0:2:0.5 | a", refused="line 1: action 0"),
    Form("cb", "1:2:0.4 2:1:0.3 | a", refused="line 1: 2 labelled"),
    Form("cb", "shared | a", refused="line 1: `shared` belongs to"),
    Form("cb_adf", "|i x\nshared |u a\n0:1:.5 |i y", refused="line 1: `shared` in line 2"),
    Form("cb_adf", "shared |u a\nshared |u a\n0:1:.5 |i y", refused="line 1: `shared` in line 2"),
    Form("cb_adf", "shared |u a\n0:1:.5 |i y\n0:1:.5 |i z", refused="line 1: 2 labelled"),
    Form("cb_adf", "shared |u a", refused="line 1: `shared` with 'no action after it'"),
    Form("cb_adf", "shared:1:0.5 |u a\n0:1:0.5 |i x", refused="line 1: `shared` in line 1"),
    Form("text", "ccb shared |u a\nccb action |i x\nccb slot 0:0.8:1.0 |s a",
         refused="line 1: ccb: conditional contextual"),
    Form("text", "slates shared 0.8 |u a\nslates action 0 |i x\nslates slot 0:1.0 |s a", refused="line 1: slates"),
    Form("text", "ca 185.121:0.657567:6.2e-05 | a", refused="line 1: ca: continuous actions"),
    Form("cb", "1:2:0.5 | a:b", refused="line 1: feature value 'b'"),
    Form("cb", "1:2:0.5 | a: :4", refused="line 1: feature value ''"),
    Form("cb", "1:2:0.5 | :4", refused="line 1: feature ':4' has no name"),
    Form("dsjson", ds(pdrop=0.5), refused=r"line 1: pdrop = 0\.5"),
    Form("dsjson", ds(pdrop=1), refused="line 1: pdrop = 1"),
    Form("dsjson", ds(_skipLearn="yes"), refused="line 1: _skipLearn = 'yes'"),
    Form("dsjson", ds() + "\n" + ds(EventId="e-2", _label_probability=0.5),
         refused=r"line 2: _label_probability = 0\.5 contradicts p"),
    Form("dsjson", ds(_label_Action=1), refused="line 1: _label_Action = 1 and _labelIndex = 1 name two"),
    Form("dsjson", ds(_label_Action=1, _labelIndex=0), refused=r"line 1: _label_probability = 0\.8 contradicts p"),
    Form("dsjson", ds(p=[0.8, 0.2]), refused=r"line 1: p = \[0\.8, 0\.2\]"),
    Form("dsjson", ds(p=[0.8, 0.8, 0.8]), refused="line 1: p = .*its sum is 2.4"),
    Form("dsjson", ds(a=[2, 1], p=[0.8, 0.2]), refused=r"line 1: a = \[2, 1\] are not the numbers from 1 to 3"),
    Form("dsjson", ds(a=[2, 2, 3]), refused=r"line 1: a = \[2, 2, 3\]"),
    Form("dsjson", ds(_label_Action=9, _labelIndex=8), refused="line 1: action 9 of 3"),
    Form("dsjson", ds(_label_cost="free"), refused="line 1: 'free' is no finite number"),
    Form("dsjson", ds(_label_probability=0.0, p=[0.0, 0.5, 0.5]), refused="line 1: probability 0 "),
    Form("dsjson", ds(a=None), refused="line 1: c must be an object, a and p lists"),
    Form("dsjson", ds(c={"u": {"a": 1}}), refused="line 1: c has no list _multi"),
    Form("dsjson", ds(c={**LINE["c"], "_slots": [{"s": 1}]}), refused="line 1: _slots"),
    Form("dsjson", json.dumps({"_outcomes": [{"_label_cost": 0, "_a": [1], "_p": [1.0]}], "c": LINE["c"]}),
         refused="line 1: _outcomes"),
    Form("dsjson", ds(_label_probability=None), refused="line 1: a cost without"),
    Form("dsjson", ds(_label_Action=None, _labelIndex=None), refused="line 1: a cost without"),
    Form("cb", "1:1e39:0.5 | a", refused=r"line 1: cost 1e\+39 is not finite in 32 bits"),
    Form("cb", "1:1:0.5 | a:3.5e38", refused=r"line 1: feature value 3\.5e38 is not finite in 32 bits"),
    Form("cb", "1:1:0.5 |u: a", refused="line 1: feature value ''"),
    Form("dsjson", ds(_label_cost=-1e39), refused=r"line 1: -1e\+39 is no finite number of 32 bits"),
    *(
        Form("dsjson", ds(c={"u": {"v": wrong}, "_multi": LINE["c"]["_multi"]}), refused="line 1: a list with")
        for wrong in (["red"], [1, True], [[1, 2]])
    ),
    *(
        Form("dsjson", ds(c={"u": {name: wrong}, "_multi": LINE["c"]["_multi"]}), refused=f"line 1: {name} is no text")
        for name in ("_text", "_tag") for wrong in (True, 3, ["red"], {})
    ),
    Form("dsjson", ds(c={"_text": 3, "_multi": LINE["c"]["_multi"]}), refused="line 1: _text is no text"),
    Form("dsjson", ds(EventId=5), refused="line 1: EventId is no text"),
    Form("dsjson", ds(Timestamp=5), refused="line 1: Timestamp is no text"),
    Form("cb", "1_0:2:0.5 | a", refused="line 1: label '1_0:2:0.5'"),
    Form("dsjson", ds(_label={"Action": 1, "Cost": 3, "Probability": 0.25}), refused="line 1: _label:"),
    Form("dsjson", ds() + "\n\n" + ds(), refused="line 3: EventId 'e-1' is that of line 1"),
)  # fmt: skip


def read(tmp_path: Path, form: Form) -> tuple[list[tuple[Decision, Outcome]], int]:
    path = tmp_path / "vw.log"
    path.write_text(form.text, encoding="utf-8")
    log = read_vw_log(path, kind=form.kind)
    pairs = [(one, other) for one, other in zip(log.records[::2], log.records[1::2], strict=True)]
    return pairs, log.unlabelled + log.skipped  # type: ignore[return-value]


@pytest.mark.parametrize("form", READ + LEFT_OUT)
def test_forms_that_are_read(tmp_path: Path, form: Form) -> None:
    pairs, left_out = read(tmp_path, form)
    assert [(one.executed, -other.value, round(math.exp(one.executed_logp), 9)) for one, other in pairs] == [
        (executed, cost, probability) for executed, cost, probability in form.decisions
    ]
    assert left_out == form.left_out


@pytest.mark.parametrize("form", REFUSED)
def test_forms_that_are_refused_with_their_line(tmp_path: Path, form: Form) -> None:
    with pytest.raises(DataError, match=form.refused):
        read(tmp_path, form)


def test_words_of_a_text_are_features(tmp_path: Path) -> None:
    context = {"u": {"_text": "big red red"}, "_text": "now", "_tag": "x", "_multi": LINE["c"]["_multi"]}
    path = tmp_path / "vw.log"
    path.write_text(ds(c=context), encoding="utf-8")
    log = read_vw_log(path, kind="dsjson")
    assert dict(zip(log.features, log.records[0].context.tolist(), strict=True)) == {"now": 1, "u.big": 1, "u.red": 2}  # type: ignore[union-attr]


@pytest.mark.slow
def test_vowpal_wabbits_own_reader_finds_the_same_decisions(tmp_path: Path) -> None:
    """What is read is what it reads, features too."""
    from peers import require_peer

    given = os.environ.get("HONE_VW_PYTHON")
    python = Path(given) if given else require_peer("bandits")
    forms = [form for form in READ + LEFT_OUT if form.kind != "text"]
    for form in READ:
        if form.kind == "text":
            forms.append(form._replace(kind="cb_adf" if form.text.startswith(("shared", "|", "0:")) else "cb"))
    request = json.dumps([{"kind": form.kind, "text": form.text} for form in forms])
    script = Path(__file__).resolve().parents[2] / "support" / "vw_reader.py"
    ended = subprocess.run([python, script], input=request, capture_output=True, text=True, check=True, timeout=300)
    same = 0
    for form, answer in zip(forms, json.loads(ended.stdout), strict=True):
        assert isinstance(answer, list), (form, answer)
        if "_labelIndex" not in form.text and form.kind == "dsjson":
            continue  # it needs the place of the action
        decided = [(one["executed"], one["cost"], one["probability"]) for one in answer]
        assert np.allclose(np.array(decided).reshape(-1, 3), np.array(form.decisions).reshape(-1, 3), atol=1e-6), form
        assert all(one["weight"] == 1 for one in answer)
        pairs, _ = read(tmp_path, form)
        for (decision, _), one in zip(pairs, answer, strict=True):
            rows = [*([decision.context] if one["shared"] or form.kind == "cb" else [])]
            rows += [] if decision.actions.features is None else list(decision.actions.features)
            sums = [float(row.sum()) for row in rows]
            assert np.allclose(sums, [sum(weights) for weights in one["features"]], atol=1e-5), form
        same += len(pairs)
    assert same >= 20
