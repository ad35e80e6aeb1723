"""Rewards of a text task, wired: functions in worker processes, models on the device, servers over HTTP."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.config import STAGE_PREFIX
from hone.core.credit import Metrics
from hone.core.dialogue import DialogueOutcome
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError, ErrorCollector, UserCodeError
from hone.core.judging import DatasetRow, ScorerInput
from hone.core.ragged import Ints
from hone.engine.clients.http import HttpClient, ServerAddress, ServerError
from hone.estimators.calibration import probabilities
from hone.models.language.hf_checkpoint import read_config
from hone.models.language.scalar_head import ScalarHeadModel, TokenScorer, load_scalar_head, read_score_range
from hone.models.language.tokenizers import Tokenizer, load_tokenizer
from hone.process.wire import pack
from hone.rewards.config import RewardFunction, RewardModel, RewardsConfig, RewardServer, RewardWorld, UserCodeConfig
from hone.rewards.judges.config import RewardJudge
from hone.rewards.score_watch import ScoreWatch, UnscoredBudget
from hone.rewards.scorer import MeasuredMember, RewardMember, RewardScorer, reward_batch
from hone.rewards.scores import RewardResult, failed_result, result_from_value
from hone.rewards.workers import RewardBatch, RewardTicket, RewardWorkerPool, parse_results
from hone.run.saved_config import policy_folder
from hone.text.evaluate.judges.client import open_client
from hone.text.evaluate.judges.grading import JudgeMember
from hone.text.tasks.token_places import step_ends
from hone.text.tasks.world import Prompt

# -------------------------------------------------------------------------------------------------------- reward models
# Reward models in the trainer's process: one or several scalar-head models that score answers, or their steps.
#
# They read the token ids that the policy drew: nothing is encoded again. An answer beyond a model's context has no
# score.

Floats = NDArray[np.float64]
ModelLoader: TypeAlias = Callable[[str, str], TokenScorer]
"""Folder and data type of the weights -> the model, on its device, with the policy's tokenizer."""
FAR_FROM_TRAINING_SD: Final = 10.0
"""Standard deviations from the mean of a model's training scores beyond which a score means nothing."""
MIN_CONSTANT: Final = 8
"""Answers with one and the same score that are worth a line."""


def load_reward_model(path: str, weights: str, *, device: str, tokenizer: Tokenizer) -> ScalarHeadModel:
    """The scalar-head model of a folder, which must have the vocabulary of the policy's tokenizer. Raises DataError."""
    folder = policy_folder(Path(path))
    model = load_scalar_head(folder, device=device, dtype=weights)
    if (folder / "tokenizer.json").is_file():
        if load_tokenizer(folder).backend.get_vocab() != tokenizer.backend.get_vocab():
            raise DataError(
                f"{path}: the reward model has another vocabulary than the policy, whose tokens it would score; give a "
                'model with the same tokenizer, or serve this one as kind = "server"'
            )
    else:
        tokenizer.check_fits(model.decoder.config.vocab_size, where=str(folder))
    return model


def load_reward_scorer(path: str, weights: str, *, device: str, tokenizer: Tokenizer) -> TokenScorer:
    """`load_reward_model`, with the policy's tokenizer and the scores of its training answers. Raises DataError."""
    model = load_reward_model(path, weights, device=device, tokenizer=tokenizer)
    return TokenScorer(model, tokenizer, read_score_range(policy_folder(Path(path))))


def require_context(config: RewardsConfig, prompts: Sequence[Prompt], *, max_tokens: int) -> None:
    """Raise DataError where the longest prompt with an answer of `max_tokens` is beyond the context of a reward model;
    models of earlier stages are not there yet."""
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    need, faults = len(longest.tokens) + max_tokens, ErrorCollector(DataError)
    models = [reward for reward in config.functions if isinstance(reward, RewardModel)]
    for path in dict.fromkeys(path for reward in models for path in reward.paths):
        if path.startswith(STAGE_PREFIX):
            continue
        reads = read_config(policy_folder(Path(path))).max_positions
        if reads < need:
            faults.add(
                f"{path}: the reward model reads {reads} tokens, and the longest prompt ({longest.id}, "
                f"{len(longest.tokens)} tokens) with an answer of {max_tokens} has {need}; shorten prompts or "
                "rollout.max_tokens, or take a model with more positions"
            )
    faults.raise_if_any()


@dataclass(frozen=True, slots=True)
class _TokensToScore:
    """An answer as it is scored."""

    tokens: NDArray[np.int32]
    """`[n]` the whole conversation."""
    at: Ints
    """`[k]` positions of the tokens that are scored."""


class _RewardModelMember(MeasuredMember):
    """Scalar-head models, which score whole conversations when they are gathered."""

    def __init__(self, config: RewardModel, name: str, load: ModelLoader, *, step_end: str = "") -> None:
        self._config, self._name, self._load, self._step_end = config, name, load, step_end
        self._models: list[TokenScorer] = []
        self._spread = math.nan
        self._told: set[str] = set()
        self._notices: list[str] = []

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        """Load the models; those of earlier stages are loaded when they are there. Raises DataError."""
        del columns, rows
        if any(path.startswith(STAGE_PREFIX) for path in self._config.paths):
            return []
        models = self._loaded()
        if self._config.at != "last" and any(one.model.reads == "last" for one in models):
            return [
                f'rewards {self._name}: at = "{self._config.at}", but the model is a sequence classifier, trained on '
                "whole answers: its scores of steps are guesses"
            ]
        return []

    def notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def submit(self, answers: Sequence[ScorerInput]) -> Sequence[_TokensToScore]:
        return [_TokensToScore(answer.tokens, self._positions(answer)) for answer in answers]

    def results(self, tickets: Sequence[Sequence[_TokensToScore]]) -> tuple[list[list[RewardResult]], list[str]]:
        models, answers = self._loaded(), [one for ticket in tickets for one in ticket]
        limit = min(one.decoder.config.max_positions for one in models)
        fits = [one for one in answers if len(one.tokens) <= limit]
        began = time.perf_counter()
        scores = iter(self._scores(models, fits))
        seconds = (time.perf_counter() - began) / max(len(fits), 1)
        return [
            [
                self._result(next(scores), seconds)
                if len(one.tokens) <= limit
                else failed_result(ScoreStatus.UNSCORABLE, f"{len(one.tokens)} tokens; the reward model reads {limit}")
                for one in answers
            ]
        ], []

    def metrics(self) -> Metrics:
        """Mean standard deviation over the members, of the latest answers."""
        return {} if math.isnan(self._spread) else {f"rewards/{self._name}_spread": self._spread}

    def close(self) -> None:
        self._models = []

    def _positions(self, answer: ScorerInput) -> Ints:
        """Positions of the scored tokens: the last one, or the last one of each step."""
        if self._config.at == "last" or answer.steps is None:
            return np.array([len(answer.tokens) - 1], np.int64)
        (sampled,) = answer.transcript.answers
        decode = self._loaded()[0].tokenizer.decode
        ends = step_ends(sampled.tokens, decode, self._step_end, answer.steps)
        return len(answer.transcript.prompt) + ends

    def _scores(self, models: Sequence[TokenScorer], answers: Sequence[_TokensToScore]) -> list[Floats]:
        """`[k]` scores of each answer: the members' mean less the price of their disagreement."""
        if not answers:
            return []
        sequences, places = [one.tokens for one in answers], [one.at for one in answers]
        budget = self._config.micro_batch_tokens
        raw = np.stack([one.model.score_tokens(sequences, places, micro_batch_tokens=budget) for one in models])
        if np.isnan(raw).any():
            member = self._config.paths[int(np.isnan(raw).any(axis=1).argmax())]
            raise DataError(
                f"reward model {self._name!r} ({member}) gives NaN to {int(np.isnan(raw).any(axis=0).sum())} of "
                f"{raw.shape[1]} scored tokens: its weights or its data type ({self._config.weights}) cannot hold them"
            )
        self._watch(models, raw)
        values = probabilities(raw) if self._config.output == "probability" else raw
        score = values.mean(axis=0)
        if len(models) > 1:
            spread = values.std(axis=0, ddof=1)
            self._spread = float(spread.mean())
            score = score - self._config.pessimism * spread
        return np.split(score, np.cumsum([len(at) for at in places])[:-1])

    def _result(self, scores: Floats, seconds: float) -> RewardResult:
        values = scores.tolist()
        if self._config.at == "steps":
            return result_from_value(values, seconds=seconds, source="the model")
        return result_from_value(min(values), seconds=seconds, source="the model")

    def _watch(self, models: Sequence[TokenScorer], raw: Floats) -> None:
        """Tell once of scores that mean nothing: all alike, or far from those of training answers."""
        for path, scorer, row in zip(self._config.paths, models, raw, strict=True):
            if len(row) >= MIN_CONSTANT and bool((row == row[0]).all()):
                self._tell(
                    f"constant {path}", f"gives all of {len(row)} scored tokens the same score, {row[0]:g}", path
                )
            seen = scorer.score_range
            if seen is None:
                continue
            far = np.abs(row - seen.mean) > FAR_FROM_TRAINING_SD * max(seen.std, 1e-12)
            if far.any():
                worst = row[np.abs(row - seen.mean).argmax()]
                self._tell(
                    f"far {path}",
                    f"gives {int(far.sum())} of {len(row)} scores more than {FAR_FROM_TRAINING_SD:g} standard "
                    f"deviations from those of its training answers ({seen.mean:.3g} +- {seen.std:.3g}, the furthest "
                    f"is {worst:.3g}): it judges what it has not seen",
                    path,
                )

    def _tell(self, key: str, words: str, path: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._notices.append(f"reward model {self._name!r} ({path}) {words}")

    def _loaded(self) -> list[TokenScorer]:
        if not self._models:
            self._models = [self._load(path, self._config.weights) for path in self._config.paths]
        return self._models


# ------------------------------------------------------------------------------------------------------- reward members
@dataclass
class _FunctionMember(RewardMember):
    """The functions of a config, in worker processes."""

    pool: RewardWorkerPool

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        self.pool.check({*columns, "messages", "tokens"}, rows)
        return self.pool.warnings

    def write_protect(self, folder: Path) -> None:
        self.pool.write_protect(folder)

    def notices(self) -> list[str]:
        notices, self.pool.notices = self.pool.notices, []
        return notices

    def submit(self, answers: Sequence[ScorerInput]) -> RewardTicket:
        return self.pool.submit(reward_batch(answers))

    def results(self, tickets: Sequence[RewardTicket]) -> tuple[list[list[RewardResult]], list[str]]:
        return self.pool.results(tickets)

    def metrics(self) -> Metrics:
        return self.pool.pop_logged()

    def close(self) -> None:
        self.pool.close()


class _WorldRewardMember(RewardMember):
    """The sum of a world's rewards, each of which belongs to its turn. A dialogue whose world failed or gave no reward
    at its end has no score, whatever other rewards say. It does not apply to a dialogue without a world that pays."""

    def submit(self, answers: Sequence[ScorerInput]) -> list[RewardResult]:
        return [_world_result(answer.dialogue) for answer in answers]

    def results(self, tickets: Sequence[list[RewardResult]]) -> tuple[list[list[RewardResult]], list[str]]:
        return [[result for ticket in tickets for result in ticket]], []


def _world_result(dialogue: DialogueOutcome | None) -> RewardResult:
    if dialogue is None:
        return result_from_value(None, reason="the answer is not of a dialogue")
    if dialogue.status is not ScoreStatus.SCORED:
        return failed_result(dialogue.status, dialogue.reason)
    if not dialogue.rewards:
        return result_from_value(None, reason="the dialogue has no world that pays")
    return result_from_value(dialogue.rewards)


def reward_scorer(
    config: RewardsConfig, *, limits: UserCodeConfig, load: ModelLoader, device: str = "cpu"
) -> RewardScorer:
    """The scorer of a config, its functions within `limits`, with local judges on `device`; it loads nothing before the
    first check or answer. Raises ConfigError for an address that cannot be one, or a key that the environment lacks."""
    functions = [place for place, reward in enumerate(config.functions) if isinstance(reward, RewardFunction)]
    members: list[tuple[Sequence[int], RewardMember]] = []
    measured: dict[str, MeasuredMember] = {}
    for place, reward in enumerate(config.functions):
        if isinstance(reward, RewardModel):
            model = _RewardModelMember(reward, config.names[place], load, step_end=config.step_end)
            members.append(([place], model))
            if reward.members:
                measured[config.names[place]] = model
        elif isinstance(reward, RewardServer):
            members.append(([place], _RewardServerMember(reward)))
        elif isinstance(reward, RewardJudge):
            name = config.names[place]
            judge = JudgeMember(
                reward, name, open_client(name, reward.by, reward.budget, cache=reward.cache, device=device)
            )
            measured[name] = judge
            members.append(([place], judge))
        elif isinstance(reward, RewardWorld):
            members.append(([place], _WorldRewardMember()))
        elif place == functions[0]:
            members.append((functions, _FunctionMember(RewardWorkerPool(config, limits))))
    return RewardScorer(config, limits, members, UnscoredBudget(allowed=limits.missing_allowed), measured=measured)


ServerTicket: TypeAlias = "Future[list[RewardResult]]"


class _RewardServerMember(RewardMember):
    """A server that is POSTed the answers to a prompt, and replies `{"scores": [...]}`, with `reasons` if it likes.
    Nothing is asked before the first answer: the server may start later."""

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
