"""Overhead of a guard on top of its verifier, on a batch of one.

Run with ``pytest tests/bench/test_bench_guard.py``; on a busy machine add
``--benchmark-timer=time.process_time``, or waits for a processor are measured. "handover" is the
cost of calling a thread that can be abandoned: the machine's own share of "guard".
"""

import queue
import threading

import pytest

from grpo_guard import Completion, CompletionVerifier, Guard
from grpo_guard.core.verdict import accept


class AcceptAll(CompletionVerifier):
    name = "accept_all"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]


@pytest.mark.parametrize("what", ["verifier", "handover", "guard"])
def test_bench_guard(benchmark, what):
    completion = Completion("What is 2 + 2?", "The answer is 4.", node="ann")
    verifier = AcceptAll()
    guard = Guard(verifier)
    asked, answered = queue.SimpleQueue(), queue.SimpleQueue()

    def work():
        while asked.get() is not None:
            answered.put(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    run = {
        "verifier": lambda: verifier.verify([completion]),
        "handover": lambda: (asked.put(0), answered.get(timeout=60)),
        "guard": lambda: guard.apply([1.0], [completion]),
    }[what]
    assert guard.apply([1.0], [completion]) == [1.0]
    benchmark.pedantic(run, rounds=30, iterations=300, warmup_rounds=2)
    asked.put(None)
    thread.join()
