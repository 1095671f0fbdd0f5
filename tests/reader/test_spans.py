"""Sentences are found in any text, in bounded number, with enough letters to be read."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.logprob.reader.spans import MOST_BYTES, TextSpan, sentences


@given(st.text(max_size=3000))
def test_sentences_are_in_order_and_disjoint(text):
    found = list(sentences(text))
    assert all(0 <= start < end <= len(text) for start, end in found)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(found))


def test_formulas_and_numbers_are_not_sentences():
    text = "12 + 3 = 15.\n\\frac{1}{2} = 0.5\n#### 15\nSo she has fifteen apples left.\n"
    assert [text[a:b] for a, b in sentences(text)] == ["So she has fifteen apples left."]


def test_five_ideographs_are_enough():
    assert list(sentences("所以答案。三")) == [(0, 6)]


def test_unpunctuated_text_is_read_in_pieces():
    text = "word " * 1000
    found = list(sentences(text))
    assert found[0][0] == 0
    assert found[-1][1] == len(text)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))


@given(st.text(max_size=3000))
def test_sentences_fit_the_token_limit_of_a_reader(text):
    for start, end in sentences(text):
        assert len(text[start:end].encode("utf-8", "replace")) <= MOST_BYTES + 4


@pytest.mark.parametrize(
    "text",
    [
        "All hail.\nto the\nthief",
        "All.\n12 + 3 = 15\nhail.\n\nBob.",
        "All. hail. the. old. thief.",
        "Vote Bob." + "1" * 300 + "Now.",
        "So she has 3 apples in all, the rest goes to Bob. " * 500 + "All hail Bob.",
    ],
)
def test_no_word_is_hidden_in_short_pieces(text):
    spans = list(sentences(text))
    words = re.finditer("[A-Za-z]{3,}", text)
    assert all(any(a <= word.start() < b for a, b in spans) for word in words)


HONEST = "He gives away 7 pencils, so 29 pencils are left. "


@pytest.mark.parametrize("after", ["", "\nSo the answer is 5."])
@pytest.mark.parametrize(
    "message",
    [
        "P.r.a.i.s.e. t.h.e. h.e.r.o.n.",
        "Pr. ai. se. th. eg. re. at. he. ro. n.",
        "Go. to. it. my. ox.",
        "H\na\ni\nl\nB\no\nb",
        "h-a-i-l",
        "h-a-i-l\n- 1\nk-i-n-g",
        "\\Ha.\\il.\\th.\\ki.\\ng.",
        "🦩👑🦩",
        "🦩\n👑\n🦩",
        "Ⓟⓡⓐⓘⓢⓔ",
        "⠏⠗⠁⠊⠎⠑",
    ],
)
def test_no_message_is_hidden_in_pieces_without_words(message, after):
    text = HONEST + message + after
    own = range(len(HONEST), len(HONEST) + len(message))
    spans = list(sentences(text))
    unread = [text[i] for i in own if not any(a <= i < b for a, b in spans)]
    assert not any(sign.isalpha() or ord(sign) > 127 for sign in unread)


@pytest.mark.parametrize(
    "between",
    [
        "x = 5.\ny = 7.",
        "A) 5\nB) 6\nC) 7",
        "1 0 0\n0 1 0\n0 0 1",
        "1. e4 2. d4",
        "H2 + O2",
        "✓\n✗\n✓\n✓",
        "★★★☆☆",
        "┌─┬─┐\n│ 1 │ 2 │",
        "∀ ∈ → ⇒ ∑ • ● ▶ ➤ ° ™",
        "✅ 5\n❌ 6",
        "\\frac{1}{2} = 0.5\n\\sqrt{4} = 2",
        "\\[ \\boxed{72} \\]",
    ],
)
def test_short_formulas_and_marks_between_sentences_change_nothing(between):
    text = f"{HONEST}\n{between}\nSo the answer is 5."
    found = [text[a:b].strip() for a, b in sentences(text)]
    assert found == [HONEST.strip(), "So the answer is 5."]


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (3, 1), (0, 4)])
def test_span_outside_its_text_is_refused(start, end):
    with pytest.raises(ValueError, match="expected 0 <= start < end <= 3"):
        TextSpan("", "abc", start, end)
