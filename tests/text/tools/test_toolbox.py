"""Tools: schemas from hints, faults at the door, results as text, and classes with an instance for each dialogue."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.dialogue import PolicyTurn, ToolCall
from hone.core.errors import ConfigError, UserCodeError
from hone.text.dialogues.environment import cut_result
from hone.text.tools.loading import ToolUse, check_references, load_tools
from hone.text.tools.schemas import docstring_parts
from hone.text.tools.toolbox import ToolWorld

USER_TOOLS = '''
"""Tools of a user."""
from dataclasses import dataclass
from typing import Annotated, Literal
from pydantic import Field

@dataclass
class Point:
    x: int
    y: int

def add(a: int, b: float = 2.0, *, title: str = "sum") -> str:
    """Add two numbers.

    Args:
        a: The first number,
            on two lines.
        b (float): The second number: any.

    Returns:
        The sum.
    """
    return f"{title} {a + b}"

async def wait(seconds: float) -> float:
    """Wait."""
    return seconds

def move(to: Point, pace: Literal["slow", "fast"], note: Annotated[str, Field(description="A note.")] = "") -> dict:
    """Move."""
    return {"x": to.x, "pace": pace}

def broken(kind: str) -> str:
    """Fail."""
    if kind == "exit":
        raise SystemExit(3)
    raise ValueError("no such file " + "x" * 1000)

def objects(kind: str) -> object:
    """Return something."""
    return {"none": None, "number": 3, "list": [1, "é"], "object": object()}[kind]

class Shelf:
    """A shelf of books."""

    def __init__(self, first: str, *, size: int = 2) -> None:
        self.books, self.size = [first], size

    @property
    def never(self) -> str:
        raise AssertionError("properties are not read")

    def put(self, book: str) -> str:
        """Put a book.

        Args:
            book: Its title.
        """
        self.books.append(book)
        return ", ".join(self.books)

    async def count(self) -> int:
        """Count the books."""
        return len(self.books)

    @staticmethod
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    def _hidden(self) -> None:
        pass

    def close(self) -> None:
        self.books.clear()

def untyped(x, y: int, *rest):
    pass

def odd(x: Shelf) -> None:
    pass

def reset() -> None:
    pass

def _second():
    def add(a: int) -> int:
        return a
    return add

second_add = _second()
number = 5
both = [add, wait]

class Empty:
    pass
'''


@pytest.fixture
def use(tmp_path: Path):
    (tmp_path / "user_tools.py").write_text(USER_TOOLS)

    def named(name: str, **options) -> ToolUse:
        return ToolUse(use=f"{tmp_path / 'user_tools.py'}:{name}", options=options)

    return named


def result(box, name: str, **arguments):
    return box.call(ToolCall(name=name, arguments=arguments))


def test_schemas_come_from_hints_and_docstrings(use) -> None:
    add, move = load_tools([use("add"), use("move")]).schemas
    assert add.description == "Add two numbers."
    assert add.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first number, on two lines."},
            "b": {"type": "number", "default": 2.0, "description": "The second number: any."},
            "title": {"type": "string", "default": "sum"},
        },
        "required": ["a"],
    }
    assert move.parameters["properties"]["pace"] == {"enum": ["slow", "fast"], "type": "string"}
    assert move.parameters["properties"]["note"]["description"] == "A note."
    assert move.as_function()["function"]["name"] == "move"


def test_schemas_equal_those_of_transformers_for_plain_functions() -> None:
    from transformers.utils import get_json_schema

    from hone.text.tools.schemas import function_schema

    def multiply(a: int, b: list[str]) -> int:
        """
        Multiplies two integers.

        Args:
            a: The first integer.
            b: The second integer.

        Returns:
            The product of the two integers.
        """
        return a * len(b)

    theirs = get_json_schema(multiply)
    theirs["function"].pop("return")
    ours, faults = function_schema(multiply, "multiply")
    assert faults == []
    assert ours is not None
    assert ours.as_function() == theirs


def test_calls_give_text_whatever_a_tool_does(use) -> None:
    box = load_tools([use(name) for name in ("both", "move", "broken", "objects")]).open()
    assert result(box, "add", a=1).text == "sum 3.0"
    assert result(box, "wait", seconds=0.5).text == "0.5"
    assert result(box, "move", to={"x": 1, "y": 2}, pace="fast").text == '{"x": 1, "pace": "fast"}'
    assert result(box, "objects", kind="none").text == ""
    assert result(box, "objects", kind="list").text == '[1, "é"]'
    assert result(box, "objects", kind="object").text.startswith("<object object")
    failed = result(box, "broken", kind="value")
    assert failed.failed
    assert failed.text.startswith("Error: ValueError: no such file xxx")
    assert len(failed.text) < 600
    assert result(box, "add", a="1").text == "Error: add: a is \"'1'\", not of type integer"
    assert result(box, "ad", a=1).text == "Error: unknown tool 'ad'; did you mean add?"
    assert result(box, "move", to={"x": 1}, pace="fast").failed
    assert result(box, "add", a=1).message() == {"role": "tool", "name": "add", "content": "sum 3.0"}
    with pytest.raises(SystemExit):
        result(box, "broken", kind="exit")
    box.close()


def test_every_dialogue_has_an_instance_of_a_class(use) -> None:
    loaded = load_tools([use("Shelf", first="Emma"), use("add")])
    assert [one.name for one in loaded.schemas] == ["count", "put", "shout", "add"]
    one, other = loaded.open(), loaded.open()
    assert result(one, "put", book="Persuasion").text == "Emma, Persuasion"
    assert result(one, "count").text == "2"
    assert result(other, "count").text == "1"
    assert result(other, "shout", text="a").text == "A"
    one.close()
    assert result(one, "count").text == "0"
    assert result(other, "count").text == "1"
    one.close()
    other.close()


def test_all_faults_are_told_at_once(use) -> None:
    with pytest.raises(UserCodeError) as refused:
        load_tools([
            use("untyped"), use("odd"), use("reset"), use("add", a=1), use("second_add"), use("number"), use("Empty"),
            use("Shelf", frist="x"), use("nothing"),
        ])  # fmt: skip
    words = "\n".join(refused.value.messages)
    for expected in (
        "parameter 'x' has no type hint; write x: str",
        "tool untyped takes *rest",
        "tool odd: a type hint cannot be written as JSON",
        "a tool is called 'reset'",
        "add is a function and takes no options, got 'a'",
        "2 tools are called 'add'",
        "it is a int, not a function",
        "Empty has no public method",
        "Shelf takes no option 'frist'; did you mean first?",
        "Shelf needs the option 'first'",
        "has no 'nothing'",
    ):
        assert expected in words


def test_references_are_checked_without_an_import(tmp_path: Path) -> None:
    uses = ["hone:calculater", "search", f"{tmp_path}/no.py:f", "module:f", "hone:calculator", "hone:calculator"]
    with pytest.raises(ConfigError) as refused:
        check_references([ToolUse(use=one) for one in uses])
    words = "\n".join(refused.value.messages)
    assert "did you mean hone:calculator?" in words
    assert "tool 'search' is not built in" in words
    assert "no such file" in words
    assert "'hone:calculator' stands in the list 2 times" in words
    check_references([ToolUse(use="hone:calculator")])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("34+58", "92"), ("(3 + 4) * 2", "14"), ("7/2", "3.5"), ("8/2", "4"), ("-3**2", "-9"), ("2^10", "1024"),
        ("7 // 2 % 2", "1"), ("1/0", "Error: ZeroDivisionError: division"), ("9**9**9", "Error: ValueError: 9**3"),
        ("__import__('os')", "Error: ValueError: \"__import__('os')\" is not"), ("True + 1", "Error: ValueError"),
        ("3 +", "Error: ValueError: '3 +' is no expression"), ("(-8) ** 0.5", "Error: ValueError: -8**0.5 is no real"),
        ("1" * 201, "Error: ValueError: the expression has 201"), ("1e308 * 10", "inf"), ("0 ** -1", "Error: Zero"),
    ],
)  # fmt: skip
def test_the_calculator(expression: str, value: str) -> None:
    box = load_tools([ToolUse(use="hone:calculator")]).open()
    assert result(box, "calculator", expression=expression).text.startswith(value)


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from("+-*"))
def test_the_calculator_is_exact_for_whole_numbers(a: int, b: int, sign: str) -> None:
    from hone.text.tools.loading import calculator

    assert int(calculator(f"({a}){sign}({b})")) == {"+": a + b, "-": a - b, "*": a * b}[sign]


def encode(text: str):
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


def decode(tokens) -> str:
    return np.asarray(tokens, np.int32).tobytes().decode("utf-32-le")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.integers(1, 120))
def test_long_results_are_cut_in_the_middle_and_say_so(text: str, most: int) -> None:
    cut = cut_result(text, most, encode=encode, decode=decode)
    assert len(encode(cut)) <= most
    if len(text) <= most:
        assert cut == text
    elif most > 60:
        assert "tokens left out" in cut
        assert cut[:5] == text[:5]
        assert cut[-5:] == text[-5:]


def test_a_flood_is_cut_without_being_encoded() -> None:
    cut = cut_result("x" * 10**8, 100, encode=encode, decode=decode)
    assert len(cut) <= 100
    assert "99993600 characters" in cut


def test_descriptions_of_arguments() -> None:
    text = "Do it.\n\nMore.\n\nArgs:\n    a: One: two.\n    b (int): Three\n        four.\n\nReturns:\n    x: y"
    assert docstring_parts(text) == ("Do it. More.", {"a": "One: two.", "b": "Three four."})
    assert docstring_parts("") == ("", {})
    assert docstring_parts("Do.\n\nReturns:\n    a: b") == ("Do.", {})


def test_a_world_of_tools_ends_with_the_first_turn_without_a_call(use) -> None:
    world = ToolWorld(load_tools([use("add")]).open())
    assert world.begin({"prompt": "1+2?"}, 0).messages == ()
    called = world.answer(PolicyTurn(text="", calls=(ToolCall(name="add", arguments={"a": 1}),)))
    assert [one["content"] for one in called.messages] == ["sum 3.0"]
    assert not called.done
    assert [one["role"] for one in world.answer(PolicyTurn(text="[", fault="bad")).messages] == ["tool"]
    assert world.answer(PolicyTurn(text="3")).done
    world.close()


def test_python_runs_in_the_sandbox() -> None:
    use = ToolUse(use="hone:python", options={"wall_s": 2.0, "cpu_s": 1.0})
    check_references([use])
    loaded = load_tools([use])
    assert [one.name for one in loaded.schemas] == ["python"]
    box = loaded.open()
    assert result(box, "python", code="print(6 * 7)\n'a' * 3").text == "42\n'aaa'"
    assert result(box, "python", code="x = 1").text == ""
    failed = result(box, "python", code="print('so far')\n1 / 0")
    assert failed.failed
    assert failed.text.startswith("so far\nError (error): ")
    assert "ZeroDivisionError" in failed.text
    assert "timeout" in result(box, "python", code="while True: pass").text
    box.close()


def test_faults_of_the_sandboxs_options_are_told_at_once() -> None:
    with pytest.raises(UserCodeError) as refused:
        load_tools([ToolUse(use="hone:python", options={"wall_s": -1, "if_no_rung": "yes"})])
    words = "\n".join(refused.value.messages)
    assert "option wall_s" in words
    assert "option if_no_rung" in words
    with pytest.raises(UserCodeError, match="takes no option 'time'"):
        load_tools([ToolUse(use="hone:python", options={"time": 1})])
