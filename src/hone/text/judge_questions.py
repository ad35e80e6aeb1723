"""Questions of a run's judges, for `hone plan`."""

from hone.rewards.config import RewardsConfig
from hone.rewards.judges.questions import shown_template
from hone.text.open_text import TextDataConfig


def judge_questions(
    config: TextDataConfig, rewards: RewardsConfig | None = None, *, answers: int = 0
) -> dict[str, str]:
    """The question of each judge of `rewards` and of the evaluation, with names in place of the material; with the
    largest number of requests for `answers` answers in all."""
    evaluation = config.answers_evaluation()
    judges = {} if rewards is None else rewards.judges
    held_out = {} if evaluation is None else evaluation.rewards.judges
    asked = {
        f"judge {name}": f"{judge.describe_cost(answers)}\n{shown_template(judge)}" for name, judge in judges.items()
    }
    same = "the same question as in training"
    return asked | {
        f"evaluation's judge {name}": same if judges.get(name) == judge else shown_template(judge)
        for name, judge in held_out.items()
    }
