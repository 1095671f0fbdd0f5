"""Requests judged together: when they join, and that none depends on its neighbours."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.requests import ClientDisconnect

from grpo_guard import Completion, CompletionVerifier, Guard
from grpo_guard.core.verdict import accept, reject
from grpo_guard.guard.admission import AdmittedBatch
from grpo_guard.server.batches import Batches, Job
from grpo_guard.server.bodies import Asked
from grpo_guard.server.limits import Limits
from grpo_guard.server.verdicts import Verdicts
from tests.server.server_parts import asking, client, listening, verdicts_of


class Alone(CompletionVerifier):
    """Rejects "Hail"; blocks at "wait" and raises at "break"."""

    name = "alone"
    scope = "completion"
    timeout = None

    def __init__(self):
        self.calls, self.started, self.go = [], threading.Event(), threading.Event()

    def verify(self, batch):
        self.calls.append([c.text for c in batch])
        if any("wait" in c.text for c in batch):
            self.started.set()
            assert self.go.wait(60)
        if any("break" in c.text for c in batch):
            raise RuntimeError("cannot read this")
        return [(reject if "Hail" in c.text else accept)(self.name) for c in batch]


class Notes:
    def __init__(self):
        self.batches = []

    def record(self, batch, verdicts):
        self.batches.append([c.text for c in batch])


def outcomes(web, *texts):
    return [v["outcome"] for v in verdicts_of(web, *texts)]


def until(true):
    end = time.monotonic() + 30
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


def test_requests_join_only_while_a_batch_is_running():
    verifier, notes = Alone(), Notes()
    with client(verifier, ledger=notes, batch_wait=60) as web, ThreadPoolExecutor(8) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        later = [pool.submit(outcomes, web, f"{i}", "Hail") for i in range(5)]
        until(lambda: b"in_progress 6" in web.get("/metrics").content)
        assert len(verifier.calls) == 1
        verifier.go.set()
        assert first.result(30) == ["accept"]
        assert [f.result(30) for f in later] == [["accept", "reject"]] * 5
    assert [len(call) for call in verifier.calls] == [1, 10]
    assert sorted(map(len, notes.batches)) == [1, 2, 2, 2, 2, 2]  # each as its own batch


def test_batch_size_is_bounded_and_larger_requests_run_alone():
    verifier = Alone()
    with client(verifier, batch_wait=60, batch_size=4) as web, ThreadPoolExecutor(8) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        later = [pool.submit(outcomes, web, *texts) for texts in (["a"] * 3, ["b"] * 3, ["c"] * 9)]
        until(lambda: b"in_progress 4" in web.get("/metrics").content)
        verifier.go.set()
        assert [f.result(30) for f in (first, *later)] == [["accept"] * n for n in (1, 3, 3, 9)]
    assert sorted(map(len, verifier.calls)) == [1, 3, 3, 9]


def test_waiting_for_a_slow_batch_is_bounded():
    verifier = Alone()
    with client(verifier, batch_wait=0.05) as web, ThreadPoolExecutor(2) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        assert outcomes(web, "fine") == outcomes(web, "fine") == ["accept"]
        assert not first.done()
        verifier.go.set()


def test_crashing_completions_do_not_affect_other_requests():
    """In a single batch, as many failures as here would end the search for culprits."""
    verifier = Alone()
    with client(verifier, batch_wait=60, batch_size=200) as web, ThreadPoolExecutor(8) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        hostile = pool.submit(outcomes, web, *["break"] * 60)
        honest = [pool.submit(outcomes, web, "fine", "Hail") for _ in range(3)]
        until(lambda: b"in_progress 5" in web.get("/metrics").content)
        verifier.go.set()
        assert hostile.result(30) == ["abstain"] * 60
        assert [f.result(30) for f in honest] == [["accept", "reject"]] * 3
        first.result(30)
    assert max(map(len, verifier.calls)) == 66  # they were in one batch


class HangsOnce(Alone):
    """Blocks at "hang" forever."""

    def verify(self, batch):
        if any("hang" in c.text for c in batch):
            self.calls.append([c.text for c in batch])
            self.go.wait(60)
        return super().verify(batch)


@pytest.mark.slow
def test_hanging_batch_is_split_so_only_the_culprit_is_late():
    verifier, notes = HangsOnce(), Notes()
    limits = {"batch_wait": 60, "seconds": 4, "running": 4}
    with client(verifier, ledger=notes, **limits) as web, ThreadPoolExecutor(8) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        culprit = pool.submit(verdicts_of, web, "hang")
        honest = [pool.submit(outcomes, web, f"{i}", "Hail") for i in range(3)]
        until(lambda: b"in_progress 5" in web.get("/metrics").content)
        threading.Timer(0.2, verifier.started.clear).start()
        verifier_go, verifier.go = verifier.go, threading.Event()
        verifier_go.set()  # the first ends, and the joined batch hangs
        assert first.result(30) == ["accept"]
        assert [f.result(30) for f in honest] == [["accept", "reject"]] * 3
        assert [v["cause"] for v in culprit.result(30)] == ["timeout"]
        verifier.go.set()
        until(lambda: sum(map(len, notes.batches)) >= 7)
    told = sorted(text for batch in notes.batches for text in batch)
    assert told == sorted(["wait", "0", "1", "2", *["Hail"] * 3])  # once each, and no "hang"


def test_batch_verifier_is_called_for_each_request():
    class Whole(Alone):
        scope = "batch"

    verifier = Whole()
    with client(verifier, running=1) as web, ThreadPoolExecutor(8) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        later = [pool.submit(outcomes, web, "a", "b") for _ in range(3)]
        until(lambda: b"in_progress 4" in web.get("/metrics").content)
        verifier.go.set()
        assert [f.result(30) for f in (first, *later)] == [["accept"], *[["accept"] * 2] * 3]
    assert list(map(len, verifier.calls)) == [1, 2, 2, 2]


def test_rewards_join_and_custom_functions_are_called_per_request():
    asked = {"query": ["3+4?fine", "3+4?Hail"], "prompts": ["3+4?"] * 2, "labels": ["7"] * 2}
    called = []

    def grade(queries, prompts, labels):
        called.append(len(queries))
        return [2.0] * len(queries)

    for reward, expected in ((None, [1.0, 0.0]), (grade, [2.0, 0.0])):
        verifier = Alone()
        with client(verifier, reward, batch_wait=60) as web, ThreadPoolExecutor(8) as pool:
            first = pool.submit(outcomes, web, "wait")
            assert verifier.started.wait(30)
            later = [pool.submit(web.post, "/get_reward", json=asked) for _ in range(3)]
            if reward is None:
                until(lambda w=web: b"in_progress 4" in w.get("/metrics").content)
            else:
                assert [f.result(30).json()["rewards"] for f in later] == [expected] * 3
            verifier.go.set()
            assert [f.result(30).json()["rewards"] for f in later] == [expected] * 3
            first.result(30)
        assert (max(map(len, verifier.calls)) == 6) is (reward is None)
    assert called == [2, 2, 2]


@pytest.mark.slow
def test_under_load_each_request_gets_its_own_answers_in_order():
    verifier = Alone()
    with listening(verifier) as port, ThreadPoolExecutor(16) as pool:
        import http.client

        def ask(number):
            web = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            texts = ["Hail" if number >> bit & 1 else "fine" for bit in range(number % 7)]
            rows = [{"prompt": "", "text": text} for text in texts]
            web.request("POST", "/v1/verify", json.dumps({"completions": rows}))
            said = json.load(web.getresponse())["verdicts"]
            web.close()
            assert [v["index"] for v in said] == list(range(len(texts)))
            assert [v["outcome"] == "reject" for v in said] == [text == "Hail" for text in texts]

        list(pool.map(ask, range(400)))
    assert max(map(len, verifier.calls)) > 7


class Exits(Alone):
    """Raises SystemExit at "exit"."""

    def verify(self, batch):
        if any("exit" in c.text for c in batch):
            raise SystemExit(3)
        return super().verify(batch)


def test_exiting_verifier_does_not_affect_other_requests():
    verifier = Exits()
    with client(verifier, batch_wait=60, running=1) as web, ThreadPoolExecutor(4) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        hostile = pool.submit(web.post, "/v1/verify", content=asking("exit"))
        honest = pool.submit(outcomes, web, "fine", "Hail")
        until(lambda: b"in_progress 3" in web.get("/metrics").content)
        verifier.go.set()
        assert honest.result(30) == ["accept", "reject"]
        assert hostile.result(30).status_code == 500
        assert outcomes(web, "after") == first.result(30) == ["accept"]


class SlowNotes(Notes):
    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def record(self, batch, verdicts):
        super().record(batch, verdicts)
        if "slow" in batch[0].text:
            assert self.go.wait(60)


@pytest.mark.slow
def test_hanging_ledger_records_nothing_twice(caplog):
    verifier, notes = Alone(), SlowNotes()
    limits = {"batch_wait": 60, "seconds": 4, "running": 4}
    with client(verifier, ledger=notes, **limits) as web, ThreadPoolExecutor(4) as pool:
        first = pool.submit(outcomes, web, "wait")
        assert verifier.started.wait(30)
        asked = []
        for i, text in enumerate(("fine", "slow", "later"), 2):
            asked.append(pool.submit(outcomes, web, text))
            until(lambda i=i: f"in_progress {i}".encode() in web.get("/metrics").content)
        verifier.go.set()
        # The batch is split while "slow" is still at the ledger: settled rows are answered, the
        # rest is judged again.
        assert [f.result(30) for f in (first, asked[0], asked[2])] == [["accept"]] * 3
        assert "is judged alone" in caplog.text
        notes.go.set()
        asked[1].result(30)
        time.sleep(0.1)  # time for a second record, if there were one
    assert sorted(notes.batches) == [["fine"], ["later"], ["slow"], ["wait"]]


class Early(asyncio.SelectorEventLoop):
    """An event loop whose timers fire slightly early, as timers with millisecond resolution may."""

    def call_later(self, delay, *args, **options):
        return super().call_later(max(0.0, delay - 0.0005), *args, **options)


def test_early_timer_leaves_no_request_waiting():
    verifier = Alone()
    batches = Batches(verifier, Limits(batch_wait=0.02))

    def job(text):
        known = AdmittedBatch([Completion("p", text)], [None], [None])
        return Job(lambda: known, lambda known, said: said[0], True, 1, 1)

    async def both():
        end = asyncio.get_running_loop().time() + 30
        first = asyncio.create_task(batches.answer(job("wait"), end))
        await asyncio.to_thread(verifier.started.wait, 30)
        try:
            return await asyncio.wait_for(batches.answer(job("fine"), end), 10)
        finally:
            verifier.go.set()
            await first

    with asyncio.Runner(loop_factory=Early) as runner:
        assert runner.run(both()).accepted


def test_disconnected_client_is_not_judged_again_after_a_split():
    verifier = Alone()
    batches, settled = Batches(verifier, Limits(batch_wait=60, seconds=0.4, running=4)), []

    def job(text):
        known = AdmittedBatch([Completion("p", text)], [None], [None])
        return Job(lambda: known, lambda known, said: settled.append(text), True, 1, 1)

    async def run():
        end = asyncio.get_running_loop().time() + 30
        jobs = [job(text) for text in ("wait", "stays", "leaves", "wait too")]
        asked = [asyncio.create_task(batches.answer(jobs[0], end))]
        await asyncio.to_thread(verifier.started.wait, 30)
        asked += [asyncio.create_task(batches.answer(one, end)) for one in jobs[1:]]
        await asyncio.sleep(0)
        verifier.go.set()  # the first finishes; the others join and hang
        verifier.go = threading.Event()
        await asked[0]
        jobs[2].leave()
        with pytest.raises(ClientDisconnect):
            await asyncio.wait_for(asked[2], 30)
        await asyncio.wait_for(asked[1], 30)
        verifier.go.set()
        await asked[3]

    asyncio.run(run())
    assert verifier.calls[1] == ["stays", "leaves", "wait too"]  # and then each remaining one alone
    assert sorted(map(str, verifier.calls[2:])) == ["['stays']", "['wait too']"]


def test_environment_prevents_joining_and_job_size_is_its_text_size():
    guard = Guard(Alone())
    asked = Asked([Completion("p", "x" * 1000)], [None], first=0)
    job = Verdicts(guard, "late").job(asked, "id", 10)
    assert job.shares_calls
    assert job.bytes == 1000
    asking = Verdicts(guard.with_environment(lambda turns: turns), "late")
    assert not asking.job(asked, "id", 10).shares_calls
