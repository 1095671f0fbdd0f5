"""Several reward functions of one guard cost one verification, however they are called."""

import asyncio
import threading

import pytest

from grpo_guard import Guard, guard
from tests.helpers.characters import Characters
from tests.helpers.rule_verifiers import NoWord
from tests.trl.trl_calls import TEXTS, AsyncObject, CallableObject, call, ones, run, threes, twos


class Notebook:
    """A ledger that keeps its calls."""

    def __init__(self):
        self.batches = []

    def record(self, batch, verdicts):
        self.batches.append((len(batch), len(verdicts)))


def test_separately_decorated_functions_share_one_review():
    verifier, ledger = NoWord(), Notebook()
    shared = Guard(verifier, ledger=ledger)
    f, g, h = shared(ones), shared(twos), shared(threes)
    logged = []
    for step in range(2):
        batch = call(step=step, log_metric=lambda name, value: logged.append(name))
        assert [f(**batch)[1], g(**batch)[1], run(h, **batch)[1]] == [None] * 3
    assert len(verifier.batches) == len(ledger.batches) == 2
    assert logged.count("guard/reject_rate") == 2


def test_two_guards_share_nothing():
    a, b = NoWord(), NoWord()
    guard(a)(ones)(**call())
    guard(b)(ones)(**call())
    assert len(a.batches) == len(b.batches) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1},
        {"texts": ["a", "Hail", "d"]},
        {"completion_ids": [[1], [2], [3]]},
        {"prompts": ["q", "p", "p"]},
        {"peer": ["x", "y", "z"]},
    ],
)
def test_any_difference_makes_a_new_batch(change):
    verifier = NoWord()
    f, g = guard(verifier, tokenizer=Characters())([ones, twos])
    f(**call())
    g(**{**call(change.pop("texts", TEXTS), change.pop("step", 0)), **change})
    assert len(verifier.batches) == 2


def test_repeated_call_of_one_function_is_a_new_batch():
    # Without trainer_state nothing separates a second step from the first, but the policy has
    # changed.
    verifier = NoWord()
    f = guard(verifier)(ones)
    batch = call()
    del batch["trainer_state"]
    f(**batch)
    f(**batch)
    assert len(verifier.batches) == 2


class Gate(NoWord):
    """Blocks inside `verify` until released."""

    def __init__(self):
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()

    def verify(self, batch):
        self.entered.set()
        self.go.wait(30)
        return super().verify(batch)


def test_concurrent_async_functions_share_one_review():
    verifier = Gate()
    f, g = guard(verifier)([threes, AsyncObject()])

    async def main():
        both = asyncio.gather(f(**call()), g(**call()))
        while not verifier.entered.is_set():
            await asyncio.sleep(0.001)
        verifier.go.set()  # reached only because the verification does not block the loop
        return await both

    assert asyncio.run(main()) == [[3.0, None, 3.0], [5.0, None, 5.0]]
    assert len(verifier.batches) == 1


def test_cancelled_caller_does_not_cancel_the_shared_review():
    verifier = Gate()
    f, g = guard(verifier)([threes, AsyncObject()])

    async def main():
        first = asyncio.create_task(f(**call()))
        while not verifier.entered.is_set():
            await asyncio.sleep(0.001)
        second = asyncio.create_task(g(**call()))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        verifier.go.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(main()) == [5.0, None, 5.0]
    assert len(verifier.batches) == 1


def test_threads_share_one_review():
    verifier = Gate()
    functions = guard(verifier)([ones, twos, CallableObject()])
    results = [None] * 3

    def work(i):
        results[i] = functions[i](**call())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    assert verifier.entered.wait(30)
    verifier.go.set()
    for thread in threads:
        thread.join(30)
    assert results == [[1.0, None, 1.0], [2.0, None, 2.0], [4.0, None, 4.0]]
    assert len(verifier.batches) == 1
