"""Load on a server of completions: `python benchmarks/serve_load.py PORT CONNECTIONS REQUESTS TOKENS`; prints JSON.

A process of its own with the standard library only, so that the client takes as little as possible of the machine. Each
connection sends its next request when the last one is answered.
"""

import asyncio
import json
import sys
import time


def body(number: int, tokens: int) -> dict[str, object]:
    """Request `number`: a prompt of 32 token ids, all different; its answer is a function of the number."""
    prompt = [5 + (number * 7 + place) % 200 for place in range(32)]
    return {"model": "served", "prompt": prompt, "max_tokens": tokens, "seed": number}


async def ask(port: int, bodies: list[dict[str, object]], drawn: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while bodies:
        content = json.dumps(bodies.pop()).encode()
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        writer.write(content)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        reply = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
        drawn.append(reply["usage"]["completion_tokens"])
    writer.close()


async def main() -> None:
    port, connections, requests, tokens = map(int, sys.argv[1:])
    bodies = [body(number, tokens) for number in range(requests)]
    drawn: list[int] = []
    begin = time.perf_counter()
    await asyncio.gather(*(ask(port, bodies, drawn) for _ in range(connections)))
    print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": sum(drawn)}))


if __name__ == "__main__":
    asyncio.run(main())
