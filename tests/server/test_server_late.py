"""Work that nobody waits for any more tells the ledger nothing."""

import asyncio
import json
import time

import pytest
from server_parts import Words, client, rewards_of, verdicts_of

from grpo_guard import Guard
from grpo_guard.server.app import create_app


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
def test_what_is_answered_in_time_is_recorded_and_what_is_late_is_not(ask, caplog):
    verifier, notes = Words(), Notes()
    with client(verifier, ledger=notes, seconds=0.5, running=2) as web:
        ask(web, "one")
        ask(web, "wait, Hail")  # all abstain
        ask(web, "two")
        verifier.go.set()
        assert _until(lambda: "too late for the ledger" in caplog.text)
        ask(web, "wait, Hail")  # asked again, and answered
    assert notes.texts == ["one", "two", "wait, Hail"]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_goes_before_the_answer_leaves_no_trace(leaves):
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
    assert sent[0]["status"] == 200  # to nobody, where nobody is left
