"""Guards and reward functions for the server's tests."""

import contextlib
import json
import socket
import threading
import time

from starlette.testclient import TestClient

from grpo_guard import CompletionVerifier, Guard, Policy
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.server.app import create_app
from grpo_guard.server.limits import Limits
from grpo_guard.server.rewards import Rewards
from grpo_guard.server.run import server_of


class Words(CompletionVerifier):
    """Rejects "Hail", abstains on "unseen"; at "wait" blocks until released."""

    name = "words"
    timeout = None

    def __init__(self):
        self.shown, self.started, self.go = [], threading.Event(), threading.Event()

    def verify(self, batch):
        self.shown += batch
        if any("wait" in c.text for c in batch):
            self.started.set()
            assert self.go.wait(60)
        if any("break" in c.text for c in batch):
            raise RuntimeError("no model loaded")
        return [self._verdict(c.text) for c in batch]

    def _verdict(self, text):
        if "Hail" in text:
            return reject(self.name, message=f"says Hail: {text[:50]}")
        return abstain(self.name, Cause.UNSUPPORTED) if "unseen" in text else accept(self.name)


def client(verifier=None, reward=None, policy=None, ledger=None, token=None, audit=None, **limits):
    guard = Guard(verifier or Words(), policy=policy or Policy(), ledger=ledger)
    app = create_app(
        guard, rewards=Rewards(guard, reward), limits=Limits(**limits) if limits else None,
        token=token, audit=audit,
    )  # fmt: skip
    return TestClient(app)


@contextlib.contextmanager
def listening(verifier=None, ledger=None, **limits):
    """Start a real server and yield its port."""
    app = create_app(Guard(verifier or Words(), ledger=ledger), limits=Limits(**limits))
    server = server_of(app, "127.0.0.1", 0)
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        running.join(30)


def connect(port, *sent):
    """Open a connection and send something over it."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=30)
    for part in sent:
        raw.sendall(part)
    return raw


def head(length, path="/v1/verify", more=""):
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def asking(*texts, size=0):
    """Build a request body of at least the given size."""
    rows = [{"prompt": "3+4?", "text": text} for text in texts]
    return json.dumps({"completions": rows}).encode().ljust(size)


def status(raw):
    """Read the status of the reply; 0 = closed without one."""
    with contextlib.closing(raw), raw.makefile("rb") as reply:
        while line := reply.readline():
            if line.startswith(b"HTTP/1.1 ") and b" 100 " not in line:
                return int(line.split()[1])
    return 0


def rewards_of(web, *texts, prompt="3+4?"):
    asked = {
        "query": [prompt + text for text in texts],
        "prompts": [prompt] * len(texts),
        "labels": ["7"] * len(texts),
    }
    return strict(web.post("/get_reward", content=json.dumps(asked)))


def verdicts_of(web, *texts):
    asked = {"completions": [{"prompt": "3+4?", "text": text} for text in texts]}
    return strict(web.post("/v1/verify", content=json.dumps(asked)))["verdicts"]


def strict(answer, status=200):
    """Parse the reply, which must be standard JSON."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    assert answer.status_code == status, answer.text
    return json.loads(answer.content.decode("ascii"), parse_constant=refuse)
