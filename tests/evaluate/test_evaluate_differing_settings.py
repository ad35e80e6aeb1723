"""Settings in which runs differ: short, and a table that one run lacks is one setting."""

import json

from hypothesis import given
from hypothesis import strategies as st

from hone.evaluate.comparison import ABSENT, MAX_CHARACTERS, differing_settings, shorten

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=80), st.lists(st.integers(), max_size=30)
)
CONFIGS = st.lists(
    st.dictionaries(st.sampled_from(["lr", "kl", "net.hidden", "net.act", "f.0.use", "f.1.use", "f.1.weight"]), LEAVES),
    min_size=2,
    max_size=4,
)


def test_only_what_differs_is_told() -> None:
    configs = [{"lr": 0.1, "env": "a"}, {"lr": 0.2, "env": "a"}]
    assert differing_settings(configs, shared_only=False) == [{"lr": "0.1"}, {"lr": "0.2"}]


def test_a_table_that_one_run_lacks_is_one_setting() -> None:
    one = {"f.0.use": "exact"}
    two = {"f.0.use": "math", "f.1.use": "exact", "f.1.weight": 0.3, "f.1.options": {}}
    told = differing_settings([one, two], shared_only=False)
    assert told[0] == {"f.0.use": '"exact"', "f.1": ABSENT}
    assert told[1] == {"f.0.use": '"math"', "f.1": 'use = "exact", weight = 0.3'}
    assert differing_settings([one, two], shared_only=True) == [{"f.0.use": '"exact"'}, {"f.0.use": '"math"'}]


@given(CONFIGS)
def test_every_text_is_short_and_every_difference_is_covered(configs: list[dict]) -> None:
    told = differing_settings(configs, shared_only=False)
    assert len({tuple(one) for one in told}) == 1
    assert all(len(text) <= MAX_CHARACTERS for one in told for text in one.values())
    for key in {key for config in configs for key in config}:
        if len({json.dumps(config.get(key)) for config in configs}) > 1:
            assert any(key == name or key.startswith(f"{name}.") for name in told[0])


def test_a_long_value_keeps_its_ends() -> None:
    text = shorten("a" * 100 + "z" * 100)
    assert (len(text), text[0], text[-1], text.count("…")) == (MAX_CHARACTERS, "a", "z", 1)
