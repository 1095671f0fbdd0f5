"""Truth tables of the combinators, over patterns of outcomes that hypothesis generates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import AllOf, AnyOf, Cascade, Cause, Completion, Finding
from grpo_guard.core.ensemble import Vote, only
from grpo_guard.core.verdict import reject
from tests.core.rule_verifiers_core import Says, completions

LETTERS = "ar?mn"
rows = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.text(LETTERS, min_size=n, max_size=n), max_size=6)
)
nonempty = rows.filter(bool)
NAMES = {"accept": "a", "reject": "r", "abstain": "?"}


def members(texts):
    return [Says(f"v{i}", at=i) for i in range(len(texts[0]))]


def outcomes(verifier, texts):
    return [NAMES[v.outcome.value] for v in verifier.verify(completions(*texts))]


def applicable(text):
    return text.replace("n", "").replace("m", "r")


def all_of(text):
    votes = applicable(text)
    return "?" if not votes else "r" if "r" in votes else "?" if "?" in votes else "a"


def any_of(text):
    votes = applicable(text)
    return "?" if not votes else "a" if "a" in votes else "?" if "?" in votes else "r"


def vote(text, rejects=None):
    """Expected result: the outcome on which all ways of filling in the abstentions agree."""
    votes = applicable(text)
    if not votes:
        return "?"
    needed = min(rejects or len(votes) // 2 + 1, len(votes))
    least, most = votes.count("r"), votes.count("r") + votes.count("?")
    results = {"r" if n >= needed else "a" for n in range(least, most + 1)}
    return results.pop() if len(results) == 1 else "?"


@given(nonempty)
def test_all_of_truth_table(texts):
    assert outcomes(AllOf(*members(texts)), texts) == [all_of(t) for t in texts]


@given(nonempty)
def test_any_of_truth_table(texts):
    assert outcomes(AnyOf(*members(texts)), texts) == [any_of(t) for t in texts]


@given(nonempty, st.data())
def test_vote_truth_table(texts, data):
    rejects = data.draw(st.none() | st.integers(1, len(texts[0])))
    got = outcomes(Vote(*members(texts), rejects=rejects), texts)
    assert got == [vote(t, rejects) for t in texts]


@given(nonempty)
def test_cascade_decides_as_all_of_and_stops_at_a_rejection(texts):
    stages = members(texts)
    assert outcomes(Cascade(*stages), texts) == [all_of(t) for t in texts]
    for i, stage in enumerate(stages):
        left = [t for t in texts if not set(t[:i]) & set("rm")]
        assert [text for batch in stage.batches for text in batch] == left


@given(nonempty)
def test_de_morgan_holds_for_accept_and_reject(texts):
    negated = outcomes(~AnyOf(*members(texts)), texts)
    for text, outcome in zip(texts, negated, strict=True):
        if set(text) <= set("ar"):
            assert outcome == all_of(text.translate(str.maketrans("ar", "ra")))


@given(nonempty, st.sampled_from([AllOf, AnyOf, Vote]))
def test_malformed_completions_never_pass_behind_not(texts, kind):
    for text, outcome in zip(texts, outcomes(~kind(*members(texts)), texts), strict=True):
        assert "m" not in text or outcome != "a"


@given(st.lists(st.tuples(st.sampled_from("ar?"), st.sampled_from(["code", "math"]))))
def test_only_skips_completions_that_do_not_match(rows):
    batch = [Completion("p", letter + "a", task=task) for letter, task in rows]
    verifier = only(Says("code", at=0), task="code") & Says("all", at=1)
    got = [NAMES[v.outcome.value] for v in verifier.verify(batch)]
    assert got == [letter if task == "code" else "a" for letter, task in rows]


def test_chains_are_flattened_so_bonferroni_counts_every_member():
    a, b, c = (Says(n, p_value=0.01) for n in "abc")
    chain = a & b & c
    assert chain.members == (a, b, c)
    assert chain.verify(completions("r"))[0].p_value == pytest.approx(0.03)
    assert (a | b | c).members == (a, b, c)
    assert len((a & Cascade(b, c)).members) == 2  # a cascade keeps its own order


def test_same_member_of_two_chains_counts_once():
    a, b, c = (Says(n, p_value=0.01) for n in "abc")
    assert ((a & b) & (a & c)).members == (a, b, c)
    assert ((a | b) | (a | c)).members == (a, b, c)
    learning = Says("h")
    learning.scope = "history"
    assert ((learning & b) & (learning & c)).members == (learning, b, c)


def test_member_that_learns_nothing_may_come_twice():
    a, b = Says("a"), Says("b")
    assert Vote(a, a, b).members == (a, a, b)
    assert Cascade(a, b, a).members == Cascade(Cascade(a, b), a).members == (a, b, a)


def test_numbers_of_numpy_are_numbers():
    a, b = Says("a", p_value=0.01), Says("b", p_value=0.01)
    assert AllOf(a, b, alpha=np.float32(0.25)).alpha == 0.25
    assert type(Vote(a, b, rejects=np.int64(2)).rejects) is int


def test_any_of_needs_a_p_value_from_every_member():
    assert AnyOf(Says("a", p_value=0.01), Says("b", p_value=0.2)).verify(completions("r"))[
        0
    ].p_value == pytest.approx(0.2)
    assert AnyOf(Says("a", p_value=0.01), Says("b")).verify(completions("r"))[0].p_value is None
    assert AllOf(Says("a"), Says("b")).verify(completions("a"))[0].p_value is None


def test_deciding_findings_are_listed_once():
    verdict = AllOf(Says("a"), Says("a"), Says("b", at=1)).verify(completions("r?"))[0]
    assert [f.message for f in verdict.findings] == ["a rejects"]
    assert [m.outcome.value for m in verdict.members] == ["reject", "reject", "abstain"]


def test_failing_member_abstains_alone():
    class Broken(Says):
        def verify(self, batch):
            raise RuntimeError("down")

    verdicts = Vote(Says("a"), Says("b"), Broken("c")).verify(completions("r", "a"))
    assert [v.outcome.value for v in verdicts] == ["reject", "accept"]
    both = AllOf(Says("a"), Broken("c")).verify(completions("r", "a"))
    assert [v.outcome.value for v in both] == ["reject", "abstain"]
    assert both[1].cause is Cause.FAULT


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: AllOf(), ValueError),
        (lambda: Vote(), ValueError),
        (lambda: AnyOf(Says(), "judge"), TypeError),
        (lambda: Vote(Says(), rejects=2), ValueError),
        (lambda: Vote(Says(), rejects=0), ValueError),
        (lambda: Vote(Says(), rejects=1.0), ValueError),
        (lambda: AllOf(Says(), alpha="0.1"), ValueError),
    ],
)
def test_invalid_ensembles_are_refused(build, error):
    with pytest.raises(error, match="expected"):
        build()


def test_finding_of_two_members_is_reported_once():
    class Finds(Says):
        def verify(self, batch):
            spans = [(0, 1), (0, 1), (1, 2)] if self.name == "a" else [(0, 1), (2, 3)]
            found = tuple(Finding("wrong", f"{self.name} {s}", char_span=s) for s in spans)
            return [reject(self.name, findings=(*found, Finding("other", "o", (0, 1))))] * len(
                batch
            )

    (verdict,) = AllOf(Finds("a"), Finds("b")).verify(completions("r"))
    assert [f.message for f in verdict.findings] == ["a (0, 1)", "a (1, 2)", "o", "b (2, 3)"]


def test_vote_has_rugers_p_value():
    members = [Says(str(i), p_value=p) for i, p in enumerate([0.01, 0.02, 0.5])]
    assert Vote(*members).verify(completions("r"))[0].p_value == pytest.approx(0.03)
    assert Vote(*members, Says("none")).verify(completions("a"))[0].p_value is None
