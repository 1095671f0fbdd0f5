"""Guards and reward functions for the server's tests."""

import json
import threading

from fastapi.testclient import TestClient

from grpo_guard import CompletionVerifier, Guard, Policy
from grpo_guard.server.app import create_app
from grpo_guard.server.limits import Limits
from grpo_guard.server.rewards import Rewards
from grpo_guard.verdict import Cause, abstain, accept, reject


class Words(CompletionVerifier):
    """Rejects "Hail", abstains on "unseen"; waits at "wait" until it is let go."""

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


def client(verifier=None, reward=None, policy=None, ledger=None, token=None, **limits):
    guard = Guard(verifier or Words(), policy=policy or Policy(), ledger=ledger)
    app = create_app(
        guard, rewards=Rewards(guard, reward), limits=Limits(**limits) if limits else None,
        token=token,
    )  # fmt: skip
    return TestClient(app)


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
    """The reply, which must be JSON as the standard has it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    assert answer.status_code == status, answer.text
    return json.loads(answer.content.decode("ascii"), parse_constant=refuse)
