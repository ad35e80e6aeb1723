"""Replies to agents in OpenAI's shapes: whole, or as a stream that sends each answer in one piece."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.text.serving.capture.capture_desk import AgentAnswer
from hone.text.serving.completions.asked import AskedAnswers, AskedPrompt
from hone.text.serving.completions.fields import ChatFields
from hone.text.serving.completions.replies import DONE, PromptResults, ReplyWriter
from hone.text.serving.completions.served_model import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """The reply to one request: an answer for each choice."""

    served: ServedModel
    fields: ChatFields
    answers: Sequence[AgentAnswer]
    id: str
    created: int
    """Seconds since the epoch."""

    def whole(self) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        body = self._writer().whole([self._results()], self._version())
        for choice, answer in zip(body["choices"], self.answers, strict=True):
            choice["message"] = {**choice["message"], **answer.message}
            choice["finish_reason"] = _finish(choice, answer)
        return body

    def events(self) -> Iterator[str]:
        """The same as server-sent events."""
        writer, body = self._writer(), self.whole()
        head = writer.chunk_head(self._version())
        for choice in body["choices"]:
            number, message = choice["index"], choice["message"]
            calls = [{"index": place, **call} for place, call in enumerate(message.get("tool_calls", ()))]
            delta = {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})}
            said = {"index": number, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
            end = {"index": number, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
            yield writer.chunk(head, [said])
            yield writer.chunk(head, [end])
        if writer.asked.usage:
            yield writer.chunk(head, [], usage=body["usage"])
        yield DONE

    def _writer(self) -> ReplyWriter:
        fields = self.fields
        asked = AskedAnswers(
            id=self.id,
            prompts=[self._results().asked],
            samples=len(self.answers),
            stop=fields.stops,
            keep_stop=bool(fields.include_stop_str_in_output),
            top_logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
            stream=bool(fields.stream),
            usage=fields.stream_options is not None and fields.stream_options.include_usage,
            token_ids=bool(fields.return_token_ids),
            messages=({"role": "user"},),
        )
        return ReplyWriter(served=self.served, asked=asked, created=self.created)

    def _results(self) -> PromptResults:
        asked = AskedPrompt(tokens=self.answers[0].prompt, text="", request=None)
        return PromptResults(asked, {place: one.completion for place, one in enumerate(self.answers)})

    def _version(self) -> int:
        return max(int(one.completion.version[-1]) for one in self.answers)


def _finish(choice: Mapping[str, Any], answer: AgentAnswer) -> str:
    return "tool_calls" if answer.message.get("tool_calls") else choice["finish_reason"]
