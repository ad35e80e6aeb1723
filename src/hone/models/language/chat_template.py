"""Chat templates: programs that write a conversation as text. They run in jinja2's sandbox, under limits of work.

A template comes with a model, from anybody: its loops, calls and texts are counted, and one beyond the limits is an
error like any other fault of it. No clock decides, so a template that renders once renders always.

What the rows hold stays apart from what the template writes. A special token's name in a text, a role, a tool's
description or the argument of a call is plain text, also where the template's own characters would complete it: a mark
is set into the data where a name stands or could arise, and is taken out of the rendered text again.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, wraps
from types import BuiltinMethodType
from typing import Any, Final, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from hone.core.conversation import Message, RenderedChat, SpecialNames, with_system
from hone.core.errors import DataError
from hone.core.strict_json import strict_json

# --------------------------------------------------------------------------------------------------------------- limits

MAX_STEPS: Final = 2_000_000
"""Iterations and calls of one rendering; a call of a macro counts as many."""
MAX_CHARACTERS: Final = 2**27
"""Characters that one rendering makes, all intermediate texts together; an item of a list counts as eight."""
MAX_TEXT: Final = 2**24
"""Characters of one text."""
_MACRO_STEPS: Final = 25
"""Steps of a macro's call: it takes as long as so many iterations."""
_MAX_BITS: Final = 4096
"""Bits of a whole number."""
_MAX_WIDTH: Final = 10_000
"""Width to which a format pads."""
_WIDE_FORMAT: Final = re.compile(r"\d{5}|[*]|[:!][^{}]*\{")
"""A format whose width is of five digits, or an argument."""


class _LimitError(TemplateError):
    """A template beyond a limit."""


@dataclass(slots=True)
class _Rendering:
    """What one rendering did so far."""

    macro_text: int = 0
    """Characters of constant text in the template's macros and recursive loops."""
    marks_generation: bool = False
    steps: int = 0
    characters: int = 0
    dated: bool = False

    def step(self, count: int) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            raise _LimitError(f"it takes more than {MAX_STEPS} steps (iterations and calls)")

    def made(self, size: int) -> None:
        if size > MAX_TEXT:
            raise _LimitError(f"it makes a text or list of {size} characters or items; at most {MAX_TEXT}")
        self.characters += size
        if self.characters > MAX_CHARACTERS:
            raise _LimitError(f"it writes more than {MAX_CHARACTERS} characters, intermediate ones included")


_RENDERING: Final[ContextVar[_Rendering]] = ContextVar("rendering")


def _size(value: object) -> int:
    if isinstance(value, list | tuple | dict):
        return 8 * len(cast("Sequence[object]", value))
    return len(value) if isinstance(value, str | range) else 1


def _require_bounded(value: object, arguments: Sequence[object]) -> None:
    """Raise where a function of a text or list could make one beyond the limits: it grows with each argument."""
    sizes = [abs(one) if isinstance(one, int) else _size(one) for one in arguments]
    if _size(value) * max([1, *sizes]) > MAX_CHARACTERS:
        raise _LimitError(
            f"it grows a text or list of {_size(value)} characters or items by an argument of {max(sizes)}"
        )
    if isinstance(value, str) and any(isinstance(one, int) and abs(one) > _MAX_WIDTH for one in arguments):
        raise _LimitError(f"it pads or cuts a text to more than {_MAX_WIDTH} characters")


def _counted(result: Any) -> Any:  # noqa: ANN401 - any value of a template
    _RENDERING.get().made(_size(result))
    return result


def _iterated(items: Any, weight: int) -> Any:  # noqa: ANN401 - any value of a template
    """The items of a loop, whose constant text has `weight` characters."""
    state = _RENDERING.get()
    if not isinstance(items, Iterator):
        state.step(_size(items))
        state.made(min(_size(items) * weight, MAX_TEXT))
        return items

    def counted() -> Iterator[object]:
        for item in cast("Iterator[object]", items):
            state.step(1)
            state.made(weight)
            yield item

    return counted()


def _limited_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of jinja2 under the limits."""

    @wraps(function)
    def _limited(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any value of a template
        values = [one for one in arguments if isinstance(one, str | list | tuple | dict | int)]
        if values:
            _require_bounded(values[0], [*values[1:], *named.values()])
        if name == "format" and _WIDE_FORMAT.search(str(values[0])):
            raise _LimitError(f"its format {values[0]!r} has a width of its own")
        return _counted(function(*arguments, **named))

    return _limited


class _CountNodes(NodeTransformer):
    """Counts what has no hook in jinja2: the items of loops, and texts that `~` joins."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's name
        weight = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node = cast(nodes.For, self.generic_visit(node))
        node.iter = nodes.Filter(node.iter, "_iterated", [nodes.Const(weight)], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 - jinja2's name
        joined = cast(nodes.Concat, self.generic_visit(node))
        return nodes.Filter(joined, "_counted", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}`: the part of a turn that a template calls the assistant's."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("mark"), [], [], body)
        block.set_lineno(line)
        return block

    def mark(self, caller: Macro) -> str:
        """The block between two marks, where they are asked for."""
        text = caller()
        return f"{_BEGIN}{text}{_END}" if _RENDERING.get().marks_generation else text


def _limited_call(environment: Any, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - as jinja2's
    """A call in a template, under the limits."""
    state = _RENDERING.get()
    state.step(1)
    if isinstance(function, Macro | LoopContext):
        state.step(_MACRO_STEPS)
        state.made(state.macro_text)
    elif isinstance(function, BuiltinMethodType) and isinstance(function.__self__, str | list | tuple | dict):
        _require_bounded(function.__self__, [*args, *named.values()])
    return _counted(ImmutableSandboxedEnvironment.call(environment, context, function, *args, **named))


class _LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which transformers renders chat templates, under limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, finalize=_counted, extensions=[_Generation, loopcontrols]
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: _limited_filter(name, one) for name, one in self.filters.items()}
        self.filters.update({"_counted": _counted, "_iterated": _iterated})

        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        def strftime_now(form: str) -> str:
            _RENDERING.get().dated = True
            return datetime.now().strftime(form)

        # A function in the place of the class, which has more methods than a template should reach.
        self.globals["dict"] = lambda *pairs, **named: dict(*pairs, **named)
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, namespace=_PublicNamespace)
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast(nodes.Template, _CountNodes().visit(super()._parse(source, name, filename)))

    call = _limited_call

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - as jinja2's
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise _LimitError(f"it computes a whole number of {bits} bits; at most {_MAX_BITS}")
        elif operator == "*":
            number, items = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(number, int) and _size(items) * number > MAX_TEXT:
                raise _LimitError(f"it repeats a text or list to {_size(items) * number} characters or items")
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise _LimitError(f"its format {left!r} has a width of its own")
        return _counted(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401 - as jinja2's
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FORMAT.search(str(value.__self__)):
            raise _LimitError(f"its format {value.__self__!r} has a width of its own")
        return wrapped


class _PublicNamespace(Namespace):
    """A namespace of a template without names that begin with an underscore."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a template sets no {name!r} on a namespace: the name begins with an underscore")
        super().__setitem__(name, value)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates give it by place
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - as above
) -> str:
    """JSON as chat templates expect it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@dataclass(frozen=True, slots=True)
class _CompiledTemplate:
    """A template, compiled."""

    render: Callable[..., str]
    macro_text: int


@lru_cache(maxsize=16)
def _compile(source: str) -> _CompiledTemplate:
    """Raises whatever jinja2 raises for a template that it cannot read."""
    environment = _LimitedEnvironment()
    token = _RENDERING.set(_Rendering())
    try:
        repeated = (nodes.Macro, nodes.CallBlock)
        tree = environment.parse(source)
        texts = [text for kind in repeated for one in tree.find_all(kind) for text in one.find_all(nodes.TemplateData)]
        loops = [text for one in tree.find_all(nodes.For) if one.recursive for text in one.find_all(nodes.TemplateData)]
        return _CompiledTemplate(environment.from_string(source).render, sum(len(one.data) for one in [*texts, *loops]))
    finally:
        _RENDERING.reset(token)


# ------------------------------------------------------------------------------------------------------ rendered chats


_BEGIN: Final = "\U000f0001"
"""Begins a generation block."""
_END: Final = "\U000f0002"
"""Ends one."""
_MARKS: Final = range(0xA000, 0xA48D)
"""Letters of one case, which jinja2, JSON and Python print as they are: one that no row holds marks guarded texts."""
ROLES: Final = frozenset(
    {
        "system", "developer", "user", "assistant", "tool", "function", "ipython", "environment", "model",
        "observation", "tool_response", "human", "gpt", "bot", "critic", "documents",
    }
)  # fmt: skip
"""Roles that a template may make a special token of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template with what it writes by name and by table."""

    source: str
    special: Mapping[str, str] = field(default_factory=dict[str, str])
    """`bos_token`, `eos_token` and the like -> text."""
    names: SpecialNames
    tools: Sequence[Mapping[str, object]] = ()
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    """Further variables of the template, such as `enable_thinking`."""
    system: str = ""
    """System message of conversations that have none."""
    prepare: Callable[[Sequence[Message]], Sequence[Message]] | None = None
    """Rewrites the messages first."""

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, marks_generation: bool = False
    ) -> RenderedChat:
        """The conversation as text. `marks_generation` asks for the places of `{% generation %}` blocks.

        Raises DataError where the template does not take these messages, or goes beyond a limit.
        """
        turns = [template_message(message) for message in messages]
        turns = with_system(turns, self.system)
        if self.prepare is not None:
            turns = [dict(message) for message in self.prepare(turns)]
        if _wants_parts(self.source, tuple(self.special.items())):
            turns = [
                {**turn, "content": [{"type": "text", "text": turn["content"]}]} if "content" in turn else turn
                for turn in turns
            ]
        data = json.dumps([turns, self.tools, self.variables], ensure_ascii=False, default=str)
        mark = next(one for one in map(chr, _MARKS) if one not in data and f"\\u{ord(one):04x}" not in data)
        clean = {role for turn in turns if (role := str(turn.get("role"))) in ROLES or self._names_role(role)}
        guarded = [_guard_message(turn, self.names, mark, clean) for turn in turns]
        values = {
            **self.special,
            "tools": self.names.guard_all(self.tools, mark) if self.tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **cast("dict[str, object]", self.names.guard_all(self.variables, mark)),
        }
        faults: list[Exception] = []
        for form in (guarded, [_with_json_arguments(turn) for turn in guarded]):
            state = _Rendering(marks_generation=marks_generation)
            token = _RENDERING.set(state)
            try:
                program = _compile(self.source)
                state.macro_text = program.macro_text
                text = program.render(messages=form, **values)
            except Exception as error:  # noqa: BLE001 - a template is a program of anybody's
                faults.append(error)
                if form == guarded and any("tool_calls" in turn for turn in turns):
                    continue
                break
            finally:
                _RENDERING.reset(token)
            return _without_marks(text, mark, self.names, dated=state.dated)
        error = faults[0]
        kind = "" if isinstance(error, TemplateError | ValueError) else f"{type(error).__name__}: "
        if isinstance(error, SecurityError):
            kind = "the template itself is at fault, not the messages; jinja2's sandbox says: "
        raise DataError(f"the chat template does not take the messages {_shorten(turns)}: {kind}{error}")

    def _names_role(self, role: str) -> bool:
        return f"'{role}'" in self.source or f'"{role}"' in self.source


@lru_cache(maxsize=16)
def _wants_parts(source: str, special: tuple[tuple[str, str], ...]) -> bool:
    """True for a template that writes content only where it is a list of parts, as those of models with images."""

    def writes(content: object) -> bool:
        token = _RENDERING.set(_Rendering())
        try:
            turns = [{"role": "user", "content": content}]
            return "\ue0f0" in _compile(source).render(messages=turns, tools=None, documents=None, **dict(special))
        except Exception:  # noqa: BLE001 - a template is a program of anybody's; a real message shows its fault
            return False
        finally:
            _RENDERING.reset(token)

    return not writes("\ue0f0") and writes([{"type": "text", "text": "\ue0f0"}])


def template_message(message: Message) -> dict[str, object]:
    """A message as templates take it: null fields are left out, parts of text are joined, the arguments of a call are a
    table, and reasoning stands under each of the names that templates read.

    Raises DataError for content of other parts than text.
    """
    turn = {str(key): value for key, value in message.items() if value is not None}
    if isinstance(turn.get("content"), list | tuple):
        turn["content"] = joined_parts(cast("Sequence[object]", turn["content"]))
    reasoning = next((turn[name] for name in REASONING if turn.get(name)), None)
    if reasoning is not None:
        turn = {"thinking": reasoning, **turn, "reasoning_content": reasoning}
    calls = turn.get("tool_calls")
    if isinstance(calls, list | tuple):
        turn["tool_calls"] = [_with_table(call) for call in cast("Sequence[object]", calls)]
    return turn


REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message that hold the reasoning before its answer."""


def joined_parts(parts: Sequence[object]) -> str:
    """The text of content that is a list of parts. Raises DataError for a part that is no text."""
    texts: list[str] = []
    for part in parts:
        table = cast("Mapping[str, object]", part) if isinstance(part, Mapping) else {"type": type(part).__name__}
        text = table.get("text")
        if table.get("type", "text") != "text" or not isinstance(text, str):
            raise DataError(
                f"a message's content holds a part of type {str(table.get('type'))!r}: {_shorten(part)}; hone reads "
                "text only: give the content as text, or as parts of type 'text'"
            )
        texts.append(text)
    return "".join(texts)


def _with_table(call: object) -> object:
    """A call whose arguments are a table, where they are one as JSON text."""
    if not isinstance(call, Mapping):
        return call
    table = dict(cast("Mapping[str, object]", call))
    function = cast("Mapping[str, object]", table["function"]) if isinstance(table.get("function"), Mapping) else table
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return table
    try:
        parsed: object = strict_json(arguments)
    except ValueError:
        return table
    if not isinstance(parsed, dict):
        return table
    changed = {**function, "arguments": cast("dict[str, object]", parsed)}
    return {**table, "function": changed} if function is not table else changed


def _with_json_arguments(turn: Mapping[str, object]) -> dict[str, object]:
    """The message with the arguments of its calls as JSON text, for templates that take nothing else."""
    if not isinstance(turn.get("tool_calls"), list):
        return dict(turn)
    calls: list[object] = []
    for call in cast("list[object]", turn["tool_calls"]):
        table = dict(cast("Mapping[str, object]", call)) if isinstance(call, Mapping) else {}
        function = dict(cast("Mapping[str, object]", table.get("function") or table))
        if not isinstance(function.get("arguments", ""), str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**table, "function": function} if "function" in table else function or call)
    return {**turn, "tool_calls": calls}


def _guard_message(
    turn: Mapping[str, object], names: SpecialNames, mark: str, clean_roles: set[str]
) -> dict[str, object]:
    """The message with marks; a role that a template may write as a token stays as it is."""
    guarded = cast("dict[str, object]", names.guard_all(turn, mark))
    for name in ("role", "name"):
        if isinstance(turn.get(name), str):
            text = str(turn[name])
            kept = name == "role" and text in clean_roles
            guarded[name] = text if kept else names.guard(text, mark, inside=True)
    return guarded


def _without_marks(text: str, mark: str, names: SpecialNames, *, dated: bool) -> RenderedChat:
    """The rendered text without marks, and the places that they kept plain."""
    text = text.replace(f"\\u{ord(mark):04x}", mark)  # a template may print a text as Python or JSON escapes it
    kept: list[str] = []
    size, cuts, blocks, open_blocks = 0, list[int](), list[tuple[int, int]](), list[int]()
    for piece in re.split(f"([{mark}{_BEGIN}{_END}])", text):
        if piece == mark:
            cuts.append(size)
        elif piece == _BEGIN:
            open_blocks.append(size)
        elif piece == _END:
            blocks.append((open_blocks.pop() if open_blocks else 0, size))
        else:
            kept.append(piece)
            size += len(piece)
    clean = "".join(kept)
    plain: list[tuple[int, int]] = []
    if cuts and names.pattern is not None:
        inside = set(cuts)
        for name in names.pattern.finditer(clean):
            begin, end = name.span()
            if any(place in inside for place in range(begin + 1, end)):
                plain.append((begin, end))
    return RenderedChat(text=clean, plain=tuple(plain), generation=tuple(blocks), dated=dated)


def _shorten(value: object, limit: int = 80) -> str:
    """The value as text, cut after `limit` characters."""
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
