"""Rewards of a text task, wired: functions in worker processes, models on the device, servers over HTTP."""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias, cast

from hone.core.episodes import ScoreStatus
from hone.core.errors import UserCodeError
from hone.core.judging import DatasetRow, ScorerInput
from hone.engine.clients.http import HttpClient, ServerAddress, ServerError
from hone.process.wire import pack
from hone.rewards.budget import UnscoredBudget
from hone.rewards.config import RewardFunction, RewardModel, RewardsConfig, RewardServer, RewardWorld
from hone.rewards.jobs import RewardBatch, parse_results
from hone.rewards.judges.config import RewardJudge
from hone.rewards.score_watch import ScoreWatch
from hone.rewards.scorer import FunctionMember, MeasuredMember, RewardMember, RewardScorer, reward_batch
from hone.rewards.scores import RewardResult, failed_result
from hone.rewards.workers import RewardWorkerPool
from hone.rewards.world import WorldRewardMember
from hone.text.evaluate.reward_models import ModelLoader, RewardModelMember


def reward_scorer(config: RewardsConfig, *, load: ModelLoader, device: str = "cpu") -> RewardScorer:
    """The scorer of a config, with local judges on `device`; it loads nothing before the first check or answer.

    Raises ConfigError for an address that cannot be one, or a key that the environment lacks.
    """
    functions = [place for place, reward in enumerate(config.functions) if isinstance(reward, RewardFunction)]
    members: list[tuple[Sequence[int], RewardMember]] = []
    measured: dict[str, MeasuredMember] = {}
    for place, reward in enumerate(config.functions):
        if isinstance(reward, RewardModel):
            model = RewardModelMember(reward, config.names[place], load, step_end=config.step_end)
            members.append(([place], model))
            if reward.members:
                measured[config.names[place]] = model
        elif isinstance(reward, RewardServer):
            members.append(([place], _RewardServerMember(reward)))
        elif isinstance(reward, RewardJudge):
            from hone.text.evaluate.judges.member import judge_member  # noqa: PLC0415 - rewards by a judge only

            name = config.names[place]
            judge = judge_member(reward, name, device=device)
            measured[name] = judge
            members.append(([place], judge))
        elif isinstance(reward, RewardWorld):
            members.append(([place], WorldRewardMember()))
        elif place == functions[0]:
            members.append((functions, FunctionMember(RewardWorkerPool(config))))
    budget = UnscoredBudget(
        allowed=config.missing_allowed, window=config.missing_window, barren_batches=config.max_unscored_batches
    )
    return RewardScorer(config, members, budget, measured=measured)


ServerTicket: TypeAlias = "Future[list[RewardResult]]"


class _RewardServerMember:
    """A server that is POSTed the answers to a prompt, and replies `{"scores": [...]}`, with `reasons` if it likes."""

    def __init__(self, config: RewardServer) -> None:
        """Raises ConfigError as `HttpClient`."""
        self._config = config
        self._watch = ScoreWatch(f"reward server {config.name!r} ({config.url})")
        self._client = HttpClient(
            ServerAddress(
                url=config.url,
                api_key_env=config.api_key_env,
                connect_s=min(10.0, config.deadline_s),
                timeout_s=config.deadline_s,
                attempts=config.attempts,
            )
        )
        self._threads = ThreadPoolExecutor(config.max_concurrent, thread_name_prefix="reward-server")

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        """Nothing is asked before the first answer: the server may start later."""
        del columns, rows
        return []

    def write_protect(self, folder: Path) -> None:
        """It runs no code here."""

    def notices(self) -> list[str]:
        return self._watch.notices()

    def submit(self, answers: Sequence[ScorerInput]) -> ServerTicket:
        return self._threads.submit(self._score, reward_batch(answers))

    def results(self, tickets: Sequence[ServerTicket]) -> tuple[list[list[RewardResult]], list[str]]:
        """Raises UserCodeError for a reply that breaks the contract, and for NaN."""
        results = [result for ticket in tickets for result in ticket.result()]
        self._watch.observe([result.score for result in results])
        return [results], []

    def close(self) -> None:
        self._client.close()
        self._threads.shutdown(cancel_futures=True)

    def _score(self, batch: RewardBatch) -> list[RewardResult]:
        """Raises UserCodeError for a reply that breaks the contract; without one, the answers have no score."""
        count, began = len(batch.completions), time.perf_counter()
        try:
            body = {
                "prompts": pack(
                    [one if isinstance(one, str) else list(cast("list[object]", one)) for one in batch.prompts]
                ),
                "completions": pack(batch.completions),
                "messages": pack(batch.conversation["messages"]()),
                "columns": pack(batch.columns),
                "ids": list(batch.ids),
            }
            reply = self._client.post("", body, retry="always")
        except TypeError as error:
            raise self._fault(f"cannot be asked: {error}") from None
        except ServerError as error:
            seconds = (time.perf_counter() - began) / count
            return [failed_result(ScoreStatus.ERROR, str(error), seconds=seconds)] * count
        seconds = time.perf_counter() - began
        results = parse_results({"reasons": [""] * count, **reply, "seconds": seconds}, count, source="the server")
        if results is None:
            raise self._fault(f"sent no valid reply for {count} completions: {str(reply)[:200]}")
        nan = sum(result.reason.startswith("the server returned nan") for result in results)
        if nan:
            raise self._fault(
                f"gave NaN to {nan} of {count} answers: its model cannot hold its numbers; null is no score"
            )
        if wrong := next(filter(None, map(batch.wrong_turns, range(count), results)), ""):
            raise self._fault(wrong)
        return results

    def _fault(self, message: str) -> UserCodeError:
        return UserCodeError(f"reward server {self._config.name!r} ({self._config.url}) {message}")
