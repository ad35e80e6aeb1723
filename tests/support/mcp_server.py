"""A server of MCP tools, over stdin and stdout or HTTP: `python mcp_server.py stdio | streamable-http PORT`."""

import itertools
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop")
calls = itertools.count(1)


@server.tool()
def price(item: str, count: int = 1) -> str:
    """Price of some items, in cents."""
    return f"{10 * count * len(item)} ({os.environ.get('SHOP', 'shop')}, call {next(calls)})"


@server.tool()
async def buy(item: str) -> str:
    """Buy an item."""
    if item == "dynamite":
        os._exit(3)
    raise ValueError(f"no {item} here")


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
