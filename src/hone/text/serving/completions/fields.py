"""Bodies of requests, field by field: what OpenAI's clients send, and what vLLM added for token ids.

A field that is not here is kept apart: the response names it, and `--strict` refuses it. A field that is here and not
served is refused as soon as it asks for something. Of a list's entries only the first one with a fault is told
(`fail_fast`): as many faults as a body has room for take seconds to write.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hone.core.generation import Grammar
from hone.core.strict_json import strict_json
from hone.run.http.requests import ApiError


def _path(loc: Sequence[str | int]) -> str:
    """`messages[0].content`, without the names of alternatives that pydantic adds."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "list"):
            path += f".{part}" if path else part
    return path or "body"


# --------------------------------------------------------------------------------------------------------------- fields

MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_ANSWERS = 4096
"""Answers of one request, to all of its prompts."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
"""Each sampled token is compared with every beginning of every stop string."""
MAX_MESSAGES = 4096
MAX_TOOLS = 256
_FAULTS_SHOWN = 20
MAX_TOP = 20
"""Most likely tokens that a position reports, as in OpenAI's protocol."""
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(fail_fast=True)]
_StopString = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]


class _Body(BaseModel):
    """Base of bodies: known fields are typed, unknown ones are kept."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @property
    def unknown(self) -> list[str]:
        """Names of fields that have no effect here."""
        return sorted(self.model_extra or {})

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """The fields of a body. Raises ApiError with every fault; its `param` is the first field at fault."""
        try:
            tree = strict_json(raw)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
        if not isinstance(tree, Mapping):
            raise ApiError(400, f"the body must be an object, found {type(tree).__name__}", code="invalid_json")
        try:
            return cls.model_validate(cast("Mapping[str, object]", tree))
        except ValidationError as error:
            listed = error.errors(include_url=False, include_input=False)
            faults = list(dict.fromkeys((_path(fault["loc"]), fault["msg"]) for fault in listed))
            message = "; ".join(f"{path}: {text}" for path, text in faults[:_FAULTS_SHOWN])
            if len(faults) > _FAULTS_SHOWN:
                message += f"; and {len(faults) - _FAULTS_SHOWN} more"
            missing = all(fault["type"] == "missing" for fault in listed)
            code = "missing_required_parameter" if missing else "invalid_value"
            raise ApiError(400, message, param=faults[0][0], code=code) from None


class _StreamOptions(_Body):
    """Options of a streamed response."""

    include_usage: bool = False
    """Send a last chunk with the counts of tokens."""


class SamplingFields(_Body):
    """Fields that both kinds of completions have."""

    model: str
    """Name of the served model."""
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """Answers to each prompt."""
    temperature: float | None = Field(default=None, ge=0)
    """0: the likeliest tokens."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    """vLLM's: 0 and -1 are off."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """vLLM's."""
    stop: _StopString | Annotated[list[_StopString], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    seed: int | None = None
    """With it, equal requests get equal answers."""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    """vLLM's: answer with the token ids of prompt and answers, too."""
    include_stop_str_in_output: bool | None = None
    """vLLM's: the stop string stays in the text."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    """Refused as soon as it asks for something, so its values are not looked at."""
    response_format: dict[str, Any] | None = None
    """OpenAI's: `text`, `json_object`, or `json_schema`."""
    structured_outputs: dict[str, Any] | None = None
    """vLLM's: one of `json`, `regex`, `choice` and `grammar`."""
    guided_json: dict[str, Any] | str | None = None
    """vLLM's older names of the same."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # Without any effect on an answer: labels, storage and billing of OpenAI's own service.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def neutral_faults(self) -> list[tuple[str, str]]:
        """Fields that ask for something that is not served, with what to do."""
        faults = [
            (name, f"{name} = {value} is not served: answers are drawn from the policy itself; leave it out")
            for name, value in (
                ("presence_penalty", self.presence_penalty),
                ("frequency_penalty", self.frequency_penalty),
            )
            if value
        ]
        if self.logit_bias:
            faults.append(("logit_bias", "logit_bias is not served: answers are drawn from the policy itself"))
        try:
            self.grammar()
        except ValueError as error:
            faults.append(("response_format" if self.response_format else "structured_outputs", str(error)))
        return faults

    def grammar(self) -> Grammar | None:
        """What an answer may be. Raises ValueError where it is not told in one of the known ways, or in two."""
        asked: dict[str, tuple[str, object]] = {
            f"guided_{name}": (name, value)
            for name, value in (
                ("json", self.guided_json),
                ("regex", self.guided_regex),
                ("choice", self.guided_choice),
                ("grammar", self.guided_grammar),
            )
            if value is not None
        }
        for name, value in (self.structured_outputs or {}).items():
            if value is not None:
                asked[f"structured_outputs.{name}"] = (name, value)
        response = self.response_format or {"type": "text"}
        kind, schema = response.get("type"), response.get("json_schema")
        if kind == "json_schema":
            value = cast("Mapping[str, object]", schema).get("schema") if isinstance(schema, Mapping) else None
            if not isinstance(value, Mapping):
                raise ValueError("response_format.json_schema.schema must be an object, the schema of an answer")
            asked["response_format"] = ("json", value)
        elif kind == "json_object":
            asked["response_format"] = ("json", {"type": "object"})
        elif kind != "text":
            raise ValueError(f"response_format.type {kind!r} is not known; known: text, json_object, json_schema")
        if len(asked) > 1:
            raise ValueError(f"{' and '.join(asked)} all tell what an answer may be; give one")
        for where, (name, value) in asked.items():
            return _grammar_of(where, name, value)
        return None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def _grammar_of(where: str, name: str, value: object) -> Grammar:
    """The grammar that a field `where` asks for. Raises ValueError."""
    if name == "json" and isinstance(value, str | Mapping | bool):
        return Grammar(kind="json_schema", text=value if isinstance(value, str) else json.dumps(value))
    if name == "choice" and isinstance(value, list) and value:
        return Grammar(kind="regex", text="|".join(re.escape(str(one)) for one in cast("list[object]", value)))
    if name in ("regex", "grammar") and isinstance(value, str):
        return Grammar(kind="regex" if name == "regex" else "lark", text=value)
    raise ValueError(f"{where} = {value!r} is not served; known: json (a schema), regex, choice (texts), grammar")


class TextFields(SamplingFields):
    """Body of `/v1/completions`."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS)]
    )
    """A text, its token ids, or a list of either."""
    max_tokens: int | None = Field(default=None, ge=0)
    """None: 16, as OpenAI does. 0 with `echo`: nothing is drawn, the prompt is scored."""
    echo: bool | None = None
    """The prompt is a part of the text; with `logprobs` its tokens are scored."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP)
    """Log-probabilities of the tokens, and of this many likeliest ones at each position."""
    best_of: int | None = None
    suffix: str | None = None

    def neutral_faults(self) -> list[tuple[str, str]]:
        """As above, and those of completions."""
        faults = super().neutral_faults()
        if self.best_of not in (None, 1, self.n):
            faults.append(("best_of", f"best_of = {self.best_of} is not served; draw n answers and choose among them"))
        if self.suffix:
            faults.append(("suffix", "suffix is not served: the model writes forward only"))
        return faults


class _TextPart(_Body):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(_Body):
    """A message of a chat; further fields reach the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_TextPart], Field(fail_fast=True, max_length=MAX_MESSAGES)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None


class _FunctionFields(_Body):
    """A tool's function."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(_Body):
    """A tool that the model may call."""

    type: Literal["function"]
    function: _FunctionFields


class _ChosenFunction(_Body):
    """The function of a tool choice."""

    name: str


class ToolChoice(_Body):
    """The tool that is to be called."""

    type: Literal["function"]
    function: _ChosenFunction


class ChatFields(SamplingFields):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """None: as many as the context has room for."""
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP)
    tools: Annotated[list[ToolFields], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    """`required`, or a tool: the answer begins as a call does."""
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables of the chat template."""

    @property
    def top(self) -> int | None:
        """Likeliest tokens beside the log-probabilities; None: no log-probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    def neutral_faults(self) -> list[tuple[str, str]]:
        faults = super().neutral_faults()
        if self.top_logprobs and not self.logprobs:
            faults.append(("top_logprobs", "top_logprobs needs logprobs = true"))
        return faults


class TokenizeFields(_Body):
    """Body of `/tokenize`: a text, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, max_length=MAX_MESSAGES)] | None = None
    add_generation_prompt: bool = True
    tools: Annotated[list[ToolFields], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeFields(_Body):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: TokenIds
