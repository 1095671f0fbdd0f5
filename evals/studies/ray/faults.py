"""The fate of a batch whose workers die, hang or miscount, for each fault.

``python -m grpo_guard.evals.studies.ray.faults -o docs/results/ray-faults.json``

Each fault is injected into a Ray on this machine with two workers. The verifier obeys its texts, so
the right verdict of every completion is known: ``lost`` counts completions without one verdict,
``wrong`` those with a wrong verdict, ``abstained`` those that could not be judged.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.server.distributed.verifier import RayVerifier

NODES: Final = 4
HANG_SECONDS: Final = 2.0


class Obeying(CompletionVerifier):
    """Obeys the text that it verifies.

    Args:
        folder: Where its process writes its number.
        seconds: Time that a text takes.
    """

    name, scope, timeout = "obeying", "completion", None

    def __init__(self, folder: Path, seconds: float) -> None:
        self.seconds = seconds
        (folder / str(os.getpid())).touch()

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [self._one(completion.text) for completion in batch]

    def _one(self, text: str) -> Verdict:
        time.sleep(self.seconds)
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "hang":
            time.sleep(3_600)
        return reject(self.name) if text == "bad" else accept(self.name)


def batch(count: int, odd: dict[int, str]) -> list[Completion]:
    """Build completions of four nodes, every third of them bad, except as ``odd`` specifies."""
    texts = [odd.get(i, "fine" if i % 3 else "bad") for i in range(count)]
    return [Completion("q", text, node=f"n{i % NODES}") for i, text in enumerate(texts)]


def counts(rows: Sequence[Completion], said: Sequence[Verdict]) -> dict[str, int]:
    """How the verdicts compare with the right ones."""
    right = {"bad": "reject", "fine": "accept"}
    pairs = list(zip((right.get(c.text) for c in rows), said, strict=False))
    return {
        "completions": len(rows),
        "lost": abs(len(rows) - len(said)),
        "wrong": sum(not v.abstained and v.outcome != wanted for wanted, v in pairs),
        "abstained": sum(v.abstained for _, v in pairs),
        "abstained_though_harmless": sum(v.abstained and bool(wanted) for wanted, v in pairs),
    }


def killed(kills: int, every: float) -> dict[str, Any]:
    """``kill -9`` of a worker in mid-batch, again and again until there were so many.

    Batches follow one another, all judged by the same verifier.
    """
    dead: set[str] = set()
    total: dict[str, int] = {}
    batches, over = 0, threading.Event()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        there = RayVerifier(partial(Obeying, folder, 0.002), workers=2)

        def kill() -> None:
            while len(dead) < kills and not over.is_set():
                time.sleep(every)
                for path in sorted(folder.iterdir()):
                    if path.name not in dead and len(dead) < kills:
                        os.kill(int(path.name), signal.SIGKILL)
                        dead.add(path.name)
                        say("kills", len(dead), kills)
                        break

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            while thread.is_alive():
                rows = batch(2_000, {})
                for name, count in counts(rows, there.verify(rows)).items():
                    total[name] = total.get(name, 0) + count
                batches += 1
        finally:
            over.set()
            thread.join()
            there.close()
    return {"kills": len(dead), "batches": batches, **total}


def told(odd: dict[int, str], count: int, timeout: float) -> dict[str, Any]:
    """Verify a batch in which some texts kill or hang the process that reads them."""
    rows = batch(count, odd)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        there = RayVerifier(partial(Obeying, folder, 0.0), workers=2, timeout=timeout)
        try:
            started = time.monotonic()
            said = there.verify(rows)
            seconds = time.monotonic() - started
        finally:
            there.close()
        begun = len(list(folder.iterdir()))
    return {"workers_begun": begun, "seconds": round(seconds, 1), **counts(rows, said)}


def cases(kills: int, every: float) -> dict[str, Callable[[], dict[str, Any]]]:
    """Each fault by name."""
    return {
        "kill -9 in mid-batch": partial(killed, kills, every),
        "one text kills": partial(told, {100: "die"}, 1_000, 600.0),
        "one node's 250 texts kill": partial(
            told, dict.fromkeys(range(2, 1_000, NODES), "die"), 1_000, 600.0
        ),
        "one text hangs": partial(told, {100: "hang"}, 1_000, HANG_SECONDS),
    }


def measure(kills: int, every: float, only: str) -> dict[str, Any]:
    """What happened, fault by fault."""
    return {name: run() for name, run in cases(kills, every).items() if only in name}


if __name__ == "__main__":
    study(
        "ray_faults",
        measure,
        option("--kills", type=int, default=50, help="of workers, one after the other"),
        option("--every", type=float, default=1.0, help="seconds between two kills"),
        option("--only", default="", help="faults whose name holds this"),
    )
