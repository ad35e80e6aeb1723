"""Generation of scored answers, wired: the world that asks prompts, and the engine that answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hone.core.credit import Metrics
from hone.engine.clients.http import ServerEngine
from hone.engine.open_engine import EngineGuarantees
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.parallel.config import ClusterConfig, check_cluster
from hone.planner.run_settings import TextLengths
from hone.rewards.config import RewardsConfig
from hone.rewards.scorer import EachAnswerScorer, RewardScorer
from hone.run.job import OpenedRun, TrainingJob
from hone.sources.live import LiveSource
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.dialogues.environment import DialogueEnvironment
from hone.text.evaluate.dialogues import (
    DialogueLimits,
    SecondAnswer,
    dialogue_context,
    open_dialogue,
)
from hone.text.evaluate.engine_actor import (
    EngineActor,
    check_grammar,
    make_client,
    make_engine,
    make_prompts,
)
from hone.text.evaluate.reward_members import require_context
from hone.text.fleet import generating_cluster, open_text_fleet
from hone.text.interleaving import RecordingActor, ReplayingActor, replayed_record
from hone.text.open_text import TextDataConfig, TextInputs, opened_text_run
from hone.text.rollout_config import RolloutConfig
from hone.text.tasks.conversation import AnswerEffort, ConversationLimits, NudgeEnvironment
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.world import Prompt, TextWorld


class SamplingRunConfig(TextDataConfig, Protocol):
    """What generation asks of a run's config, which is a `TextRunConfig`."""

    @property
    def task(self) -> DialogueTaskConfig: ...

    @property
    def rewards(self) -> RewardsConfig: ...

    @property
    def rollout(self) -> RolloutConfig: ...

    @property
    def cluster(self) -> ClusterConfig | None: ...


def prompt_inputs(
    config: SamplingRunConfig,
    *,
    other_policies: Sequence[str] = (),
    second_answer: SecondAnswer | None = None,
    more_checks: Mapping[str, Callable[[], Sequence[str]]] | None = None,
    check_folders: Callable[[Tokenizer, int], None] | None = None,
) -> TextInputs[Sequence[Prompt]]:
    """Inputs of a run whose task is prompts that are answered, twice with `second_answer`. `check_folders` is given the
    tokenizer and the length of the longest prompt with its answers, and raises DataError for folders of the recipe's
    own that do not fit them."""

    task, rollout, rewards = config.task, config.rollout, config.rewards
    dialogue, cluster = open_dialogue(task, config.user_code), generating_cluster(rollout, config.cluster)

    def lay_out(examples: ExampleDataset, tokenizer: Tokenizer, context: int) -> tuple[Sequence[Prompt], list[str]]:
        check_grammar(rollout.sampling(), tokenizer)
        if dialogue is not None:
            context = dialogue_context(rollout.context, context)
        room = context - rollout.max_tokens
        if second_answer is not None:
            room -= second_answer.further_tokens(task, examples, tokenizer, rollout.max_tokens)
        laid = make_prompts(examples, task, tokenizer, room=room)
        require_context(rewards, laid[0], max_tokens=context - room)
        longest = max(len(prompt.tokens) for prompt in laid[0]) if dialogue is None else room
        if check_folders is not None:
            check_folders(tokenizer, longest + context - room)
        if dialogue is not None:
            limits = DialogueLimits(max_tokens=rollout.max_tokens, context=context, history=rollout.history)
            laid[1].extend(dialogue.check(tokenizer, limits))
            dialogue.check_pay(rewards)
        return laid

    def whole_tokens(laid: Sequence[Prompt]) -> int:
        if dialogue is not None:
            return dialogue_context(rollout.context, inputs.tokenizer[1])
        answers = 1 if second_answer is None else 2
        return max(len(one.tokens) for one in laid) + answers * rollout.max_tokens

    inputs = TextInputs(
        config=config,
        read=lambda held_out: task.examples(exclude=held_out) if dialogue is None else dialogue.examples(),
        dialogue=dialogue,
        lay_out=lay_out,
        rewards=rewards,
        count=len,
        measure=lambda laid: TextLengths(prompt=max(len(one.tokens) for one in laid), whole=whole_tokens(laid)),
        second_answer=second_answer,
        other_policies=[*other_policies, *rewards.local_judges],
        more_checks={**(more_checks or {}), "cluster": partial(check_cluster, cluster)},
    )
    return inputs


def open_answering_run(
    config: SamplingRunConfig,
    build: Callable[[Any, TextInputs[Sequence[Prompt]]], TrainingJob[TokenPolicy]],
    *,
    more_checks: Mapping[str, Callable[[], Sequence[str]]] | None = None,
) -> OpenedRun:
    """Open data, rewards and tokenizer, and run `more_checks`. Raises HoneError with all faults at once, before a model
    is loaded."""
    return opened_text_run(prompt_inputs(config, more_checks=more_checks), build)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveText:
    """A text task, the engine that answers its prompts, and the scorer of the answers."""

    world: TextWorld
    actor: EngineActor
    scorer: RewardScorer
    dialogues: DialogueEnvironment | None = None
    """The worlds' side, of a task with dialogues."""

    def source(self) -> LiveSource[TokenPolicy]:
        """Source of their episodes."""
        return LiveSource[TokenPolicy](self.world, self.actor, actor_metrics=self.metrics)

    def metrics(self) -> Metrics:
        """Metrics of the latest rollout."""
        use = self.world.slot_use
        idle = {"rollout/idle_world": use.waiting / use.total} if self.dialogues is not None and use.total else {}
        dialogue_metrics = {} if self.dialogues is None else self.dialogues.pop_metrics()
        waits = {"time/rollout_rewards_s": self.world.reward_wait_s, "time/rollout_tools_s": use.idle_s}
        return {**self.actor.metrics(), **self.scorer.metrics(), **dialogue_metrics, **idle, **waits}

    def reference(self, group: int) -> str | None:
        """Reference answer of the prompt that a group answers: its column `answer`, or `ground_truth`; None without."""
        columns: Mapping[str, object] = self.world.prompt_of(group).columns if group >= 0 else {}
        answer = columns.get("answer", columns.get("ground_truth"))
        return None if answer is None else str(answer)

    def efforts(self, group: int) -> Sequence[AnswerEffort]:
        """What each answer of a group took; empty where nobody knows."""
        return self.world.efforts(group) if group >= 0 else ()

    def close(self) -> None:
        """End what the engine has open elsewhere."""
        self.actor.close()

    def notes(self) -> list[str]:
        """Notes for the user since the last call."""
        notes = [] if self.dialogues is None else self.dialogues.notes()
        return [*self.scorer.notes(), *self.actor.notes(), *notes]


def open_live_text(
    inputs: TextInputs[Sequence[Prompt]],
    policy: TokenPolicy,
    rollout: RolloutConfig,
    *,
    greedy_baseline: bool = False,
    keeps_last_words: bool = False,
    one_seed: bool = False,
    cluster: ClusterConfig | None = None,
) -> LiveText:
    """World and engine of a run, the engine in replicas with `cluster`. With `greedy_baseline` every prompt is answered
    greedily as well; the rest is for dialogues, as in `DialogueRules`."""
    (prompts, _), seed, twice = inputs.prepared, inputs.config.seed, inputs.second_answer
    assert inputs.rewards is not None
    most = policy.decoder.config.max_positions
    environment: NudgeEnvironment | DialogueEnvironment | None = None
    if twice is not None:
        environment = twice.environment(policy.tokenizer, prompts)
    elif inputs.dialogue is not None:
        most = dialogue_context(rollout.context, most)
        limits = DialogueLimits(max_tokens=rollout.max_tokens, context=most, history=rollout.history)
        environment = inputs.dialogue.environment(
            policy.tokenizer, prompts, limits, seed=seed, keeps_last_words=keeps_last_words, one_seed=one_seed
        )
    world = TextWorld(
        prompts=prompts,
        scorer=inputs.scorer if twice is None else EachAnswerScorer(inputs.scorer),
        decode=policy.tokenizer.decode,
        sampling=rollout.sampling(),
        prompts_per_step=rollout.prompts_per_step,
        samples=rollout.samples_per_prompt,
        seed=seed,
        greedy_baseline=greedy_baseline,
        step_end=inputs.rewards.step_end,
        environment=environment,
        limits=ConversationLimits(context=most, slots=rollout.max_concurrent),
        forks=rollout.history == "template",
    )
    longest = max(len(prompt.tokens) for prompt in prompts)
    if twice is not None:
        longest += twice.further_tokens(inputs.config.task, inputs.examples, policy.tokenizer, rollout.max_tokens)
    if inputs.dialogue is not None:
        longest = most - rollout.max_tokens
    return LiveText(
        world=world,
        actor=engine_actor(policy, rollout, longest, seed=seed, cluster=cluster, greedy_baseline=greedy_baseline),
        scorer=inputs.scorer,
        dialogues=environment if isinstance(environment, DialogueEnvironment) else None,
    )


def engine_actor(
    policy: TokenPolicy,
    rollout: RolloutConfig,
    longest: int,
    *,
    seed: int,
    cluster: ClusterConfig | None = None,
    greedy_baseline: bool = False,
) -> EngineActor:
    """The engine of a run, the client of its server, or its replicas, for prompts of at most `longest` tokens."""
    asynchrony, cluster = rollout.asynchrony, generating_cluster(rollout, cluster)
    if cluster is not None:
        engine = open_text_fleet(policy, rollout, cluster, longest, seed=seed)
        return RecordingActor(engine) if asynchrony.records else EngineActor(engine)
    if isinstance(rollout.runner, ServerEngine):
        return EngineActor(make_client(policy, rollout.runner, slots=rollout.max_concurrent, seed=seed))
    # A replay has room for all answers that were in progress at one publication, maybe on many replicas.
    record = replayed_record(asynchrony)
    engine = make_engine(
        policy,
        slots=max(rollout.most_running(greedy=greedy_baseline), 0 if record is None else record.most_in_progress()),
        longest_prompt=longest,
        max_tokens=rollout.max_tokens,
        seed=seed,
        runner=rollout.runner,
        guarantees=EngineGuarantees(
            batch_invariant=rollout.deterministic == "batch",
            on_publish=rollout.mid_rollout_publish,
            kv_cache=rollout.kv_cache,
        ),
    )
    if asynchrony.replayed_run is not None:
        actor = ReplayingActor(engine)
        actor.start(policy.decoder, versions=asynchrony.steps + 1)
        return actor
    return RecordingActor(engine) if asynchrony.records else EngineActor(engine)
