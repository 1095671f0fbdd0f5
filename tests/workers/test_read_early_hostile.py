"""Texts that are read early and are meant to delay others, or to be judged by an older rule."""

import time

from grpo_guard import Completion, Guard, presets
from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.verdict import accept, reject
from grpo_guard.core.verifier import CompletionVerifier


class Changing(RuleVerifier):
    name = "changing"
    scope = "completion"

    def __init__(self):
        super().__init__()
        self.banned = set()

    def look(self, batch):
        return [
            reject(self.name) if any(word in c.text for word in self.banned) else accept(self.name)
            for c in batch
        ]


class Sleeping(CompletionVerifier):
    name = "sleeping"
    scope = "completion"
    in_workers = True

    def verify(self, batch):
        if any(c.text.startswith("hang") for c in batch):
            time.sleep(3600)
        return [accept(self.name) for _ in batch]


def test_a_rule_that_changes_between_batches_judges_by_what_it_is_now():
    rule = Changing()
    the_guard = Guard(rule)
    the_guard.read_early([Completion("q", "first")])
    the_guard.review([Completion("q", "first")])
    rule.banned.add("poison")
    late = Completion("q", "poison")
    the_guard.read_early([late])
    time.sleep(0.3)
    assert the_guard.verify([late])[0].rejected


def test_texts_that_hang_delay_no_batch_of_others():
    the_guard = Guard(Sleeping(), workers=1)
    the_guard.verify([Completion("q", "the process is up")])
    the_guard.read_early([Completion("q", f"hang {i}", node="hostile") for i in range(8)])
    time.sleep(0.5)
    began = time.monotonic()
    assert all(v.accepted for v in the_guard.verify([Completion("q", "honest")]))
    assert time.monotonic() - began < 20  # a second, and the start of a process
    the_guard.workers.close()


def test_a_text_of_any_length_costs_its_caller_nothing():
    the_guard = presets.different_weights(workers=0)
    the_guard.read_early([Completion("q", "x")])
    long = Completion("q", "word " * 10_000_000)
    began = time.monotonic()
    the_guard.read_early([long])
    assert time.monotonic() - began < 0.1
