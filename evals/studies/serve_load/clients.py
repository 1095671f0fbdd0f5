"""Honest clients that send as fast as they get answers, in a separate process.

    python -m grpo_guard.evals.studies.serve_load.clients PORT FILE CLIENTS SECONDS MOST

FILE has a request's body per line. Prints the results as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEAD = b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def _client(
    port: int, bodies: Iterator[bytes], took: list[float], said: Counter[str]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in bodies:
        began = time.monotonic()
        try:
            writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
        except (OSError, EOFError, ValueError) as error:
            said[type(error).__name__] += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        said[head[9:12].decode()] += 1
        said["verdicts"] += answer.count(b'"index"')
        took.append(time.monotonic() - began)
        if b"connection: close" in head:
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def _all(port: int, bodies: list[bytes], clients: int, seconds: float, most: int) -> Any:
    took: list[float] = []
    said: Counter[str] = Counter()
    end = time.monotonic() + seconds
    left = itertools.islice(itertools.cycle(bodies), most)

    def feed() -> Iterator[bytes]:
        while time.monotonic() < end:
            if (body := next(left, None)) is None:
                return
            yield body

    began = time.monotonic()
    await asyncio.gather(*(_client(port, feed(), took, said) for _ in range(clients)))
    took.sort()
    return {
        "requests": len(took),
        "seconds": time.monotonic() - began,
        "said": dict(said),
        "ms": {
            f"p{share}": 1000 * took[min(len(took) - 1, len(took) * share // 100)]
            for share in (50, 99, 100)
        } if took else {},
    }  # fmt: skip


def ask_all(
    port: int, bodies: Path, clients: int, *, seconds: float = 600.0, most: int = 10**9
) -> dict[str, Any]:
    """Return the results of the requests of ``clients`` clients, each over one connection.

    Args:
        port: The server's port.
        bodies: File with one body per line.
        clients: Number of simultaneous clients.
        seconds: Time after which no more is sent.
        most: Most requests of all clients together.
    """
    words = [str(port), str(bodies), str(clients), str(seconds), str(most)]
    done = subprocess.run(
        [sys.executable, "-m", __name__, *words], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    _port, _file, *_numbers = sys.argv[1:]
    _bodies = Path(_file).read_bytes().splitlines()
    _clients, _seconds, _most = int(_numbers[0]), float(_numbers[1]), int(_numbers[2])
    print(json.dumps(asyncio.run(_all(int(_port), _bodies, _clients, _seconds, _most))))
