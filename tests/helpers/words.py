"""A verifier that decides by keyword: "Hail" rejects, "unseen" abstains, all else is accepted."""

from grpo_guard import CompletionVerifier
from grpo_guard.core.verdict import Cause, abstain, accept, reject


class Words(CompletionVerifier):
    name = "words"

    def __init__(self):
        self.shown = []

    def verify(self, batch):
        self.shown += batch
        return [self._verdict(c.text) for c in batch]

    def _verdict(self, text):
        if "Hail" in text:
            return reject(self.name, message="says Hail")
        unseen = "unseen" in text
        return abstain(self.name, Cause.UNSUPPORTED) if unseen else accept(self.name)
