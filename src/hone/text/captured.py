"""Sessions of agents, wired: the address that they call, the engine that answers, and the scorer of their sessions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hone.core.clock import SystemClock
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, ResourceError
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.parallel.config import check_cluster
from hone.rewards.config import AgentSessionsConfig
from hone.rewards.scorer import RewardScorer
from hone.sources.live import LiveSource
from hone.text.adapters.verifiers import VerifiersDriver
from hone.text.evaluate.dialogues import dialogue_context
from hone.text.evaluate.engine_actor import EngineActor, check_grammar
from hone.text.fleet import generating_cluster
from hone.text.live import SamplingRunConfig, engine_actor
from hone.text.open_text import TextInputs
from hone.text.serving.capture.capture_world import CaptureDesk, CaptureLimits, CaptureWorld, SessionPlan
from hone.text.serving.completions.served_model import ServedModel
from hone.text.tasks.chat_rows import row_tokenizer
from hone.text.tasks.conversation import AnswerEffort
from hone.text.tasks.dataset import ExampleDataset, build_examples
from hone.text.tasks.task import VERIFIERS, TaskConfig, agent_address
from hone.text.tasks.world import Prompt
from hone.text.tools.formats import TOOL_FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedText:
    """Sessions of agents as a live task: the address, the engine and the scorer."""

    world: CaptureWorld
    actor: EngineActor
    scorer: RewardScorer
    close_address: Callable[[], None]

    def source(self) -> LiveSource[TokenPolicy]:
        """Source of their episodes."""
        return LiveSource[TokenPolicy](self.world, self.actor, actor_metrics=self.metrics)

    def metrics(self) -> Metrics:
        """Metrics of the latest rollout."""
        return {**self.actor.metrics(), **self.scorer.metrics(), **self.world.metrics()}

    def reference(self, group: int) -> str | None:
        """Agents bring their questions, and no reference answers."""
        del group

    def efforts(self, group: int) -> Sequence[AnswerEffort]:
        """Agents take their own time."""
        del group
        return ()

    def notes(self) -> list[str]:
        """Notes for the user since the last call."""
        return [*self.scorer.notes(), *self.actor.notes(), *self.world.notes()]

    def close(self) -> None:
        """End the agents that were started, then the address."""
        if self.world.driver is not None:
            self.world.driver.close()
        self.actor.close()
        self.world.desk.close("the run has ended")
        self.close_address()


def captured_inputs(
    config: SamplingRunConfig,
    *,
    other_policies: Sequence[str] = (),
    more_checks: Mapping[str, Callable[[], Sequence[str]]] | None = None,
) -> TextInputs[Sequence[Prompt]]:
    """Inputs of a run whose dialogues are held by agents: they bring the prompts."""

    agents = config.user_code.agents or AgentSessionsConfig()
    source, driver = config.task.source, _driver(config.task, agents.python)

    def lay_out(examples: ExampleDataset, tokenizer: Tokenizer, context: int) -> tuple[Sequence[Prompt], list[str]]:
        del examples
        check_grammar(config.rollout.sampling(), tokenizer)
        dialogue_context(config.rollout.context, context)
        tokenizer.check_chat_continuation()
        return [], []

    def check_staleness() -> list[str]:
        if steps := config.rollout.asynchrony.steps:
            raise ConfigError(
                f"rollout.max_staleness = {steps}: agents wait while the policy learns, so that all answers of a step "
                "are drawn by one policy; leave it out"
            )
        return []

    return TextInputs(
        config=config,
        read=lambda _: build_examples([], source=source) if driver is None else driver.examples(),
        lay_out=lay_out,
        rewards=config.rewards,
        other_policies=[*other_policies, *config.rewards.local_judges],
        more_checks={
            **(more_checks or {}),
            "agents": check_staleness,
            "cluster": partial(check_cluster, generating_cluster(config.rollout, config.cluster)),
        },
    )


def open_captured_text(
    config: SamplingRunConfig, inputs: TextInputs[Sequence[Prompt]], policy: TokenPolicy, *, greedy_baseline: bool
) -> CapturedText:
    """Take the address, and serve it. Raises ResourceError if something else has it or the extra `serve` is missing,
    ConfigError for credit that needs greedy answers."""
    task, rollout, clock, desk = config.task, config.rollout, SystemClock(), CaptureDesk()
    if greedy_baseline:
        raise ConfigError(
            f"task.source = {task.source!r}: this recipe compares answers with greedy ones, and an agent's dialogue is "
            "held once; take a recipe such as grpo"
        )
    try:  # the base install has no web server
        from hone.text.serving.capture.capture_app import (  # noqa: PLC0415
            MODEL_NAME,
            CaptureRoutes,
            CaptureServer,
        )
    except ModuleNotFoundError as error:
        missing = f"task.source = {task.source!r} needs {error.name}: pip install 'hone-rl[serve]'"
        raise ResourceError(missing) from None
    tokenizer = row_tokenizer(task, {}, policy.tokenizer)
    context = dialogue_context(rollout.context, policy.decoder.config.max_positions)
    agents = config.user_code.agents or AgentSessionsConfig()
    driver = _driver(task, agents.python)
    host, port = agent_address(task.source) if driver is None else ("127.0.0.1", 0)
    server = CaptureServer(host, port)
    address = server.bind()
    served = ServedModel(
        name=MODEL_NAME, tokenizer=tokenizer, context=context, fingerprint_of="version {}".format,
        tool_format=TOOL_FORMATS[task.tool_format], describes_tools=task.describes_tools,
    )  # fmt: skip
    server.start(CaptureRoutes(desk, clock, served).app())
    plan = None
    if driver is not None:
        rows = inputs.examples.rows
        plan = SessionPlan(
            rows=[row.columns for row in rows],
            ids=[row.id for row in rows],
            per_step=rollout.prompts_per_step,
            samples=rollout.samples_per_prompt,
            seed=config.seed,
        )
    world = CaptureWorld(
        desk=desk,
        tokenizer=tokenizer,
        sampling=rollout.sampling(),
        limits=CaptureLimits(
            sessions=rollout.prompts_per_step * rollout.samples_per_prompt,
            context=context,
            deadline_s=agents.deadline_s,
            patience_s=5 * agents.deadline_s,
        ),
        clock=clock,
        address=address,
        scorer=inputs.scorer,
        tool_format=TOOL_FORMATS[task.tool_format],
        describes_tools=task.describes_tools,
        plan=plan,
        driver=driver,
    )
    actor = engine_actor(policy, rollout, context - rollout.max_tokens, seed=config.seed, cluster=config.cluster)
    return CapturedText(world=world, actor=actor, scorer=inputs.scorer, close_address=server.close)


def _driver(task: TaskConfig, python: str) -> VerifiersDriver | None:
    """Holder of the sessions; None where agents come of themselves."""
    if not task.source.startswith(VERIFIERS):
        return None
    return VerifiersDriver(name=task.source.removeprefix(VERIFIERS), config=task.options, size=task.size, python=python)
