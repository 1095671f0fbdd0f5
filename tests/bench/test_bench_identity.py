"""Cost of signatures: 10,000 completions of 128 tokens by four nodes, signed and verified.

Run with ``pytest tests/bench/test_bench_identity.py``. Measures CPU time on one core, so that other
load on the machine does not count.
"""

import time
from typing import Any

import pytest

from grpo_guard.core.completion import Completion
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Admission, Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing

COUNT = 10_000
KEYS = [SigningKey(bytes([i]) * 32) for i in range(4)]
RING = {f"node-{i}": key.public for i, key in enumerate(KEYS)}
WORK = [
    Completion(
        f"Prompt {i // 16}: " + "how many are left? " * 10,
        "There are some. " * 30,
        completion_ids=range(128),
        sampler_logprobs=[-0.5 - i * 1e-6] * 128,
        node=f"node-{i % 4}",
        round=0,
        slot=i % 16,
    )
    for i in range(COUNT)
]


def sign() -> list[Completion]:
    return [signed(c, KEYS[i % 4], run="bench") for i, c in enumerate(WORK)]


def check(sent: list[Completion]) -> Admission:
    return Identity(KeyRing(RING), run="bench").admit(sent, round=0)


def both() -> Admission:
    return check(sign())


@pytest.mark.parametrize("what", [sign, both])
@pytest.mark.benchmark(timer=time.process_time)
def test_bench_identity(benchmark: Any, what: Any) -> None:
    made = benchmark.pedantic(what, rounds=5)
    if isinstance(made, Admission):
        assert not any(made.given)
