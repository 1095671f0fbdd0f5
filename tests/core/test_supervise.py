import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Cause, Completion, CompletionVerifier, Outcome
from grpo_guard.core.supervise import MOST_CHARACTERS, supervised
from grpo_guard.core.verdict import accept
from tests.core.rule_verifiers_core import Says, completions


class Fragile(Says):
    """Raises if a batch contains a text that starts with an x; counts its calls."""

    def __init__(self, error=RuntimeError):
        super().__init__("fragile")
        self.error = error

    def verify(self, batch):
        verdicts = super().verify(batch)
        if any(c.text.startswith("x") for c in batch):
            raise self.error("boom")
        return verdicts


@pytest.mark.parametrize("position", [0, 17, 63])
def test_completion_that_crashes_a_verifier_abstains_alone(position):
    texts = ["r" if i % 3 == 0 else "a" for i in range(64)]
    texts[position] = "x"
    verifier = Fragile()
    verdicts = supervised(verifier, completions(*texts))
    for i, verdict in enumerate(verdicts):
        if i == position:
            assert (verdict.outcome, verdict.cause) == (Outcome.ABSTAIN, Cause.FAULT)
            assert verdict.reason == "RuntimeError: boom"
        else:
            assert verdict.outcome is (Outcome.REJECT if texts[i] == "r" else Outcome.ACCEPT)
    assert len(verifier.batches) == 1 + 2 * 6  # halving: two calls for each of log2(64) levels


@given(st.lists(st.sampled_from("arx"), max_size=40))
def test_verdicts_are_complete_in_order_and_right(texts):
    verdicts = supervised(Fragile(), completions(*texts))
    assert len(verdicts) == len(texts)
    expected = {"a": Outcome.ACCEPT, "r": Outcome.REJECT, "x": Outcome.ABSTAIN}
    for text, verdict in zip(texts, verdicts, strict=True):
        # If most of a batch fails, a good one may be given up, but it never gets another's verdict.
        assert verdict.outcome in (expected[text], Outcome.ABSTAIN)
    if texts.count("x") <= 1:
        assert [v.outcome for v in verdicts] == [expected[t] for t in texts]


def test_outage_is_given_up_after_a_few_calls():
    calls = {}
    for size in (64, 4096):
        verifier = Fragile()
        verdicts = supervised(verifier, completions(*["x"] * size))
        assert [v.cause for v in verdicts] == [Cause.FAULT] * size
        calls[size] = len(verifier.batches)
    # Each level of halves is tried once, and then a few completions alone.
    assert calls[64] <= 64 + 10
    assert calls[4096] <= 4096 + 10


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda v: v[:-1], "expected 1 verdict, one per completion, got 0"),
        (lambda v: v + v[:1], "expected 1 verdict, one per completion, got 2"),
        (lambda v: None, "expected a list of Verdict, got None"),
        (lambda v: 1.0, "expected a list of Verdict, got 1.0"),
        (lambda v: "no", "expected a list of Verdict, got 'no'"),
        (
            lambda v: [*v[:-1], True],
            "item 0: expected accept(...), reject(...) or abstain(...), got True",
        ),
        (lambda v: iter(v), "expected a list of Verdict, got"),
    ],
)
def test_invalid_results_of_a_verifier_abstain(result, message):
    class Wrong(Says):
        def verify(self, batch):
            return result(super().verify(batch))

    verdicts = supervised(Wrong(), completions("a", "r", "a"))
    assert [v.outcome for v in verdicts] == [Outcome.ABSTAIN] * 3
    assert {v.cause for v in verdicts} == {Cause.FAULT}
    assert message in verdicts[0].reason


def test_out_of_memory_has_its_own_cause():
    class OutOfMemoryError(RuntimeError):
        """The exception as torch names it."""

    for error in (MemoryError, OutOfMemoryError):
        verdicts = supervised(Fragile(error), completions("a", "x"))
        assert [v.cause for v in verdicts] == [Cause.JUDGED, Cause.OUT_OF_MEMORY]


def test_batch_too_big_for_memory_is_split():
    class Small(Says):
        def verify(self, batch):
            if len(batch) > 2:
                raise MemoryError
            return super().verify(batch)

    verdicts = supervised(Small(), completions(*"ararara"))
    assert "".join("r" if v.rejected else "a" for v in verdicts) == "ararara"


class Hanging(Says):
    """Blocks inside `verify` until released."""

    def __init__(self, timeout):
        super().__init__("hanging")
        self.timeout = timeout
        self.go = threading.Event()

    def verify(self, batch):
        super().verify(batch)
        self.go.wait(60)
        return super().verify(batch)


def test_hang_times_out_and_opens_the_circuit_until_it_returns():
    verifier = Hanging(timeout=0.05)
    try:
        for _ in range(2):
            verdicts = supervised(verifier, completions("a", "r"))
            assert [v.cause for v in verdicts] == [Cause.TIMEOUT] * 2
        before = len(verifier.batches)
        verdicts = supervised(verifier, completions("a", "r"))
        assert [v.cause for v in verdicts] == [Cause.CIRCUIT_OPEN] * 2
        assert len(verifier.batches) == before  # no third thread is left behind
    finally:
        verifier.go.set()
    verifier.timeout = 60.0
    for _ in range(600):  # the two hung threads return in their own time
        verdicts = supervised(verifier, completions("a", "r"))
        if verdicts[0].cause is Cause.JUDGED:
            break
        threading.Event().wait(0.05)
    assert [v.outcome for v in verdicts] == [Outcome.ACCEPT, Outcome.REJECT]


def test_no_timeout_means_no_thread():
    class Where(Says):
        timeout = None

        def verify(self, batch):
            self.thread = threading.current_thread()
            return super().verify(batch)

    verifier = Where()
    supervised(verifier, completions("a"))
    assert verifier.thread is threading.current_thread()


def test_an_interrupt_is_not_swallowed():
    class Interrupted(Says):
        timeout = None

        def verify(self, batch):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervised(Interrupted(), completions("a"))


def test_empty_batch_calls_no_verifier():
    verifier = Says()
    assert supervised(verifier, []) == []
    assert verifier.batches == []


def test_nine_crashing_completions_do_not_affect_the_rest():
    verifier = Fragile()
    texts = ["x"] * 9 + ["fine"] * 55
    assert [v.outcome for v in supervised(verifier, completions(*texts))] == (
        ["abstain"] * 9 + ["accept"] * 55
    )


def test_system_exit_in_a_verifier_is_a_fault():
    class Leaves(Says):
        def verify(self, batch):
            raise SystemExit(3)

    (verdict,) = supervised(Leaves(), completions("a"))
    assert verdict.cause is Cause.FAULT
    assert "SystemExit" in verdict.reason


class Unavailable(RuntimeError):
    """As scorers raise it; the tests set the class attributes."""


def failing(cause, **attributes):
    return Fragile(type("Unavailable", (Unavailable,), {"cause": cause, **attributes}))


@pytest.mark.parametrize("cause", sorted(set(Cause) - {Cause.NOT_APPLICABLE}))
def test_exception_cause_is_used_unless_it_is_an_authors(cause):
    (verdict,) = supervised(failing(cause), completions("x"))
    may_abstain = Outcome.ABSTAIN in cause.outcomes
    assert verdict.outcome is Outcome.ABSTAIN
    assert verdict.cause is (cause if may_abstain else Cause.FAULT)
    assert "boom" in verdict.reason


def test_exception_cannot_make_combinators_skip_a_verifier():
    (verdict,) = supervised(failing(Cause.NOT_APPLICABLE), completions("x"))
    assert verdict.cause is Cause.FAULT
    (verdict,) = supervised(failing("timeout"), completions("x"))  # a string that is not a Cause
    assert verdict.cause is Cause.FAULT


@pytest.mark.parametrize("cause", [Cause.TIMEOUT, Cause.RATE_LIMITED])
def test_engine_wide_failure_is_not_retried_on_parts(cause):
    verifier = failing(cause)
    verdicts = supervised(verifier, completions("x", *"a" * 63))
    assert {v.cause for v in verdicts} == {cause}
    assert len(verifier.batches) == 1


@pytest.mark.parametrize(
    ("cause", "attributes"), [(Cause.PROVIDER, {}), (Cause.TIMEOUT, {"engine_wide": False})]
)
def test_completion_that_makes_the_provider_fail_abstains_alone(cause, attributes):
    verifier = failing(cause, **attributes)
    verdicts = supervised(verifier, completions("x", *"a" * 63))
    assert verdicts[0].cause is cause
    assert all(v.accepted for v in verdicts[1:])
    assert len(verifier.batches) == 1 + 2 * 6


def test_outage_keeps_its_cause_for_every_completion():
    verifier = failing(Cause.PROVIDER)
    verdicts = supervised(verifier, completions(*["x"] * 64))
    assert {(v.outcome, v.cause) for v in verdicts} == {(Outcome.ABSTAIN, Cause.PROVIDER)}
    assert len(verifier.batches) <= 64 + 10


class Quoting(Says):
    """Fails like a service, with a message that quotes the completion."""

    def verify(self, batch):
        error = RuntimeError(f"cannot read {batch[0].text}")
        error.cause = Cause.PROVIDER
        raise error


def test_quoted_completion_cannot_inject_log_lines(caplog):
    (verdict,) = supervised(Quoting("q"), completions("\x1b[2J\nERROR all is lost\x9b\r"))
    assert caplog.messages == [
        "verifier q: RuntimeError: cannot read  [2J ERROR all is lost   (provider)"
    ]
    assert verdict.reason.isprintable()


class Plodding(Says):
    """Takes time per character, as rules do."""

    scope = "completion"

    def __init__(self, timeout):
        super().__init__("plodding")
        self.timeout = timeout

    def verify(self, batch):
        threading.Event().wait(sum(len(c.text) for c in batch) / MOST_CHARACTERS * 0.2)
        return super().verify(batch)


@pytest.mark.parametrize("alone", [True, False])
def test_long_texts_of_one_author_do_not_time_out_others(alone):
    """An attack: texts that together exceed the timeout made the guard abstain on a batch."""
    long = "a" * (MOST_CHARACTERS // 2)
    batch = completions("r", long, "a", long, "r", long, long, long, "a", long, long, "r")
    verifier = Plodding(timeout=0.6)
    verifier.scope = "completion" if alone else "batch"
    verdicts = supervised(verifier, batch)
    if not alone:  # a verifier that compares completions has to see all of them
        assert {v.cause for v in verdicts} == {Cause.TIMEOUT}
        return
    expected = [Outcome.REJECT if c.text == "r" else Outcome.ACCEPT for c in batch]
    assert [v.outcome for v in verdicts] == expected
    assert all(sum(map(len, texts)) <= MOST_CHARACTERS for texts in verifier.batches)


def test_outage_logs_one_line(caplog):
    class Broken(CompletionVerifier):
        name = "broken"

        def verify(self, batch):
            raise RuntimeError("no such table")

    with caplog.at_level("WARNING", logger="grpo_guard"):
        verdicts = supervised(Broken(), [Completion("p", f"t{i}") for i in range(128)])
    assert all(v.abstained for v in verdicts)
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    assert "no such table" in caplog.text


class Own(CompletionVerifier):
    """A verifier with a mistake, in a file of its own."""

    name = "own"

    def __init__(self, answer):
        self.answer = answer

    def verify(self, batch):
        return self.answer(batch)


def shortened(batch):
    return [accept("own")] if len(batch) > 1 else [accept("own") for _ in batch]


def test_too_few_verdicts_are_asked_for_again_one_by_one_and_logged(caplog):
    verdicts = supervised(Own(shortened), completions("a", "a"))
    assert [v.accepted for v in verdicts] == [True, True]
    assert caplog.messages == ["own.verify: expected 2 verdicts, one per completion, got 1"]
    assert caplog.records[0].exc_info is None


def test_anything_but_verdicts_is_one_line_in_the_log(caplog):
    verdicts = supervised(Own(lambda batch: [True for _ in batch]), completions(*"aaaaaaaa"))
    assert {v.cause for v in verdicts} == {Cause.FAULT}
    line = "own.verify: item 0: expected accept(...), reject(...) or abstain(...), got True"
    assert caplog.messages == [line]
    assert caplog.records[0].exc_info is None
    assert verdicts[0].reason == line


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_error_of_ones_own_code_is_logged_without_the_frames_of_the_package(caplog, timeout):
    verifier = Own(lambda batch: [batch[0].txt])
    verifier.timeout = timeout
    supervised(verifier, completions("a"))
    trace = caplog.text[caplog.text.index("Traceback") :]
    files = re.findall(r'File "(.+?)"', trace)
    assert set(files) == {__file__}
    assert "batch[0].txt" in trace


def test_error_inside_the_package_keeps_its_frames(caplog):
    def call(batch):
        return Completion(batch[0].prompt, text=None)

    supervised(Own(call), completions("a"))
    assert re.findall(r'File ".+/(\w+\.py)"', caplog.text)[-1] == "completion.py"
