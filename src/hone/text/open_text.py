"""Data, tokenizer and reward workers of a text run: opened and checked once, then handed to the build of the run."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from pydantic import Field, ValidationError, model_validator

from hone.core.config import STAGE_PREFIX
from hone.core.errors import ConfigError, run_all_checks
from hone.credit.grouping import LabelCredit
from hone.models.language.hf_checkpoint import check_adapter
from hone.models.language.peft_folder import is_adapter, read_peft_folder
from hone.models.language.scalar_head import TokenScorer
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.planner.run_settings import PlannedRecipe, TextLengths
from hone.rewards.config import RewardModel, RewardsConfig, UserCodeConfig
from hone.rewards.scorer import RewardScorer
from hone.run.job import OpenedRun, RunConfig, RunSettings, TrainingJob, opened_run
from hone.run.memory_plan import MemoryPlan
from hone.run.saved_config import policy_folder
from hone.text.evaluate.dialogues import OpenedDialogue, SecondAnswer, has_chats, open_dialogue, task_tokenizer
from hone.text.evaluate.evaluation_request import SearchModelScorer, SearchWorldModelScorer
from hone.text.evaluate.open_policy import ModelSource, check_weights, open_policy, open_tokenizer
from hone.text.evaluate.reward_members import load_reward_scorer, reward_scorer
from hone.text.evaluate.search_eval import OpenedSearch
from hone.text.evaluate.text_eval import EvaluationConfig, TextEvaluation, prepare_evaluation
from hone.text.memory import config_settings, text_memory
from hone.text.program_check import check_reference_programs
from hone.text.saved_optimizer import check_saved_optimizer
from hone.text.tasks.chat_rows import chat_notes
from hone.text.tasks.dataset import ExampleDataset, find_overlap
from hone.text.tasks.task import TaskConfig

T = TypeVar("T")
_END_IS_PADDING: Final = (
    "the tokenizer pads with its end of text; hone masks by length, so the end of text is learned all the same"
)


class TextDataConfig(Protocol):
    """What the inputs of a text run ask of its config: `LanguageRunConfig` (a dataset) or `TextRunConfig` (answers)."""

    @property
    def model(self) -> ModelSource: ...

    @property
    def task(self) -> TaskConfig: ...

    @property
    def seed(self) -> int: ...

    @property
    def user_code(self) -> UserCodeConfig: ...

    @property
    def run(self) -> RunSettings: ...

    def answers_evaluation(self) -> EvaluationConfig | None:
        """The evaluation that lets a policy answer held-out prompts; None for a network that writes nothing."""
        ...

    @classmethod
    def planned(cls) -> PlannedRecipe:
        """The recipe as far as a run's memory depends on it."""
        ...


class DataRunConfig(RunConfig):
    """A run of a language model on rows of data: as many steps, or passes over the rows."""

    steps: int = Field(default=0, ge=1)  # 0 is never given: it stands for epochs
    """Iterations of the training loop: collect, score, learn, publish. Either `steps` or `epochs` is given."""
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the training rows, in place of `steps`. Steps are whole: the last one is filled up from the
    next pass. Where a recipe asks further prompts within a step, passes are over earlier."""
    model: ModelSource
    """The network to start from."""
    user_code: UserCodeConfig = UserCodeConfig()
    """Processes and limits of reward functions and worlds, in training and in evaluation."""
    evaluation: EvaluationConfig | None = None
    """Held-out prompts, evaluated during training and at the end."""

    labels: ClassVar[LabelCredit | None] = None
    """Labels that the loss takes in the place of advantages; None: it takes any advantages."""

    @model_validator(mode="after")
    def _has_a_length(self) -> "DataRunConfig":
        if bool(self.steps) == (self.epochs is not None):
            both = f"steps = {self.steps} and epochs = {self.epochs:g}" if self.epochs else "neither"
            raise ValueError(f"give either steps (at least 1) or epochs (passes over the rows), got {both}")
        return self

    @model_validator(mode="after")
    def _bounds_fit(self) -> "DataRunConfig":
        if isinstance(self.evaluation, EvaluationConfig):  # scorers are judged on labels
            self.evaluation.rewards.require_bounds_within(self.user_code.max_abs_score)
        return self

    def answers_evaluation(self) -> EvaluationConfig | None:
        return self.evaluation

    def has_search(self) -> bool:
        return self.evaluation is not None and self.evaluation.search is not None

    @property
    def rows_per_step(self) -> int:
        """Rows that a step takes."""
        raise TypeError(f"{type(self).__name__} names no rows of a step")

    def with_steps(self, rows: int, source: str) -> tuple["DataRunConfig", str]:
        """The config with the steps that its epochs make of so many rows, and a sentence on them. Raises ConfigError
        where the recipe cannot have so many steps."""
        assert self.epochs is not None
        seen = round(self.epochs * rows, 6)
        steps = math.ceil(seen / self.rows_per_step)
        beyond = steps * self.rows_per_step - seen
        note = (
            f"epochs = {self.epochs:g}: {self.epochs:g} x {rows:,} rows of {source} in steps of {self.rows_per_step:,} "
            f"are {steps:,} steps" + (f"; the last one takes {beyond:g} of the next pass" if beyond else "")
        )
        values = self.model_dump(exclude_unset=True)
        try:
            return type(self).model_validate({**values, "steps": steps, "epochs": None}), note
        except ValidationError as error:
            faults = [str(fault["msg"]).removeprefix("Value error, ") for fault in error.errors()]
            raise ConfigError(*(f"{note}: {fault}" for fault in faults)) from None


class LanguageRunConfig(DataRunConfig):
    """A language model, or a scorer on one, to train on a dataset."""

    task: TaskConfig
    """The data."""

    @model_validator(mode="after")
    def _agents_fit(self) -> "LanguageRunConfig":
        self.task.require_agents(self.user_code.agents)
        return self

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe()


@dataclass(kw_only=True)
class TextInputs(Generic[T]):
    """Inputs of a text run that are opened before its model is loaded; each is opened at its first use."""

    config: TextDataConfig
    """The run's; its model path may be resolved between check and build."""
    read: Callable[[Sequence[ExampleDataset]], ExampleDataset]
    """Held-out datasets, which a generated training set leaves out -> the training examples."""
    lay_out: Callable[[ExampleDataset, Tokenizer, int], tuple[T, list[str]]]
    """Examples, tokenizer and longest context -> what the run trains on, and warnings."""
    rewards: RewardsConfig | None = None
    other_policies: Sequence[str] = ()
    """Folders of further policies that the run reads."""
    second_answer: SecondAnswer | None = None
    """Nudge after which each prompt is answered again, in training and evaluation; None: once only."""
    dialogue: OpenedDialogue | None = None
    """The world of training dialogues."""
    more_checks: Mapping[str, Callable[[], Sequence[str]]] = field(
        default_factory=dict[str, Callable[[], Sequence[str]]]
    )
    """Further checks of the recipe's own, by name, which return warnings."""
    measure: Callable[[T], TextLengths] | None = None
    """Lengths of the texts that were laid out; None: as long as the model's context."""
    count: Callable[[T], int] | None = None
    """Number of rows that were laid out, which a pass over the data takes; None: there are no such rows."""

    @property
    def lengths(self) -> TextLengths:
        """Lengths of the longest texts, as far as they are known before the run."""
        if self.measure is None or self.waits_for_answers:
            return TextLengths(prompt=0, whole=self.tokenizer[1])
        lengths, exam = self.measure(self.prepared[0]), self.evaluation
        if exam is None:
            return lengths
        prompt = exam.longest_prompt()
        whole = prompt + exam.config.max_tokens
        return replace(lengths, held_out=TextLengths(prompt=prompt, whole=whole, prompts=len(exam.prompts)))

    @property
    def waits_for_answers(self) -> bool:
        """True if an earlier stage collects the training data."""
        return is_to_come(self.config.task.source)

    @property
    def waits_for_tokenizer(self) -> bool:
        """True if an earlier stage makes the model; that of a new one depends on the data."""
        model = self.config.model
        return is_to_come(model.path) or (model.new is not None and self.waits_for_answers)

    @property
    def has_model(self) -> bool:
        """False if an earlier stage of the pipeline is yet to make the model, and with it the tokenizer."""
        return not self.waits_for_tokenizer

    @cached_property
    def held_out(self) -> ExampleDataset | None:
        """The examples of the evaluation."""
        evaluation = self.config.answers_evaluation()
        if evaluation is None:
            return None
        return evaluation.task.examples() if self.evaluation_dialogue is None else self.evaluation_dialogue.examples()

    @cached_property
    def evaluation_dialogue(self) -> OpenedDialogue | None:
        """The world of held-out dialogues, in processes of its own."""
        evaluation = self.config.answers_evaluation()
        return None if evaluation is None else open_dialogue(evaluation.task, self.config.user_code)

    @cached_property
    def examples(self) -> ExampleDataset:
        """The training examples."""
        held_out = self.held_out if self.config.task.is_generated and self.dialogue is None else None
        return self.read(() if held_out is None else (held_out,))

    @cached_property
    def tokenizer(self) -> tuple[Tokenizer, int]:
        """The tokenizer, and the longest context of the model. A new model's tokenizer has a chat template if the data
        hold conversations."""
        model = self.config.model
        return open_tokenizer(model, chat=model.new is not None and self._has_conversations())

    def _has_conversations(self) -> bool:
        if self.config.task.is_captured:
            return True
        datasets = [self.examples, *(() if self.held_out is None else (self.held_out,))]
        worlds = [one for one in (self.dialogue, self.evaluation_dialogue) if one is not None]
        held_out = self.config.answers_evaluation()
        tasks = [self.config.task, *(() if held_out is None else (held_out.task,))]
        chats = [has_chats(task, examples) for task, examples in zip(tasks, datasets, strict=False)]
        return any(chats) or any(world.is_chat() for world in worlds)

    @cached_property
    def chat_tokenizer(self) -> Tokenizer:
        """The tokenizer whose chats are told of the task's tools."""
        if self.dialogue is not None:
            return self.dialogue.tokenizer(self.tokenizer[0])
        return task_tokenizer(self.config.task, self.tokenizer[0], self.config.user_code)

    @cached_property
    def prepared(self) -> tuple[T, list[str]]:
        """Result of `lay_out` on the examples, and its warnings."""
        return self.lay_out(self.examples, self.chat_tokenizer, self.tokenizer[1])

    @cached_property
    def scorer(self) -> RewardScorer:
        """The scorer of training answers, with its worker processes."""
        assert self.rewards is not None
        return reward_scorer(
            self.rewards, limits=self.config.user_code, load=self.reward_model, device=self.config.run.device
        )

    @cached_property
    def evaluation_scorer(self) -> RewardScorer:
        """The scorer of held-out answers, with its worker processes."""
        evaluation = self.config.answers_evaluation()
        assert evaluation is not None
        return reward_scorer(
            evaluation.rewards, limits=self.config.user_code, load=self.reward_model, device=self.config.run.device
        )

    @cached_property
    def reward_model(self) -> Callable[[str, str], TokenScorer]:
        """Loads a reward model by folder and data type; training and evaluation share it."""
        device = self.config.run.device
        return cache(
            lambda path, weights: load_reward_scorer(path, weights, device=device, tokenizer=self.tokenizer[0])
        )

    @cached_property
    def evaluation(self) -> TextEvaluation | None:
        """The evaluation on the held-out examples."""
        evaluation = self.config.answers_evaluation()
        if evaluation is None or self.held_out is None:
            return None
        tokenizer, context = self.tokenizer
        return prepare_evaluation(
            evaluation,
            tokenizer,
            context=context,
            examples=self.held_out,
            scorer=self.evaluation_scorer,
            second_answer=self.second_answer,
            dialogue=self.evaluation_dialogue,
        )

    def policy(self, *, temperature: float) -> TokenPolicy:
        """The policy to train, with the tokenizer that the data were laid out by."""
        config, (tokenizer, _) = self.config, self.tokenizer
        return open_policy(
            config.model, seed=config.seed, device=config.run.device, temperature=temperature, tokenizer=tokenizer
        )

    def write_protect(self, folder: Path) -> None:
        """Keep the reward functions from writing into a folder; call it before the first answers."""
        for one in self._opened():
            one.write_protect(folder)

    def close(self) -> None:
        """End the worker processes that were started."""
        for one in self._opened():
            one.close()

    def _opened(self) -> "list[RewardScorer | OpenedDialogue]":
        """Owners of processes that were opened so far."""
        names = ("scorer", "evaluation_scorer", "evaluation_dialogue")
        opened = [vars(self)[name] for name in names if vars(self).get(name) is not None]
        return opened if self.dialogue is None else [*opened, self.dialogue]


def open_text(inputs: TextInputs[T]) -> list[str]:
    """Open everything that needs no model, and return the warnings. Raises HoneError with all faults at once, and then
    leaves nothing open.

    A check whose input cannot be read adds no fault of its own. What an earlier stage leaves behind (a model, collected
    answers) is not there yet: what needs it is opened when the run is built.
    """
    with contextlib.ExitStack() as on_fault:
        on_fault.callback(inputs.close)
        warnings = run_all_checks({**_data_checks(inputs), **_evaluation_checks(inputs), **_training_checks(inputs)})
        on_fault.pop_all()
    return list(dict.fromkeys(warning for lines in warnings.values() for warning in lines))


def _data_checks(inputs: TextInputs[T]) -> dict[str, Callable[[], Sequence[str]]]:
    """Checks of the training data and the model by name, each with warnings as its result."""
    read, known = not inputs.waits_for_answers, inputs.has_model
    checks: dict[str, Callable[[], Sequence[str]]] = {}
    if read:
        checks["train"] = lambda: inputs.examples.warnings
    if known:
        checks["model"] = lambda: [_END_IS_PADDING] if inputs.tokenizer[0].pad_id in inputs.tokenizer[0].eos_ids else []
    if known and inputs.config.model.path is not None:
        checks["weights"] = partial(_weight_warnings, inputs.config.model.path)
    if known and read:
        checks["fits"] = lambda: inputs.prepared[1]
        checks["template"] = partial(_template_warnings, inputs)
    if known and inputs.config.model.lora is not None:
        checks["lora"] = partial(_adapter_warnings, inputs.config)
    if known and inputs.config.model.optimizer:
        checks["optimizer"] = partial(_optimizer_warnings, inputs.config.model)
    return checks


def _template_warnings(inputs: TextInputs[T]) -> list[str]:
    tokenizer, task = inputs.chat_tokenizer, inputs.config.task
    notes = chat_notes(task, inputs.examples, tokenizer)
    if not has_chats(task, inputs.examples, tokenizer):
        return notes
    from hone.text.trained_spans import template_findings  # noqa: PLC0415 - for conversations only

    return [*notes, *template_findings(tokenizer, inputs.examples, task)]


def _evaluation_checks(inputs: TextInputs[T]) -> dict[str, Callable[[], Sequence[str]]]:
    """Checks of the held-out problems and their rewards."""
    evaluation, known = inputs.config.answers_evaluation(), inputs.has_model
    if evaluation is None:
        return {}
    checks: dict[str, Callable[[], Sequence[str]]] = {"evaluation": partial(_held_out_warnings, inputs)}
    if known:
        checks["asked"] = lambda: [] if inputs.evaluation is None else inputs.evaluation.warnings
    if _can_open(evaluation.rewards, tokenizer_known=known):
        checks["judged by"] = partial(_check_evaluation_rewards, inputs)
    if known and evaluation.search is not None:
        checks["searched by"] = partial(_check_search, inputs)
    return checks


def _check_search(inputs: TextInputs[T]) -> list[str]:
    """None; raises HoneError where the scorer of the evaluation's searches cannot score its answers."""
    exam = inputs.evaluation
    if exam is None or exam.config.search is None:
        return []
    scorer = exam.config.search.scorer
    if isinstance(scorer, SearchModelScorer | SearchWorldModelScorer) and is_to_come(scorer.path):
        return []

    search = OpenedSearch(
        config=exam.config.search, exam=exam, load=inputs.reward_model, limits=inputs.config.user_code
    )
    try:
        search.scorer(inputs.tokenizer[0].decode)
    finally:
        search.close()
    return []


def _training_checks(inputs: TextInputs[T]) -> dict[str, Callable[[], Sequence[str]]]:
    """Checks of further policies, of the rewards of training answers, and the recipe's own."""
    checks: dict[str, Callable[[], Sequence[str]]] = {
        path: partial(_policy_warnings, path) for path in inputs.other_policies if not is_to_come(path)
    }
    known = inputs.has_model
    if inputs.rewards is not None and not inputs.waits_for_answers and _can_open(inputs.rewards, tokenizer_known=known):
        checks["rewards"] = lambda: inputs.scorer.check(inputs.examples.column_names(), inputs.examples.rows)
    return {**checks, **inputs.more_checks}


def _can_open(rewards: RewardsConfig, *, tokenizer_known: bool) -> bool:
    """True if the rewards need nothing that an earlier stage leaves behind."""
    models = [reward for reward in rewards.functions if isinstance(reward, RewardModel)]
    if any(map(is_to_come, rewards.local_judges)):
        return False
    return not models or (tokenizer_known and not any(is_to_come(path) for model in models for path in model.paths))


def is_to_come(path: str | None) -> bool:
    """True for something that an earlier stage of the pipeline leaves behind."""
    return path is not None and path.startswith(STAGE_PREFIX)


def opened_text_run(inputs: TextInputs[T], build: Callable[[Any, TextInputs[T]], TrainingJob[Any]]) -> OpenedRun:
    """`inputs`, opened and checked, for `build(config, inputs)`; they are closed with the job."""

    warnings, config, notes = open_text(inputs), None, list[str]()
    with contextlib.ExitStack() as on_fault:
        on_fault.callback(inputs.close)
        datasets = [None if inputs.waits_for_answers else inputs.examples, inputs.held_out]
        notes += dict.fromkeys(one.shape for one in datasets if one is not None and one.shape)
        if isinstance(inputs.config, DataRunConfig) and inputs.config.epochs is not None:
            config, note = _with_steps(inputs, inputs.config)
            notes.append(note)
        memory = _memory(inputs)
        on_fault.pop_all()

    def build_job(asked: Any, inputs: TextInputs[T]) -> TrainingJob[Any]:  # noqa: ANN401 - the recipe's own
        own: Any = asked if asked.steps else config
        inputs.config = own
        return build(own, inputs)

    opened = opened_run(inputs, build_job, warnings=warnings, close=inputs.close)
    plan_checks = partial(_run_programs, inputs)
    return replace(opened, notes=notes, config=config, memory=memory, plan_checks=plan_checks)


def _with_steps(inputs: TextInputs[T], config: DataRunConfig) -> tuple[DataRunConfig | None, str]:
    """The config with the steps that its epochs make, and a sentence on them; None before an earlier stage has made the
    data or the tokenizer. Raises ConfigError for a task without rows."""
    if inputs.count is None:
        raise ConfigError(
            f"epochs = {config.epochs:g}: task.source = {inputs.config.task.source!r} has no rows to pass over; give "
            "steps"
        )
    if inputs.waits_for_answers or not inputs.has_model:
        return None, f"epochs = {config.epochs:g}: the steps are known once the earlier stages have run"
    return config.with_steps(inputs.count(inputs.prepared[0]), inputs.examples.source)


def _run_programs(inputs: TextInputs[T]) -> list[str]:
    """What the reference solutions and empty programs of the datasets score, for rewards that run programs."""
    notes: list[str] = []
    if inputs.rewards is not None and not inputs.waits_for_answers:
        notes += check_reference_programs([inputs.examples], inputs.rewards)
    evaluation = inputs.config.answers_evaluation()
    if evaluation is not None and inputs.held_out is not None:
        notes += [f"evaluation: {note}" for note in check_reference_programs([inputs.held_out], evaluation.rewards)]
    return notes


def _memory(inputs: TextInputs[T]) -> MemoryPlan:
    """The memory plan of a run; an empty one where an earlier stage makes the model."""
    config = inputs.config
    assert isinstance(config, RunConfig)
    if not inputs.has_model:
        return MemoryPlan(parameters=0, parts={})
    others = [path for path in inputs.other_policies if not is_to_come(path)]
    settings, recipe = config_settings(config), config.planned()
    return text_memory(settings, config.model, recipe, inputs.tokenizer[0], inputs.lengths, others=others)


def _policy_warnings(path: str) -> list[str]:
    """None; raises DataError where the policy's folder cannot be read."""
    open_tokenizer(ModelSource(path=path))
    return _weight_warnings(path)


def _weight_warnings(path: str) -> list[str]:
    """None; raises DataError where the weights are not those of the folder's config."""
    check_weights(path)
    return []


def _adapter_warnings(config: TextDataConfig) -> list[str]:
    """One on dropout. Raises ConfigError for an adapter that does not fit the model of `model.path` or for ranks,
    and DataError for a model that cannot be kept in codes."""
    source = config.model
    if config.run.ranks > 1 or config.run.virtual_ranks:
        try:
            source.refuse_codes("codes are not shared out among run.ranks")
        except ValueError as error:
            raise ConfigError(str(error)) from None
    assert source.path is not None and source.lora is not None
    folder = policy_folder(Path(source.path))
    check_adapter(folder, source.lora, source.weights)
    dropout = read_peft_folder(folder).dropout if is_adapter(folder) else 0.0
    return [f"{folder}: lora_dropout = {dropout:g} is not applied: hone trains adapters without"] if dropout else []


def _optimizer_warnings(source: ModelSource) -> list[str]:
    """None; raises DataError where the checkpoint has no intact optimizer state."""
    check_saved_optimizer(source)
    return []


def _check_evaluation_rewards(inputs: TextInputs[T]) -> list[str]:
    """Checks the functions in the training workers where both lists are the same: a process takes time to start."""
    evaluation = inputs.config.answers_evaluation()
    assert evaluation is not None
    assert inputs.held_out is not None
    same = inputs.rewards == evaluation.rewards
    scorer = inputs.scorer if same else inputs.evaluation_scorer
    return scorer.check(inputs.held_out.column_names(), inputs.held_out.rows)


def _held_out_warnings(inputs: TextInputs[T]) -> list[str]:
    """The dataset's own, and one on prompts that are in both sets; a generated training set leaves these out."""
    evaluation = inputs.config.answers_evaluation()
    assert evaluation is not None
    assert inputs.held_out is not None
    if evaluation.task.is_generated or evaluation.task.is_dialogue or inputs.waits_for_answers:
        return list(inputs.held_out.warnings)
    both = find_overlap(inputs.examples, inputs.held_out)
    overlap = f"{both.count} prompts stand in the training and in the evaluation set: {', '.join(both.ids[:5])}"
    return [*inputs.held_out.warnings, *([overlap] if both.count else [])]
