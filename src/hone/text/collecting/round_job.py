"""Rounds of answering and imitation, wired: expert iteration and distillation of the best of n."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import reward_as_advantage
from hone.credit.shaping import without_truncated
from hone.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.learner.gradient import GradientLearner
from hone.learner.round_source import (
    RoundLearner,
    RoundSchedule,
    RoundSource,
    Selection,
    tensors_sha256,
    trained_tensors,
)
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import token_mean
from hone.planner.run_settings import PlannedRecipe
from hone.run.job import OpenedRun, RecipeParts, TrainingJob
from hone.run.loop import Recipe
from hone.text.collecting.collect_job import score_as_advantage
from hone.text.learners import language_job, step_layout, token_learner
from hone.text.live import open_answering_run, open_live_text
from hone.text.loss import token_nll
from hone.text.open_text import TextInputs
from hone.text.rl import TextRunConfig
from hone.text.rows import TokenBatch
from hone.text.samples import answer_metrics, judge_questions, reward_metrics
from hone.text.tasks.world import Prompt


class RoundAlgorithm(Config):
    """Steps of a round, and where it starts."""

    collect_steps: int = Field(ge=1)
    """Steps at the beginning of a round that gather answers; nothing is learnt in them."""
    learn_steps: int = Field(ge=1)
    """Steps after them that imitate the selected answers."""
    batch: int = Field(default=64, ge=1)
    """Answers that a step imitates."""
    restart: bool = True
    """Start every round from the first policy, with a new optimizer; otherwise rounds go on from each other."""


class RoundRunConfig(TextRunConfig):
    """Config shared by the recipes that imitate a selection of their own answers, round by round."""

    algorithm: RoundAlgorithm
    """Rounds."""
    learner: LearnerConfig
    """The optimizer of the imitation; a schedule spans a round."""

    learns_as_it_answers = False

    def open(self) -> OpenedRun:
        return open_answering_run(self, _build_round_job)

    @model_validator(mode="after")
    def _rounds_fit(self) -> "RoundRunConfig":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.algorithm.batch, "algorithm.batch")
        length = self.schedule.length
        if self.steps % length:
            near = [count for count in (self.steps // length * length, (self.steps // length + 1) * length) if count]
            raise ValueError(
                f"steps = {self.steps} ends within a round of algorithm.collect_steps + algorithm.learn_steps = "
                f"{length} steps; set steps = {' or '.join(map(str, near))}"
            )
        return self

    @property
    def schedule(self) -> RoundSchedule:
        """Steps of a round."""
        return RoundSchedule(collect_steps=self.algorithm.collect_steps, learn_steps=self.algorithm.learn_steps)

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self.steps // self.schedule.length

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe(rows=("algorithm.batch",), writes=True)

    @abstractmethod
    def select(self, episodes: Episodes) -> Selection:
        """Choose what to imitate of the answers of a round; `recipe_parts` reads the selection's name from here."""

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        rollout, chosen, learner = self.rollout, self.algorithm, self.learner
        answers = chosen.collect_steps * rollout.prompts_per_step * rollout.samples_per_prompt
        return {
            "rounds": f"{self.rounds} of {chosen.collect_steps} steps that gather and {chosen.learn_steps} that learn",
            "answers of a round": f"{chosen.collect_steps} x {rollout.prompts_per_step} prompts x "
            f"{rollout.samples_per_prompt} samples = {answers}, of at most {rollout.max_tokens} tokens",
            "optimizer steps": f"{learner.optimizer_steps(chosen.learn_steps)} in a round, on {chosen.batch} answers "
            "each",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
            **judge_questions(self, self.rewards, answers=self.rounds * answers),
        }


def imitation_learner(config: RoundRunConfig, policy: TokenPolicy) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner that imitates what was selected."""
    return token_learner(
        config.learner,
        policy,
        layout=step_layout(token_mean, config.learner, config.run, mixed_precision=policy.decoder.is_mixed_precision),
        objective=token_nll,
        seed=config.seed,
        steps=config.algorithm.learn_steps * (1 if config.algorithm.restart else config.rounds),
    )


def _build_round_job(config: RoundRunConfig, inputs: TextInputs[Sequence[Prompt]]) -> TrainingJob[TokenPolicy]:
    """Training job of rounds: a live source, its selection as a log, and imitation."""
    _ = inputs.prepared, inputs.evaluation
    policy = inputs.policy(temperature=config.rollout.temperature)
    inputs.scorer.check(inputs.examples.column_names())
    live = open_live_text(inputs, policy, config.rollout, cluster=config.cluster)
    drops = config.rollout.learnable.truncated == "missing"

    def select(episodes: Episodes) -> Selection:
        return config.select(without_truncated(episodes) if drops else episodes)

    source = RoundSource[TokenPolicy](
        live.source(),
        schedule=config.schedule,
        select=select,
        batch_size=config.algorithm.batch,
        seed=config.seed,
    )
    inner = imitation_learner(config, policy)
    learner = RoundLearner(
        inner,
        config.schedule,
        initial=[one.detach().clone() for one in trained_tensors(inner)] if config.algorithm.restart else None,
        initial_sha256="" if inner.policy is policy else tensors_sha256([one.detach() for one in policy.parameters()]),
    )
    credit = partial(_credit, learns=lambda: source.learns, rewards=config.rewards.names)
    recipe = Recipe(source=source, credit=credit, learner=learner)
    job = language_job(inputs, policy, recipe, warnings=[*config.rollout.warnings(), *live.actor.notes()])
    return replace(job, pop_notices=lambda: [*live.notes(), *source.pop_notes()], close=live.actor.close)


def _credit(episodes: Episodes, values: Values, *, learns: Callable[[], bool], rewards: Sequence[str]) -> Credits:
    """Selected answers count 1 at every token; gathered ones show their score, and nothing learns from it."""
    if learns():
        return reward_as_advantage(episodes, values)
    metrics = {**answer_metrics(episodes), **reward_metrics(rewards, episodes)}
    return replace(score_as_advantage(episodes, values), metrics=metrics)


def round_parts(selection: Callable[..., Selection]) -> RecipeParts:
    """Parts of a recipe by rounds."""
    return RecipeParts(
        source=f"RoundSource(Live(text task, engine), {selection.__name__})",
        credit=(reward_as_advantage,),
        loss=(token_nll,),
        weights=(token_mean,),
    )
