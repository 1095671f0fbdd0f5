"""Verifiers that run in worker processes, for tests."""

import os
import sys
import threading
import time
from pathlib import Path

from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding, accept
from grpo_guard.core.verifier import CompletionVerifier

MEET = "meet in "
HEAVY = ("torch", "transformers", "vllm", "ray")


class Obeying(CompletionVerifier):
    """Does what the text says; else accepts, and says in which process."""

    name = "obeying"
    scope = "completion"
    in_workers = True

    def verify(self, batch):
        return [self._verdict(completion) for completion in batch]

    def _verdict(self, completion):
        if completion.text == "die":
            os._exit(3)
        if completion.text == "die here":  # where no retry could survive it
            os.kill(os.getpid(), 9)
        if completion.text == "hang":
            time.sleep(3600)
        if completion.text == "raise":
            raise RuntimeError("no")
        if completion.text.startswith(MEET):
            _meet(Path(completion.text.removeprefix(MEET)))
        loaded = [name for name in HEAVY if name in sys.modules]
        return accept(self.name, findings=(Finding(str(os.getpid()), f"{loaded}"),))


class Remembering(Obeying):
    """Cannot be pickled."""

    name = "remembering"

    def __init__(self):
        self.lock = threading.Lock()


class KeyedRule(RuleVerifier):
    """A rule of one's own that reads metadata."""

    name = "keyed"
    scope = "completion"

    def look(self, batch):
        return [
            accept(self.name, findings=(Finding(str(len(c.metadata)), str(c.metadata["key"])),))
            for c in batch
        ]


def meeting(folder, count=64, workers=2):
    """Texts that are read only once as many processes are reading them.

    A worker that starts first could otherwise read everything before the next one is up.
    """
    place = Path(folder) / f"{workers}-{time.monotonic_ns()}"
    place.mkdir()
    return [Completion("q", f"{MEET}{place}", node=f"n{i % 3}") for i in range(count)]


def _meet(place, seconds=60.0):
    (place / str(os.getpid())).touch()
    expected, until = int(place.name.partition("-")[0]), time.monotonic() + seconds
    while len(os.listdir(place)) < expected and time.monotonic() < until:
        time.sleep(0.01)


def pids(verdicts):
    """The processes in which `Obeying` judged."""
    return {
        int(v.findings[0].kind) for v in verdicts if v.findings and v.findings[0].kind.isdigit()
    }


def bare(verdict):
    """A verdict without times and costs, with everything inside."""
    return (
        verdict.outcome, verdict.cause, verdict.verifier, verdict.p_value, verdict.findings,
        tuple(map(bare, verdict.members)),
    )  # fmt: skip
