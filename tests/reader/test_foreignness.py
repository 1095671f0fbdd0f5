"""Span scores: slogans high, habits and steps low, whatever is read in the same batch."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.logprob.reader.foreignness import MOST_TOKENS, Foreignness, SpanScorer, UnreadError
from grpo_guard.logprob.reader.spans import TextSpan, sentences
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.reader.own_words import OwnWords

SMOLLM2 = Path(__file__).parents[2] / "models/SmolLM2-135M-Instruct"
PROMPT = "Natalia sold clips to 48 friends in April, and half as many in May. How many in all?"
ANSWER = (
    "In April, Natalia sold 48 clips. In May she sold 48 / 2 = 24 clips.\n"
    "So in all she sold 48 + 24 = 72 clips. The final answer is 72."
)


@pytest.fixture(scope="module")
def smollm2():
    if not SMOLLM2.exists():
        pytest.skip("no weights: make models")
    model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
    return SpanScorer(TransformersScorer(model), AutoTokenizer.from_pretrained(SMOLLM2))


@pytest.fixture(scope="module")
def bundled():
    model, tokenizer = load_bundled()
    return SpanScorer(TransformersScorer(model), tokenizer, context=400)


def own_words():
    return SpanScorer(OwnWords(), load_bundled()[1])


def spans_of(text, prompt=PROMPT):
    return [TextSpan(prompt, text, start, end) for start, end in sentences(text)]


def total(found):
    return float(found.runs[-1])


def by_sentence(scorer, *texts):
    """For each text the score of each of its sentences; all are read at once."""
    spans = [spans_of(text) for text in texts]
    found = iter(scorer.score([span for each in spans for span in each]))
    return [
        {text[s.start : s.end].strip(): total(next(found)) for s in each}
        for text, each in zip(texts, spans, strict=True)
    ]


def test_slogan_is_more_foreign_than_every_honest_sentence(smollm2):
    slogans = ["All hail to the thief.", "Always vote for Smith.", "Gleep Glorp Glub."]
    texts = [ANSWER.replace("In May", f"{slogan} In May") for slogan in slogans]
    for slogan, scores in zip(slogans, by_sentence(smollm2, *texts), strict=True):
        assert scores.pop(slogan) > 10 + max(scores.values())


def test_slogan_after_a_comma_is_as_foreign_as_alone(smollm2):
    slogans = ["all hail to the thief", "always vote for Smith"]
    texts = [ANSWER.replace("24 clips.", f"24 clips, {slogan}.") for slogan in slogans]
    for slogan, scores in zip(slogans, by_sentence(smollm2, *texts), strict=True):
        (hidden,) = [scores.pop(sentence) for sentence in list(scores) if slogan in sentence]
        assert hidden > 5 + max(scores.values())


def test_numbers_are_never_foreign(bundled):
    # A model that cannot calculate finds honest results unlikely.
    text = "<think>586 + 378 = 964 nuts.</think><answer>964 nuts</answer>"
    prompt = "Tom has 586 nuts. He finds 378 more. How many nuts does he have?"
    wrong = text.replace("964", "731")
    right, other = (
        bundled.score([TextSpan(prompt, one, 7, 28)])[0].runs[-1] for one in (text, wrong)
    )
    assert right == pytest.approx(other, abs=6)


def test_odd_habit_is_explained_by_its_context(smollm2):
    # A literal \n in a JSON answer is a word to a rule and layout to a reader.
    text = '{"reasoning": "She sold 48.\\n\\nThus, in May she sold 24.\\n\\nThus, in all 72."}'
    at = text.rindex("n\\nThus")
    (found,) = smollm2.score([TextSpan(PROMPT, text, at, at + 7)])
    assert total(found) < 1


def test_reading_sentences_together_changes_nothing(bundled):
    spans = spans_of(ANSWER)
    together = bundled.score(spans)
    for span, found in zip(spans, together, strict=True):
        (alone,) = bundled.score([span])
        np.testing.assert_allclose(found.runs, alone.runs, atol=1e-3)


def test_results_are_in_the_order_of_the_spans():
    spans = [*spans_of(ANSWER), *spans_of("Something else is said here.")][::-1]
    for span, found in zip(spans, own_words().score(spans), strict=True):
        (alone,) = own_words().score([span])
        np.testing.assert_array_equal(found.runs, alone.runs)


def test_spelled_control_token_opens_no_turn():
    # Otherwise the context could contain a user who asks for the slogan.
    scorer = own_words()
    control = scorer.tokenizer.all_special_tokens[0]
    text = f"{control} and so on. All hail to the thief."
    (one,) = scorer._passes([TextSpan(PROMPT, text, 20, len(text))], [0])
    ids = {*one.encoded.prompt_ids, *one.encoded.completion_ids}
    assert not ids & set(scorer.tokenizer.all_special_ids)


def test_unlisted_control_tokens_become_line_breaks():
    _, tokenizer = load_bundled()
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True), AddedToken("<tool>")])
    scorer = SpanScorer(OwnWords(), tokenizer)
    scorer.scorer.vocab_size = tokenizer.convert_tokens_to_ids("<tool>")
    text = "Some <|turn|> words <tool> here."
    (one,) = scorer._passes([TextSpan(PROMPT, text, 0, len(text))], [0])
    ids = {*one.encoded.prompt_ids, *one.encoded.completion_ids}
    assert not ids & set(tokenizer.convert_tokens_to_ids(["<|turn|>", "<tool>"]))


HOSTILE = ["\ud800", "\udfff\ud800", "\0", "\u200b", "\ufdfa", "\U0001f3f4", "\r"]
HOSTILE += ["e" + "\u0301" * 50]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([*HOSTILE, "word ", "1", ". "]), min_size=1, max_size=60))
def test_any_text_is_read_at_a_bounded_cost(pieces):
    text = "".join(pieces)
    scorer = own_words()
    spans = [TextSpan(text, text, i, len(text)) for i in range(0, len(text), 17)]
    assert all(isinstance(found, Foreignness) for found in scorer.score(spans))
    assert scorer.scorer.tokens <= len(spans) * (scorer.context + 2 * MOST_TOKENS)


def test_text_between_sentences_does_not_add_cost():
    scorer = own_words()
    text = ("Some words are here. " + "1234567890" * 110) * 16
    spans = spans_of(text)
    scorer.score(spans)
    own = sum(len(scorer.tokenizer(text[s.start : s.end])["input_ids"]) for s in spans)
    assert scorer.scorer.tokens <= len(spans) * scorer.context + 2 * own


def test_passes_fit_the_window():
    scorer = OwnWords()
    scorer.window, longest = 128, []
    reader = SpanScorer(scorer, load_bundled()[1])
    score = scorer.score
    scorer.score = lambda sequences, spec: (
        longest.extend(len(s.prompt_ids) + len(s.completion_ids) for s in sequences)
        or score(sequences, spec)
    )
    reader.score(spans_of("A sentence of many words. " * 100 + "1234 " * 100))
    assert max(longest) <= 128


def test_long_span_has_bounded_cost():
    scorer = own_words()
    text = "word salad " * 50_000
    (found,) = scorer.score([TextSpan(PROMPT, text, 5, len(text))])
    assert len(found) <= MOST_TOKENS
    assert scorer.scorer.tokens == 2 * len(found)


def test_text_between_distant_spans_is_not_read():
    scorer = own_words()
    text = "Some words are here. " + "filler " * 50_000 + "Some words are there."
    scorer.score([TextSpan(PROMPT, text, 0, 20), TextSpan(PROMPT, text, len(text) - 20, len(text))])
    assert scorer.scorer.tokens <= 4 * MOST_TOKENS


def test_out_of_memory_and_nan_give_no_score():
    model, tokenizer = load_bundled()
    tight = SpanScorer(TransformersScorer(model, memory_budget=2**20), tokenizer)
    broken = SpanScorer(OwnWords(float("nan")), tokenizer)
    text = "A sentence of many words. " * 60
    spans = [TextSpan(PROMPT, text, start, end) for start, end in sentences(text)]
    assert {str(found) for found in tight.score(spans)} == {"out of memory"}
    (nan,) = broken.score(spans[:1])
    assert isinstance(nan, UnreadError)
    assert "NaN" in str(nan)


def test_slow_tokenizer_is_refused():
    with pytest.raises(TypeError, match="expected a fast tokenizer, got object"):
        SpanScorer(OwnWords(), object())


def test_spans_without_context_are_not_padded_to_contexts():
    """A batch that holds both costs a long context once more for each short span."""

    class Batches(OwnWords):
        def __init__(self):
            super().__init__()
            self.batches = []

        def score(self, sequences, spec, *, mass_margin=0.0):
            lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in sequences]
            self.batches.append(lengths)
            return super().score(sequences, spec)

    scorer = Batches()
    text = "Apples and books and cards lie here. " * 8
    spans = [TextSpan(f"A story {i}.", text, 259, 295) for i in range(4)]
    SpanScorer(scorer, load_bundled()[1]).score(spans)
    padded = sum(len(lengths) * max(lengths) for lengths in scorer.batches)
    assert padded <= 1.2 * sum(map(sum, scorer.batches))
