"""Answers on their way to the reward functions."""

from pathlib import Path

import numpy as np

from hone.core.judging import ScorerInput
from hone.evaluate.text.engine_actor import reward_pool_scorer
from hone.rewards.config import RewardFunction, RewardsConfig

TOKENS = np.zeros(1, np.int32)
COUNTS = """
def company(completions):
    return [float(len(completions))] * len(completions)
"""


def test_a_function_of_groups_sees_all_answers_to_a_prompt_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    use = f"{tmp_path / 'counts.py'}:company"
    config = RewardsConfig(functions=[RewardFunction(use=use, unit="group")], workers=2)
    judge = reward_pool_scorer(config)
    try:
        tickets = [
            judge.submit(
                [
                    ScorerInput(
                        prompt=f"question {count}",
                        text=str(number),
                        columns={},
                        messages=(),
                        tokens=np.zeros(1, np.int32),
                    )
                    for number in range(count)
                ]
            )
            for count in (4, 2, 3)
        ]
        assert judge.gather(tickets).score.tolist() == [4.0] * 4 + [2.0] * 2 + [3.0] * 3
    finally:
        judge.pool.close()
