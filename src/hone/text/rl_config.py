"""Config of the recipes that learn from their own scored answers, and the parts that a recipe's `method` returns.

Belongs here: keys, what they must hold together, and their derived figures. The wiring of a job is in `rl_job`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, cast

from pydantic import model_validator

from hone.core.config import with_values
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.state import Stateful
from hone.credit.pairs import LabelCredit
from hone.engine.clients.config import ServerEngine
from hone.learner.config import require_master_weights, require_whole_minibatches
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.parallel.config import ClusterConfig
from hone.planner.run_settings import PlannedRecipe
from hone.rewards.config import RewardsConfig
from hone.run.job import no_notices
from hone.run.loop import Learner, Source
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.evaluate.dialogues import dialogue_faults, with_world_reward
from hone.text.evaluate.second_answer import SecondAnswer
from hone.text.fleet import require_own_engine
from hone.text.open_text import LanguageRunConfig
from hone.text.presets import PresetName, preset_values
from hone.text.ratio import Denominator, RatioConfig, RatioLearnerConfig, resolve_denominator, resolve_step_correction
from hone.text.reference_policies import TextPolicies
from hone.text.rollout_config import RolloutConfig

# ------------------------------------------------------------------------------------------------------------ quantised


WEIGHT_CAP: Final = 2.0
"""Largest weight of a token."""
MAX_MISMATCH_NATS: Final = 0.05
"""Mean |trainer - engine| of a step that stops a run: seventy times that of 8-bit codes on a trained model."""


def ratio_defaults(given: Mapping[str, object]) -> Mapping[str, object]:
    """Values of `learner.ratio` for a config whose rollouts are quantised, in tables; empty for any other.

    Truncated importance weights of tokens, a ratio against the trainer's own log-probabilities, and an alarm. A ratio
    against the recorded log-probabilities is itself the correction.
    """
    if not _is_quantised(given.get("rollout")):
        return {}
    learner = given.get("learner")
    ratio = cast("Mapping[str, Any]", learner).get("ratio", {}) if isinstance(learner, Mapping) else {}
    defaults: dict[str, object] = {"max_mismatch_nats": MAX_MISMATCH_NATS}
    asked = cast("Mapping[str, Any]", ratio) if isinstance(ratio, Mapping) else {}
    if asked.get("denominator") != "recorded":
        defaults["denominator"] = "recomputed"
        if "correction" not in asked:
            defaults |= {"correction": "truncated_is", "weight_cap": WEIGHT_CAP}
    return {"learner": {"ratio": defaults}}


def _is_quantised(rollout: object) -> bool:
    if isinstance(rollout, RolloutConfig):
        return rollout.quantised is not None
    table = cast("Mapping[str, object]", rollout) if isinstance(rollout, Mapping) else {}
    return table.get("runner") == "native_int8" or table.get("kv_cache") == "int8"


def _require_ratio(rollout: RolloutConfig, *, has_ratio: bool) -> None:
    """Raise ValueError for a loss without a ratio on quantised answers."""
    if rollout.quantised is not None and not has_ratio:
        raise ValueError(
            f"{rollout.quantised}: the answers are not drawn from the trainer's probabilities, and this loss has no "
            'ratio that corrects for it; take a recipe with a ratio such as grpo, or rollout.runner = "native"'
        )


def _require_correction(rollout: RolloutConfig, ratio: RatioConfig, *, denominator: str) -> None:
    """Raise ValueError where quantised answers would be taken for the trainer's own."""
    if rollout.quantised is None or denominator == "recorded":
        return
    if denominator == "self":
        raise ValueError(
            f'{rollout.quantised}: learner.ratio.denominator = "self" takes the answers for the trainer\'s own draws; '
            'leave it out (then it is "recomputed"), or set "recomputed" or "recorded"'
        )
    if ratio.correction == "none":
        raise ValueError(
            f'{rollout.quantised}: learner.ratio.correction = "none" leaves the difference between engine and trainer '
            'uncorrected; leave it out (then it is "truncated_is" with weight_cap = 2), or set learner.ratio.'
            'denominator = "recorded"'
        )


# ------------------------------------------------------------------------------------------------------------ rl config


TextCredit = Callable[[Episodes, Values], Credits]


class TextRunConfig(LanguageRunConfig):
    """Config shared by the recipes that learn from scored answers, with any kind of update."""

    requires: ClassVar[Sequence[Callable[..., None]]] = ()
    """What a recipe asks of its config beyond the types; each raises ValueError, naming the keys."""

    keeps_last_words: ClassVar[bool] = False
    """The recipe learns from what a world says at the end of a dialogue, after the policy's last turn."""
    has_ratio: ClassVar[bool] = False
    """The loss has an importance ratio, which can correct for answers of another policy."""
    labels: ClassVar[LabelCredit | None] = None
    """Labels that the loss takes in the place of advantages; None: it takes any advantages."""

    task: DialogueTaskConfig  # pyright: ignore[reportIncompatibleVariableOverride] - a config is frozen
    """The prompts, or the world of dialogues."""
    preset: PresetName | None = None
    """Library whose defaults `algorithm` and `learner.ratio` take where they are not given; unset: the recipe's own."""
    rewards: RewardsConfig
    """Reward functions and the processes that run them; a world's own rewards count without being named."""
    rollout: RolloutConfig
    """Generation of the answers."""
    cluster: ClusterConfig | None = None
    """Replicas on several processes or machines that generate the answers; absent: the embedded engine."""

    @model_validator(mode="before")
    @classmethod
    def _pay_by_world(cls, given: object) -> object:
        return with_world_reward(given)

    @model_validator(mode="after")
    def _check_rollout(self) -> "TextRunConfig":
        if isinstance(self.rollout.runner, ServerEngine):
            require_full_distribution(self, why="a server does not say which tokens it left, so that ratios are biased")
        for requirement in self.requires:
            requirement(self)
        _require_ratio(self.rollout, has_ratio=self.has_ratio and require_on_policy not in self.requires)
        require_dialogues_fit(self.task, self.rewards, self.rollout)
        require_own_engine(self.rollout, self.cluster)
        if self.rollout.sleep and self.cluster is not None:
            raise ValueError("rollout.sleep is for the embedded engine, and [cluster] has replicas; leave it out")
        if (self.task.is_dialogue or self.task.is_captured) and self.second_answer() is not None:
            raise ValueError(
                f"task.source = {self.task.source!r}: this recipe answers prompts twice, and has no dialogues"
            )
        self.rewards.check_group_size(self.rollout.samples_per_prompt, "rollout.samples_per_prompt")
        return self

    @classmethod
    def preset_values(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """What `preset` sets for the recipe, without what `given` sets. Raises ValueError where there is none."""
        return preset_values(cls, given)

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe(writes=True, moments=0)

    def other_policies(self) -> Sequence[str]:
        """Folders of further policies that the run reads, for the check."""
        return ()

    def check_folders(self, tokenizer: Tokenizer, longest: int) -> None:
        """Raise DataError for folders of further networks that do not go with the policy's tokens, or read fewer than
        the `longest` prompt and answer have."""

    def more_checks(self) -> Mapping[str, Callable[[], Sequence[str]]]:
        """Further checks before a model is loaded, by name, which return warnings or raise HoneError."""
        return {}

    def second_answer(self) -> SecondAnswer | None:
        """Nudge after which each prompt is answered again; None: once only."""
        return None

    @abstractmethod
    def method(self, policies: TextPolicies) -> "TextMethod":
        """Credit and learner of the recipe, wired; `recipe_parts` reads their names from here."""

    @abstractmethod
    def micro_batch_tokens(self) -> int:
        """Tokens that go through the network at a time."""

    @abstractmethod
    def derive_updates(self) -> dict[str, str]:
        """Derived numbers of a step's updates, for `hone plan`."""


class TextGradientRunConfig(TextRunConfig):
    """Config shared by the recipes that learn from scored answers by gradient."""

    auto_denominator: ClassVar[Denominator] = "auto"
    """What a recipe takes `learner.ratio.denominator = "auto"` for; `auto`: the first that fits."""

    needs_old_policy: ClassVar[bool] = False
    """The recipe computes log-probabilities of the policy before the update, whatever the ratio's denominator."""
    has_ratio: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = False
    """The loss reads the entropy of every token, without an entropy bonus as well."""
    corrects_itself: ClassVar[bool] = False
    """The loss corrects for the behaviour policy by a weight of its own."""

    learner: RatioLearnerConfig
    """The optimizer, minibatches and the importance ratio."""

    @model_validator(mode="after")
    def _check_learner(self) -> "TextGradientRunConfig":
        rollout = self.rollout
        require_whole_minibatches(self.learner, rollout.prompts_per_step, "rollout.prompts_per_step")
        require_master_weights(self.learner, self.model.weights)
        if self.denominator() == "recorded" and self.learner.ratio.rejections and not self.needs_old_policy:
            raise ValueError(
                "learner.ratio.rejections compare the policy before the update with the behaviour policy, and a ratio "
                "against recorded log-probabilities computes only the second; set learner.ratio.denominator = "
                '"recomputed"'
            )
        if not self.corrects_itself:
            _require_correction(self.rollout, self.learner.ratio, denominator=self.denominator())
        resolve_step_correction(self.learner.ratio)
        return self

    @classmethod
    def preset_values(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """What `preset` sets, and what quantised rollouts set where neither it nor `given` does."""
        values = super().preset_values(given)
        if cls.corrects_itself or cls.auto_denominator == "recorded":
            return values
        return with_values(values, ratio_defaults(with_values(given, values)))

    def micro_batch_tokens(self) -> int:
        return self.learner.micro_batch_tokens

    @classmethod
    def planned(cls) -> PlannedRecipe:
        rows = ("rollout.prompts_per_step", "rollout.samples_per_prompt")
        return PlannedRecipe(rows=rows, writes=True, entropy=cls.needs_entropy)

    def derive_updates(self) -> dict[str, str]:
        learner = self.learner
        return {
            "minibatches": f"{learner.minibatches} of {self.rollout.prompts_per_step // learner.minibatches} prompts, "
            f"{learner.epochs} epochs",
            "optimizer steps": f"{self.steps} steps x {learner.epochs * learner.minibatches} = "
            f"{learner.optimizer_steps(self.steps)}",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        }

    def denominator(self) -> Literal["self", "recomputed", "recorded"]:
        """Resolve `ratio.denominator`."""
        ratio, stale = self.learner.ratio, self.rollout.asynchrony.steps > 0
        if ratio.denominator == "auto":
            ratio = ratio.model_copy(update={"denominator": self.auto_denominator})
        return resolve_denominator(ratio, updates_per_rollout=self.learner.optimizer_steps(1), is_stale=stale)


def require_dialogues_fit(task: DialogueTaskConfig, rewards: RewardsConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError with all settings of dialogues that do not go together."""
    faults = dialogue_faults(
        task, rewards, max_tokens=rollout.max_tokens, context=rollout.context, history=rollout.history
    )
    if faults:
        raise ValueError("; ".join(faults))


def require_full_distribution(
    config: TextRunConfig, *, why: str = "this recipe looks at other tokens than the chosen one, and needs them all"
) -> None:
    """The embedded engine records what top-k, top-p and min-p left, and the trainer draws the same line: ratios stay
    unbiased. Where that cannot be done, truncation is refused."""
    rollout = config.rollout
    cut = [f"rollout.top_k = {rollout.top_k}"] if rollout.top_k else []
    cut += [f"rollout.top_p = {rollout.top_p}"] if rollout.top_p < 1 else []
    cut += [f"rollout.min_p = {rollout.min_p}"] if rollout.min_p > 0 else []
    if cut:
        raise ValueError(f"{' and '.join(cut)}: {why}; leave it out, and lower rollout.temperature instead")


def require_groups(config: TextRunConfig) -> None:
    """Credit that compares the answers to one question needs two of them."""
    if config.rollout.samples_per_prompt < 2:
        raise ValueError("rollout.samples_per_prompt must be at least 2: answers are judged by each other")


def require_on_policy(config: TextGradientRunConfig) -> None:
    """A loss without a ratio is the policy gradient of the policy that answered, and of no later one."""
    if steps := config.rollout.asynchrony.steps:
        raise ValueError(
            f"rollout.max_staleness = {steps}: this loss has no ratio, and would be biased on the answers of an "
            "older policy; leave it out, or take a recipe with a ratio such as grpo"
        )
    updates = config.learner.optimizer_steps(1)
    if updates > 1:
        raise ValueError(
            f"learner.epochs x learner.minibatches = {updates}: this loss has no ratio, and would be biased after the "
            "first update on the same answers; set both to 1, or take a recipe with a ratio such as grpo"
        )


class GroupRunConfig(TextGradientRunConfig):
    """Config shared by the recipes that compare the answers to one question, by gradient."""

    requires = (require_groups,)


@dataclass
class NotesOnce:
    """Notes for the user that are given out once."""

    notes: list[str]

    def __call__(self) -> list[str]:
        given, self.notes = self.notes, []
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMethod:
    """Parts that differ between the recipes on text."""

    credit: TextCredit
    learner: Learner[TokenPolicy]
    wrap_source: Callable[[Source[TokenPolicy]], Source[TokenPolicy]] | None = None
    """Wraps the source."""
    greedy_baseline: bool = False
    """Every prompt is answered greedily as well, for credit that compares with that."""
    credit_state: Stateful | None = None
    """The credit's, where it has one."""
    pop_notes: Callable[[], Sequence[str]] = no_notices
    """Returns notes for the user since the last call."""
