"""The rewards that worlds give in their dialogues, as one of the rewards of a config."""

from collections.abc import Collection, Sequence
from pathlib import Path

from hone.core.dialogue import DialogueOutcome
from hone.core.episodes import ScoreStatus
from hone.core.judging import DatasetRow, ScorerInput
from hone.rewards.scores import RewardResult, failed_result, result_from_value


class WorldRewardMember:
    """Implements `RewardMember`: the sum of a world's rewards, each of which belongs to its turn.

    A dialogue whose world failed or gave no reward at its end has no score, whatever other rewards say. It does not
    apply to a dialogue without a world that pays.
    """

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        """Nothing: worlds are checked where they are opened."""
        del columns, rows
        return []

    def write_protect(self, folder: Path) -> None:
        """It runs no code."""

    def notices(self) -> list[str]:
        return []

    def submit(self, answers: Sequence[ScorerInput]) -> list[RewardResult]:
        return [_result(answer.dialogue) for answer in answers]

    def results(self, tickets: Sequence[list[RewardResult]]) -> tuple[list[list[RewardResult]], list[str]]:
        return [[result for ticket in tickets for result in ticket]], []

    def close(self) -> None:
        """Nothing was started."""


def _result(dialogue: DialogueOutcome | None) -> RewardResult:
    if dialogue is None:
        return result_from_value(None, reason="the answer is not of a dialogue")
    if dialogue.status is not ScoreStatus.SCORED:
        return failed_result(dialogue.status, dialogue.reason)
    if not dialogue.rewards:
        return result_from_value(None, reason="the dialogue has no world that pays")
    return result_from_value(dialogue.rewards)
