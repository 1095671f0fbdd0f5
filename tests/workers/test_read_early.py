"""Completions that are read as they arrive: the same verdicts, whatever happens before."""

import copy
import logging
import os
import pickle
import threading
import time
from typing import ClassVar

import pytest

from grpo_guard import (
    AllOf,
    ArithmeticVerifier,
    Completion,
    Guard,
    Policy,
    ScreensVerifier,
    presets,
)
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.rules import RuleVerifier
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Cause, Finding, accept, reject
from grpo_guard.guard.references import References
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.guard.workers import early, processes
from tests.workers.readers import Obeying, bare, pids
from tests.workers.worker_texts import FOLDERS, STACKS, hostile, plain, public


class Showing(RuleVerifier):
    """A rule of one's own that finds what it is shown, and counts what it looked at."""

    name = "showing"
    scope = "completion"
    seen: ClassVar[list[str]] = []

    def look(self, batch):
        self.seen.extend(completion.text for completion in batch)
        return [self._verdict(completion) for completion in batch]

    def _verdict(self, one):
        shown = repr((one.prompt, one.text, one.reference, one.task, one.node, one.round,
                      one.finish_reason, one.given, one.prompt_trusted, one.metadata,
                      one.completion_ids))  # fmt: skip
        return accept(self.name, findings=(Finding("shown", shown),))


class Slow(Obeying):
    """Takes longer for one text than its time-out."""

    name = "slow"
    timeout = 1.0

    def _verdict(self, completion):
        if completion.text == "hang":
            time.sleep(2.5)
        return accept(self.name)


@pytest.fixture(autouse=True)
def nothing_seen():
    Showing.seen.clear()


def settled(the_guard, seconds=20.0):
    """Wait until nothing waits to be read any more."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and the_guard.workers.early._is_running:
        time.sleep(0.01)
    assert not the_guard.workers.early._is_running


def arrived(make, batch, workers, size=500):
    """Verdicts of batches whose completions arrived one by one before."""
    the_guard, found, rates = make(), [], []
    the_guard.workers = workers
    for at in range(0, len(batch), size):
        for one in batch[at : at + size]:
            the_guard.read_early([copy.deepcopy(one) if not one.metadata else one])
        settled(the_guard, seconds=120)
        review = the_guard.review(batch[at : at + size])
        found += plain(review.verdicts)
        rates.append(review.metrics["guard/read_early_rate"])
    return found, rates


def at_once(make, batch, size=500):
    the_guard = make()
    the_guard.workers = 0
    parts = [batch[at : at + size] for at in range(0, len(batch), size)]
    return [verdict for part in parts for verdict in plain(the_guard.review(part).verdicts)]


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 0) for name in ("preset", "cascade", "spot checks", "not")),
        ("preset", 2),
        *(pytest.param(n, 2, marks=pytest.mark.slow) for n in ("cascade", "spot checks", "not")),
    ],
)
def test_hostile_texts_get_the_same_verdicts(name, workers):
    batch = list(hostile())
    found, rates = arrived(STACKS[name], batch, workers)
    assert found == at_once(STACKS[name], batch)
    assert len({verdict[0] for verdict in found}) > 1
    assert rates[0] > 0.9


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_public_texts_get_the_same_verdicts(folder):
    batch = list(public(folder))[:1000] if folder.is_dir() else []
    if not batch:
        pytest.skip("needs GSM8K's folder (GRPO_GUARD_GSM8K) and those next to it")
    found, rates = arrived(presets.different_weights, batch, 0)
    assert found == at_once(presets.different_weights, batch)
    assert min(rates) > 0.9


def test_a_batch_half_of_which_was_read_keeps_its_order():
    batch = list(hostile())
    the_guard = presets.different_weights(workers=0)
    the_guard.read_early(batch[::2])
    settled(the_guard)
    review = the_guard.review(batch)
    assert plain(review.verdicts) == at_once(presets.different_weights, batch)
    assert 0.4 < review.metrics["guard/read_early_rate"] < 0.6


def test_a_completion_that_was_read_is_not_read_again():
    """The negative control: without early reading, everything is read in the review."""
    the_guard = Guard(Showing(), workers=0)
    the_guard.read_early([Completion("q", "a"), Completion("q", "b")])
    settled(the_guard)
    read = list(Showing.seen)
    review = the_guard.review([Completion("q", text) for text in "abc"])
    assert Showing.seen[len(read) :] == ["c"]
    assert review.metrics["guard/read_early_rate"] == pytest.approx(2 / 3)
    again = the_guard.review([Completion("q", "a")])
    assert again.metrics["guard/read_early_rate"] == 0.0
    assert "guard/read_early_rate" not in Guard(Showing()).review([Completion("q", "a")]).metrics


FIELDS = {
    "prompt": "Q", "text": "tfxt", "reference": "5", "task": "code", "node": "m", "round": 2,
    "finish_reason": "length", "given": Given(chars=((0, 1),)), "prompt_trusted": False,
    "metadata": {"a": True},
}  # fmt: skip


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reading_is_used_for_no_completion_that_differs_in_any_field(workers):
    usual = {"reference": "4", "task": "math", "node": "n", "round": 1, "finish_reason": "stop",
             "given": Given(chars=((0, 1),), known=True), "metadata": {"a": 1}}  # fmt: skip
    one = {"prompt": "q", "text": "text", **usual}
    the_guard = Guard(Showing(), workers=workers)
    for name, value in FIELDS.items():
        the_guard.read_early([Completion(**one)])
        settled(the_guard)
        other = Completion(**{**one, name: value})
        review = the_guard.review([other])
        assert review.metrics["guard/read_early_rate"] == 0.0, name
        assert plain(review.verdicts) == plain(Guard(Showing(), workers=0).verify([other])), name
        assert the_guard.review([Completion(**one)]).metrics["guard/read_early_rate"] == 1.0, name


def test_a_reading_is_used_for_no_other_ids():
    the_guard = Guard(Showing(), workers=0)
    one, other = (Completion("q", "t", completion_ids=(i,)) for i in (1, 2))
    the_guard.read_early([one], None, [True])
    settled(the_guard)
    assert the_guard.review([other], None, [True]).metrics["guard/read_early_rate"] == 0.0
    assert the_guard.review([one], None, [True]).metrics["guard/read_early_rate"] == 1.0


def test_values_that_compare_equal_are_told_apart():
    for a, b in ((1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ((1,), [1])):
        the_guard = Guard(Showing(), workers=0)
        the_guard.read_early([Completion("q", "t", metadata={"a": a})])
        settled(the_guard)
        (found,) = the_guard.verify([Completion("q", "t", metadata={"a": b})])
        assert repr({"a": b}) in found.findings[0].message


def test_a_sender_cannot_name_a_reading():
    """Labels that a sender chooses take no part: neither place nor group leads to a reading."""
    labels = {"group": "g", "slot": 0, "rollout": "r"}
    the_guard = presets.different_weights(workers=0)
    the_guard.read_early([Completion("q", "2 + 2 = 4", node="n", **labels)])
    settled(the_guard)
    review = the_guard.review([Completion("q", "2 + 2 = 5", node="n", **labels)])
    assert review.metrics["guard/read_early_rate"] == 0.0
    moved = Completion("q", "2 + 2 = 4", node="n", group="h", slot=3)
    assert the_guard.review([moved]).metrics["guard/read_early_rate"] == 1.0


def test_what_may_change_until_the_batch_is_not_read_early():
    kept = {"a": [1]}
    the_guard = Guard(Showing(), workers=0)
    the_guard.read_early([Completion("q", "t", metadata=kept)])
    the_guard.read_early([Completion("q", "object", metadata={"a": object()})])
    settled(the_guard)
    assert "object" not in Showing.seen
    kept["a"].append(2)
    (found,) = the_guard.verify([Completion("q", "t", metadata=kept)])
    assert "{'a': [1, 2]}" in found.findings[0].message


def test_rules_with_other_options_do_not_share_readings():
    strict, lenient = ArithmeticVerifier(), ArithmeticVerifier(textual="off")
    one, other = Guard(strict, workers=0), Guard(lenient, workers=0)
    other.workers = one.workers
    completion = Completion("q", "two plus two equals five, so 2 + 2 = 5")
    one.read_early([completion])
    settled(one)
    assert other.review([completion]).metrics["guard/read_early_rate"] == 0.0


def hung(the_guard):
    """Verdicts on three texts, the second of which hangs when its batch comes."""
    batch = [Completion("q", text) for text in ("a", "hang", "b")]
    the_guard.read_early(batch[:1])
    settled(the_guard, seconds=60)
    the_guard.read_early(batch[1:2])
    time.sleep(0.2)  # it hangs by now
    return the_guard.verify(batch)


def test_a_text_that_hangs_early_abstains_and_what_was_read_does_not():
    found = hung(Guard(Slow(), workers=0))
    assert [v.abstained for v in found[:2]] == [False, True]
    assert found[1].cause is Cause.TIMEOUT


@pytest.mark.slow
def test_a_text_that_hangs_early_in_a_worker_costs_only_itself(monkeypatch):
    the_guard = Guard(Obeying(), workers=1)
    the_guard.verify([Completion("q", "the first takes longest")])
    monkeypatch.setattr(processes, "BASE_SECONDS", 2.0)
    found = hung(the_guard)
    assert [v.abstained for v in found] == [False, True, False]
    assert found[1].cause is Cause.TIMEOUT


@pytest.mark.parametrize("text", ["die", "raise"])
def test_a_text_that_fails_early_is_tried_again_with_its_batch(text):
    the_guard = Guard(Obeying(), workers=1)
    batch = [Completion("q", one) for one in ("a", text, "b")]
    the_guard.read_early(batch)
    settled(the_guard)
    found = the_guard.review(batch)
    assert [v.abstained for v in found.verdicts] == [False, True, False]
    assert found.verdicts[1].cause is Cause.FAULT


def test_failures_beyond_those_of_a_batch_are_judged_as_in_a_batch():
    class Raising(Showing):
        def look(self, batch):
            if any(one.text.startswith("raise") for one in batch):
                raise ValueError("no")
            return super().look(batch)

    batch = [Completion("q", f"raise {i}" if i % 3 else f"text {i}") for i in range(60)]
    the_guard = Guard(Raising(), workers=0)
    the_guard.read_early([one for one in batch if one.text.startswith("text")])
    settled(the_guard)
    assert plain(the_guard.verify(batch)) == plain(Guard(Raising(), workers=0).verify(batch))


def test_after_a_few_failures_nothing_is_read_until_the_next_batch():
    the_guard = Guard(Obeying(), workers=0)
    the_guard.read_early([Completion("q", "raise", node=f"n{i}") for i in range(9)])
    settled(the_guard)
    the_guard.read_early([Completion("q", "text")])
    assert the_guard.review([Completion("q", "text")]).metrics["guard/read_early_rate"] == 0.0
    the_guard.read_early([Completion("q", "text")])
    settled(the_guard)
    assert the_guard.review([Completion("q", "text")]).metrics["guard/read_early_rate"] == 1.0


def test_what_waits_is_bounded_and_the_rest_is_read_with_its_batch(monkeypatch):
    monkeypatch.setattr(early, "MOST_WAITING", 5)
    monkeypatch.setattr(early, "MOST_KEPT", 3)
    the_guard = Guard(Showing(), workers=0)
    batch = [Completion("q", f"text {i}") for i in range(40)]
    the_guard.read_early(batch[:1])
    settled(the_guard)
    with the_guard.workers.early.batch():  # nothing begins meanwhile
        the_guard.read_early(batch)
        assert len(the_guard.workers.early._waiting) == 5
    settled(the_guard)
    review = the_guard.review(batch)
    assert review.metrics["guard/read_early_rate"] == pytest.approx(3 / 40)
    assert plain(review.verdicts) == plain(Guard(Showing(), workers=0).verify(batch))
    monkeypatch.setattr(early, "MOST_CHARACTERS", 10)
    the_guard.read_early([Completion("q", "a" * 20)])
    assert not the_guard.workers.early._waiting


def test_readings_of_long_texts_make_room_for_later_ones(monkeypatch):
    monkeypatch.setattr(early, "MOST_CHARACTERS_KEPT", 1_000)
    the_guard = Guard(Showing(), workers=0)
    batch = [Completion("", str(i) * 400) for i in range(4)]
    for completion in batch:  # one after the other, so that the order is known
        the_guard.read_early([completion])
        settled(the_guard)
    assert the_guard.review(batch).metrics["guard/read_early_rate"] == 2 / 4
    the_guard.read_early(batch[:2])  # what was taken has made room
    settled(the_guard)
    assert the_guard.review(batch[:2]).metrics["guard/read_early_rate"] == 1.0


def test_a_batch_does_not_wait_for_what_others_sent_early():
    the_guard = Guard(Showing(), workers=0)
    the_guard.read_early([Completion("q", f"text {i} " * 50) for i in range(1000)])
    the_guard.review([Completion("q", "mine")])
    place = Showing.seen.index("mine")
    assert place < 900
    settled(the_guard)


def test_the_thread_ends_when_nothing_waits_and_with_close():
    def threads():
        return [t for t in threading.enumerate() if t.name == "grpo-guard-early"]

    the_guard = Guard(Showing(), workers=0)
    the_guard.read_early([Completion("q", "text")])
    settled(the_guard)
    end = time.monotonic() + 5
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not threads()
    the_guard.workers.close()
    assert the_guard.review([Completion("q", "text")]).metrics["guard/read_early_rate"] == 0.0


def test_pickles_and_forks_start_anew():
    the_guard = Guard(Obeying(), workers=1)
    the_guard.read_early([Completion("q", "text")])
    settled(the_guard)
    assert pickle.loads(pickle.dumps(the_guard.workers)).early is None
    answer, told = os.pipe()
    child = os.fork()
    if not child:
        the_guard.workers.number = 0
        rate = the_guard.review([Completion("q", "text")]).metrics.get("guard/read_early_rate")
        the_guard.read_early([Completion("q", "more")])
        settled(the_guard)
        later = the_guard.review([Completion("q", "more")]).metrics["guard/read_early_rate"]
        os.write(told, f"{rate} {later}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(answer, 100) == b"None 1.0"
    review = the_guard.review([Completion("q", "text")])
    assert review.metrics["guard/read_early_rate"] == 1.0
    assert os.getpid() not in pids(review.verdicts)


def test_without_readers_or_with_what_only_a_batch_can_tell_nothing_happens():
    for verifier in (LengthVerifier(), SpotCheck(ArithmeticVerifier(), share=0.5, key="k" * 16)):
        the_guard = Guard(verifier, workers=0)
        the_guard.read_early([Completion("q", "text")])
        assert the_guard.workers.early is None
    the_guard = Guard(AllOf(ScreensVerifier(), ArithmeticVerifier()), workers=0)
    known = Completion("q", "rejected already")
    the_guard.read_early([known], [reject("exchange")])
    ids = Completion("q", "a claim", completion_ids=(1, 2))
    the_guard.read_early([ids])
    assert the_guard.workers.early is None


def test_references_of_the_task_are_what_is_read():
    make = {"references": References({"q": "4"}), "workers": 0}
    the_guard = Guard(presets.different_weights().verifier, **make)
    claims = Completion("q", "2 + 2 = 4", node="n", reference="4.0", prompt_trusted=False)
    the_guard.read_early([claims, Completion("q", "x", reference="5")])
    settled(the_guard)
    assert the_guard.review([claims]).metrics["guard/read_early_rate"] == 1.0


def test_the_review_says_how_long_it_took(caplog):
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        review = Guard(Slow(), policy=Policy("drop")).review([Completion("q", "hang")])
    assert review.metrics["guard/wait_seconds"] > 0.9  # its time-out
    assert "guard/wait_seconds" not in Guard(Slow()).review([]).metrics
    assert bare(review.verdicts[0])
