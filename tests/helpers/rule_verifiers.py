"""Small rule-based verifiers that the adapter tests guard with."""

from grpo_guard import CompletionVerifier, Verdict
from grpo_guard.core.verdict import accept, reject


class NoWord(CompletionVerifier):
    """Rejects completions that contain a word, and records the batches that it was given."""

    name = "no_word"

    def __init__(self, word="Hail"):
        self.word = word
        self.batches = []

    def verify(self, batch) -> list[Verdict]:
        self.batches.append(list(batch))
        return [
            reject(self.name, message=f"says {self.word}")
            if self.word in completion.text
            else accept(self.name)
            for completion in batch
        ]


class Broken(CompletionVerifier):
    """Fails on every batch."""

    name = "broken"

    def verify(self, batch) -> list[Verdict]:
        raise RuntimeError("no model loaded")
