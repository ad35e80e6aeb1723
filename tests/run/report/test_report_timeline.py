"""A step as a timeline: what comes after what, what lies inside and beside what, and what is slowest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.run.report.svg import LaneBlock, lane_plot
from hone.run.report.timeline import step_timeline
from hone.run.report.timing_section import bottleneck_line, step_waits
from hone.run.store.metrics import MetricColumns
from hone.run.store.records import SPEED, MatmulRate, format_flops, speed_line, update_flops_per_s

TEXT = ("model.compute", "run.ranks", "rollout.max_concurrent", "rollout.max_staleness", "user_code.workers")
CONTROL = ("env.num_envs", "run.ranks", "learner.products")


def columns(steps, **values):
    return MetricColumns(
        np.array(steps, np.int64),
        {name.replace("__", "/"): np.array(value, np.float64) for name, value in values.items()},
    )


def text_run(**changes):
    """Two lines over ten steps; the mean step takes 1 s."""
    values = {
        "time__step_s": [6.0, 4.0],
        "time__collect_s": [3.0, 2.0],
        "time__credit_s": [0.25, 0.25],
        "time__update_s": [2.0, 1.0],
        "time__publish_s": [0.25, 0.25],
        "time__evaluate_s": [np.nan, 0.5],
        "time__generate_s": [2.5, 1.5],
        "time__generate_model_s": [2.0, 1.0],
        "time__generate_prefill_s": [0.5, 0.25],
        "time__generate_idle_s": [1.0, 0.5],
        "time__generate_tail_s": [0.5, 0.5],
    }
    return columns([5, 10], **(values | changes))


def spans(found):
    return [(span.name, round(span.start_s, 9), round(span.seconds_s, 9)) for span in found]


def waits(found):
    return [(one.waiter, one.waited_for, round(one.seconds_s, 9)) for one in step_waits(found)]


def test_a_step_by_hand():
    found = step_timeline(text_run())
    assert found.step_s == pytest.approx(1.0) and found.steps == 10
    assert spans(found.loop) == [
        ("collect", 0.0, 0.5),
        ("credit", 0.5, 0.05),
        ("update", 0.55, 0.3),
        ("publish", 0.85, 0.05),
        ("evaluate", 0.9, 0.05),
        ("other", 0.95, 0.05),
    ]
    assert spans(found.collect_parts) == [
        ("prefill", 0.0, 0.075),
        ("decode", 0.075, 0.225),
        ("bookkeeping", 0.3, 0.1),
        ("rewards", 0.4, 0.1),
    ]
    assert found.overlapping == ()
    assert bottleneck_line(found, TEXT) == (
        "The bottleneck is the learner's update (update): 30% of a step, 0.3 s of 1.0 s; larger micro-batches "
        "(learner.micro_batch_tokens) or products in bfloat16 (model.compute) or more ranks (run.ranks) would shorten "
        "it, and rollout.max_staleness = 1 would generate during the update."
    )
    assert waits(found) == [("learner", "rollout", 0.5), ("rollout", "learner", 0.5), ("generation", "rewards", 0.1)]


def test_generation_that_is_slowest_says_what_its_longest_answers_cost():
    found = step_timeline(
        text_run(time__update_s=[0.1, 0.1], time__generate_prefill_s=[0.5, 0.5], time__step_s=[5.0, 3.0])
    )
    assert bottleneck_line(found, TEXT) == (
        "The bottleneck is generation (decode): 25% of a step, 0.2 s of 0.8 s; 0.1 s of slot time passed while only "
        "the longest answers were unfinished; more answers at once (rollout.max_concurrent) or more replicas "
        "(cluster.rollout.replicas) would shorten it, and rollout.max_staleness = 1 would generate during the update."
    )


def test_generation_beside_the_loop_is_no_part_of_its_time():
    found = step_timeline(text_run(time__collect_s=[0.5, 0.5], time__publish_s=[3.0, 2.0], time__step_s=[6.5, 4.5]))
    assert found.collect_parts == ()
    assert spans(found.overlapping) == [("prefill", 0.0, 0.075), ("decode", 0.075, 0.225), ("bookkeeping", 0.3, 0.1)]
    assert sum(span.seconds_s for span in found.loop) == pytest.approx(found.step_s)
    assert bottleneck_line(found, TEXT).startswith(
        "The bottleneck is generation (decode), beside the loop: the learner waited for 55% of a step, 0.6 s of 1.1 s; "
    )
    assert waits(found) == [("learner", "rollout", 0.6)]


def test_waits_that_were_measured_tell_apart_who_waited_for_whom():
    """Ten steps of 1 s: the learner waits 0.2 s of collect and publish, the thread 0.15 s for the learner."""
    beside = {"time__rollout_awaited_s": [1.0, 1.0], "time__rollout_held_s": [1.0, 0.5]}
    rest = {"time__rollout_tools_s": [0.0, 2.5], "time__rollout_rewards_s": [0.5, 0.0]}
    found = step_timeline(text_run(**beside, **rest))
    assert waits(found) == [
        ("generation", "tools", 0.25),
        ("learner", "rollout", 0.2),
        ("rollout", "learner", 0.15),
        ("generation", "rewards", 0.05),
    ]
    assert dict(found.finest_parts())["waiting"] == pytest.approx(0.2)
    assert dict(found.finest_parts())["publish"] == pytest.approx(0.35), "the transfer, beside the wait"
    assert sum(seconds for _, seconds in found.finest_parts()) == pytest.approx(1.0)
    slow = step_timeline(text_run(**rest, **beside | {"time__rollout_awaited_s": [3.0, 2.0]}))
    assert bottleneck_line(slow, TEXT) == (
        "The bottleneck is tools and environments, while nothing was generated (tools), beside the loop: the learner "
        "waited for 50% of a step, 0.5 s of 1.0 s; more answers at once (rollout.max_concurrent) or faster tools "
        "would shorten it."
    )


def test_a_synchronous_rollout_tells_tools_from_rewards():
    found = step_timeline(text_run(time__rollout_tools_s=[0.2, 0.1], time__rollout_rewards_s=[0.3, 0.2]))
    assert spans(found.collect_parts)[3:] == [("tools", 0.4, 0.03), ("rewards", 0.43, 0.05), ("episodes", 0.48, 0.02)]
    assert waits(found)[2:] == [("generation", "rewards", 0.05), ("generation", "tools", 0.03)]


def test_a_run_without_a_language_model():
    found = step_timeline(columns([4], time__collect_s=[3.0], time__update_s=[1.0], time__step_s=[4.0], loss=[1.0]))
    assert spans(found.loop) == [("collect", 0.0, 0.75), ("update", 0.75, 0.25)]
    assert found.collect_parts == found.overlapping == ()
    assert bottleneck_line(found, CONTROL) == (
        "The bottleneck is collecting episodes (collect): 75% of a step, 0.75 s of 1.0 s; more environments at once "
        "(env.num_envs) would shorten it."
    )
    assert waits(found) == []


def test_a_setting_that_the_recipe_does_not_have_is_not_proposed():
    found = step_timeline(columns([4], time__collect_s=[1.0], time__update_s=[3.0], time__step_s=[4.0]))
    slow = "The bottleneck is the learner's update (update): 75% of a step, 0.75 s of 1.0 s"
    assert bottleneck_line(found, ()) == f"{slow}."
    assert bottleneck_line(found, ("learner.products",)) == (
        f"{slow}; products in bfloat16 (learner.products) would shorten it."
    )
    assert bottleneck_line(found, CONTROL) == (
        f"{slow}; products in bfloat16 (learner.products) or more ranks (run.ranks) would shorten it."
    )


@pytest.mark.parametrize("metrics", [columns([]), columns([3], loss=[1.0]), columns([3], time__step_s=[0.0])])
def test_nothing_was_timed(metrics):
    assert step_timeline(metrics) is None


positive = st.floats(min_value=1e-6, max_value=100)


@given(positive, positive, positive, positive, st.floats(0, 1), st.floats(0, 1))
def test_the_finest_parts_sum_up_to_the_step(collect, update, publish, generate, model, prefill):
    found = step_timeline(
        columns(
            [1],
            time__collect_s=[collect],
            time__update_s=[update],
            time__publish_s=[publish],
            time__step_s=[collect + update + publish],
            time__generate_s=[generate],
            time__generate_model_s=[generate * model],
            time__generate_prefill_s=[generate * model * prefill],
        )
    )
    # Generation may be measured a little longer than what it lies within.
    assert sum(seconds for _, seconds in found.finest_parts()) == pytest.approx(found.step_s, rel=0.06)
    assert bool(found.overlapping) != bool(found.collect_parts)


def test_lanes_are_drawn_to_scale():
    block = LaneBlock(name="collect", start=100.0, size=50.0, style="p0", title="collect: 50 ms")
    picture = lane_plot([("a step", [block])], 200.0, "ms")
    left, right = 120.0, 960.0 - 12
    assert f'x="{left + (right - left) / 2:g}"' in picture
    assert f'width="{(right - left) / 4 - 1:g}"' in picture
    assert "<title>collect: 50 ms</title>" in picture and "200 ms" in picture
    longer = lane_plot([("a step", [block]), ("beside it", [LaneBlock(name="x", start=0, size=400, style="p1",
    title="x")])],
                   200.0, "ms")  # fmt: skip
    assert "400 ms" in longer, "the axis ends where the last block does"


# ---------------------------------------------------------------------------------------------------- speed


def test_operations_by_seconds():
    """A line holds means of operations and totals of seconds over its steps: 5 x 2e9 + 5 x 4e9 in 3 s."""
    metrics = text_run(learner__flops=[2e9, 4e9])
    assert update_flops_per_s(metrics) == pytest.approx(1e10)
    assert update_flops_per_s(text_run(learner__flops=[2e9, np.nan])) == pytest.approx(5e9)
    assert update_flops_per_s(text_run()) is None
    assert speed_line(text_run(), None) == ""
    assert speed_line(metrics, None) == "updates computed at 10 GFLOP/s"
    rate = MatmulRate(dtype="bfloat16", device="cpu", threads=2, matmul_flops_per_s=4e10)
    assert speed_line(metrics, rate) == (
        "updates computed at 10 GFLOP/s, 25% of the 40 GFLOP/s at which this machine multiplies bfloat16 matrices "
        "(cpu, 2 threads)"
    )


@pytest.mark.parametrize(
    ("rate", "words"), [(4.12e10, "41.2 GFLOP/s"), (9.89e14, "989 TFLOP/s"), (1.2e15, "1.2 PFLOP/s"), (5.0, "5 FLOP/s")]
)
def test_rates_in_words(rate, words):
    assert format_flops(rate) == words


def test_the_machines_rate_is_kept(tmp_path):
    rate = MatmulRate(dtype="float32", device="cpu", threads=2, matmul_flops_per_s=1.5e11)
    assert SPEED.read(tmp_path) is None
    SPEED.write(tmp_path, rate)
    assert SPEED.read(tmp_path) == rate
    (tmp_path / "speed.json").write_text('{"dtype": 7}')
    with pytest.raises(DataError, match=r"speed\.json"):
        SPEED.read(tmp_path)
