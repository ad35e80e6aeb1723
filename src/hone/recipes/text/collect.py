"""Collecting: the answers of a policy, with scores, tokens and log-probabilities, become a data set.

Nothing is learnt. Later stages of a pipeline read the answers: `task.source = "stage:collect"` is one source of pairs,
labelled answers, outcomes, labelled steps and examples to imitate, and its tokens are never encoded again. With
`collect.continue_from = "steps"` every step is labelled by the share of its continuations that end well (Wang et al.,
Math-Shepherd, 2024).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from hone.core.config import Config
from hone.learner.round_source import FrozenLearner
from hone.models.language.token_policy import TokenPolicy
from hone.process.user_files import check_reference
from hone.rewards.judges.config import JudgeModel, RevisionConfig
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob
from hone.run.loop import Recipe
from hone.sources.live import LiveSource
from hone.text.collecting.branches import branching_source
from hone.text.collecting.collect_job import CollectionWriter, score_as_advantage
from hone.text.collecting.continuations import StepContinuations
from hone.text.collecting.reflections import KIND, BranchReflections, CollectionReviser
from hone.text.evaluate.judges.revise import open_reviser
from hone.text.experience import UserFunction, function_table
from hone.text.learners import language_job
from hone.text.live import open_answering_run, open_live_text
from hone.text.open_text import TextInputs, is_to_come
from hone.text.rl import TextRunConfig
from hone.text.samples import judge_questions
from hone.text.tasks.chat_rows import asks_in_chat
from hone.text.tasks.world import Prompt


class CollectOptions(Config):
    """Labels of steps, revised answers, and branches of demonstrations."""

    continue_from: Literal["none", "steps"] = "none"
    """`steps`: the policy goes on from the end of each step; the share of good continuations is the step's label."""
    continuations: int = Field(default=8, ge=1)
    """Continuations from each step's end."""
    separator: str = Field(default="\n", min_length=1)
    """Text that ends a step."""
    max_steps: int = Field(default=16, ge=1)
    """Steps of an answer that are continued, from the first; later ones have no label."""
    min_score: float = 0.5
    """Score from which a continuation is good."""
    revise: RevisionConfig | None = None
    """Criticise and revise each answer by a constitution. The draft has score 0, its revision 1; scores of `rewards`
    stay beside them."""
    branch: int = Field(default=0, ge=0)
    """Other actions that are tried at each state of a demonstrated dialogue. The demonstration is collected with its
    branches, each led to its end by the policy; 0: no demonstrations, and `rollout.samples_per_prompt` dialogues."""
    expert: str = Field(default="expert", min_length=1)
    """Column with the turns of the demonstration, a list of texts."""
    reflect: Annotated[UserFunction | None, BeforeValidator(function_table)] = None
    """A function f(state, tried, expert, **columns) -> str | None writes what is thought before the expert's turn.
    `tried` are pairs of a branch's turn and the world's answer; None leaves a state out."""

    @model_validator(mode="after")
    def _one_of_all(self) -> "CollectOptions":
        asked = {
            "revise": self.revise is not None,
            "continue_from": self.continue_from != "none",
            "branch": self.branch > 0,
        }
        if sum(asked.values()) > 1:
            named = " and ".join(f"collect.{name}" for name, is_given in asked.items() if is_given)
            raise ValueError(f"{named} exclude each other; collect twice")
        if self.reflect is not None and not self.branch:
            raise ValueError("collect.reflect tells what branches led to, and collect.branch = 0 makes none; raise it")
        return self


class CollectConfig(TextRunConfig):
    """Collection of answers."""

    learns_as_it_answers = False

    collect: CollectOptions = CollectOptions()
    """Labels of steps, revised answers, and branches of demonstrations."""

    @model_validator(mode="after")
    def _keeps_truncated_answers(self) -> "CollectConfig":
        if (truncated := self.rollout.learnable.truncated) != "score":
            raise ValueError(
                f'rollout.learnable.truncated = "{truncated}": collected answers keep their scores, and the column '
                "`truncated` names those that a limit cut; leave it out, and filter the rows by that column"
            )
        return self

    @model_validator(mode="after")
    def _branches_fit(self) -> "CollectConfig":
        if self.collect.branch and not self.task.has_world:
            raise ValueError(
                f"collect.branch = {self.collect.branch}: for dialogues, whose world answers other actions; "
                f'task.source = {self.task.source!r} names none ("dialogue:file.py:Class")'
            )
        if self.collect.branch and "samples_per_prompt" in self.rollout.model_fields_set:
            raise ValueError(
                "rollout.samples_per_prompt: with collect.branch, a row has one dialogue of the expert and "
                "collect.branch at each of its states; leave it out"
            )
        return self

    def open(self) -> OpenedRun:
        """Open data, rewards and tokenizer, and ask the model that revises. Raises HoneError with all faults."""
        checks = {"revise": lambda: _reviser_warnings(self), "reflect": lambda: _reflect_warnings(self)}
        return open_answering_run(self, build, more_checks=checks)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        rollout, options = self.rollout, self.collect
        answers = rollout.prompts_per_step * rollout.samples_per_prompt
        if options.branch:
            summary = (
                f"{rollout.prompts_per_step} demonstrations, each with {options.branch} branches at each of its states"
            )
            return {"dialogues per step": summary} | judge_questions(self, self.rewards, answers=self.steps * answers)
        figures = {
            "answers per step": f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples "
            f"= {answers}",
            "answers": f"{self.steps * answers} of at most {rollout.max_tokens} tokens",
        }
        if options.revise is not None:
            figures["revisions"] = f"at most {2 * options.revise.rounds * self.steps * answers} requests, 2 a round"
        if options.continue_from == "steps":
            figures["continuations"] = f"{options.continuations} from each step, of at most {options.max_steps} steps"
        return figures | judge_questions(self, self.rewards, answers=self.steps * answers)


def build(config: CollectConfig, inputs: TextInputs[Sequence[Prompt]]) -> TrainingJob[TokenPolicy]:
    """Collecting job: a live source, a learner that learns nothing, and the files of the answers."""
    _ = inputs.prepared, inputs.evaluation
    policy, options = inputs.policy(temperature=config.rollout.temperature), config.collect
    inputs.scorer.check(inputs.examples.column_names())
    live = open_live_text(
        inputs, policy, config.rollout, keeps_last_words=True, one_seed=options.branch > 0, cluster=config.cluster
    )
    source, labelled = live.source(), options.continue_from == "steps"
    if options.branch:
        source = branching_source(live, inputs.examples, policy.tokenizer, options.expert, options.branch)
    if labelled:
        steps = StepContinuations(
            world=live.world,
            separator=options.separator,
            continuations=options.continuations,
            max_steps=options.max_steps,
            min_score=options.min_score,
        )
        source = LiveSource[TokenPolicy](
            steps, live.actor, actor_metrics=lambda: {**live.metrics(), **steps.pop_metrics()}
        )
    recipe = Recipe(source=source, credit=score_as_advantage, learner=FrozenLearner(policy))
    job = language_job(inputs, policy, recipe, warnings=[*config.rollout.warnings(), *live.actor.notes()])
    reviser = None
    if options.revise is not None:
        in_chat = asks_in_chat(config.task, policy.tokenizer)
        reviser = CollectionReviser(
            open_reviser(options.revise, device=config.run.device), policy.tokenizer, in_chat=in_chat
        )
    reflect = None if options.reflect is None else BranchReflections(options.reflect, policy.tokenizer)
    writer = CollectionWriter(
        world=live.world,
        tokenizer=policy.tokenizer,
        rewards=config.rewards.names,
        continuations=options.continuations if labelled else 0,
        extend=reviser or reflect,
    )

    def close() -> None:
        live.actor.close()
        if reviser is not None:
            reviser.reviser.close()

    return replace(
        job,
        write_episodes=writer,
        pop_notices=lambda: [*live.notes(), *([] if reviser is None else reviser.notes())],
        close=close,
    )


def _reflect_warnings(config: CollectConfig) -> Sequence[str]:
    """None; raises ConfigError where the function's file is not there."""
    if config.collect.reflect is not None:
        check_reference(config.collect.reflect.use, kind=KIND)
    return []


def _reviser_warnings(config: CollectConfig) -> Sequence[str]:
    revise = config.collect.revise
    if revise is None or (isinstance(revise.by, JudgeModel) and is_to_come(revise.by.path)):
        return []
    reviser = open_reviser(revise, device=config.run.device)
    try:
        return reviser.check()
    finally:
        reviser.close()


ENTRY = RecipeSpec(
    summary="answers of a policy, with scores, tokens and labels of steps, as a data set for later stages",
    paper="Wang et al., Math-Shepherd, 2024 (labels of steps)",
    config=CollectConfig,
    parts=RecipeParts(source="Live(text task, engine)", credit=(score_as_advantage,)),
    collects_answers=True,
    limitation="nothing is learnt, and the answers are those of one policy: collect again once it has changed.",
)
