"""Hostile connections to a real server: slow or silent senders delay no other client."""

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.requests import ClientDisconnect

from grpo_guard.server import connection
from grpo_guard.server.intake import Intake
from grpo_guard.server.limits import FLIGHT_BODIES, Limits
from grpo_guard.server.replies import RequestError
from tests.server.server_parts import Words, asking, connect, head, listening, status


def honest(port, text="fine", size=0):
    body = asking(text, size=size)
    return status(connect(port, head(len(body)), body))


def healthy(port):
    return status(connect(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))


def test_slow_senders_hold_no_turn():
    with listening(running=1, body_seconds=1000, body_patience=1000) as port:
        slow = [connect(port, head(1000), b"{") for _ in range(20)]
        assert honest(port) == healthy(port) == 200
        assert [status(connect(port, head(1000), b"{" * 1000)) for _ in range(2)] == [422] * 2
        for raw in slow:
            raw.close()


@pytest.mark.parametrize("held", [999, 300])
def test_slowest_bodies_are_dropped_if_memory_is_short(held):
    """All but the last byte of a great many bodies: honest ones are admitted all the same."""
    with listening(body_bytes=1000, body_seconds=1000, body_patience=1000) as port:
        stalled = [connect(port, head(1000), b" " * held) for _ in range(80)]
        assert [honest(port, size=900) for _ in range(5)] == [200] * 5
        for raw in stalled:
            raw.sendall(b" " * (1000 - held))
        # Invalid JSON, or asked to retry.
        assert {status(raw) for raw in stalled} == {422, 503}


@pytest.mark.parametrize("held", [999, 300, 1])
def test_bodies_never_exceed_their_memory_limit(held):
    limits = Limits(body_bytes=1000, body_seconds=1000, body_patience=1000)
    intake, here, refused = Intake(limits), [], []

    async def send(rest, answered):
        class Sender:
            headers, client = {}, None

            async def stream(self):
                yield b" " * held
                await rest.wait()
                yield b" " * (1000 - held)

        deadline = asyncio.get_running_loop().time() + 1000
        try:
            async with intake.body(Sender(), deadline) as sender:
                here.append(len(sender.body))
                await answered.wait()
        except RequestError as error:
            refused.append(error.status)

    async def run():
        rest, answered = asyncio.Event(), asyncio.Event()
        senders = [asyncio.create_task(send(rest, answered)) for _ in range(80)]
        for event in (rest, answered):
            for _ in range(300):  # until all of them wait for something
                await asyncio.sleep(0)
            assert sum(here) <= FLIGHT_BODIES * limits.body_bytes
            event.set()
        await asyncio.gather(*senders)

    asyncio.run(run())
    assert here
    assert set(refused) <= {503}


def test_received_bodies_keep_their_memory_and_later_ones_wait():
    verifier = Words()
    with listening(verifier, body_bytes=1000, running=1) as port, ThreadPoolExecutor(60) as pool:
        first = pool.submit(honest, port, "wait")
        assert verifier.started.wait(30)
        later = [pool.submit(honest, port, f"{i}", 900) for i in range(40)]
        time.sleep(0.5)
        assert not any(answer.done() for answer in later)
        assert healthy(port) == 200
        verifier.go.set()
        assert [answer.result(30) for answer in (first, *later)] == [200] * 41
    assert sorted(c.text for c in verifier.shown[1:]) == sorted(f"{i}" for i in range(40))


@pytest.mark.parametrize("needed", [True, False])
def test_slow_stream_readers_are_dropped_if_memory_is_short(monkeypatch, needed):
    monkeypatch.setattr("grpo_guard.server.intake.FETCH_SECONDS", 0.01)
    intake, ended = Intake(Limits(body_bytes=1000)), []

    class Request:
        headers, client = {}, None

        async def stream(self):
            yield b" " * 1000

    async def streamed(name, rest):
        try:
            async with intake.body(Request(), asyncio.get_running_loop().time() + 1000) as sender:
                if name != "at work":
                    async with intake.fetching(sender, 1000):
                        await rest.wait()
                else:
                    await rest.wait()
            ended.append((name, "whole"))
        except ClientDisconnect:
            ended.append((name, "cut off"))

    async def run():
        rest = asyncio.Event()
        names = ["at work", *["slow"] * (FLIGHT_BODIES - 1)]
        tasks = [asyncio.create_task(streamed(name, rest)) for name in names]
        await asyncio.sleep(0.1)
        if needed:
            begun = asyncio.Event()
            begun.set()
            await asyncio.wait_for(streamed("new", begun), 30)
            assert ("slow", "cut off") in ended
        rest.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert ("at work", "whole") in ended
    assert (("new", "whole") in ended) is (("slow", "cut off") in ended) is needed
    assert intake._held == intake._whole == 0


def test_request_of_a_disconnected_client_is_not_judged():
    verifier = Words()
    with listening(verifier, running=1) as port, ThreadPoolExecutor(1) as pool:
        first = pool.submit(honest, port, "wait")
        assert verifier.started.wait(30)
        body = asking("nobody waits for this")
        gone = connect(port, head(len(body)), body)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
        time.sleep(0.2)
        gone.close()
        time.sleep(0.2)
        verifier.go.set()
        assert first.result(30) == honest(port) == 200
    assert [c.text for c in verifier.shown] == ["wait", "fine"]


class Notes:
    def __init__(self):
        self.texts = []

    def record(self, batch, verdicts):
        self.texts += [c.text for c in batch]


@pytest.mark.parametrize("leaves", [True, False])
def test_half_closed_clients_are_served_and_closed_ones_dropped(leaves):
    verifier, notes = Words(), Notes()
    body = asking("wait")
    with listening(verifier, ledger=notes) as port:
        raw = connect(port, head(len(body)), body)
        assert verifier.started.wait(30)
        if leaves:
            raw.close()
        else:
            raw.shutdown(socket.SHUT_WR)
        time.sleep(0.5)
        verifier.go.set()
        if not leaves:
            assert status(raw) == 200
        assert honest(port) == 200
    assert notes.texts == (["fine"] if leaves else ["wait", "fine"])


def test_body_in_small_pieces_is_complete_and_so_is_the_next_request():
    with listening() as port:
        body, lost = asking("fine"), b"x" * 100
        raw = connect(port)
        for byte in head(len(body)) + body:
            raw.send(bytes([byte]))
        replies = raw.makefile("rb")
        assert b" 200 " in replies.readline()
        # Not awaited, and yet not taken for a request.
        raw.sendall(head(len(lost), "/nowhere") + lost[:10])
        time.sleep(0.2)
        raw.sendall(lost[10:50])
        raw.sendall(lost[50:] + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        seen = replies.read()
        assert b" 404 " in seen
        assert b'{"status": "ok"}' in seen
        raw.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: x\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET",  # the second request
        head(10_000, "/nowhere"),  # its answer does not wait for the body
    ],
)
def test_endless_headers_time_out(monkeypatch, sent):
    monkeypatch.setattr(connection, "PATIENCE", 0.5)
    with listening() as port:
        raw = connect(port, sent)
        try:
            for _ in range(100):
                raw.sendall(b"a")
                time.sleep(0.05)
        except OSError:
            return
    raise AssertionError("the connection is still open")


@pytest.mark.slow
def test_unread_reply_is_dropped(monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.5)
    body = json.dumps({"completions": [{"prompt": "", "text": "Hail"}] * 1024}).encode()
    with listening() as port:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.connect(("127.0.0.1", port))
        raw.settimeout(30)
        try:
            for _ in range(60):
                raw.sendall(head(len(body)) + body)
                time.sleep(0.1)
        except OSError:
            return
    raise AssertionError("the connection is still open")
