"""How many examples hypothesis draws for a property that has a number of its own."""

from hypothesis import settings

FEWER = "hone"
"""Name of the default suite's profile, in which properties are tried less often (conftest.py)."""


def examples(count: int) -> settings:
    """`count` examples beside the slow tests and for mutants, a third of them in the default suite (at least 3)."""
    few = settings.get_current_profile_name() == FEWER
    return settings(max_examples=min(count, max(3, -(-count // 3))) if few else count)
