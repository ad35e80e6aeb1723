"""Which groups are worth learning from."""

import numpy as np
from credit_batches import Batch, answers, any_scores, by_group, nan, of
from hypothesis import given

from hone.core.credit import NO_VALUES
from hone.credit.group import group_relative, has_score_variance, solved_between


def test_by_hand() -> None:
    """Mixed; all right; all wrong; one score and a timeout; nothing scored."""
    episodes = answers([1, 0, nan, 1, 1, 0, 0, 1, nan, nan, nan], [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert has_score_variance(episodes).tolist() == [True] * 3 + [False] * 8
    assert solved_between(episodes, low=0.25, high=0.75).tolist() == [True] * 3 + [False] * 8
    assert solved_between(episodes, low=0.5, high=1.0).tolist() == [True] * 5 + [False] * 2 + [True] * 2 + [False] * 2


@given(any_scores)
def test_a_group_is_informative_when_it_gives_credit(batch: Batch) -> None:
    episodes = of(batch)
    found = has_score_variance(episodes)
    groups = by_group(batch)
    assert found.tolist() == [len(set(groups.get(group, []))) > 1 for group, _ in batch]
    credits = group_relative(episodes, NO_VALUES, scale="none").advantage
    live = {group for (group, _), advantage in zip(batch, credits, strict=True) if advantage}
    assert found.tolist() == [group in live for group, _ in batch]
    scored = len(np.unique(episodes.group[episodes.scored]))
    share = 1 - len(live) / scored if scored else 0.0
    assert abs(group_relative(episodes, NO_VALUES).metrics["reward/zero_variance_groups"] - share) < 1e-12
