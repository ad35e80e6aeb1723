"""Learning from preferences in a dataset, wired: pairs or labelled answers, a loss on whole answers, the reference.

Belongs here: what every recipe of the family has in common. A recipe file holds its config, whose `loss` is one loss on
whole answers, and ends in `preference_recipe_spec`; see `recipes/preference/dpo.py`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.clock import Clock, SystemClock
from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.generation import Request, SamplingParams, generate
from hone.core.ragged import ranges, row_sums
from hone.core.random import permutation
from hone.core.state import State, array, integer, substate
from hone.credit.grouping import LabelCredit, best_and_worst
from hone.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.learner.gradient import GradientLearner
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import sequence_sum
from hone.planner.run_settings import PlannedRecipe, TextLengths
from hone.run.job import OpenedRun, RecipeParts, TrainingJob
from hone.run.loop import Recipe, Source, SourceWrapper
from hone.sources.logged import LogSource
from hone.text.answer_data import AnswerKind, AnswerLog, AnswerRunConfig, encode_answers, read_answers
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_tokenizer
from hone.text.learners import language_job, token_learner
from hone.text.memory import text_lengths
from hone.text.open_text import TextInputs, is_to_come, opened_text_run
from hone.text.preference.answer_loss import AnswerLoss, AnswerLossSpec
from hone.text.preference.data_checks import data_warnings
from hone.text.reference_policies import REFERENCE_NAME, TextPolicies, require_same_tokens, text_policies
from hone.text.rows import TokenBatch, TokenLayout
from hone.text.samples import answer_table
from hone.text.tasks.world import supervised_episodes
from hone.text.update_trace import UpdateTrace

# ------------------------------------------------------------------------------------------------------- start distance


KL_TO_START = "preference/kl_to_start_nats"
DISTANCE_S = "time/distance_s"


class SamplesConfig(Config):
    """Answers that are drawn to measure the distance of the policy from where it started."""

    prompts: int = Field(default=64, ge=0)
    """Prompts of the data that are answered, once each; 0 measures nothing."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Largest number of tokens of an answer; unset: that of the longest answer of the data."""
    every: int | None = Field(default=None, ge=1)
    """Steps between measurements; unset: a tenth of the run, rounded up, so that there are ten at most. The last step
    is always measured."""

    def interval(self, steps: int) -> int:
        """Steps between measurements in a run of `steps`."""
        return self.every or max(1, -(-steps // 10))


@dataclass
class StartDistance(SourceWrapper[TokenPolicy]):
    """Another source that measures KL(policy || start) on answers of the policy, as `preference/kl_to_start_nats`.

    The estimate is the mean over answers of log pi - log pi_start in nats, unbiased for the KL of whole answers. The
    start is loaded at the first measurement and kept.
    """

    logp: Callable[[TokenPolicy, Episodes], NDArray[np.floating]]
    """Policy and episodes -> log-probability of each token `[N]`, nats."""
    open_start: Callable[[], TokenPolicy]
    """Loads the policy as the run started."""
    prompts: Sequence[NDArray[np.int32]]
    """Prompts that are answered."""
    max_tokens: int
    every: int
    steps: int
    seed: int
    clock: Clock = field(default_factory=SystemClock)
    step: int = 0
    """Steps of the run so far."""
    measured: Metrics = field(default_factory=dict[str, float])
    """The distance and the seconds that it took, at an iteration that measures it; empty at the others."""
    start: TokenPolicy | None = field(default=None, init=False)
    """The policy as the run started; None before the first measurement."""

    def collect(self) -> Episodes:
        self.step += 1
        return self.source.collect()

    def publish(self, policy: TokenPolicy) -> None:
        self.source.publish(policy)
        self.measured = {}
        if self.step > 0 and (self.step % self.every == 0 or self.step == self.steps):
            start_s = self.clock.monotonic_s()
            self.measured[KL_TO_START] = self.measure(policy)
            self.measured[DISTANCE_S] = self.clock.monotonic_s() - start_s

    def measure(self, policy: TokenPolicy) -> float:
        """Estimate of KL(policy || start) in nats per answer, on answers whose draws depend on the step alone."""
        episodes = self._answers(policy)
        if self.start is None:
            self.start = self.open_start()
        gap = self.logp(policy, episodes) - self.logp(self.start, episodes)
        return float(row_sums(gap, episodes.offsets).mean())

    def _answers(self, policy: TokenPolicy) -> Episodes:
        """Draw an answer to each prompt. The engine, with its copy of the weights, its keys and values, is gone before
        the policies read the answers."""
        engine = make_engine(
            policy,
            slots=len(self.prompts),
            longest_prompt=max(len(prompt) for prompt in self.prompts),
            max_tokens=self.max_tokens,
            seed=self.seed,
        )
        sampling = SamplingParams(max_tokens=self.max_tokens, temperature=policy.temperature)
        requests = [
            Request(id=f"start distance {place}", prompt=prompt, samples=1, sampling=sampling)
            for place, prompt in enumerate(self.prompts)
        ]
        answers = {one.request_id: one.tokens for one in generate(engine, requests, round=self.step)}
        return supervised_episodes(self.prompts, [answers[request.id] for request in requests])

    def metrics(self) -> Metrics:
        return {**self.source.metrics(), **self.measured}

    def state(self) -> State:
        return {"source": self.source.state(), "step": self.step}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        self.step = integer(state, "step")


def prompts_to_answer(log: Episodes, count: int, *, seed: int) -> list[NDArray[np.int32]]:
    """Up to `count` different prompts of a log, drawn without repeats; a prompt has at least one token."""
    seen = log.transcript
    begins, ends = seen.offsets[:-1], seen.at[log.offsets[:-1]]
    prompts: dict[bytes, NDArray[np.int32]] = {}
    for row in permutation(seed, "start distance", 0, count=len(log)).tolist():
        if len(prompts) == count:
            break
        prompt = seen.tokens[begins[row] : ends[row]]
        prompts.setdefault(prompt.tobytes(), prompt)
    return list(prompts.values())


# -------------------------------------------------------------------------------------------------------- reference log
# A log whose answers carry the reference policy's log-probabilities: asked once, kept as a column, saved with the run.
#
# The reference is mostly the policy as the run starts. It is asked before the first step, when the policy is still that
# one, so that no second model is ever in memory.


@dataclass
class ReferenceLog:
    """Draws from a log, with the reference's log-probability of every token that it draws.

    Implements `Source`. The first draw asks for all answers that `units_drawn` draws take. A run that goes on for
    longer than that opens the reference once more for the answers that are still unknown.
    """

    source: LogSource[TokenPolicy]
    logp: Callable[[TokenPolicy, Episodes], NDArray[np.floating]]
    """Policy and episodes -> log-probability of each token `[N]`, nats."""
    open_reference: Callable[[], TokenPolicy]
    """Loads the frozen reference."""
    is_start: bool
    """The reference is the policy as the run starts, which needs no loading then."""
    units_drawn: int
    """Units that the run draws in all."""
    policy: TokenPolicy | None = None
    """The policy that was published last."""
    column: NDArray[np.float32] | None = field(default=None, init=False)
    """`[N]` nats, of the log's tokens; NaN where nobody asked; None before the first draw."""

    def collect(self) -> Episodes:
        if self.column is None:
            assert self.policy is not None
            self._take(np.full(self.source.log.decisions, np.nan, np.float32))
            reference = self.policy if self.is_start else self.open_reference()
            self._ask(reference, self.source.episodes_of(self.source.first_units(self.units_drawn)))
        unknown = self._unknown(self.source.upcoming())
        if len(unknown):
            self._ask(self.open_reference(), unknown)
        return self.source.collect()

    def publish(self, policy: TokenPolicy) -> None:
        self.policy = policy

    def metrics(self) -> Metrics:
        return self.source.metrics()

    def state(self) -> State:
        column = np.zeros(0, np.float32) if self.column is None else self.column
        return {"log": self.source.state(), "ref_logp": column}

    def restore(self, state: State) -> None:
        """Raises DataError for the column of another log."""
        self.source.restore(substate(state, "log"))
        column = array(state, "ref_logp").astype(np.float32)
        if len(column) != self.source.log.decisions:
            raise DataError(
                f"the saved reference has {len(column)} log-probabilities, the data have {self.source.log.decisions} "
                "tokens to compare: the data are not those that the run began with; put them back, or start a new run"
            )
        self._take(column)

    def _unknown(self, episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `episodes` that nobody has asked for."""
        assert self.column is not None
        log = self.source.log
        return np.unique(episodes[np.isnan(self.column[log.offsets[episodes]])])

    def _ask(self, reference: TokenPolicy, episodes: NDArray[np.int64]) -> None:
        """Fill in the column for `episodes` of the log."""
        assert self.column is not None
        log, column = self.source.log, self.column.copy()
        asked = np.unique(episodes)
        column[ranges(log.offsets[asked], log.lengths[asked])] = self.logp(reference, log.take(asked))
        self._take(column)

    def _take(self, column: NDArray[np.float32]) -> None:
        self.column = column
        self.source.log = replace(self.source.log, ref_logp=column)


# ------------------------------------------------------------------------------------------------------- preference job


class PreferenceRunConfig(AnswerRunConfig):
    """Config shared by the recipes that learn from a dataset of preferences."""

    answers: ClassVar[AnswerKind] = "preference"
    """Kind of the dataset."""
    labels: ClassVar[LabelCredit] = staticmethod(best_and_worst)  # pyright: ignore[reportIncompatibleVariableOverride] - always some
    """Labels of the answers, from their scores."""

    batch: int = Field(default=64, ge=1)
    """Pairs per step."""
    learner: LearnerConfig
    """The optimizer."""
    samples: SamplesConfig = SamplesConfig()
    """Answers of the policy, drawn to measure its distance from the start."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "PreferenceRunConfig":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.batch, "batch")
        return self

    def open(self) -> OpenedRun:
        return _open_preferences(self)

    @property
    def rows_per_step(self) -> int:
        return self.batch

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe(rows=("batch",), factor=2 if cls.answers == "preference" else 1)

    @abstractmethod
    def loss(self) -> AnswerLossSpec:
        """The loss on whole answers."""

    def reference(self) -> str | None:
        """Folder of the reference policy; None: the policy as the run starts."""
        return None

    def with_unlabelled(self, log: Episodes, context: int) -> Episodes:
        """The log with answers that the loss needs and the data do not have; `context` is the longest sequence."""
        del context
        return log

    def derive(self) -> Mapping[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        learner, what = self.learner, "pairs" if self.answers == "preference" else "answers"
        return {
            f"{what} per step": str(self.batch),
            "optimizer steps": f"{self.steps} x {learner.epochs * learner.minibatches} = "
            f"{learner.optimizer_steps(self.steps)}",
            f"{what} seen": f"{self.steps * self.batch} (x {learner.epochs} epochs of each step)",
            "reference": "asked once, before the first step" if self.loss().needs_reference else "none",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        }


def preference_job(config: PreferenceRunConfig, inputs: TextInputs[AnswerLog]) -> TrainingJob[TokenPolicy]:
    """The recipe's parts, wired. Data and evaluation are opened before the model is loaded."""
    (answers, _), _ = inputs.prepared, inputs.evaluation
    log = config.with_unlabelled(answers.episodes, inputs.tokenizer[1])
    policy = inputs.policy(temperature=1.0)
    policies = text_policies(config, policy, micro_batch_tokens=config.learner.micro_batch_tokens)
    policies.fingerprints[REFERENCE_NAME] = policy.fingerprint()
    loss = config.loss()
    source: Source[TokenPolicy] = _logged(config, loss, policies, log)
    prompts = prompts_to_answer(answers.episodes, config.samples.prompts, seed=config.seed)
    if prompts:
        source = _with_distance(config, source, policies, answers.episodes, prompts)
    trace = UpdateTrace(first_pass_is_start=config.learner.optimizer_steps(1) == 1)
    learner = answer_learner(config.learner, policies, loss, seed=config.seed, steps=config.steps, trace=trace)
    job = language_job(inputs, policy, Recipe(source=source, credit=config.labels, learner=learner))
    table = partial(answer_table, tokenizer=policy.tokenizer, compares=True)
    return replace(job, rollouts=table, pop_trace=trace.pop)


def answer_learner(
    config: LearnerConfig,
    policies: TextPolicies,
    loss: AnswerLossSpec,
    *,
    seed: int,
    steps: int,
    reference: TokenPolicy | None = None,
    trace: UpdateTrace | None = None,
) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner of every recipe with a loss on whole answers. `reference` is asked at every step; without it, the
    episodes bring its log-probabilities. `trace` takes in those of the policy."""
    policy = policies.policy
    answer_loss = AnswerLoss(loss=loss, micro_batch_tokens=config.micro_batch_tokens, reference=reference, trace=trace)
    layout = TokenLayout(
        scheme=sequence_sum,
        min_rows=config.minibatches,
        pass_tokens=config.micro_batch_tokens,
        pad_to_size=policy.decoder.is_mixed_precision,
        device=policies.device,
    )
    learner = token_learner(
        config,
        policy,
        layout=answer_loss.layout(layout),
        objective=answer_loss.objective,
        seed=seed,
        steps=steps,
        prepare=None if loss.statistic is None else answer_loss.prepare,
    )
    learner = replace(learner, fingerprints=policies.fingerprints)
    if loss.running is None:
        return learner
    return replace(learner, after_step=loss.running.commit, extra_state={"statistic": loss.running})


def _logged(
    config: PreferenceRunConfig, loss: AnswerLossSpec, policies: TextPolicies, log: Episodes
) -> LogSource[TokenPolicy] | ReferenceLog:
    source = LogSource[TokenPolicy](log=log, batch_size=config.batch, seed=config.seed, unit="group")
    if not loss.needs_reference:
        return source
    path = config.reference()
    return ReferenceLog(
        source=source,
        logp=policies.logp_of,
        open_reference=partial(policies.frozen, path, key="algorithm.reference"),
        is_start=path is None,
        units_drawn=config.steps * config.batch,
    )


def _with_distance(
    config: PreferenceRunConfig,
    source: Source[TokenPolicy],
    policies: TextPolicies,
    log: Episodes,
    prompts: Sequence[NDArray[np.int32]],
) -> StartDistance:
    samples = config.samples
    return StartDistance(
        source,
        logp=policies.logp_of,
        open_start=partial(policies.frozen, None, key="model.path"),
        prompts=prompts,
        max_tokens=samples.max_tokens or int(log.lengths.max()),
        every=samples.interval(config.steps),
        steps=config.steps,
        seed=config.seed,
    )


def _open_preferences(config: PreferenceRunConfig) -> OpenedRun:
    """Open data and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
    inputs = TextInputs(
        config=config,
        read=lambda _held_out: read_answers(config.task, config.answers),
        lay_out=lambda examples, tokenizer, context: encode_answers(
            examples, config.task, tokenizer, context=context, kind=config.answers, data=config.data
        ),
        measure=partial(_preference_lengths, config),
        count=lambda log: len(log.ids),
        other_policies=[path for path in [config.reference()] if path is not None],
    )
    inputs.more_checks = {"answers": lambda: data_warnings(inputs, config.answers)}
    path = config.reference()
    if path is not None and not is_to_come(path) and inputs.has_model:
        inputs.more_checks = {**inputs.more_checks, "reference": partial(_check_reference, inputs, path)}
    return opened_text_run(inputs, preference_job)


def _preference_lengths(config: PreferenceRunConfig, log: AnswerLog) -> TextLengths:
    """Lengths of the data's texts, and of the answers that measure the distance from the start."""
    lengths, samples = text_lengths(log.episodes), config.samples
    prompts = prompts_to_answer(log.episodes, samples.prompts, seed=config.seed)
    if not prompts:
        return replace(lengths, prompts=0)
    answer = samples.max_tokens or int(log.episodes.lengths.max())
    return replace(lengths, prompts=len(prompts), drawn=max(map(len, prompts)) + answer)


def _check_reference(inputs: TextInputs[AnswerLog], path: str) -> list[str]:
    """None; raises DataError for a reference with another tokenizer."""
    require_same_tokens(
        inputs.tokenizer[0], open_tokenizer(ModelSource(path=path))[0], f"algorithm.reference = {path!r}"
    )
    return []


def preference_parts(config: type[PreferenceRunConfig], *loss: Callable[..., object]) -> RecipeParts:
    """Parts of a recipe that learns from a dataset of preferences; `loss` are the functions of its default."""
    what = "pairs" if config.answers == "preference" else "labelled answers"
    return RecipeParts(source=f"Logged({what})", credit=(config.labels,), loss=loss, weights=(sequence_sum,))
