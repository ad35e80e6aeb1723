"""The report: everything on disk is on the page, nothing on the page can break it, damage costs one section."""

import math
from html.parser import HTMLParser

import numpy as np
import pytest
from counted_calls import count_calls
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from hone.core.config import ConfigSetting
from hone.core.errors import DataError
from hone.run.report.html import format_duration, format_number, text
from hone.run.report.run_page import write_report
from hone.run.store.evaluations import (
    PIPELINE,
    SIDE_BY_SIDE,
    EvaluationScore,
    PairedDifference,
    PipelineRecord,
    SideBySide,
    write_evaluations,
)
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import open_metrics
from hone.run.store.records import MEMORY, SPEED, MatmulRate, MemoryUse
from hone.run.store.rollouts import AnswerRollouts, SampleRow, rollout_path, write_rollouts

VOID = {"meta", "br", "img", "link", "hr", "input"}
EVIL = "</td></script><img src=http://x.example/ onerror=alert(1)>&\"'\0"


class Page(HTMLParser):
    """Checks that tags nest, and collects what a reader sees and what a browser would fetch or run."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(source)
        self.close()
        assert not self.open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def page_of(folder):
    page = Page(write_report(folder).read_text())
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "onerror", "onload", "onclick"} & names
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    return page


def sample(k, **changes):
    fields = {"step": 9, "group": k // 2, "sample": k % 2, "prompt": f"ask {k // 2}", "completion": f"say {k}"}
    fields |= {"score": 1.0, "status": "scored", "advantage": (-1.0) ** k, "tokens": 3, "finish": "eos", "version": 8}
    return SampleRow(**(fields | changes))


def make_run(root, name, *, steps=12, recipe="grpo", config=None, extra=None):
    config = config or {"lr": ConfigSetting(value=0.5, origin="run.toml:3"), "seed": ConfigSetting(value=None)}
    facts = RunMetadata(hone_version="0.1.0", recipe=recipe, machine="a toy machine", versions={"numpy": "2.4.6"})
    with create_run(root, name, config=config, metadata=facts, clock=ManualClock(1_769_860_800.0)) as run:
        writer = open_metrics(run.metrics_path).writer
        for step in range(1, steps + 1):
            row = {"loss/mean": 1 / step, "reward/mean": step / steps, "reward/missing": 0.25}
            times = {"time/collect_s": 3.0, "time/update_s": 0.75, "time/step_s": 4.0}
            writer.append(step, row | (extra or {}) | times)
        writer.close()
        write_rollouts(rollout_path(run.path, 5), AnswerRollouts(rows=[sample(0, completion="an older file")]))
        write_rollouts(rollout_path(run.path, 9), AnswerRollouts(rows=[sample(k) for k in range(4)]))
        run.log("hello")
        run.log("disk is slow", level="WARNING")
    return run.path


def test_a_single_run(tmp_path):
    folder = make_run(tmp_path, "first-run")
    write_evaluations(
        folder, [EvaluationScore(stage="step 12", metric="accuracy", mean=0.93, low=0.91, high=0.95, n=512)]
    )
    page = page_of(folder)
    for words in (
        "run: grpo",
        "first-run",
        "a toy machine",
        "numpy 2.4.6",
        "2026-01-31T12:00:00Z",
        "12 steps",
        "48 s training time",
        "0.930 accuracy, step 12",
        "0.910 to 0.950",
        "512",
        "Constant: reward/missing 0.250.",
        "step 12: 0.083",  # 1 / 12, in a hover
        "Samples of step 9",
        "say 3",
        "+1.00",
        "−1.00",  # noqa: RUF001
        "lr 0.5 run.toml:3",
        "1 defaults",
        "WARNING disk is slow",
    ):
        assert words in page.text, words
    assert "an older file" not in page.text


def test_the_split_of_time_adds_up(tmp_path):
    folder = make_run(tmp_path, "r")
    page = page_of(folder)
    for words in ("collect 75.0% 36 s 3,000.0 ms", "update 18.8% 9.0 s 750.0 ms", "other 6.2% 3.0 s 250.0 ms"):
        assert words in page.text


def test_a_step_is_drawn_and_its_bottleneck_named(tmp_path):
    engine = {"time/generate_s": 1.8, "time/generate_model_s": 1.5, "time/generate_prefill_s": 0.5}
    config = {"user_code.workers": ConfigSetting(value=2, origin="default")}
    folder = make_run(tmp_path, "r", config=config, extra=engine | {"learner/flops": 6e9})
    SPEED.write(folder, MatmulRate(dtype="float32", device="cpu", threads=2, matmul_flops_per_s=3.2e10))
    page = page_of(folder)
    for words in (
        "The bottleneck is rewards or worlds, while nothing was generated (rewards): 30% of a step, 1.2 s of 4.0 s; "
        "more reward processes (user_code.workers) or faster reward functions would shorten it",
        "learner for rollout 75.0% 36 s 3,000.0 ms",
        "decode: 1.0 s, 25.0% of a step",
        "collect 75.0% 36 s 3,000.0 ms of which prefill 12.5% 6.0 s 500.0 ms",
        "Updates computed at 8 GFLOP/s, 25% of the 32 GFLOP/s",
    ):
        assert words in page.text, words
    assert "collect 75.0% 36 s" in page.text and "other 6.2% 3.0 s" in page.text, (
        "what lies inside is not counted twice"
    )
    beside = page_of(make_run(tmp_path, "ahead", extra={name: 2 * value for name, value in engine.items()}))
    assert "it overlaps the step and is not part of its time" in beside.text
    (folder / "speed.json").write_text("?")
    assert "speed.json" in page_of(folder).text


def test_planned_and_measured_memory_are_drawn(tmp_path):
    folder = make_run(tmp_path, "r")
    assert "Memory, planned and measured" not in page_of(folder).text
    sizes = {"weights": 3 << 20, "activations": 5 << 20}
    use = MemoryUse(
        device="cpu", before_bytes=1 << 20, peak_bytes=10 << 20, planned_bytes=8 << 20, components=sizes,
        phases={"learn": 8 << 20},
    )  # fmt: skip
    MEMORY.write(folder, use)
    page = page_of(folder)
    for words in ("Memory of cpu: at most 9.0 MiB beyond 1.0 MiB", "activations: 5.0 MiB", "peak of learn 8.0 MiB"):
        assert words in page.text, words
    (folder / "memory.json").write_text("?")
    assert "memory.json" in page_of(folder).text


def make_pipeline(root):
    folder = root / "chain"
    folder.mkdir()
    make_run(folder, "sft", recipe="sft")
    make_run(folder, "grpo")
    PIPELINE.write(folder, PipelineRecord(name="chain sum", stages=("sft", "grpo")))
    accuracy = [("sft", 0.41, 0.37, 0.45), ("grpo", 0.93, 0.91, 0.95)]
    measured = [EvaluationScore(stage=s, metric="accuracy", mean=m, low=a, high=b, n=512) for s, m, a, b in accuracy]
    pair = PairedDifference(before="sft", after="grpo", difference=0.52, low=0.48, high=0.56, p_value=1e-60, n=512)
    write_evaluations(folder, measured, [pair])
    pairs = [
        SideBySide(
            prompt=f"{k}+{k}", reference=f"ref{k}", before="?", after=f"{2 * k}", before_score=None, after_score=1
        )
        for k in range(12)
    ]
    SIDE_BY_SIDE.write(folder, pairs)
    return folder


def test_a_pipeline(tmp_path):
    page = page_of(make_pipeline(tmp_path))
    for words in (
        "pipeline: sft → grpo",
        "0.410 → 0.930 accuracy, sft to grpo",
        "12 + 12 steps",
        "grpo against sft: +0.520 on the same 512 problems (95% interval 0.480 to 0.560, p < 0.001).",
        "10 of 12 prompts",
        "reference ref9",
        "no score",
        "1. sft 12 steps, 48 s",
        "2. grpo 12 steps, 48 s",
    ):
        assert words in page.text, words
    assert "ref10" not in page.text
    assert page.text.index("1. sft") < page.text.index("2. grpo")


def test_an_interval_that_holds_zero_is_called_no_proof(tmp_path):
    folder = make_run(tmp_path, "r")
    measured = [EvaluationScore(stage=s, metric="m", mean=0.5, low=0.4, high=0.6, n=9) for s in ("a", "b")]
    pair = PairedDifference(before="a", after="b", difference=0.01, low=-0.02, high=0.04, p_value=0.4, n=9)
    write_evaluations(folder, measured, [pair])
    assert "p = 0.400); the interval includes 0: not significant" in page_of(folder).text


def test_hostile_text_everywhere_is_only_text(tmp_path):
    config = {EVIL: ConfigSetting(value=EVIL, origin=EVIL)}
    folder = make_run(tmp_path, "r", recipe=EVIL, config=config, extra={EVIL: math.nan, f"x/{EVIL}": 1.0})
    evil = sample(0, prompt=EVIL, completion=EVIL, finish=EVIL)
    write_rollouts(rollout_path(folder, 10), AnswerRollouts(rows=[evil]))
    write_evaluations(folder, [EvaluationScore(stage=EVIL, metric=EVIL, mean=1, low=0, high=2, n=1)])
    SIDE_BY_SIDE.write(
        folder,
        [SideBySide(prompt=EVIL, reference=EVIL, before=EVIL, after=EVIL, before_score=0.0, after_score=math.nan)],
    )
    with (folder / "log.txt").open("a") as log:
        log.write(f"WARNING {EVIL}\n")
    page = page_of(folder)
    assert page.text.count("<img src=http://x.example/ onerror=alert(1)>") >= 12


@given(st.text())
def test_text_is_escaped_and_comes_back(value):
    class Words(HTMLParser):
        words = ""

        def handle_starttag(self, tag, attrs):
            raise AssertionError(tag)

        def handle_data(self, data):
            self.words += data

    parser = Words()
    parser.feed(text(value))
    parser.close()
    printable = "".join(c for c in value if ord(c) >= 32 or c in "\t\n")
    assert "".join(c for c in parser.words if not 0x2400 <= ord(c) <= 0x2421) == "".join(
        c for c in printable if ord(c) != 0x7F and not 0x2400 <= ord(c) <= 0x2421
    )


def test_very_long_text_is_cut_and_counted():
    assert text("x" * 5000).endswith("x … (1,000 more characters)")


def test_a_fresh_run_without_anything_has_a_report(tmp_path):
    with create_run(tmp_path, "r", config={}, metadata=RunMetadata(hone_version="0"), clock=ManualClock()) as run:
        pass
    assert "No metrics yet." in page_of(run.path).text


def test_damage_costs_its_section_and_is_named(tmp_path):
    folder = make_pipeline(tmp_path)
    (folder / "sft" / "metrics.jsonl").write_text("not json\n{}\n")
    rollout_path(folder / "sft", 9).write_bytes(b"PAR1")
    (folder / "grpo" / "config.json").unlink()
    (folder / "side_by_side.json").write_text("{")
    page = page_of(folder)
    for words in ("metrics.jsonl:1", "step_00000009.parquet", "config.json", "side_by_side.json", "Could not be read"):
        assert words in page.text, words
    assert "2. grpo 12 steps" in page.text


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="absent"):
        write_report(tmp_path / "absent")


def test_a_long_run_stays_a_small_page(tmp_path):
    rng = np.random.default_rng(0)
    with create_run(tmp_path, "r", config={}, metadata=RunMetadata(hone_version="0"), clock=ManualClock()) as run:
        writer = open_metrics(run.metrics_path).writer
        for step, row in enumerate(rng.random((5000, 20)).tolist(), start=1):
            writer.append(step, {f"m/{k}": value for k, value in enumerate(row)})
        writer.close()
    path, calls = count_calls(write_report, run.path)
    assert calls < 2_000_000  # measured: 1.1 million, of 100,000 values
    assert path.stat().st_size < 1_000_000
    Page(path.read_text())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.90349, "0.903"),
        (12345.6, "12,346"),
        (3e-6, "3e−6"),  # noqa: RUF001
        (-1.5, "−1.500"),  # noqa: RUF001
        (64.0, "64"),
        (0.0, "0"),
        (47.214, "47.21"),
        (250.04, "250.0"),
        (2.5e7, "2.5e7"),
        (math.nan, "–"),  # noqa: RUF001
        (-math.inf, "−∞"),  # noqa: RUF001
    ],
)
def test_numbers_are_short(value, shown):
    assert format_number(value) == shown


def test_durations():
    assert [format_duration(s) for s in (0.25, 4.04, 59.6, 75.3, 3600, 9000)] == [
        "0.25 s",
        "4.0 s",
        "1 min 0 s",
        "1 min 15 s",
        "1 h 0 min",
        "2 h 30 min",
    ]


def test_turns_of_a_conversation_and_tool_output_are_shown(tmp_path):
    turns = (("policy", "[34+58]"), ("environment", "ninety-two"), ("policy", "it is 92"))
    folder = make_run(tmp_path, "talk")
    write_rollouts(rollout_path(folder, 99), AnswerRollouts(rows=[sample(0, turns=turns), sample(1)]))
    words = " ".join(page_of(folder).words)
    assert words.index("[34+58]") < words.index("ninety-two") < words.index("it is 92")
    assert "policy [34+58] world ninety-two policy it is 92" in " ".join(words.split())
    assert "say 1" in words
