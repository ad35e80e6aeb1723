"""Tools of MCP servers that the tests start: over stdin and stdout, and over HTTP."""

import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.core.dialogue import ToolCall
from hone.core.errors import ConfigError, ResourceError, UserCodeError
from hone.text.tools.loading import ToolUse, check_references, load_tools
from hone.text.tools.mcp_tools import close_connections
from hone.text.tools.toolbox import ToolBox

SERVER = Path(__file__).resolve().parents[2] / "support" / "mcp_server.py"
STDIO = f"mcp:{shlex.quote(sys.executable)} {shlex.quote(str(SERVER))} stdio"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(SERVER), "streamable-http", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 300
        while not answers(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"mcp:http://127.0.0.1:{port}/mcp"
        server.kill()


@pytest.fixture
def boxes() -> Iterator[list[ToolBox]]:
    made: list[ToolBox] = []
    yield made
    for box in made:
        box.close()
    close_connections()


def call(box, name: str, **arguments):
    return box.call(ToolCall(name=name, arguments=arguments))


def test_a_command_is_started_and_asked_for_its_tools(boxes: list[ToolBox]) -> None:
    loaded = load_tools([ToolUse(use=STDIO, options={"env": {"SHOP": "corner shop"}, "timeout_s": 20})])
    assert [one.name for one in loaded.schemas] == ["price", "buy"]
    assert loaded.schemas[0].description == "Price of some items, in cents."
    assert loaded.schemas[0].parameters["required"] == ["item"]
    first, second = loaded.open(), loaded.open()
    boxes += [first, second]
    assert call(first, "price", item="egg", count=2).text == "60 (corner shop, call 1)"
    assert call(second, "price", item="egg").text == "30 (corner shop, call 2)", "one session for this process"
    assert call(first, "price", item=5).text == "Error: price: item is '5', not of type string"
    assert call(first, "price", count=2).failed
    failed = call(first, "buy", item="milk")
    assert failed.failed
    assert failed.text.startswith("Error: Error executing tool buy")
    with pytest.raises(ResourceError, match="was lost while buy ran"):
        call(first, "buy", item="dynamite")
    assert call(first, "price", item="egg").text == "30 (corner shop, call 1)", "a new session after a lost one"


def test_a_server_that_runs_is_named_by_its_address(address: str, boxes: list[ToolBox]) -> None:
    box = load_tools([ToolUse(use=address), ToolUse(use="hone:calculator")]).open()
    boxes.append(box)
    assert call(box, "price", item="egg").text == "30 (shop, call 1)"
    assert call(box, "calculator", expression="2*3").text == "6"
    assert call(box, "price", item="egg").text == "30 (shop, call 2)"


FORKING = """
import os, sys
from hone.core.dialogue import ToolCall
from hone.text.tools.loading import ToolUse, load_tools

box = load_tools([ToolUse(use=sys.argv[1])]).open()

def price():
    print(box.call(ToolCall(name="price", arguments={"item": "egg"})).text, flush=True)

price()
if (child := os.fork()) == 0:
    price()
    os._exit(0)
os.waitpid(child, 0)
price()
"""


def test_a_forked_dialogue_has_a_session_of_its_own(address: str) -> None:
    """In a process of its own: a child of one with many threads, as the tests have, may wait forever for a lock."""
    words = [sys.executable, "-W", "ignore", "-c", FORKING, address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    before, child, after = (int(line.removeprefix("30 (shop, call ")[:-1]) for line in done.stdout.splitlines())
    assert (child, after) == (before + 1, before + 2)


def test_servers_that_cannot_be_reached_are_named_all_at_once() -> None:
    with pytest.raises(UserCodeError) as refused:
        load_tools([ToolUse(use="mcp:no-such-command --x"), ToolUse(use="mcp:http://127.0.0.1:9/mcp")])
    assert len(refused.value.messages) == 2
    assert "'mcp:no-such-command --x' cannot be reached: FileNotFoundError" in refused.value.messages[0]
    assert "'mcp:http://127.0.0.1:9/mcp' cannot be reached" in refused.value.messages[1]


def test_faults_that_need_no_server() -> None:
    with pytest.raises(ConfigError) as refused:
        check_references([ToolUse(use="mcp:"), ToolUse(use="mcp:a 'b"), ToolUse(use="mcp:a", options={"envs": 1})])
    words = "\n".join(refused.value.messages)
    assert "names no server" in words
    assert "the command cannot be read" in words
    assert "takes no option 'envs'; did you mean env?" in words
