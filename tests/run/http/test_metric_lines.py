"""Prometheus's text format: by hand, and read back by a second program."""

import re

from hone.run.http.listening import SecondsHistogram, metric_lines


def test_values_have_their_labels_escaped_and_a_head() -> None:
    values = [(('a"b', "x\\y"), 3), (("line\nbreak", "z"), 0.25)]
    assert list(metric_lines("hone_x_total", "counter", "Some.", ("one", "two"), values)) == [
        "# HELP hone_x_total Some.",
        "# TYPE hone_x_total counter",
        r'hone_x_total{one="a\"b",two="x\\y"} 3',
        r'hone_x_total{one="line\nbreak",two="z"} 0.25',
    ]
    assert list(metric_lines("hone_y", "gauge", "One.", (), [((), 123_456_789_012)]))[-1] == "hone_y 123456789012"


def test_a_histogram_counts_up_to_each_bound_that_one_included() -> None:
    seconds = SecondsHistogram([0.1, 1.0])
    for value in (0.1, 0.10001, 5.0):
        seconds.add(value)
    lines = list(seconds.lines("hone_s", "Seconds."))
    assert lines[:2] == ["# HELP hone_s Seconds.", "# TYPE hone_s histogram"]
    read = {name: float(value) for name, value in (re.split(r" (?=[^ ]+$)", line) for line in lines[2:])}
    assert read == {
        'hone_s_bucket{le="0.1"}': 1, 'hone_s_bucket{le="1.0"}': 2, 'hone_s_bucket{le="+Inf"}': 3,
        "hone_s_sum": 5.20001, "hone_s_count": 3,
    }  # fmt: skip
