"""The verifiers that score tokens keep the contract of `grpo_guard.core.testing`."""

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard import Completion, LogProbBoundVerifier
from grpo_guard.core.testing import VerifierContract
from grpo_guard.logprob.tail import TailProbabilityVerifier
from tests.logprob.bundled_policy import SPEC, honest, policy


def examples():
    """Two honest completions, and random tokens of the same policy."""
    _, tokenizer = policy()
    good = [c for c in honest(8) if len(c.text) > 20][:2]
    ids = [*random.Random(0).sample(range(10, 300), 24), tokenizer.eos_token_id]
    text = tokenizer.decode(ids)
    noise = Completion(good[0].prompt, text, prompt_ids=good[0].prompt_ids, completion_ids=ids)
    return [(good[0], "accept"), (noise, "reject"), (good[1], "accept")]


class Gone:
    """A scorer whose engine is unreachable."""

    def __getattr__(self, name):
        raise ConnectionError("gone")


class TestLogProbBound(VerifierContract):
    kind = LogProbBoundVerifier

    @property
    def examples(self):
        return examples()

    def make(self):
        return self.kind(*policy(), sampling=SPEC)

    def make_broken(self):
        verifier = self.make()
        verifier.scorer = Gone()
        return verifier


class TestTailProbability(TestLogProbBound):
    kind = TailProbabilityVerifier
