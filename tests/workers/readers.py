"""Verifiers that run in worker processes, for tests."""

import os
import sys
import threading
import time

from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.verdict import Finding, accept
from grpo_guard.core.verifier import CompletionVerifier

HEAVY = ("torch", "transformers", "vllm", "ray")


class Obeying(CompletionVerifier):
    """Does what the text says; else accepts, and says in which process."""

    name = "obeying"
    judges_alone = True
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
    looks_alone = True

    def look(self, batch):
        return [
            accept(self.name, findings=(Finding(str(len(c.metadata)), str(c.metadata["key"])),))
            for c in batch
        ]


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
