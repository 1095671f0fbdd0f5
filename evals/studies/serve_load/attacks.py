"""What hostile clients cost the HTTP server: honest answers, memory and ``/health`` meanwhile.

Each case starts its own server on 127.0.0.1, with a guard that needs no model, and attacks it for
at most ``SECONDS``. Its figures: how long honest requests and ``/health`` took meanwhile, how many
were answered, and the resident memory beyond that of the idle server.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import select
import socket
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from grpo_guard.evals.studies.harness import rate
from grpo_guard.evals.studies.serve_load.server import SECONDS, ask, serving

HONEST = 10
GUARD = "policy: {on_abstain: zero}\npreset: different_weights\n"
MIB = 1024 * 1024
ASKED = json.dumps({"completions": [{"prompt": "3+4?", "text": "It is 7. " * 200}]}).encode()
Attack = Callable[[int, threading.Event], None]


def head(length: int, more: str = "", path: str = "/v1/verify") -> bytes:
    """Build a request's head, with further header lines."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def senders(count: int, first: bytes, drip: bytes = b"", pause: float = 0.5) -> Attack:
    """``count`` connections that send ``first`` and then ``drip`` every ``pause`` seconds; those
    that the server closes are opened again."""

    def attack(port: int, over: threading.Event) -> None:
        open_now: list[socket.socket | None] = [None] * count
        while not over.is_set():
            for i, connection in enumerate(open_now):
                try:
                    if connection is None or _closed(connection):
                        fresh = socket.create_connection(("127.0.0.1", port), timeout=2)
                        open_now[i] = fresh
                        fresh.sendall(first)
                    elif drip:
                        connection.sendall(drip)
                except OSError:
                    open_now[i] = None
            over.wait(pause)
        for connection in filter(None, open_now):
            connection.close()

    return attack


def _closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(4096) or True  # answered: the connection is of no more use
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)
        connection.settimeout(2)


def bodies(*each: bytes, more: str = "", times: int = 1) -> Attack:
    """One whole body per connection, all at once."""

    def attack(port: int, over: threading.Event) -> None:
        def send(body: bytes) -> None:
            for _ in range(times):
                with contextlib.suppress(OSError):
                    raw = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
                    with raw:
                        raw.sendall(head(len(body), more) + body)
                        raw.recv(4096)

        threads = [threading.Thread(target=send, args=(body,), daemon=True) for body in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)

    return attack


def streams(count: int, sentences: int, reads: bool = False) -> Attack:
    """Open ``count`` streams at once of completions of so many sentences; ``reads``: the client
    reads the lines as they arrive. A stream that ends or is refused is requested again."""
    rows = (
        json.dumps({"prompt": f"3+{i // 4}?", "text": f"So 3 + {i} = {i + 3}. " * sentences})
        for i in range(19 * MIB // 10 // (40 + 19 * sentences))
    )
    asked = b'{"completions":[' + ",".join(rows).encode() + b"]}"

    def attack(port: int, over: threading.Event) -> None:
        def one() -> None:
            while not over.is_set():
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=5) as raw,
                ):
                    raw.sendall(head(len(asked), path="/v1/verify/stream") + asked)
                    while reads and not over.is_set() and raw.recv(65536):
                        pass
                    while not reads and not over.wait(0.5) and not _hung_up(raw):
                        pass

        threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return attack


def _hung_up(raw: socket.socket) -> bool:
    """Whether the server has ended a connection from which nothing is read."""
    watch = select.poll()
    watch.register(raw, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(watch.poll(0))


def filled(size: int, item: bytes, begin: bytes, end: bytes) -> bytes:
    """A body of about ``size`` bytes that repeats one item."""
    return begin + b",".join([item] * ((size - len(begin) - len(end)) // (len(item) + 1))) + end


def deep(size: int, item: bytes) -> bytes:
    """A valid completion whose metadata is a huge list."""
    begin = b'{"completions":[{"prompt":"","text":"x","metadata":{"a":['
    return filled(size, item, begin, b"]}}]}")


def wrong(size: int, item: bytes) -> bytes:
    """A body that is refused once it is parsed."""
    return filled(size, item, b'{"completions":[', b"]}")


def keys(size: int) -> bytes:
    """A valid completion whose metadata has as many names as fit."""
    names = b",".join(b'"%x":0' % i for i in range(size // 10))
    return b'{"completions":[{"prompt":"","text":"x","metadata":{' + names + b"}}]}"


def ids(size: int) -> bytes:
    """A valid completion with as many token ids as fit."""
    return filled(
        size, b"70000", b'{"completions":[{"prompt":"","text":"x","completion_ids":[', b"]}]}"
    )


WIDE = b'{"completions":[{"prompt":"\xf0\x9f\x98\x80","text":"%s"}]}'
CHUNKED = b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"1\r\nx\r\n" * 10_000
CASES: dict[str, tuple[Attack, list[str]]] = {
    "nobody else": (senders(0, b""), []),
    "8 idle connections": (senders(8, head(1000)), []),
    "100 slow connections": (senders(100, head(10_000) + b"{", b" "), []),
    "2,000 slow connections": (senders(2000, head(10_000) + b"{", b" "), []),
    "2,000 heads that never end": (senders(2000, b"GET /health HTTP/1.1\r\n", b"a: b\r\n"), []),
    "2,000 bodies of 60 KB but one byte": (senders(2000, head(60_000) + b" " * 59_999), []),
    "60 bodies of 3 MiB but one byte": (senders(60, head(3 * MIB) + b" " * (3 * MIB - 1)), []),
    "20 connections of chunks of one byte": (
        senders(20, CHUNKED + CHUNKS, CHUNKS, 0.05), [],
    ),
    "8 bodies of 15 MiB, lists": (bodies(*[wrong(15 * MIB, b"[]")] * 8), []),
    "8 valid bodies of 15 MiB, lists": (bodies(*[deep(15 * MIB, b"[]")] * 8), []),
    "the same, --max-body-mb 16": (bodies(*[deep(15 * MIB, b"[]")] * 8), ["--max-body-mb", "16"]),
    "8 bodies of 15 MiB of text, --max-body-mb 16": (
        bodies(*[WIDE % (b"x" * 15 * MIB)] * 8), ["--max-body-mb", "16"],
    ),
    "10,000 idle connections": (senders(10_000, b""), []),
    "4 bodies of 50 MB": (bodies(*[b" " * 50_000_000] * 4), []),
    "4 bodies of 50 MB, --max-body-mb 64": (
        bodies(*[deep(50_000_000, b"[]")] * 4), ["--max-body-mb", "64"],
    ),
    "40 bodies of 50 kB that unpack to 50 MB": (
        bodies(*[gzip.compress(b" " * 50_000_000)] * 40, more="Content-Encoding: gzip\r\n"), [],
    ),
    "8 valid bodies of 3.9 MiB, lists": (bodies(*[deep(39 * MIB // 10, b"{}")] * 8), []),
    "8 valid bodies of 1 MiB, lists, 5 times": (bodies(*[deep(MIB, b"[]")] * 8, times=5), []),
    "8 valid bodies of 1.5 MiB, names, 5 times": (bodies(*[keys(3 * MIB // 2)] * 8, times=5), []),
    "8 valid bodies of 1.5 MiB, ids, 5 times": (bodies(*[ids(3 * MIB // 2)] * 8, times=5), []),
    "40 streams of 1.9 MiB of short texts that nobody reads": (streams(40, 6), []),
    "40 streams of 1.9 MiB of long texts that nobody reads": (streams(40, 600), []),
    "40 streams of 1.9 MiB of short texts that are read": (streams(40, 6, reads=True), []),
    "40 streams of 1.9 MiB of long texts that are read": (streams(40, 600, reads=True), []),
}  # fmt: skip


def under(attack: Attack, options: list[str]) -> dict[str, Any]:
    """Times and memory of a server under one attack."""
    with serving(*options, guard=GUARD) as server:
        port = server.port
        for _ in range(3):
            ask(port, "POST", "/v1/verify", ASKED)
        idle = most = server.resident()
        over = threading.Event()
        honest: list[tuple[int, float]] = []
        health: list[float] = []

        def look() -> None:
            while not over.is_set():
                health.append(ask(port, "GET", "/health")[1])
                time.sleep(0.05)

        def be_honest() -> None:
            honest.append(ask(port, "POST", "/v1/verify", ASKED))

        asking = [threading.Thread(target=be_honest, daemon=True) for _ in range(HONEST)]
        others = [
            threading.Thread(target=look, daemon=True),
            threading.Thread(target=attack, args=(port, over), daemon=True),
        ]
        for thread in others:
            thread.start()
        began = time.monotonic()
        started = 0
        while (now := time.monotonic() - began) < SECONDS:
            most = max(most, server.resident())
            time.sleep(0.01)
            if started < HONEST and now > 1.0 + started / 2:
                asking[started].start()
                started += 1
            if now > 10 and not any(thread.is_alive() for thread in asking):
                break
        over.set()
        for thread in others:
            thread.join(5)
        return {
            "honest seconds, median": statistics.median(s for _, s in honest or [(0, SECONDS)]),
            "honest seconds, most": max((s for _, s in honest), default=SECONDS),
            "honest answered": rate(sum(status == 200 for status, _ in honest), HONEST),
            "other answers": [status for status, _ in honest if status != 200],
            "health seconds, most": max(health, default=SECONDS),
            "idle MB": idle,
            "MB beyond it": most - idle,
        }
