"""Texts that are read early and are meant to delay others, or to be judged by an older rule."""

import time

import pytest

from grpo_guard import Completion, Guard, ScreensVerifier
from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.verdict import accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.workers import early, processes
from tests.workers.test_read_early import settled


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


def own_rule():
    rule = Changing()
    return rule, lambda: rule.banned.add("hail")


def library_rule():
    rule, every = ScreensVerifier(), ScreensVerifier().screens
    rule.screens = {}
    return rule, lambda: setattr(rule, "screens", every)


@pytest.mark.parametrize("made", [own_rule, library_rule])
def test_a_rule_that_changes_between_batches_judges_by_what_it_is_now(made):
    rule, change = made()
    poison = Completion("q", "hail \u202e 4")
    the_guard = Guard(rule)
    the_guard.read_early([poison])
    assert the_guard.verify([poison])[0].accepted
    change()
    the_guard.read_early([poison])
    settled(the_guard)
    assert the_guard.verify([poison])[0].rejected


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_texts_that_hang_delay_no_batch_of_others(monkeypatch):
    monkeypatch.setattr(processes, "BASE_SECONDS", 3600.0)  # nobody waits for that
    the_guard = Guard(Sleeping(), workers=1)
    the_guard.verify([Completion("q", "the process is up")])
    the_guard.read_early([Completion("q", f"hang {i}", node="hostile") for i in range(8)])
    time.sleep(0.5)
    assert all(v.accepted for v in the_guard.verify([Completion("q", "honest")]))
    the_guard.workers.close()


@pytest.mark.parametrize(("length", "read"), [(early.LONGEST, 0.0), (early.LONGEST // 2, 1.0)])
def test_a_text_whose_digest_would_take_long_is_read_with_its_batch(length, read):
    the_guard = Guard(Changing(), workers=0)
    long = Completion("q", "word " * (length // 5))
    the_guard.read_early([long])
    settled(the_guard)
    assert the_guard.review([long]).metrics["guard/read_early_rate"] == read
