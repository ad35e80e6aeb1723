"""From the fields of a request to prompts and engine requests: what is drawn, by which key, and calls of tools."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message
from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.generation import Request, SamplingParams, ScoreRequest
from hone.models.language.tokenizers import Tokenizer
from hone.run.http.requests import ApiError
from hone.text.serving.completions.fields import (
    MAX_ANSWERS,
    ChatFields,
    ChatMessage,
    SamplingFields,
    TextFields,
    ToolChoice,
    ToolFields,
)
from hone.text.serving.completions.served_model import ServedModel
from hone.text.tasks.task import variable_fault
from hone.text.tools.described import with_tools
from hone.text.tools.formats import TOOL_FORMATS, ToolFormat
from hone.text.tools.schemas import schema_of

# ----------------------------------------------------------------------------------------------------------- tool calls


def chat_tokenizer(
    tokenizer: Tokenizer,
    tools: Sequence[ToolSchema],
    tool_format: ToolFormat | None,
    variables: Mapping[str, object] | None = None,
    *,
    describe: bool | None = True,
) -> Tokenizer:
    """The tokenizer whose chat template is told of `tools` and `variables`. Raises ApiError for tools without a form of
    calls, and for variables that hone sets itself."""
    if variables:
        if fault := variable_fault(variables):
            raise ApiError(400, f"chat_template_kwargs: {fault}", param="chat_template_kwargs", code="invalid_value")
        tokenizer = replace(tokenizer, variables={**tokenizer.variables, **variables})
    if not tools:
        return tokenizer
    if tool_format is None:
        raise ApiError.unsupported(
            "tools",
            "this model has no chat template, or its template writes calls in no known format; start the server with "
            f"--tool-format ({', '.join(TOOL_FORMATS)}) if it was trained with one",
        )
    return with_tools(tokenizer, [one.as_function() for one in tools], tool_format, describe=describe)


def tool_schemas(given: Sequence[ToolFields]) -> tuple[ToolSchema, ...]:
    """Tools of a request. Raises ApiError for two of one name."""
    names = [one.function.name for one in given]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ApiError(400, f"two tools have the name {twice[0]!r}", param="tools", code="invalid_value")
    return tuple(schema_of(one.model_dump(exclude_none=True)) for one in given)


def _begun_call(choice: str | ToolChoice | None, tools: Sequence[ToolSchema], tool_format: ToolFormat | None) -> str:
    """Text with which an answer begins that has to call a tool: up to the name of the tool, and that name where one is
    chosen. Empty where the model decides. Raises ApiError for a tool that is not among `tools`."""
    if not isinstance(choice, ToolChoice) and choice != "required":
        return ""
    name = choice.function.name if isinstance(choice, ToolChoice) else (tools[0].name if len(tools) == 1 else "")
    tool = next((one for one in tools if not name or one.name == name), None)
    if tool is None or tool_format is None:
        asked = f"the tool {name!r}" if name else "a call"
        raise ApiError(
            400, f"tool_choice asks for {asked}, which is not in tools", param="tool_choice", code="invalid_value"
        )
    text = tool_format.example(tool, tools)
    return text[: text.index(tool.name) + len(name)]


def _with_objects(message: Message, place: int) -> Message:
    """A message whose calls have their arguments as objects, as chat templates read them; OpenAI sends them as text.
    Raises ApiError for arguments that are no JSON object."""
    calls = cast("Sequence[Mapping[str, Any]] | None", message.get("tool_calls"))
    if not calls:
        return message
    objects: list[Mapping[str, Any]] = []
    for number, call in enumerate(calls):
        function = cast("Mapping[str, Any]", call.get("function") or {})
        arguments = _object(function.get("arguments"))
        if arguments is None:
            where = f"messages[{place}].tool_calls[{number}].function.arguments"
            raise ApiError(400, f"{where} must be a JSON object", param=where, code="invalid_value")
        objects.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": objects}


def call_shapes(calls: Sequence[ToolCall], answer: str, *, ascii_only: bool = False) -> list[dict[str, Any]]:
    """Calls in OpenAI's shape; `answer` names the answer, and is a part of their ids."""
    texts = [json.dumps(dict(one.arguments), ensure_ascii=ascii_only) for one in calls]
    return [
        {"id": f"call_{answer}_{place}", "type": "function", "function": {"name": one.name, "arguments": text}}
        for place, (one, text) in enumerate(zip(calls, texts, strict=True))
    ]


def _object(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except ValueError:
            return None
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


# ---------------------------------------------------------------------------------------------------------------- asked

_DEFAULT_TOKENS = 16
"""`max_tokens` of a completion that does not say it, as in OpenAI's protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One prompt of a request, with what is to be done."""

    tokens: NDArray[np.int32]
    text: str
    """The prompt as it was given, or the text of its ids; empty for a chat."""
    request: Request | None
    """None: nothing is drawn."""
    scored: ScoreRequest | None = None
    """The prompt itself, where its log-probabilities are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAnswers:
    """A request of a client, ready for the engine."""

    id: str
    """Unique on this server; ids of engine requests begin with it."""
    prompts: Sequence[AskedPrompt]
    samples: int
    stop: tuple[str, ...]
    keep_stop: bool
    top_logprobs: int | None
    """Likeliest tokens beside the log-probabilities; None: no log-probabilities are asked for."""
    stream: bool
    usage: bool
    """A streamed response ends with the counts of tokens."""
    token_ids: bool
    echo: bool = False
    messages: tuple[Message, ...] = ()
    """Messages of a chat; empty for texts."""
    tools: tuple[ToolSchema, ...] = ()
    """Tools that the model may call."""
    begun: str = ""
    """Text that the answer begins with: a call that was required. Its tokens end the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdentity:
    """What identifies a call."""

    id: str
    """A fresh id."""
    client_id: str
    """The client's own id, of the header `X-Request-Id`; empty without."""


def asked_texts(fields: TextFields, served: ServedModel, call: CallIdentity) -> AskedAnswers:
    """Read a body of `/v1/completions`. Raises ApiError; DataError for text without tokens."""
    _refuse_faults(fields, served)
    prompts = _prompts(fields, served)
    echoed_scores = bool(fields.echo) and fields.logprobs is not None
    if fields.stream and fields.echo:
        raise ApiError.unsupported("echo", "echo together with stream is not served")
    if fields.max_tokens == 0 and not fields.echo:
        raise ApiError(400, "max_tokens = 0 without echo asks for nothing", param="max_tokens", code="invalid_value")
    asked: list[AskedPrompt] = []
    for place, (tokens, text) in enumerate(prompts):
        most = _most_tokens(fields.max_tokens, len(tokens), served, default=_DEFAULT_TOKENS)
        sampling = _sampling(fields, most, fields.logprobs)
        request = None if not most else _request(fields, call, place, tokens, sampling)
        scored = _scored(tokens, sampling) if echoed_scores else None
        asked.append(AskedPrompt(tokens=tokens, text=text, request=request, scored=scored))
    return replace(asked_answers(fields, call.id, asked, fields.logprobs), echo=bool(fields.echo))


def asked_chat(fields: ChatFields, served: ServedModel, call: CallIdentity) -> AskedAnswers:
    """Read a body of `/v1/chat/completions`. Raises ApiError; DataError for messages that the chat template refuses."""
    _refuse_faults(fields, served)
    messages = chat_messages(fields.messages)
    tools = () if fields.tool_choice == "none" else tool_schemas(fields.tools or ())
    tokenizer = chat_tokenizer(
        served.tokenizer, tools, served.tool_format, fields.chat_template_kwargs, describe=served.describes_tools
    )
    tokens = served.chat_tokens(messages, tokenizer, begin_answer=True)
    begun = _begun_call(fields.tool_choice, tools, served.tool_format)
    if begun:
        tokens = np.concatenate([tokens, served.tokenizer.encode(begun)])
    most = _most_tokens(fields.most_tokens, len(tokens), served, default=served.context)
    request = _request(fields, call, 0, tokens, _sampling(fields, most, fields.top))
    prompts = [AskedPrompt(tokens=tokens, text="", request=request)]
    asked = asked_answers(fields, call.id, prompts, fields.top)
    return replace(asked, messages=messages, tools=tools, begun=begun)


def asked_answers(fields: SamplingFields, id_: str, prompts: Sequence[AskedPrompt], top: int | None) -> AskedAnswers:
    """What a body asks for, but for what only texts or only chats have; `top` as in `AskedAnswers`."""
    return AskedAnswers(
        id=id_,
        prompts=prompts,
        samples=fields.n or 1,
        stop=fields.stops,
        keep_stop=bool(fields.include_stop_str_in_output),
        top_logprobs=top,
        stream=bool(fields.stream),
        usage=fields.stream_options is not None and fields.stream_options.include_usage,
        token_ids=bool(fields.return_token_ids),
    )


def chat_messages(bodies: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Messages as chat templates take them: contents as text. Raises ApiError for images and sounds."""
    messages: list[Message] = []
    for place, one in enumerate(bodies):
        message = one.model_dump(exclude_none=True)
        if isinstance(one.content, list):
            texts = [part.text for part in one.content if part.type == "text" and part.text is not None]
            if len(texts) < len(one.content):
                kinds = ", ".join(sorted({part.type for part in one.content if part.type != "text"})) or "empty"
                raise ApiError.unsupported(
                    f"messages[{place}].content", f"the model reads text, and the content has parts: {kinds}"
                )
            message["content"] = "".join(texts)
        message.setdefault("content", "")
        if one.role == "developer":
            message["role"] = "system"
        messages.append(_with_objects(message, place))
    return tuple(messages)


def _refuse_faults(fields: SamplingFields, served: ServedModel) -> None:
    if fields.model != served.name:
        raise ApiError(
            404,
            f"model {fields.model!r} is not served here; served: {served.name!r}",
            param="model",
            code="model_not_found",
        )
    if "" in fields.stops:
        raise ApiError(400, "stop: an empty text would end every answer at once", param="stop", code="invalid_value")
    if faults := fields.neutral_faults():
        raise ApiError.unsupported(faults[0][0], "; ".join(message for _, message in faults))


def _prompts(fields: TextFields, served: ServedModel) -> list[tuple[NDArray[np.int32], str]]:
    prompt = fields.prompt
    listed = [prompt] if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int) else list(prompt)
    if len(listed) * (fields.n or 1) > MAX_ANSWERS:
        message = f"{len(listed)} prompts with {fields.n} answers each in one request; at most {MAX_ANSWERS} answers"
        raise ApiError(400, message, param="n", code="invalid_value")
    encoded: list[tuple[NDArray[np.int32], str]] = []
    for place, one in enumerate(cast("list[str | list[int]]", listed)):
        where = f"prompt[{place}]" if len(listed) > 1 else "prompt"
        if isinstance(one, str):
            served.check_length(one, where, "prompt")
            tokens, text = served.tokenizer.encode(one), one
        else:
            tokens = np.asarray(one, np.int32)
            _most_tokens(0, len(tokens), served, default=_DEFAULT_TOKENS)  # before anything is done with them
            text = served.tokenizer.decode(tokens) if fields.echo else ""
        if not len(tokens):
            raise ApiError(400, f"{where} is empty; it needs at least one token", param="prompt", code="invalid_value")
        encoded.append((tokens, text))
    return encoded


def _most_tokens(given: int | None, prompt: int, served: ServedModel, *, default: int) -> int:
    room = served.context - prompt
    if room < (1 if given is None else given):
        asked = f" and max_tokens {given}" if given else ""
        raise ApiError(
            400,
            f"a prompt of {prompt} tokens{asked} does not fit into the context of {served.context} tokens; shorten the "
            "prompt, or lower max_tokens",
            param="messages" if default > _DEFAULT_TOKENS else "prompt",
            code="context_length_exceeded",
        )
    return min(default, room) if given is None else given


def _sampling(fields: SamplingFields, most: int, top: int | None) -> SamplingParams:
    temperature = 1.0 if fields.temperature is None else float(fields.temperature)
    return SamplingParams(
        max_tokens=max(most, 1),
        temperature=temperature or 1.0,
        greedy=temperature == 0,
        top_p=1.0 if fields.top_p is None else float(fields.top_p),
        top_k=max(fields.top_k or 0, 0),
        min_p=float(fields.min_p or 0.0),
        stop=fields.stops,
        top_logprobs=top or 0,
        grammar=fields.grammar(),
    )


def _request(
    fields: SamplingFields, call: CallIdentity, place: int, tokens: NDArray[np.int32], sampling: SamplingParams
) -> Request:
    draw_id = f"{call.client_id or call.id}/{place}"
    if fields.seed is not None:
        content = hashlib.sha256(tokens.tobytes()).hexdigest()[:32]
        draw_id = f"seed {fields.seed} of {content}" + (f" for {draw_id}" if call.client_id else "")
    return Request(id=f"{call.id}/{place}", prompt=tokens, samples=fields.n or 1, sampling=sampling, draw_id=draw_id)


def _scored(tokens: NDArray[np.int32], sampling: SamplingParams) -> ScoreRequest | None:
    """The prompt's tokens from the second on; nothing comes before the first."""
    if len(tokens) < 2:
        return None
    plain = SamplingParams(max_tokens=1, temperature=sampling.temperature, top_logprobs=sampling.top_logprobs)
    return ScoreRequest(prompt=tokens[:1], tokens=tokens[1:], sampling=plain)
