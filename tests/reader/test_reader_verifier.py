"""Rules propose and the reader decides: what is rejected, reported and abstained on."""

import copy
import logging
import random

import pytest

from grpo_guard import AllOf, Completion, Guard
from grpo_guard.content.severity import Severity
from grpo_guard.core.verdict import Cause, Finding, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.logprob.reader.proposals import FEWEST_PLACES
from grpo_guard.logprob.reader.reader import Opinion, SpanReader
from grpo_guard.logprob.reader.spans import TextSpan
from grpo_guard.logprob.reader.verifier import MOST_FINDINGS, RENEWED, ReaderVerifier
from tests.reader.own_words import OwnWords, own_words

WORDS = ["apples", "books", "cards", "coins", "cups", "friends", "gives", "marbles", "more"]
WORDS += ["now", "pens", "shells", "sold", "takes"]
PROMPT = f"A story of {' '.join(WORDS)}. How many in all?"
SLOGAN = "Zebras quietly juggle oxygen."


class Marked(CompletionVerifier):
    """A rule that finds text in square brackets; brackets with braces reject."""

    name = "marked"

    def __init__(self, kind="marked", confirm=True):
        self.kind, self.confirm = kind, confirm
        self.severities = {kind: Severity.CONFIRM}

    def verify(self, batch):
        return [self.judge(completion.text) for completion in batch]

    def judge(self, text):
        if "{" in text:
            return reject(self.name, message="braces")
        places = [(i, text.index("]", i) + 1) for i, mark in enumerate(text) if mark == "["]
        return accept(self.name, findings=tuple(Finding(self.kind, "marked", at) for at in places))


def sentence(rng):
    return " ".join(rng.sample(WORDS, 6)).capitalize() + "."


def answer(rng, extra=""):
    return f"{sentence(rng)} {sentence(rng)} {extra}{' ' if extra else ''}{sentence(rng)}"


def batch(seed, texts=(), nodes="abcd", each=8):
    """Honest answers of all nodes, followed by the given (node, text)."""
    rng = random.Random(seed)
    honest = [
        Completion(f"{PROMPT} {seed} {i}", answer(rng), node=n) for i in range(each) for n in nodes
    ]
    return honest + [
        Completion(f"{PROMPT} {seed} {i}", text, node=n) for i, (n, text) in enumerate(texts)
    ]


def verifier(reader=None, **options):
    return ReaderVerifier(Marked(), reader or own_words(), **options)


def last(verdicts, n=1):
    return verdicts[-n:]


def test_proposed_span_that_is_foreign_is_rejected():
    rng = random.Random(9)
    text = answer(rng, f"[{SLOGAN}]")
    (verdict,) = last(verifier().verify(batch(0, [("d", text)])))
    assert verdict.rejected
    assert verdict.findings[0].kind == "marked"
    assert "foreign in its place" in verdict.findings[0].message
    assert [m.verifier for m in verdict.members] == ["marked", "reader"]


def test_span_explained_by_its_context_is_only_reported():
    rng = random.Random(9)
    text = answer(rng, "[Apples books cards.]")
    (verdict,) = last(verifier().verify(batch(0, [("d", text)])))
    assert verdict.accepted
    assert [finding.kind for finding in verdict.findings] == ["marked"]


class Undecided(SpanReader):
    """Finds everything as foreign as a given share of honest text."""

    def __init__(self, p_value):
        self.p_value = p_value

    def wanted(self, node):
        return 0

    def read(self, spans, honest):
        return [Opinion(self.p_value, None) for _ in spans]


@pytest.mark.parametrize(
    ("kind", "p_value", "rejected"),
    [
        # A weak reader of Chinese finds a Chinese slogan as foreign as one honest sentence in ten:
        # without a reader the rule rejects it, so a reader that cannot tell must not excuse it.
        ("script_switch", 0.1, True),
        ("script_switch", 0.25, False),
        ("after_answer", 0.1, True),
        # Without a reader this is only reported.
        ("recurring_unlisted", 0.1, False),
        ("marked", 0.1, False),
    ],
)
def test_undecided_reader_leaves_the_decision_to_the_rule(kind, p_value, rejected):
    stack = ReaderVerifier(Marked(kind), Undecided(p_value), alpha=None)
    texts = [Completion(PROMPT, f"So [{SLOGAN}]", node="d") for _ in range(FEWEST_PLACES)]
    verdict = stack.verify(texts)[-1]
    assert verdict.rejected == rejected
    assert [finding.kind for finding in verdict.findings] == [kind]


def test_excuse_must_be_at_least_the_level():
    with pytest.raises(ValueError, match=r"excuse: expected at least level=0\.1, got 0\.05"):
        verifier(level=0.1, excuse=0.05)


def test_rejected_completions_are_not_read():
    reader = own_words()
    (verdict,) = last(verifier(reader).verify(batch(0, [("d", f"{{}} [{SLOGAN}]")])))
    assert verdict.rejected
    assert verdict.findings[0].message == "braces"


@pytest.mark.parametrize(("inside", "rejected"), [(SLOGAN, True), ("Apples books cards.", False)])
def test_start_profile_decides_before_there_is_a_reference(inside, rejected):
    text = answer(random.Random(9), f"[{inside}]")
    (verdict,) = verifier().verify([Completion(PROMPT, text, node="a")])
    assert verdict.rejected == rejected


def test_start_profile_is_no_evidence_against_a_node():
    stack = verifier()
    for seed in range(12):
        texts = [Completion(f"{PROMPT} {seed}", answer(random.Random(seed), SLOGAN), node="a")]
        assert stack.verify(texts)[0].accepted
    assert stack.state_dict() == verifier().state_dict()


@pytest.mark.parametrize(
    ("broken", "cause"),
    [(RuntimeError("no device"), Cause.FAULT), (float("nan"), Cause.FAULT)],
)
def test_broken_reader_abstains_and_warns_once(broken, cause, caplog):
    asked = verifier(own_words(broken))
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        for seed in range(2):
            *others, verdict = asked.verify(batch(seed, [("d", f"[{SLOGAN}]")]))
            assert (verdict.abstained, verdict.cause) == (True, cause)
            assert all(other.accepted for other in others)
    assert sum("could not read" in record.message for record in caplog.records) == 1


def test_recurring_phrase_is_decided_over_all_its_occurrences():
    rng = random.Random(3)
    stack = ReaderVerifier(Marked("recurring_phrase"), own_words(), alpha=None)
    few = [("d", answer(rng, f"[{SLOGAN}]")) for _ in range(FEWEST_PLACES - 1)]
    assert all(v.accepted for v in last(stack.verify(batch(0, few)), len(few)))
    assert all(v.rejected for v in last(stack.verify(batch(1, few)), len(few)))


def test_single_occurrence_does_not_decide():
    # The phrase of node d is explained in most places, that of node c in only one.
    rng = random.Random(3)
    habit, phrase = "[Apples pens cards.]", f"[{SLOGAN}]"
    strange = "Wholly unrelated verbiage entirely. " * 8
    texts = [("d", answer(rng, habit)) for _ in range(7)] + [("d", f"{strange}{habit}")]
    texts += [("c", answer(rng, phrase)) for _ in range(7)]
    texts += [("c", f"{SLOGAN} {answer(rng, phrase)}")]
    stack = ReaderVerifier(Marked("recurring_phrase"), own_words(), alpha=None)
    verdicts = last(stack.verify(batch(0, texts)), 16)
    assert all(v.accepted for v in verdicts[:8])
    assert all(v.rejected for v in verdicts[8:])


def slogan(rng):
    """Foreign words that differ each time."""
    letters = "bcdfghjklmnpqrstvwxz"
    made = ["".join(rng.choice(letters) + rng.choice("aeiou") for _ in range(3)) for _ in range(4)]
    return " ".join(made).capitalize() + "."


def slogans(seed, node="d", n=8):
    rng = random.Random(seed)
    return [(node, answer(rng, slogan(rng))) for _ in range(n)]


def test_node_with_a_changing_slogan_is_convicted_alone():
    stack = verifier(alpha=1e-3)
    for seed in range(4):
        stack.verify(batch(seed, slogans(seed), nodes="abc"))
    verdicts = stack.verify(batch(9, slogans(9), nodes="abcd"))
    assert all(v.rejected for v in last(verdicts, 8))
    assert {v.findings[0].kind for v in last(verdicts, 8)} == {"foreign_sentence"}
    assert all(v.accepted for v in verdicts[:-8])


def test_equal_completions_count_once():
    stack = verifier(alpha=1e-3)
    text = answer(random.Random(0), slogan(random.Random(1)))
    for _ in range(6):
        stack.verify(batch(0, [("d", text)], nodes="abc"))
    once = verifier(alpha=1e-3)
    once.verify(batch(0, [("d", text)], nodes="abc"))
    assert stack.state_dict()["sentences"]["nodes"][-1][2] <= 2


def test_no_conviction_without_names_or_alpha():
    for stack, node in ((verifier(alpha=1e-3), None), (verifier(alpha=None), "d")):
        for seed in range(5):
            verdicts = stack.verify(batch(seed, slogans(seed, node), nodes="abc"))
        assert all(v.accepted for v in verdicts)


def test_node_evidence_can_be_saved():
    stack, after = verifier(), verifier()
    for seed in range(4):
        stack.verify(batch(seed, slogans(seed), nodes="abc"))
    after.load_state_dict(stack.state_dict())
    assert after.state_dict() == stack.state_dict()
    with pytest.raises(ValueError, match="expected what state_dict"):
        verifier(alpha=None).load_state_dict(stack.state_dict())


def test_prompt_is_context_only_if_trusted():
    class Noting(OwnWords):
        def _stats(self, sequence):
            seen.append(tokenizer.decode(sequence.prompt_ids))
            return super()._stats(sequence)

    tokenizer = load_bundled()[1]
    for trusted in (True, False):
        seen = list[str]()
        reader = SpanReader(None, tokenizer, scorer=Noting(), trust_prompt=trusted)
        span = TextSpan(SLOGAN, "Apples and books. " + SLOGAN, 18, 18 + len(SLOGAN))
        reader.read([span], [False])
        assert any("juggle" in context for context in seen) is trusted


def test_number_of_findings_read_is_bounded():
    scorer = OwnWords()
    reader = SpanReader(None, load_bundled()[1], scorer=scorer)
    rows = batch(0)
    verifier(reader, alpha=None).verify(rows)
    before = scorer.tokens
    many = Completion(PROMPT, "[Zebras juggle.] " * 5000, node="d")
    ReaderVerifier(Marked(), reader, alpha=None).verify([many])
    assert scorer.tokens - before <= MOST_FINDINGS * (96 + 2 * 24)


def test_full_reference_is_renewed_by_a_small_share():
    """The cost of reading does not depend on the number of nodes, and reading never stops."""
    reader = Counting(None, load_bundled()[1], scorer=OwnWords())
    stack = verifier(reader, alpha=None)
    for seed in range(4):
        stack.verify(batch(seed))
    assert all(reader.wanted(node) == 0 for node in "abcd")
    reader.asked.clear()
    rows = 0
    for seed in range(100, 130):
        rows += len(stack.verify(batch(seed)))
    completions = {(span.prompt, span.text) for span in reader.asked}
    assert 0 < len(completions) <= 5 * RENEWED * rows
    assert len(completions) <= len(reader.asked) <= 4 * len(completions)


def test_senders_without_a_name_cost_nothing_but_their_findings():
    reader = Counting(None, load_bundled()[1], scorer=OwnWords())
    stack = verifier(reader)
    stack.verify(batch(0, [(None, f"So [{SLOGAN}]")], nodes=[None]))
    assert [span.text[span.start : span.end] for span in reader.asked] == [f"[{SLOGAN}]"]


class Counting(SpanReader):
    """Records the spans that it was asked to read."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked = []

    def read(self, spans, honest):
        self.asked += spans
        return super().read(spans, honest)


def test_frozen_model_finds_what_the_live_one_has_learnt():
    class Taught(OwnWords):
        def _stats(self, sequence):
            found = super()._stats(sequence)
            return type(found)(**{**{f: getattr(found, f) for f in found.__slots__},
                                  "logprob": found.logprob * 0 - 0.1})  # fmt: skip

    tokenizer = load_bundled()[1]
    text = answer(random.Random(9), f"[{SLOGAN}]")
    live = SpanReader(None, tokenizer, scorer=Taught())
    assert verifier(live).verify(batch(0, [("d", text)]))[-1].accepted
    both = SpanReader(None, tokenizer, scorer=Taught())
    both._models.append(own_words()._models[0])
    assert verifier(both).verify(batch(0, [("d", text)], each=32))[-1].rejected


def test_frozen_model_is_another_model():
    model, tokenizer = load_bundled()
    with pytest.raises(ValueError, match="frozen: expected another object than model"):
        SpanReader(model, tokenizer, frozen=model)
    with pytest.raises(TypeError, match="frozen: expected a causal language model, got True"):
        SpanReader(model, tokenizer, frozen=True)
    SpanReader(model, tokenizer, frozen=copy.deepcopy(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 0.0}, "level: expected a number in"),
        ({"level": True}, "level: expected a number in"),
        ({"alpha": 0.7}, "alpha: expected a number in"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        verifier(**options)


def test_rules_without_readable_findings_are_refused():
    with pytest.raises(ValueError, match="expected rules with confirm=True"):
        ReaderVerifier(AllOf(Marked(confirm=False)), own_words())


def test_checkpoint_includes_the_reader():
    guard = Guard(verifier())
    for seed in range(4):  # nodes with 64 sentences
        guard.review(batch(seed))
    state, after = guard.state_dict(), Guard(verifier())
    assert after.state_dict() != state
    after.load_state_dict(state)
    assert after.state_dict() == state
