"""`core.testing` passes a correct verifier and catches one that breaks any one promise."""

import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from grpo_guard import Cascade, Cause, Completion, CompletionVerifier
from grpo_guard.core.calibrated import Calibrated, HonestScores
from grpo_guard.core.ensemble import Vote, only
from grpo_guard.core.testing import VerifierContract, check_verifier
from grpo_guard.core.verdict import Finding, Verdict, abstain, accept, reject

EXAMPLES = [
    (Completion("Ready?", "Yes."), "accept"),
    (Completion("Ready?", "Yes!!!!"), "reject"),
    (Completion("Ready?", "No."), "accept"),
    (Completion("Ready?", "No!!!!"), "reject"),
    (Completion("Ready?", "Perhaps."), "accept"),
]


class Sound(CompletionVerifier):
    name = "shouting"

    def verify(self, batch):
        return [self.judge(c) for c in batch]

    def judge(self, completion):
        return (reject if completion.text.count("!") > 3 else accept)(self.name)


class TestSound(VerifierContract):
    examples = EXAMPLES

    def make(self):
        return Sound()


def quiet():
    """Another implementation of the same judgement."""

    class Quiet(Sound):
        name = "quiet"

    return Quiet()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sound() & quiet(),
        lambda: Sound() | quiet(),
        lambda: ~~Sound(),
        lambda: only(Sound(), when=lambda c: "Ready" in c.prompt_text),
        lambda: Vote(Sound(), quiet(), Sound()),
        lambda: Cascade(Sound(), quiet()),
        lambda: Calibrated(Sound(), HonestScores(10, 0, 0, ())),
    ],
)
def test_combinators_keep_the_contract_of_their_members(make):
    check_verifier(make, EXAMPLES)
    swapped = [(c, "accept" if outcome == "reject" else "reject") for c, outcome in EXAMPLES]
    with pytest.raises(AssertionError, match="breaks its contract"):
        check_verifier(make, swapped)


class Scores(Sound):
    def verify(self, batch):
        return [float("!" not in c.text) for c in batch]


class AcceptsAll(Sound):
    def judge(self, completion):
        return accept(self.name)


class Skips(Sound):
    def verify(self, batch):
        return [v for v in super().verify(batch) if v.accepted]


class Sorts(Sound):
    def verify(self, batch):
        return sorted(super().verify(batch), key=lambda v: v.outcome)


class Swaps(Sound):
    """Returns the right order for the examples as given, and only for them."""

    def verify(self, batch):
        return [accept(self.name) if i % 2 == 0 else reject(self.name) for i in range(len(batch))]


class NeedsOne(Sound):
    def verify(self, batch):
        self.first = batch[0]
        return super().verify(batch)


class PopsBatch(Sound):
    def verify(self, batch):
        verdicts = super().verify(batch)
        batch.clear()
        return verdicts


class WritesMetadata(Sound):
    def judge(self, completion):
        if isinstance(completion.metadata.get("kept"), list):
            completion.metadata["kept"].append("seen")
        return super().judge(completion)


class Accumulates(Sound):
    def __init__(self):
        self.verdicts = []

    def verify(self, batch):
        self.verdicts += super().verify(batch)
        return self.verdicts


class Remembers(Sound):
    def __init__(self):
        self.seen = set()

    def judge(self, completion):
        again = completion.text in self.seen
        self.seen.add(completion.text)
        return reject(self.name) if again else super().judge(completion)


class OneThread(Sound):
    def __init__(self):
        self.database = sqlite3.connect(":memory:")

    def judge(self, completion):
        self.database.execute("select 1")
        return super().judge(completion)


class Encodes(Sound):
    def judge(self, completion):
        completion.text.encode()
        return super().judge(completion)


class PromptIsText(Sound):
    def judge(self, completion):
        completion.prompt.lower()
        return super().judge(completion)


class ReadsNumbers(Sound):
    def judge(self, completion):
        sum(int(digits) for digits in re.findall(r"\d+", completion.text))
        return super().judge(completion)


class LastCharacter(Sound):
    def judge(self, completion):
        completion.text[-1]
        return super().judge(completion)


class AbstainsAtWill(Sound):
    def judge(self, completion):
        if len(completion.text) > 100_000:
            return abstain(self.name, Cause.UNSUPPORTED, "too long")
        return super().judge(completion)


class Backtracks(Sound):
    def judge(self, completion):
        re.match(r"(a+)+$", completion.text)
        return super().judge(completion)


class Waits(Sound):
    def judge(self, completion):
        time.sleep(60 if len(completion.text) > 100_000 else 0)
        return super().judge(completion)


class Infects(Sound):
    """One broken text changes every other verdict."""

    def verify(self, batch):
        if any("\x00" in c.text for c in batch):
            return [reject(self.name) for _ in batch]
        return super().verify(batch)


class Quotes(Sound):
    def judge(self, completion):
        verdict = super().judge(completion)
        said = (Finding("said", completion.text),)
        return Verdict(verdict.outcome, verdict.cause, self.name, findings=said)


class PointsPast(Sound):
    def judge(self, completion):
        end = len(completion.text) + 1
        verdict = super().judge(completion)
        return Verdict(verdict.outcome, verdict.cause, self.name, findings=(
            Finding("end", "the end", char_span=(end - 1, end)),))  # fmt: skip


class NoName(Sound):
    name = ""


class AnothersName(Sound):
    def judge(self, completion):
        return (reject if "!!!!" in completion.text else accept)("screens")


class NoTime(Sound):
    timeout = 0


class NoScope(Sound):
    def __init__(self):
        self.scope = "alone"


class Compares(Sound):
    """Rejects the loudest two of a batch, and says that it compares nothing."""

    scope = "completion"

    def verify(self, batch):
        loud = sorted(range(len(batch)), key=lambda i: batch[i].text.count("!"))[-2:]
        return [(reject if i in loud else accept)(self.name) for i in range(len(batch))]


class Joins(Sound):
    """Joins separate batches to one."""

    shares_calls = True

    def verify(self, batch):
        few = len(batch) < 5
        return [reject(self.name)] * len(batch) if few else super().verify(batch)

    def verify_each(self, batches):
        found = iter(self.verify([c for batch in batches for c in batch]))
        return [[next(found) for _ in batch] for batch in batches]


class ForgetsBatches(Sound):
    def verify_each(self, batches):
        return [self.verify(batch) for batch in batches][:1]


class NeedsServer(Sound):
    needs = "a server"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Scores, "decides: expected Verdict, got 1.0; a number could be averaged into a reward"),
        (AcceptsAll, "decides: expected reject for example 1, got accept"),
        (Skips, "decides: expected 5 verdicts, one per completion, got 3"),
        (Sorts, "decides: expected reject for example 1"),
        (Swaps, "order: expected"),
        (NeedsOne, "empty batch: expected a verdict, got IndexError"),
        (PopsBatch, "no mutation: expected the batch unchanged"),
        (WritesMetadata, "no mutation: expected completions as they were"),
        (Accumulates, "repeated call: expected 5 verdicts, one per completion, got 10"),
        (Remembers, "repeated call: expected accept for example 0, got reject"),
        (OneThread, "threads: expected verdicts, got ProgrammingError"),
        (Encodes, "hostile completion (lone surrogates): expected a verdict, got UnicodeEncodeE"),
        (PromptIsText, "hostile completion (a chat as prompt): expected a verdict, got Attribute"),
        (ReadsNumbers, "hostile completion (a number of 100,000 digits): expected a verdict"),
        (LastCharacter, "hostile completion (empty): expected a verdict, got IndexError"),
        (AbstainsAtWill, "hostile completion (a megabyte): expected accept or reject, got abstain"),
        (Backtracks, "hostile completion (one long word): expected verdicts within 1 s, got none"),
        (Waits, "hostile completion (a megabyte): expected verdicts within 1 s, got none"),
        (Infects, "hostile completion (NUL and terminal codes): expected accept for example 0"),
        (Quotes, "hostile completion (a megabyte): expected a message of at most 4000 characters"),
        (PointsPast, "decides: expected char_span inside [0, 4], got (4, 5)"),
        (NoName, "name: expected a name of its own for metrics, got ''"),
        (AnothersName, "name: expected verdicts of 'shouting', got 'screens'"),
        (NoTime, "timeout: expected seconds above 0, or None, got 0"),
        (NoScope, "scope: expected one of 'completion', 'batch', 'history', got 'alone'"),
        (Compares, 'scope "completion": expected accept for example 0, got reject'),
        (Joins, "verify_each: expected reject for example 0, as from verify, got accept"),
        (ForgetsBatches, "verify_each: expected 2 lists of verdicts, got 1"),
        (NeedsServer, "failure: it needs 'a server': expected make_broken()"),
    ],
)
def test_each_broken_promise_is_reported(kind, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_verifier(kind, EXAMPLES, seconds=1.0 if kind in (Backtracks, Waits) else 60.0)


def test_verifier_without_its_server_must_abstain():
    class Down(NeedsServer):
        def verify(self, batch):
            raise ConnectionError("refused")

    class Careless(NeedsServer):
        def verify(self, batch):
            return [accept(self.name) for _ in batch]

    check_verifier(NeedsServer, EXAMPLES, make_broken=Down)
    with pytest.raises(AssertionError, match="failure: expected abstain, got accept"):
        check_verifier(NeedsServer, EXAMPLES, make_broken=Careless)


def test_stateful_and_abstaining_verifiers_may_declare_it():
    class Openly(AbstainsAtWill):
        author_can_abstain = "shouting reads 100,000 characters; cut longer texts"

    check_verifier(Openly, EXAMPLES)
    check_verifier(Remembers, EXAMPLES, remembers=True)
    for secretly in (AbstainsAtWill, Remembers):
        with pytest.raises(AssertionError, match="breaks its contract"):
            check_verifier(secretly, EXAMPLES)


def test_examples_must_show_both_outcomes():
    with pytest.raises(AssertionError, match="expected one to accept and one to reject, got acce"):
        check_verifier(Sound, EXAMPLES[:1])
    with pytest.raises(AssertionError, match="examples: expected completions with their outcomes"):
        check_verifier(Sound, [])


def test_every_broken_promise_is_in_one_message():
    class Both(Encodes):
        name = ""

    with pytest.raises(AssertionError, match=r"breaks its contract:\n(.*\n)*- hostile.*(.*\n)*- "):
        check_verifier(Both, EXAMPLES)


def test_no_hostile_completion_is_blamed_for_an_example_that_fails():
    class Shouts(Sound):
        def verify(self, batch):
            return [reject(self.name, "loud") if "!" in c.text else accept("x") for c in batch]

    with pytest.raises(AssertionError) as found:
        check_verifier(Shouts, EXAMPLES)
    assert "- decides: expected a verdict, got TypeError" in str(found.value)
    assert "hostile" not in str(found.value)
    assert str(found.value).count("- decides") == 1


def test_existing_alarm_is_restored():
    before = signal.setitimer(signal.ITIMER_REAL, 500)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        check_verifier(Sound, EXAMPLES)
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_contract_works_without_pytest():
    code = "import sys, grpo_guard.core.testing; print({'pytest', 'torch'} & {*sys.modules})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
