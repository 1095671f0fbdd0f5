"""A client that lost an answer asks again and gets the same one; nothing is judged twice."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_guard.server import recent
from grpo_guard.server.recent import Recent
from grpo_guard.server.replies import ReplyBody, RequestError
from tests.server.server_parts import Words, client, strict


class Notes:
    def __init__(self):
        self.texts = []

    def record(self, batch, verdicts):
        self.texts += [c.text for c in batch]


def asked(web, text, key, path="/v1/verify"):
    body = {"completions": [{"prompt": "3+4?", "text": text}]}
    return web.post(path, json=body, headers={"Idempotency-Key": key} if key else {})


def test_repeated_request_gets_the_same_answer():
    verifier, notes = Words(), Notes()
    with client(verifier, ledger=notes) as web:
        first = [strict(asked(web, "Hail", "a")) for _ in range(3)]
        strict(asked(web, "fine", "a"))  # a different body is a different request
        strict(asked(web, "Hail", "b"))
        for _ in range(2):
            strict(asked(web, "Hail", None))
    assert first[0] == first[1] == first[2]
    assert notes.texts == ["Hail", "fine", *["Hail"] * 3]


def test_repeated_large_body_is_recognised():
    verifier, text = Words(), "x" * 100_000
    with client(verifier) as web:
        for _ in range(2):
            strict(asked(web, text, "\u00fcber".encode()))
        strict(asked(web, text + "y", "\u00fcber".encode()))
    assert len(verifier.shown) == 2


def test_one_duplicate_may_wait_and_more_are_asked_to_retry():
    verifier, notes = Words(), Notes()
    with client(verifier, ledger=notes) as web, ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked, web, "wait", "a")
        assert verifier.started.wait(30)
        again = pool.submit(asked, web, "wait", "a")
        while b"in_progress 2" not in web.get("/metrics").content:
            time.sleep(0.01)
        refused = asked(web, "wait", "a")
        verifier.go.set()
        assert first.result(30).json() == again.result(30).json()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert notes.texts == ["wait"]


def test_late_or_failed_requests_are_judged_anew():
    verifier, notes = Words(), Notes()
    with client(verifier, ledger=notes, seconds=0.3) as web:
        assert strict(asked(web, "wait", "a"))["verdicts"][0]["cause"] == "timeout"
        verifier.go.set()
        time.sleep(0.3)
        assert strict(asked(web, "wait", "a"))["verdicts"][0]["outcome"] == "accept"
    assert notes.texts == ["wait"]


def test_duplicate_of_a_failed_request_is_judged_and_failures_are_not_kept():
    async def run():
        last, go = Recent(), asyncio.Event()

        async def breaks():
            await go.wait()
            raise RequestError(429, "full")

        async def answers():
            return ReplyBody("right", {}), True

        first = asyncio.create_task(last.answer("a", "/", b"", breaks))
        await asyncio.sleep(0)
        second = asyncio.create_task(last.answer("a", "/", b"", answers))
        left = asyncio.create_task(last.answer("b", "/", b"", breaks))
        await asyncio.sleep(0)
        left.cancel()
        go.set()
        assert (await second).text == "right"
        with pytest.raises(RequestError):
            await first
        assert (await last.answer("b", "/", b"", answers)).text == "right"

    asyncio.run(run())


def test_kept_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(recent, "MOST", 10)
    monkeypatch.setattr(recent, "MOST_CHARACTERS", 1000)

    async def run(size):
        last, calls = Recent(), []

        async def told(i):
            async def ask():
                calls.append(i)
                return ReplyBody("x" * size, {}), True

            return await last.answer(str(i), "/", b"", ask)

        for i in [*range(50), 49, 45, 0]:
            await told(i)
        assert len(last._known) == len(last._kept) <= 10
        assert sum(last._kept.values()) <= 1000
        return calls[50:]

    assert asyncio.run(run(10)) == [0]
    assert asyncio.run(run(300)) == [45, 0]
    assert asyncio.run(run(5000)) == [49, 45, 0]
