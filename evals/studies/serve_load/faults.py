"""The server's promises for faults, and what happened, counted."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from grpo_guard.evals.studies.harness import rate
from grpo_guard.evals.studies.serve_load.clients import ask_all
from grpo_guard.evals.studies.serve_load.server import serving
from grpo_guard.evals.studies.serve_load.speed import STACKS, solutions, written
from grpo_guard.server.client.verifier import RemoteVerifier


def told_to_stop(times: int) -> dict[str, Any]:
    """SIGTERM under load: requests sent before are answered."""
    answered = sent = 0
    for _ in range(times):
        slow = [replace(c, text=c.text * 40) for c in solutions(64)]
        with (
            written(slow) as bodies,
            serving("--batch-size", "1", guard=STACKS["four verifiers"]) as server,
        ):
            done: list[dict[str, Any]] = []

            def load(port: int = server.port, file: Path = bodies, to: Any = done) -> None:
                to.append(ask_all(port, file, 64, most=64))

            asking = threading.Thread(target=load)
            asking.start()
            _until_asked(server.port)
            server.process.send_signal(signal.SIGTERM)
            asking.join()
            server.process.wait(60)
            answered += done[0]["said"].get("verdicts", 0) if done else 0
            sent += 64
    return rate(answered, sent)


def _until_asked(port: int) -> None:
    """Wait until all 64 have arrived and most are queued."""
    counted = 0
    while counted < 64:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        counts = re.findall(r"^grpo_guard_requests_(?:total.*|in_progress) (\d+)$", text, re.M)
        counted = sum(map(int, counts))


def workers_killed(times: int) -> dict[str, Any]:
    """``kill -9`` of one of two workers under a `RemoteVerifier`, which asks again."""
    rows = list(solutions(400, nodes=4))
    accepted = verdicts = 0
    with serving("--workers", "2", guard=STACKS["different_weights"]) as server:
        remote = RemoteVerifier(f"http://127.0.0.1:{server.port}", most=10, attempts=8)
        remote.verify(rows[:10])
        for _ in range(times):
            workers = [pid for pid in server.pids[1:] if b"spawn_main" in _command(pid)]
            killing = threading.Timer(0.2, os.kill, (workers[0], signal.SIGKILL))
            killing.start()
            found = remote.verify(rows)
            killing.join()
            verdicts += len(found)
            accepted += sum(v.cause.value == "judged" for v in found)
            time.sleep(3.0)  # until the next one has started
    return {"judged": rate(accepted, times * len(rows)), "verdicts": verdicts, "kills": times}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def full_queue(clients: int) -> dict[str, Any]:
    """More requests than may wait: 429 for those, an answer for all others."""
    options = ("--queue", "16", "--concurrency", "1", "--batch-size", "1")
    with (
        written(list(solutions(500))) as bodies,
        serving(*options, guard=STACKS["four verifiers"]) as server,
    ):
        said = ask_all(server.port, bodies, clients, seconds=5.0)["said"]
    statuses = {name: count for name, count in said.items() if name.isdecimal()}
    every = sum(said.get(name, 0) for name in said if name != "verdicts")
    return {
        "statuses": statuses,
        "200 or 429": rate(statuses.get("200", 0) + statuses.get("429", 0), every),
        "one verdict for each 200": said.get("verdicts", 0) == statuses.get("200", 0),
    }
