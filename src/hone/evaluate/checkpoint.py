"""Evaluation and samples of a saved policy on the task of its run.

Belongs here: from a policy folder and its run's config to an evaluation. `hone.text.evaluate.text_eval` scores answers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hone.core.errors import ConfigError, DataError
from hone.core.generation import GenerationSession, Request, SamplingParams, generate
from hone.core.random import permutation
from hone.engine.clients.http import HttpClient, ServerAddress
from hone.engine.clients.openai import OpenAiClient
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.run.saved_config import config_tree, is_control, policy_folder, table_of
from hone.run.store.checkpoints import verify_policy
from hone.run.store.evaluations import AnswerRow
from hone.run.store.records import SearchRecord
from hone.text.evaluate.dialogues import task_tokenizer
from hone.text.evaluate.engine_actor import StreamingEngine, StreamListener, make_engine
from hone.text.evaluate.evaluation_request import OWN_SEARCH, OWN_TASK, EvaluationTask, SearchOptions
from hone.text.evaluate.open_policy import ModelSource, open_policy, open_tokenizer
from hone.text.evaluate.reward_members import load_reward_scorer, reward_scorer
from hone.text.evaluate.search_eval import OpenedSearch
from hone.text.evaluate.text_eval import (
    EvaluationConfig,
    GenerationReport,
    ScoredAnswers,
    TextEvaluation,
    evaluate_text_server,
    evaluation_config,
    prepare_evaluation,
    prompt_task,
    user_code_limits,
)
from hone.text.tasks.chat_rows import asked_row
from hone.text.tasks.task import TaskConfig

_ALL = 1 << 40
"""More problems than a file has."""
SERVER_KEY = "HONE_SERVER_KEY"
"""Environment variable with the bearer token for the evaluated server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEvaluation:
    """Scores of an evaluation, and how its answers were generated."""

    scores: Mapping[str, float]
    generation: GenerationReport | None = None
    """None for a control policy."""
    notes: Sequence[str] = ()
    """Warnings for the user: episodes that were lost, or did not end; searches that did worse than a vote."""
    search: SearchRecord | None = None
    """Accuracy of searches at test time by tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Number of answers, prompt and sampling."""

    run: Path | None
    """Run with the config of the task."""
    prompt: str | None
    """Prompt to be answered `count` times; None: `count` held-out problems of the run, once each."""
    count: int
    temperature: float
    """0 is greedy."""
    seed: int
    device: str
    task: EvaluationTask = OWN_TASK
    """Problems and rewards in place of the run's own."""
    raw: bool = False
    """Send `prompt` as it is to a model with a chat template, too."""


SampledAnswer: TypeAlias = tuple[str, str, float | None]
"""Prompt, answer, and score if there is a scorer."""


def evaluate_checkpoint(
    policy: Path,
    *,
    run: Path | None,
    problems: int,
    seed: int,
    device: str,
    task: EvaluationTask = OWN_TASK,
    search: SearchOptions = OWN_SEARCH,
) -> PolicyEvaluation:
    """Evaluate the policy on held-out work of its run, or on another `task`. With `seed` 0 the problems are the run's
    own; another seed generates other problems, or selects others from a file. Searches are those of the run's
    `[evaluation.search]`, changed by `search`.

    Raises ConfigError if no task is known, DataError for a damaged folder.
    """
    verify_policy(policy)
    if is_control(policy):
        if task != OWN_TASK:
            raise ConfigError(f"{policy} is a control policy: --task and --rewards are for language models")
        if search != OWN_SEARCH:
            raise ConfigError(f"{policy} is a control policy: --search is for language models")
        if run is None:
            raise ConfigError(f"{policy} is not in a run, so its environment is unknown; name a run or its checkpoint")
        from hone.control.evaluate.returns import evaluate_control, evaluate_tasks  # noqa: PLC0415 - start-up

        notes: list[str] = []
        config = config_tree(run)
        evaluated = evaluate_tasks if "tasks" in config else evaluate_control
        scores = evaluated(policy, config=config, episodes=problems, seed=seed, warn=notes.append)
        return PolicyEvaluation(scores=scores, notes=notes)
    config = evaluation_config(run, task, problems=problems, seed=seed, search=search)
    loaded = _open(policy, device)
    exam = _prepared(config, run, loaded.tokenizer, loaded.decoder.config.max_positions, problems, seed, device)
    try:
        judged = exam.evaluate_policy(loaded)
        searched = _search(exam, loaded, run, device)
    finally:
        exam.close()
    return PolicyEvaluation(
        scores=judged.metrics(),
        generation=judged.generation,
        search=searched,
        notes=() if searched is None else searched.notes,
    )


def search_run(run: Path, *, device: str) -> SearchRecord | None:
    """Run the searches of `[evaluation.search]` on the newest policy of a run; None for a run without them.

    Raises HoneError as `evaluate_checkpoint`.
    """
    table = table_of(config_tree(run), "evaluation")
    if not table_of(table, "search"):
        return None
    config = EvaluationConfig.model_validate(table)
    policy, most = policy_folder(run), config.task.size if config.task.is_generated else _ALL
    loaded = _open(policy, device)
    exam = _prepared(config, run, loaded.tokenizer, loaded.decoder.config.max_positions, most, 0, device)
    try:
        return _search(exam, loaded, run, device)
    finally:
        exam.close()


def _search(exam: TextEvaluation, policy: TokenPolicy, run: Path | None, device: str) -> SearchRecord | None:
    if exam.config.search is None:
        return None
    load = partial(load_reward_scorer, device=device, tokenizer=policy.tokenizer)
    search = OpenedSearch(config=exam.config.search, exam=exam, load=load, limits=user_code_limits(run))
    try:
        return search.run(policy)
    finally:
        search.close()


def evaluate_server(
    policy: Path, *, run: Path | None, url: str, model: str, problems: int, seed: int, task: EvaluationTask = OWN_TASK
) -> PolicyEvaluation:
    """Evaluate a server with OpenAI's protocol on the questions of the run; without `model`, the server's first model.

    Raises ConfigError as `evaluate_checkpoint`, and if the server names no model; ServerError as the client does.
    """
    if is_control(policy):
        raise ConfigError(f"{policy}: --server is for language models, and this is a control policy")
    config = evaluation_config(run, task, problems=problems, seed=seed)
    if config.rewards.has_model:
        raise ConfigError(
            f"{run}: evaluation.rewards has a reward model, which scores token ids, and --server gets text; serve the "
            'reward model as kind = "server", or leave --server out'
        )
    if config.task.is_dialogue:
        raise ConfigError(
            f"{run}: evaluation.task is a dialogue, whose turns go on token by token, and --server gets text; leave "
            "--server out"
        )
    tokenizer, context = open_tokenizer(ModelSource(path=str(policy)))
    key_from = SERVER_KEY if SERVER_KEY in os.environ else None
    client = OpenAiClient(HttpClient(ServerAddress(url=url, api_key_env=key_from)), model=model, seed=seed)
    exam: TextEvaluation | None = None
    try:
        if not model:
            served = client.models()
            if not served:
                raise ConfigError(f"{url} names no model; give its name with --model")
            client.model = served[0]
        exam = _prepared(config, run, tokenizer, context, problems, seed)
        judged = evaluate_text_server(exam, client)
    finally:
        client.close()
        if exam is not None:
            exam.close()
    return PolicyEvaluation(scores=judged.metrics(), notes=[f"evaluated {client.model} at {url}, with prompts as text"])


def sample_answers(
    policy: Path, wanted: SampleRequest, hearer: StreamListener | None = None
) -> Sequence[SampledAnswer]:
    """Sample the answers that `wanted` describes; `hearer` receives their text while it is generated."""
    if is_control(policy):
        raise ConfigError(f"{policy} is a control policy, which writes no text; evaluate it with `hone eval`")
    loaded = _open(policy, wanted.device)
    if wanted.prompt is not None:
        return [(wanted.prompt, answer, None) for answer in _answer_prompt(loaded, wanted.prompt, wanted, hearer)]
    judged = _judged(policy, loaded, wanted, hearer)
    scores = [None if np.isnan(score) else float(score) for score in judged.scores]
    return list(zip(judged.prompts, judged.answers, scores, strict=True))


def sample_dialogues(policy: Path, wanted: SampleRequest) -> Sequence[AnswerRow]:
    """Hold `count` dialogues with the world or tools of the run's task. Raises ConfigError for a task without."""
    if is_control(policy):
        raise ConfigError(f"{policy} is a control policy, which writes no text; evaluate it with `hone eval`")
    if wanted.prompt is not None:
        raise ConfigError("--dialogue is about problems of the task, and --prompt asks one of yours; leave one out")
    rows = _judged(policy, _open(policy, wanted.device), wanted, None).rows()
    if not any(row.turns or row.stop for row in rows):
        raise ConfigError(f"{policy}: its task has prompts that are answered once; leave --dialogue out")
    return rows


def _judged(policy: Path, loaded: TokenPolicy, wanted: SampleRequest, hearer: StreamListener | None) -> ScoredAnswers:
    """Answers to `count` held-out problems."""
    if wanted.run is None and not wanted.task.task:
        raise ConfigError(f"{policy} is not in a run: give a prompt with --prompt, or problems with --task")
    config = evaluation_config(wanted.run, wanted.task, problems=wanted.count, seed=wanted.seed).model_copy(
        update={"temperature": wanted.temperature, "seed": wanted.seed}
    )
    context = loaded.decoder.config.max_positions
    exam = _prepared(config, wanted.run, loaded.tokenizer, context, wanted.count, wanted.seed, wanted.device)
    try:
        return exam.evaluate_policy(loaded, hearer)
    finally:
        exam.close()


def _open(policy: Path, device: str) -> TokenPolicy:
    return open_policy(ModelSource(path=str(policy)), seed=0, device=device, temperature=1.0)


def _prepared(
    config: EvaluationConfig,
    run: Path | None,
    tokenizer: Tokenizer,
    context: int,
    problems: int,
    seed: int,
    device: str = "cpu",
) -> TextEvaluation:
    """Prepare the evaluation of at most `problems` prompts; the seed selects them if a file contains more. Reward
    functions cannot write into the folder `run`."""
    load = partial(load_reward_scorer, device=device, tokenizer=tokenizer)
    scorer = reward_scorer(config.rewards, limits=user_code_limits(run), load=load)
    exam = prepare_evaluation(config, tokenizer, context=context, scorer=scorer)
    try:
        scorer.check(exam.examples.column_names(), exam.examples.rows)
        if run is not None:
            exam.write_protect(run)
    except BaseException:
        exam.close()
        raise
    if config.task.is_generated or not seed:
        return replace(exam, prompts=exam.prompts[:problems])
    order = permutation(seed, "exam", count=len(exam.prompts))[:problems]
    return replace(exam, prompts=[exam.prompts[place] for place in sorted(order.tolist())])


def _answer_prompt(policy: TokenPolicy, prompt: str, wanted: SampleRequest, hearer: StreamListener | None) -> list[str]:
    template, limit = prompt_task(wanted.run)
    plain = template is not None and template.template.count("{") == template.template.count("{prompt}")
    task = TaskConfig(source="prompt") if template is None else template
    task = task if plain else task.model_copy(update={"template": "{prompt}"})
    task = task.model_copy(update={"chat": False, "system": ""}) if wanted.raw else task
    tokenizer = task_tokenizer(task, policy.tokenizer, user_code_limits(wanted.run))
    tokens = asked_row(task, prompt, {}, tokenizer).tokens
    room = policy.decoder.config.max_positions - len(tokens)
    if room < 1:
        raise DataError(f"the prompt has {len(tokens)} tokens; the model's context is {len(tokens) + room}")
    most = min(wanted.task.max_tokens or limit, room)
    engine = make_engine(
        policy, slots=min(wanted.count, 64), longest_prompt=len(tokens), max_tokens=most, seed=wanted.seed
    )
    sampling = SamplingParams(max_tokens=most, greedy=wanted.temperature == 0, temperature=wanted.temperature or 1.0)
    request = Request(id="prompt", prompt=tokens, samples=wanted.count, sampling=sampling)
    actor: GenerationSession = engine
    if hearer is not None:
        hearer.on_prompts([prompt] * wanted.count)
        actor = StreamingEngine(engine, policy.tokenizer.decode, hearer)
    completions = sorted(generate(actor, [request]), key=lambda one: one.sample_index)
    return [policy.tokenizer.decode(one.tokens) for one in completions]
