"""What the recipes for language models share: how answers are generated, and how they are shown.

Belongs here: wiring that two recipes need. Does not: anything that makes one recipe differ from another.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.generation import OnPublish, SamplingParams
from hone.engine.clients.http import ServerEngine
from hone.engine.grammar import named_grammar
from hone.engine.protocol import KvCache, RunnerKind
from hone.rewards.config import LearnableConfig
from hone.text.evaluate.dialogues import History


class AsyncRolloutConfig(Config):
    """Asynchronous generation: answers are generated while the policy learns from earlier ones."""

    steps: int = Field(ge=0, le=16)
    """Largest age of an answer's first token, in steps of the policy that learns from it; 0 is off."""
    on_publish: Literal["wait", "finish", "recompute", "keep"] = "wait"
    """Treatment of unfinished answers when new weights are published. `wait`: the step waits for all requested
    answers, and the run is reproducible bit for bit. `finish`: the step waits for answers in progress. `recompute`:
    answers continue with the new weights, and the KV cache is recomputed. `keep`: answers continue with the new
    weights and the old KV cache."""
    interleaving: str | None = Field(default=None, min_length=1)
    """`record`: write the policy version of every token to the run's `interleaving.jsonl`, so that the run can be
    replayed. Otherwise the folder of a recorded run, to be replayed bit for bit under the same settings."""

    @model_validator(mode="after")
    def _depends_on_time(self) -> "AsyncRolloutConfig":
        if self.interleaving is not None and not (self.steps and self.on_publish != "wait"):
            raise ValueError(
                f'interleaving with steps = {self.steps} and on_publish = "{self.on_publish}": such a run is the same '
                "whenever it is repeated, and has nothing to record; leave it out"
            )
        return self

    @property
    def records(self) -> bool:
        """True if the interleaving is written down."""
        return self.interleaving == "record"

    @property
    def replayed_run(self) -> str | None:
        """Folder of the run that is replayed; None where none is."""
        return None if self.records else self.interleaving

    def derive(self) -> dict[str, str]:
        """Derived numbers, for `hone plan`."""
        if self.steps == 0:
            return {}
        words = {"ahead": f"answers are at most {self.steps} steps old; at a publication: {self.on_publish}"}
        if self.replayed_run is not None:
            words["interleaving"] = f"replayed from {self.replayed_run}, in one thread"
        elif self.records:
            words["interleaving"] = "recorded"
        return words


class RolloutConfig(Config):
    """Generation settings: prompts per step, sampling, engine and staleness."""

    prompts_per_step: int = Field(ge=1)
    """Prompts asked in each step."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Answers to each prompt: the group whose scores are compared."""
    max_tokens: int = Field(ge=1)
    """Largest number of tokens of an answer."""
    temperature: float = Field(default=1.0, gt=0)
    """The policy is softmax(logits / temperature), for the engine and for the trainer."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens only; 0 is off."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; 1 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Leave out tokens with less than this share of the likeliest one's probability; 0 is off."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Texts that end an answer."""
    grammar: str | None = Field(default=None, min_length=1)
    """What an answer may be: a file of a JSON schema (`.json`) or of a grammar (`.lark`, `.gbnf`), or a regular
    expression between slashes. Tokens that cannot lead there are not sampled, and the trainer's log-probabilities leave
    out the same ones (docs/howto/grammar.md)."""
    runner: RunnerKind | ServerEngine = "auto"
    """Generation engine: `native` (compiled code), `native_bfloat16` and `native_int8` (the same in lower precision),
    `torch`, `torch_compiled` (torch.compile, for GPUs), or `auto` (native where it can be built). A table selects a
    server (docs/howto/servers.md)."""
    kv_cache: KvCache = "auto"
    """Numbers of keys and values in compiled code: `bfloat16` or `int8` (fewer bytes, a larger mismatch); `auto`: those
    of the runner's products, and bfloat16 for `native_int8`."""
    deterministic: Literal["off", "batch"] = "off"
    """`batch`: on CUDA too, an answer does not depend on its batch mates; on a CPU it never does."""
    max_staleness: Annotated[int, Field(ge=0, le=16)] | AsyncRolloutConfig = 0
    """Largest age of answers, in steps of the policy that learns from them; above 0 generation is asynchronous. A
    table also sets the treatment of unfinished answers at a publication (docs/concepts/generation.md)."""
    max_concurrent: int = Field(default=64, ge=1)
    """Answers generated at the same time; changes memory and speed, never the result."""

    sleep: bool = False
    """The embedded engine frees its keys and values, and compiled code its weights, while the policy learns; the same
    bits, and some time to allocate them again."""
    learnable: LearnableConfig = LearnableConfig()
    """Which answers have a part in the loss."""
    context: int | None = Field(default=None, ge=1)
    """Most tokens of a dialogue, prompt and all turns; unset: as many as the model has positions."""
    history: History = "append"
    """Earlier turns of a dialogue: `append` keeps all tokens as they are; `template` lets a chat template rewrite them
    (drop thoughts, say), and the dialogue goes on in another row of tokens."""

    def most_running(self, *, greedy: bool = False) -> int:
        """Most answers in progress at the same time: those of the steps that are begun, as far as there are slots.
        `greedy`: every prompt is answered greedily as well."""
        answers = self.prompts_per_step * (self.samples_per_prompt + greedy)
        return min(self.max_concurrent, answers * (self.asynchrony.steps + 1))

    @property
    def quantised(self) -> str | None:
        """The setting by which answers are drawn from codes of 8 bits; None: they are not."""
        if self.runner == "native_int8":
            return 'rollout.runner = "native_int8"'
        return 'rollout.kv_cache = "int8"' if self.kv_cache == "int8" else None

    @property
    def asynchrony(self) -> AsyncRolloutConfig:
        """`max_staleness` as a table."""
        allowed = self.max_staleness
        return allowed if isinstance(allowed, AsyncRolloutConfig) else AsyncRolloutConfig(steps=allowed)

    @property
    def mid_rollout_publish(self) -> OnPublish | None:
        """Treatment of unfinished answers at a publication; None if there are none."""
        rules = self.asynchrony
        return None if rules.steps == 0 or rules.on_publish == "wait" else rules.on_publish

    def warnings(self) -> list[str]:
        """Warnings before a run."""
        if self.mid_rollout_publish is None or self.asynchrony.replayed_run is not None:
            return []
        again = (
            "rollout.max_staleness.interleaving = its folder repeats it to the bit"
            if self.asynchrony.records
            else 'this run cannot be repeated to the bit (with "wait" it can, and with interleaving = "record")'
        )
        return [
            f'rollout.max_staleness.on_publish = "{self.mid_rollout_publish}": which weights drew which token '
            f"depends on time, so {again}"
        ]

    @model_validator(mode="after")
    def _check_cache(self) -> "RolloutConfig":
        compiled = not isinstance(self.runner, ServerEngine) and self.runner.startswith("native")
        if self.kv_cache != "auto" and not compiled:
            runner = "a server" if isinstance(self.runner, ServerEngine) else f'"{self.runner}"'
            raise ValueError(
                f'kv_cache = "{self.kv_cache}" is for compiled code, and runner is {runner}; set runner = "native", '
                '"native_bfloat16" or "native_int8", or leave kv_cache out'
            )
        return self

    @model_validator(mode="after")
    def _check_sleep(self) -> "RolloutConfig":
        if self.sleep and isinstance(self.runner, ServerEngine):
            raise ValueError("sleep = true is for the embedded engine, and runner is a server; leave it out")
        if self.sleep and self.asynchrony.steps:
            raise ValueError(
                f"sleep = true with max_staleness = {self.asynchrony.steps}: the engine writes while the policy "
                "learns; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_server_options(self) -> "RolloutConfig":
        if isinstance(self.runner, ServerEngine) and self.deterministic != "off":
            raise ValueError(
                f'deterministic = "{self.deterministic}" is a promise of the embedded engine, not of a server '
                "(docs/howto/servers.md); leave it out, or rollout.runner"
            )
        if isinstance(self.runner, ServerEngine) and self.mid_rollout_publish:
            raise ValueError(
                f'rollout.max_staleness.on_publish = "{self.mid_rollout_publish}" is for the embedded engine; a '
                'step waits for the answers of a server: set it to "wait"'
            )
        return self

    def sampling(self) -> SamplingParams:
        """The rollout's sampling."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            stop=tuple(self.stop),
            grammar=None if self.grammar is None else named_grammar(self.grammar, key="rollout.grammar"),
        )
