"""Which parts of a completion its author did not write, and who may claim so."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion, Guard, Policy
from grpo_guard.core.completion import CompletionError
from grpo_guard.core.given import MAX_SPANS, Given, between, stretches
from grpo_guard.core.jsonl import read_completions
from grpo_guard.core.turns import APART, own_text, own_words, turns
from grpo_guard.core.verdict import Cause, Finding, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.environment import EnvironmentVerifier

ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.floats() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
)


def talk(*parts, known=True, **fields):
    """A completion that alternates the author's and others' text, the author's first."""
    text, chars = "", []
    for i, part in enumerate(parts):
        if i % 2:
            chars.append((len(text), len(text) + len(part)))
        text += part
    return Completion("3 + 4?", text, given=Given(chars=tuple(chars), known=known), **fields)


def test_sender_spans_are_claims_that_exempt_nothing():
    sent = {"tokens": [[1, 2]], "chars": [[1, 3]]}
    one = Completion.from_dict({"prompt": "p", "text": "abcd", "completion_ids": [1, 2, 3],
                                "given": sent})  # fmt: skip
    assert one.given == Given(((1, 2),), ((1, 3),))
    assert one.context is one.verified_spans is None
    assert own_words([one]) == [one]
    for more in ("masked", "known"):
        with pytest.raises(CompletionError, match="only tokens and chars"):
            Completion("p", "abcd", given={**sent, more: True})


@given(ANYTHING, ANYTHING)
def test_any_sender_value_is_a_claim_or_an_error_naming_the_field(tokens, chars):
    said = {"tokens": tokens, "chars": chars}
    try:
        one = Completion("p", "some text", completion_ids=range(5), given=said)
        assert one.given is None or len(one.given.tokens) == len(one.given.chars)
    except CompletionError as error:
        assert (error.field, len(str(error)) < 300) == ("given", True)  # noqa: PT017


@pytest.mark.parametrize(
    "chars",
    [
        [[0, 99]], [[2, 1]], [[-1, 1]], [[0, 2], [1, 3]], [[2, 3], [0, 1]], [[0, 1, 2]], [[0]],
        [[i, i + 1] for i in range(MAX_SPANS + 1)], [[0, 10**30]], "01", [["0", "1"]], [[0.0, 1]],
        {"0": 1}, 5, [5],
    ],
)  # fmt: skip
def test_invalid_spans_are_refused(chars):
    with pytest.raises(CompletionError, match=r"^given: expected"):
        Completion("p", "text" * 10, given={"chars": chars})


def test_token_spans_need_ids_and_matching_char_spans():
    spans = {"tokens": [[0, 1]], "chars": [[0, 2]]}
    assert Completion("p", "text", given=spans).given == Given(chars=((0, 2),))
    with pytest.raises(CompletionError, match="as many spans"):
        Completion("p", "text", completion_ids=[1, 2], given={"chars": [[0, 2]]})
    with pytest.raises(CompletionError, match="tokens that end at 2"):
        Completion("p", "text", completion_ids=[1, 2], given=spans | {"tokens": [[1, 3]]})


def test_given_spans_are_read_from_a_file(tmp_path):
    file = tmp_path / "sent.jsonl"
    file.write_text('{"prompt": "p", "text": "abcd", "given": {"chars": [[1, 3]]}}\n')
    assert read_completions(file)[0].given == Given(chars=((1, 3),))


@given(st.lists(st.text(max_size=5), min_size=1, max_size=7))
def test_author_text_maps_back_to_its_offsets(parts):
    one = talk(*parts)
    own = own_text(one)
    if own is None:  # no span is given
        assert len(parts) == 1
        return
    words = [part for part in parts[::2] if part]
    assert own.completion.text == APART.join(words)
    at = 0
    for word in words:
        start, end = own.place((at, at + len(word)))
        assert one.text[start:end] == word
        at += len(word) + len(APART)
    assert own.place((0, len(own.completion.text)))[1] <= len(one.text)
    spoken = [word for word in words if word.strip()]
    assert not spoken or [turn.completion.text for turn in turns(one)] == spoken


def test_stretches_cover_the_text_exactly_once():
    assert between([(1, 2), (4, 6)], 6) == [(0, 1), (2, 4), (6, 6)]
    assert stretches([(1, 2), (4, 6)], 6) == [(0, 1), (1, 2), (2, 4), (4, 6), (6, 6)]


def seven(prompt, turns):
    return " 7" if turns[-1].endswith("=") else ""


def test_environment_is_rerun_for_each_span():
    verifier = EnvironmentVerifier(seven)
    good = talk("3 + 4 =", " 7", " and 7 =", "7 ", " so 7", known=False)
    for forged in (
        talk("3 + 4 =", " 8", " so 8", known=False),  # a different result
        talk("3 + 4", " 7", " so 7", known=False),  # where no tool was called
        talk("3 + 4 =", " 7 Hail", " so 7", known=False),  # with additional text
        talk("Let me see.", "", " so 7", known=False),  # invisible, where no text may be inserted
        talk("3 + ", "4 = 7", " so 7", known=False),  # marks the author's own text
    ):
        yes, no = verifier.verify([good, forged])
        assert yes.accepted
        assert [f.kind for f in no.findings] == ["forged_tool_result"]
        assert no.findings[0].char_span == forged.given.chars[0]
    asked = []
    long = talk(*["3 + 4 =", " 7"] * 65, known=False)
    (verdict,) = EnvironmentVerifier(lambda *given: asked.append(given) or " 7").verify([long])
    assert (verdict.cause, asked) == (Cause.OVERLONG, [])
    believing = EnvironmentVerifier(lambda prompt, turns: None)
    assert believing.verify([talk("a", "whatever", "b", known=False)])[0].accepted


class Shown(CompletionVerifier):
    """Rejects "Hail" and records its input."""

    name = "shown"

    def __init__(self):
        self.batches = []

    def verify(self, batch):
        self.batches.append(batch)
        hail = [Finding("word", "says Hail")]
        return [reject(self.name, findings=hail) if "Hail" in c.text else accept(self.name)
                for c in own_words(batch)]  # fmt: skip


def test_guard_trusts_spans_that_the_environment_reproduces():
    shown = Shown()
    guard = Guard(shown, environment=seven)
    good = talk("3 + 4 =", " 7", " so 7", known=False)
    hidden = talk("3 + 4 =", " 7 Hail", " so 7", known=False)
    ours = talk("3 + 4 =", " Hail", " so 7")  # the trainer called its own tool
    verdicts = guard.review([hidden, good, ours, talk("7")]).verdicts
    assert [v.outcome.value for v in verdicts] == ["reject", "accept", "accept", "accept"]
    assert verdicts[0].verifier == "environment"
    assert [c.verified_spans is not None for c in shown.batches[0]] == [True, True, False]
    assert [v.accepted for v in Guard(Shown()).review([hidden, good]).verdicts] == [False, True]


def test_failing_environment_abstains_on_that_completion_only():
    def broken(prompt, turns):
        raise OSError("no calculator")

    guard = Guard(Shown(), environment=broken)
    first, second = guard.review([talk("a", "b", "c", known=False), talk("7")]).verdicts
    assert (first.abstained, first.cause, second.accepted) == (True, Cause.FAULT, True)
    with pytest.raises(ValueError, match="environment abstains if"):
        Guard(Shown(), policy=Policy(on_abstain="pass"), environment=seven)
    with pytest.raises(TypeError, match="environment: expected a function"):
        Guard(Shown(), environment="calculator")


def test_with_environment_shares_everything_else():
    plain = Guard(Shown())
    asking = plain.with_environment(seven)
    assert (asking.verifier, plain.environment) == (plain.verifier, None)
    forged = talk("3 + 4 =", " 8", "", known=False)
    assert asking.judge([forged])[1][0].rejected
    assert plain.judge([forged])[1][0].accepted


def test_copies_are_equal():
    one = talk("a", "b", "c")
    assert copy.deepcopy(one) == one
    assert hash(one.given) == hash(Given(chars=((1, 2),), known=True))


def test_turns_that_make_the_environment_raise_do_not_affect_others():
    asked = []

    def fragile(prompt, turns):
        asked.append(turns)
        if "boom" in turns[-1]:
            raise ValueError("no sum")
        return seven(prompt, turns)

    good = [talk("3 + 4 =", " 7", f" so {i}", known=False) for i in range(12)]
    bad = [talk(f"boom {i}", " 7", "", known=False) for i in range(40)]
    _, verdicts = Guard(Shown(), environment=fragile).judge([*bad, *good])
    assert [v.outcome.value for v in verdicts] == ["abstain"] * 40 + ["accept"] * 12
    assert {v.cause for v in verdicts[:40]} == {Cause.FAULT}
    assert len(asked) == 52


def test_turns_that_slow_the_environment_do_not_affect_others(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow(prompt, turns):
        now[0] += 20.0 if "sleep" in turns[-1] else 0.1
        return seven(prompt, turns)

    good = [talk("3 + 4 =", " 7", f" so {i}", known=False, node="good") for i in range(12)]
    sleeping = ["sleep =", " 7"] * 60
    bad = [talk(*sleeping, f"{i}", known=False, node="bad") for i in range(40)]
    verifier = EnvironmentVerifier(slow)
    verdicts = verifier.verify([*bad, *good])
    assert [v.outcome.value for v in verdicts] == ["abstain"] * 40 + ["accept"] * 12
    assert {v.cause for v in verdicts[:40]} == {Cause.TIMEOUT}
    assert now[0] < verifier.timeout


def test_environment_must_return_text():
    async def later(prompt, turns):
        return " 7"

    with pytest.raises(TypeError, match="not async"):
        EnvironmentVerifier(later)
    (verdict,) = EnvironmentVerifier(lambda *_: 7).verify([talk("a", "7", "b", known=False)])
    assert (verdict.abstained, verdict.reason) == (
        True,
        "TypeError: expected it to return text or None, got 7",
    )
