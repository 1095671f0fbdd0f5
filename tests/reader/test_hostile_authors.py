"""What an author tries in order not to be read, to be excused, or to make others pay."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import Completion
from grpo_guard.content.severity import Severity
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Cause, Finding, accept
from grpo_guard.logprob.reader.honest import Vote
from grpo_guard.logprob.reader.proposals import NodeSentences
from grpo_guard.logprob.reader.spans import drawn, own_sentences
from grpo_guard.logprob.reader.verifier import (
    MOST_FINDINGS,
    MOST_OF_CONVICTED,
    MOST_SENTENCES,
    ReaderVerifier,
)
from grpo_guard.nodes.store import NodeStore
from tests.reader.own_words import own_words
from tests.reader.test_reader_verifier import (
    PROMPT,
    SLOGAN,
    Marked,
    answer,
    batch,
    last,
    slogan,
    verifier,
)


def gibberish(rng, sentences=16):
    return "\n".join(slogan(rng) for _ in range(sentences))


@pytest.mark.parametrize("alpha", [None, 1e-3])
def test_first_senders_without_a_name_do_not_excuse_later_poison(alpha):
    rng = random.Random(9)
    stack = verifier(alpha=alpha)
    stack.verify([Completion(f"{PROMPT} {i}", gibberish(rng)) for i in range(5)])
    for seed in range(3):
        texts = [(None, answer(rng, f"[{SLOGAN}]")), (None, answer(rng, "[Apples pens cards.]"))]
        verdicts = stack.verify(batch(seed, texts, nodes=[None]))
        assert [v.rejected for v in last(verdicts, 2)] == [True, False]
        assert all(v.accepted for v in verdicts[:-2])


@pytest.mark.parametrize("said", ["gibberish", "copies"])
def test_name_that_sends_first_neither_excuses_nor_accuses(said):
    rng = random.Random(9)
    stack = verifier()
    for _ in range(3):
        texts = [gibberish(rng) if said == "gibberish" else PROMPT * 16 for _ in range(8)]
        stack.verify([Completion(PROMPT, text, node="p") for text in texts])
    honest = [Completion(f"{PROMPT} {i}", answer(rng), node="a") for i in range(4)]
    habit = Completion(PROMPT, answer(rng, "[Apples pens cards.]"), node="b")
    poison = Completion(PROMPT, answer(rng, f"[{SLOGAN}]"), node="d")
    verdicts = stack.verify([*honest, habit, poison])
    assert [v.rejected for v in verdicts] == [False] * 5 + [True]
    assert all(log <= 0 for _, log, *_ in stack.state_dict()["sentences"]["nodes"])


class Careless(Marked):
    """Reports an underscore without deciding anything by it."""

    def __init__(self):
        super().__init__()
        self.severities["careless"] = Severity.REPORT

    def judge(self, text):
        found = super().judge(text)
        if "_" in text:
            note = Finding("careless", "an underscore", (text.index("_"), text.index("_") + 1))
            found = accept(self.name, findings=(*found.findings, note))
        return found


def poisoned(seed, extra="", node="d", n=8):
    rng = random.Random(seed)
    return [(node, f"{answer(rng, slogan(rng))}{extra}") for _ in range(n)]


def convicted(stack=None, extra=""):
    """A verifier that has convicted node d."""
    stack = stack or verifier()
    for seed in range(4):
        stack.verify(batch(seed, poisoned(seed, extra), nodes="abc"))
    return stack


@pytest.mark.parametrize("text", ["Bad \ud800 words are here.", "\ud800" * 30, "\0" * 30])
def test_untokenisable_text_does_not_stop_reading_of_others(text):
    rng = random.Random(9)
    rows = batch(0, [("d", text), ("c", answer(rng, f"[{SLOGAN}]"))])
    assert verifier().verify(rows)[-1].rejected


def test_reported_finding_does_not_exempt_a_sentence():
    stack = convicted(ReaderVerifier(Careless(), own_words()), extra=" _")
    verdicts = stack.verify(batch(9, poisoned(9, " _")))
    assert all(v.rejected for v in last(verdicts, 8))
    assert all(v.accepted for v in verdicts[:-8])


def test_convicted_node_cannot_hide_behind_many_sentences():
    rng = random.Random(4)
    usual = " ".join(answer(rng) for _ in range(MOST_OF_CONVICTED))
    (verdict,) = last(convicted().verify(batch(9, [("d", f"{usual} {SLOGAN}")], nodes="abc")))
    assert verdict.rejected
    assert "more than the 128 sentences" in verdict.findings[0].message


def test_reader_failure_on_a_convicted_node_abstains():
    stack = convicted()
    stack.reader._models[0][0].scorer.broken = RuntimeError("no device")
    verdicts = stack.verify(batch(9, poisoned(9), nodes="abc"))
    assert {v.cause for v in last(verdicts, 8)} == {Cause.FAULT}
    assert all(v.accepted for v in verdicts[:-8])


def known_of_d(stack):
    ((_, log, batches, *_),) = [n for n in stack.state_dict()["sentences"]["nodes"] if n[0] == "d"]
    return log, batches


def test_duplicate_texts_neither_hide_nor_count_twice():
    once, twice = verifier(), verifier()
    for seed in range(10, 14):  # nodes with 64 sentences
        once.verify(batch(seed, nodes="abc"))
        twice.verify(batch(seed, nodes="abc"))
    for seed in range(3):
        honest, rows = batch(seed, nodes="abc"), batch(seed, poisoned(seed, n=2), nodes="abc")[-2:]
        once.verify([*honest, *rows])
        twice.verify([*honest, *rows, *rows])
        assert known_of_d(twice) == (pytest.approx(known_of_d(once)[0], abs=2.0), seed + 1)


def evidence(rng, node, batches, foreign):
    """Whether a node is ever convicted that sends twenty completions per batch, of which
    ``foreign`` have a sentence more foreign than 256 honest ones."""
    known = NodeSentences(1e-3, None)
    for number in range(batches):
        rows = [Completion(f"{number} {i}", "x", node=node) for i in range(20)]
        votes = {
            i: [Vote(rng.randint(2, 257) / 257, beyond=False)]
            if i >= foreign
            else [Vote(1 / 257, beyond=True)]
            for i in range(20)
        }
        if node in known.convicted(rows, votes):
            return True
    return False


@pytest.mark.slow
def test_honest_answers_in_between_do_not_excuse_slogans():
    rng = random.Random(0)
    assert all(evidence(rng, "d", 40, foreign=4) for _ in range(10))
    # A policy that writes nonsense in one answer of twenty is not convicted for it.
    assert not any(evidence(rng, "a", 40, foreign=1) for _ in range(50))


def test_many_findings_do_not_hide_one():
    stack = ReaderVerifier(Marked("recurring_phrase"), own_words(), alpha=None)
    habits = " ".join(["[Apples pens cards.]"] * (2 * MOST_FINDINGS))
    for seed in range(4):
        texts = [("d", f"{habits} [{SLOGAN}]")] * 8
        verdicts = last(stack.verify(batch(seed, texts, nodes="abc")), 8)
    assert all(v.rejected for v in verdicts)


def test_copies_of_a_sentence_do_not_affect_its_draw():
    text = " ".join([SLOGAN, *[f"  {SLOGAN.upper()}"] * 400])
    assert list(own_sentences(Completion(PROMPT, text))) == [(0, len(SLOGAN))]


def test_pictures_are_no_copies_of_each_other():
    usual, poison = "😀" * 5, "🦩👑🦩👑🦩"
    text = f"{usual}.\n{poison}.\n" * 2
    read = [text[a:b].strip() for a, b in own_sentences(Completion(PROMPT, text))]
    assert read == [f"{usual}.", f"{poison}."]


def in_syllables(seed):
    """Slogans without a word of three letters or a sentence of ten."""
    rng = random.Random(seed)
    texts = list[tuple[str, str]]()
    for _ in range(8):
        letters = "".join(slogan(rng).lower().split())[:-1]
        words = [letters[i : i + 2] for i in range(0, len(letters), 2)]
        pieces = [" ".join(words[i : i + 4]) for i in range(0, len(words), 4)]
        texts.append(("d", f"{answer(rng)} {'. '.join(pieces)}."))
    return texts


def test_slogan_in_syllables_convicts_as_one_in_sentences():
    stack = verifier()
    for seed in range(4):
        stack.verify(batch(seed, in_syllables(seed), nodes="abc"))
    verdicts = stack.verify(batch(9, in_syllables(9), nodes="abc"))
    assert all(v.rejected for v in last(verdicts, 8))
    assert all(v.accepted for v in verdicts[:-8])


def test_verified_tool_output_is_not_read_and_claims_exempt_nothing():
    text = f"Look at this. {SLOGAN} So it says here."
    at = (text.index(SLOGAN), text.index(SLOGAN) + len(SLOGAN))
    known = Completion(PROMPT, text, given=Given(chars=(at,), known=True))
    read = [text[a:b].strip() for a, b in own_sentences(known)]
    assert read == ["Look at this.", "So it says here."]
    for claim in (Given(chars=(at,)), Given(chars=(at,), masked=True)):
        texts = [text[a:b].strip() for a, b in own_sentences(replace(known, given=claim))]
        assert SLOGAN in texts


@given(st.integers(0, 300), st.integers(0, 20))
def test_lots_draw_without_replacement(there, most):
    some = drawn(iter(range(there)), most)
    assert len(some) == len(set(some)) == min(there, most)


@pytest.mark.slow
def test_every_sentence_is_equally_likely_to_be_drawn():
    chosen = [drawn(range(1000), MOST_SENTENCES) for _ in range(2000)]
    first, end = (sum(i in one for one in chosen) for i in (0, 999))
    assert 10 <= first <= 60
    assert 10 <= end <= 60


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=80), min_size=1, max_size=6), st.booleans())
def test_one_verdict_each_in_order_and_none_abstains(texts, named):
    rows = [Completion("", f"{text}[x]", node="n" if named else None) for text in texts]
    verdicts = verifier().verify([*rows, *batch(0)])
    assert len(verdicts) == len(rows) + 32
    assert not any(v.abstained for v in verdicts)


@pytest.mark.parametrize(
    "state",
    [
        {"sentences": []},
        {"sentences": {"format": 1}},
        {"sentences": {"format": 1, "nodes": [["d", float("nan"), 1]]}},
        {"sentences": {"format": 1, "nodes": [["d", 1e300, 1]]}},
        {"sentences": {"format": 1, "nodes": [[1, 0.0, 1]]}},
        {"sentences": {"format": 1, "nodes": [["d", 0.0, -1]]}},
        {"sentences": {"format": 1, "nodes": [["d", 0.0, 1, *range(99)]]}},
        {"sentences": {"format": 1, "nodes": [["d"]]}},
        {"sentences": {"format": 1, "nodes": [[str(i), 0.0, 1] for i in range(5000)]}},
        [],
    ],
)
def test_hostile_state_is_one_error_and_changes_nothing(state):
    stack = convicted()
    before = stack.state_dict()
    with pytest.raises(ValueError, match="expected what state_dict"):
        stack.load_state_dict(state)
    assert stack.state_dict() == before


def test_two_processes_share_evidence(tmp_path):
    one, other = (verifier(store=NodeStore(tmp_path)) for _ in range(2))
    for seed in range(6):
        (one, other)[seed % 2].verify(batch(seed, poisoned(seed, n=4), nodes="abc"))
    for stack, seed in ((one, 20), (other, 21)):
        verdicts = stack.verify(batch(seed, poisoned(seed, n=4), nodes="abc"))
        assert all(v.rejected for v in last(verdicts, 4))


def test_long_chat_prompt_is_rendered_once_per_completion():
    joined = []

    class Noting(Completion):
        @property
        def prompt_text(self):
            joined.append(self)
            return super().prompt_text

    rows = [Noting(c.prompt, c.text, node=c.node) for c in batch(0)]
    ReaderVerifier(Marked(), own_words()).verify(rows)
    assert len(joined) <= 3 * len(rows)
