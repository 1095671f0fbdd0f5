"""How many requests a served guard can answer, and how fast.

    python -m grpo_guard.evals.studies.serve_load [--part speed,sustained]

The study starts its own servers on 127.0.0.1; the load comes from another process. Times are only
meaningful on an otherwise idle machine.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from grpo_guard.evals.studies.harness import option, process_memory, rate, say, study

PARTS: Final = ("speed", "sustained")
CLIENTS: Final = 64
STACKS: Final = {
    "screens": "policy: {on_abstain: zero}\nverifier: {type: screens}\n",
    "four verifiers": "policy: {on_abstain: zero}\nverifier: {all: [{type: screens}, "
    "{type: arithmetic}, {type: answer_words}, {type: code}]}\n",
    "different_weights": "preset: different_weights\nstate: FOLDER\n",
}
_HEAD: Final = b"POST /v1/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_LOAD: Final = "load"
"""First argument of the process that sends the load."""


@contextlib.contextmanager
def serving(guard: str, *options: str) -> Iterator[tuple[int, int]]:
    """Run ``grpo-guard serve`` with a guard file; yield the server's port and process id."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "guard.yaml"
        config.write_text(guard.replace("FOLDER", folder))
        command = ["-m", "grpo_guard", "serve", "-c", str(config), "--port", "0", *options]
        process = subprocess.Popen(
            [sys.executable, *command], stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
        )
        assert process.stderr is not None
        try:
            port = None
            started = False
            while not (port and started):
                if not (line := process.stderr.readline()):
                    raise OSError("the server ended")
                port = re.search(r"http://127\.0\.0\.1:(\d+)", line) or port
                started = started or "startup complete" in line
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield int(port[1]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def bodies(count: int, nodes: int = 0) -> Iterator[str]:
    """Yield bodies with one GSM8K-like answer each: some 260 characters, three equations."""
    rng = random.Random(0)
    for _ in range(count):
        a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 9)
        total = c * (a + b)
        text = (
            f"She sold {a} clips in April and {b} in May. Together she sold {a}+{b} = {a + b} "
            f"clips. Each of her {c} friends bought as many, so they bought {c}*{a + b} = {total} "
            f"clips in all. Subtracting the first {a} that were returned leaves {total} - {a} = "
            f"{total - a}. Therefore the answer is {total - a}.\n#### {total - a}"
        )
        row = {"prompt": f"{a} in April, {b} in May, {c} friends: how many clips?", "text": text}
        if nodes:
            row["node"] = f"node{rng.randrange(nodes)}"
        yield json.dumps({"completions": [row]})


def ask_all(port: int, sent: list[str], *, seconds: float, most: int = 10**9) -> dict[str, Any]:
    """Send requests from `CLIENTS` connections in a separate process, and count the answers.

    Sending stops after ``seconds`` or ``most`` requests in total; the bodies are sent in turn.
    """
    words = [_LOAD, str(port), str(seconds), str(most)]
    command = [sys.executable, "-m", "grpo_guard.evals.studies.serve_load", *words]
    done = subprocess.run(
        command, input="\n".join(sent), capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def _load(port: int, sent: list[bytes], seconds: float, most: int) -> dict[str, Any]:
    took, said = list[float](), Counter[str]()
    left = itertools.islice(itertools.cycle(sent), most)
    began = time.monotonic()

    def feed() -> Iterator[bytes]:
        while time.monotonic() < began + seconds:
            if (body := next(left, None)) is None:
                return
            yield body

    await asyncio.gather(*(_client(port, feed(), took, said) for _ in range(CLIENTS)))
    took.sort()
    spent = time.monotonic() - began
    places = {share: min(len(took) - 1, len(took) * share // 100) for share in (50, 99, 100)}
    return {
        "requests": len(took),
        "seconds": spent,
        "per second": len(took) / spent,
        "said": dict(said),
        "ms": {f"p{share}": 1000 * took[at] for share, at in places.items()} if took else {},
    }


async def _client(port: int, sent: Iterator[bytes], took: list[float], said: Counter[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in sent:
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
    writer.close()


def speed(seconds: float) -> dict[str, Any]:
    """Measure how each stack answers clients that send as fast as they are answered."""
    sent = list(bodies(2000))
    found = {}
    for number, (name, guard) in enumerate(STACKS.items(), 1):
        with serving(guard) as (port, _):
            ask_all(port, sent, seconds=1.0)  # gets one-off work done
            found[name] = ask_all(port, sent, seconds=seconds)
        say(name, number, len(STACKS))
    return found


def sustained(requests: int, workers: int) -> dict[str, Any]:
    """Measure the text stack with per-node memory, at one completion per request."""
    sent = list(bodies(5000, nodes=8))
    options = ("--workers", str(workers)) if workers > 1 else ()
    with serving(STACKS["different_weights"], *options) as (port, pid):
        ask_all(port, sent, seconds=1.0)
        found = ask_all(port, sent, seconds=3600.0, most=requests)
        resident = process_memory("VmRSS", pid)
    answered = found["said"].get("verdicts", 0)
    return {"answered": rate(answered, requests), "MB at the end": resident / 1e6, **found}


def measure(part: str, seconds: float, requests: int, workers: int) -> dict[str, Any]:
    """Compute the figures for the chosen parts."""
    chosen = part.split(",")
    if unknown := set(chosen) - set(PARTS):
        raise ValueError(f"--part: expected {', '.join(PARTS)}, got {', '.join(unknown)}")
    found: dict[str, Any] = {}
    if "speed" in chosen:
        found[f"{CLIENTS} clients"] = speed(seconds)
    if "sustained" in chosen:
        name = f"different_weights, {CLIENTS} clients, {workers} workers"
        found[name] = sustained(requests, workers)
    return found


if __name__ == "__main__" and sys.argv[1:2] == [_LOAD]:
    _port, _seconds, _most = sys.argv[2:]
    _sent = sys.stdin.buffer.read().splitlines()
    print(json.dumps(asyncio.run(_load(int(_port), _sent, float(_seconds), int(_most)))))
elif __name__ == "__main__":
    study(
        "serve-load",
        measure,
        option("--part", default=",".join(PARTS), help="one of them"),
        option("--seconds", type=float, default=20.0, help="of load, for each figure of speed"),
        option("--requests", type=int, default=100_000, help="of the sustained load"),
        option("--workers", type=int, default=1, help="of the sustained load"),
        out=Path("docs/results/serve-load.json"),
    )
