"""Tools of MCP servers: `mcp:COMMAND` starts a server and speaks with it over stdin and stdout, `mcp:http://...` names
one that runs (streamable HTTP).

A process has one session with each server, from its first call to its end, and each dialogue with such tools
has a process of its own. Needs the extra `tools`.
"""

import asyncio
import atexit
import contextlib
import importlib.util
import os
import shlex
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hone.core.dialogue import ToolSchema
from hone.core.errors import ResourceError, UserCodeError, did_you_mean
from hone.process.user_files import shorten
from hone.text.tools.schemas import check_schema
from hone.text.tools.toolbox import ToolBox, ToolResult

if TYPE_CHECKING:  # the extra `tools`
    from anyio.from_thread import BlockingPortal
    from mcp import Client

PREFIX: Final = "mcp:"
_OPTIONS: Final = ("env", "cwd", "timeout_s")
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _McpServer:
    """A server, as a config names it."""

    use: str
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of a command, beside `PATH`, `HOME` and the like."""
    cwd: str | None = None
    """Folder of a command."""
    timeout_s: float = _TIMEOUT_S
    """Seconds without an answer after which a call has failed."""

    @property
    def is_address(self) -> bool:
        """True for a server that runs."""
        return self.use.removeprefix(PREFIX).startswith(("http://", "https://"))

    def client(self) -> "Client":
        """A client that is not connected yet."""
        from mcp import Client, StdioServerParameters  # noqa: PLC0415 - an extra, and a second to import

        target = self.use.removeprefix(PREFIX)
        if self.is_address:
            return Client(target, read_timeout_seconds=self.timeout_s)
        command, *arguments = shlex.split(target)
        environment = dict(self.env) or None
        started = StdioServerParameters(command=command, args=arguments, env=environment, cwd=self.cwd)
        return Client(started, read_timeout_seconds=self.timeout_s)


class _McpConnection:
    """A session with a server, in a thread with an event loop of its own."""

    def __init__(self, server: _McpServer) -> None:
        self._server, self._stack = server, ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: Client | None = None

    def open(self) -> None:
        """Connect; a command is started. Raises ResourceError."""
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - comes with mcp

        try:
            self._portal = self._stack.enter_context(start_blocking_portal())
            self._client = self._stack.enter_context(self._portal.wrap_async_context_manager(self._server.client()))
        except Exception as error:
            self.close()
            raise ResourceError(f"tool server {self._server.use!r} cannot be reached: {_reason(error)}") from error

    def schemas(self) -> list[ToolSchema]:
        """Schemas of all tools, in the server's order."""
        assert self._portal is not None
        return self._portal.call(self._list)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool from any event loop. Raises ResourceError if the server was lost."""
        assert self._portal is not None
        return await asyncio.wrap_future(self._portal.start_task_soon(self._call, name, dict(arguments)))

    def close(self) -> None:
        """End the session, and a server that was started for it."""
        stack, self._stack = self._stack, ExitStack()
        with contextlib.suppress(Exception):  # of a server that was lost: nothing is left to be closed
            stack.close()

    async def _list(self) -> list[ToolSchema]:
        assert self._client is not None
        schemas: list[ToolSchema] = []
        cursor: str | None = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            schemas += [
                ToolSchema(name=one.name, description=one.description or "", parameters=one.input_schema)
                for one in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return schemas

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp.shared.exceptions import MCPError  # noqa: PLC0415 - an extra
        from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415

        assert self._client is not None
        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ResourceError(f"tool server {self._server.use!r} was lost while {name} ran: {error}") from None
            return ToolResult(name=name, text=f"Error: {shorten(error)}", failed=True)
        texts = [one.text if one.type == "text" else f"[{one.type}]" for one in result.content]
        text = "\n".join(texts)
        return ToolResult(name=name, text=f"Error: {text}" if result.is_error else text, failed=result.is_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _McpTool:
    """Implements `ToolFunction`: one tool of a server."""

    schema: ToolSchema
    server: _McpServer

    async def start(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the tool over this process's session with the server, which opens with the first call, and again after
        it was lost. Raises ResourceError."""
        with _lock:
            connection = _connections.get(self.server)
            if connection is None:
                connection = _McpConnection(self.server)
                connection.open()
                _connections[self.server] = connection
        try:
            return await connection.call(self.schema.name, arguments)
        except ResourceError:
            with _lock:
                if _connections.get(self.server) is connection:
                    del _connections[self.server]
            connection.close()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTools:
    """The tools of a server."""

    schemas: tuple[ToolSchema, ...]
    server: _McpServer

    def open(self) -> ToolBox:
        """Make the tools of one dialogue; the server is asked when one is called."""
        return ToolBox([_McpTool(schema=one, server=self.server) for one in self.schemas])

    @classmethod
    def load(cls, use: str, options: Mapping[str, Any]) -> "McpTools":
        """Ask a server for its tools, over a session that ends. Raises UserCodeError with all faults."""
        faults = cls.option_faults(use, options)
        if faults:
            raise UserCodeError(*faults)
        env = tuple((str(key), str(value)) for key, value in dict(options.get("env", {})).items())
        server = _McpServer(
            use=use, env=env, cwd=options.get("cwd"), timeout_s=float(options.get("timeout_s", _TIMEOUT_S))
        )
        connection = _McpConnection(server)
        try:
            connection.open()
            schemas = connection.schemas()
        except ResourceError as error:
            raise UserCodeError(*error.messages) from None
        finally:
            connection.close()
        faults = [f"tool {use!r}: {fault}" for schema in schemas for fault in check_schema(schema)]
        if faults or not schemas:
            raise UserCodeError(*(faults or [f"tool {use!r}: the server has no tools"]))
        return cls(schemas=tuple(schemas), server=server)

    @staticmethod
    def option_faults(use: str, options: Mapping[str, Any]) -> list[str]:
        """Faults of an entry that names a server, without asking it."""
        target = use.removeprefix(PREFIX)
        faults = [
            f"tool {use!r} takes no option {key!r}{did_you_mean(key, _OPTIONS)}"
            for key in options
            if key not in _OPTIONS
        ]
        if importlib.util.find_spec("mcp") is None:
            faults.append(f"tool {use!r} needs the package mcp: pip install 'hone-rl[tools]'")
        try:
            if not shlex.split(target):
                faults.append(f"tool {use!r} names no server: write mcp:COMMAND or mcp:http://HOST:PORT/PATH")
        except ValueError as error:
            faults.append(f"tool {use!r}: the command cannot be read: {error}")
        return faults


_connections: dict[_McpServer, _McpConnection] = {}
_of_the_parent: list[dict[_McpServer, _McpConnection]] = []
_lock = threading.Lock()


def close_connections() -> None:
    """End this process's sessions; a later call opens others."""
    with _lock:
        for connection in _connections.values():
            connection.close()
        _connections.clear()


def _reason(error: BaseException) -> str:
    """The first plain exception of nested groups, which the client's task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {shorten(error)}"


def _leave_connections() -> None:
    """Let a forked child open sessions of its own. Its parent's are never freed there: their end would wait for a
    thread that the child does not have."""
    _of_the_parent.append(dict(_connections))
    _connections.clear()


atexit.register(close_connections)
os.register_at_fork(after_in_child=_leave_connections)
