"""Work whose client is gone or timed out is not recorded in the ledger."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_guard import Guard
from grpo_guard.server.app import create_app
from tests.server.server_parts import Words, client, rewards_of, verdicts_of


class Notes:
    def __init__(self):
        self.texts = []

    def record(self, batch, verdicts):
        self.texts += [c.text for c in batch]


def _until(true):
    end = time.monotonic() + 30
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


@pytest.mark.parametrize("ask", [verdicts_of, rewards_of])
def test_only_answers_in_time_are_recorded(ask, caplog):
    caplog.set_level("INFO", "grpo_guard")
    verifier, notes = Words(), Notes()
    with client(verifier, ledger=notes, seconds=0.5, running=2) as web:
        ask(web, "one")
        ask(web, "wait, Hail")  # all abstain
        ask(web, "two")
        verifier.go.set()
        assert _until(lambda: "too late for the ledger" in caplog.text)
        ask(web, "wait, Hail")  # sent again, and answered
    assert notes.texts == ["one", "two", "wait, Hail"]


class Slow(Notes):
    """Takes a while once it records."""

    def __init__(self):
        super().__init__()
        self.told, self.go = threading.Event(), threading.Event()

    def record(self, batch, verdicts):
        self.told.set()
        assert self.go.wait(30)
        super().record(batch, verdicts)


@pytest.mark.parametrize("ask", [verdicts_of, rewards_of])
def test_answer_matches_the_ledger_at_the_deadline(ask, caplog):
    notes = Slow()
    with client(ledger=notes, seconds=0.3) as web, ThreadPoolExecutor(1) as pool:
        found = pool.submit(ask, web, "Hail")
        assert notes.told.wait(30)
        time.sleep(0.6)
        assert not found.done()
        notes.go.set()
        said = found.result(30)
    assert notes.texts == ["Hail"]
    assert said["rewards"] == [0.0] if ask is rewards_of else said[0]["outcome"] == "reject"
    assert "no answer within" not in caplog.text


def test_waiting_for_a_hanging_ledger_is_bounded(monkeypatch):
    monkeypatch.setattr("grpo_guard.server.batches.TELLING_SECONDS", 0.2)
    notes = Slow()
    with client(ledger=notes, seconds=0.2) as web:
        assert verdicts_of(web, "fine")[0]["cause"] == "timeout"
        notes.go.set()


@pytest.mark.parametrize("leaves", [True, False])
def test_client_that_leaves_before_the_answer_is_not_recorded(leaves):
    verifier, notes = Words(), Notes()
    app = create_app(Guard(verifier, ledger=notes))
    body = json.dumps({"completions": [{"prompt": "3+4?", "text": "wait, Hail"}]}).encode()
    sent = []

    async def asking():
        gone, read = asyncio.Event(), False

        async def receive():
            nonlocal read
            if not read:
                read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/verify", "headers": []}
        scope |= {"query_string": b"", "http_version": "1.1", "raw_path": b"/v1/verify"}
        answer = asyncio.create_task(app(scope, receive, send))
        await asyncio.to_thread(verifier.started.wait, 30)
        if leaves:
            gone.set()
            await asyncio.sleep(0.05)
        verifier.go.set()
        await answer

    asyncio.run(asking())
    assert notes.texts == ([] if leaves else ["wait, Hail"])
    assert sent[0]["status"] == 200  # no client left, so no answer
