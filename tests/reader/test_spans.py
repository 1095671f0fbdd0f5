"""Sentences are found in any text, in bounded number, and hold enough letters to be read."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.reader.spans import MOST_SENTENCES, TextSpan, sentences


@given(st.text(max_size=3000))
def test_sentences_lie_in_the_text_in_order_and_apart(text):
    found = sentences(text)
    assert all(0 <= start < end <= len(text) for start, end in found)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(found))


def test_formulas_and_numbers_are_no_sentences():
    text = "12 + 3 = 15.\n\\frac{1}{2} = 0.5\n#### 15\nSo she has fifteen apples left.\n"
    assert [text[a:b] for a, b in sentences(text)] == ["So she has fifteen apples left."]


def test_five_ideographs_are_enough():
    assert sentences("因此。所以答案是三。") == [(3, 10)]


def test_text_without_an_end_is_read_in_pieces_and_no_text_is_read_without_end():
    assert len(sentences("word " * 1000)) == 13
    assert len(sentences("A sentence of words. " * 10_000)) == MOST_SENTENCES


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (3, 1), (0, 4)])
def test_a_span_outside_its_text_is_refused(start, end):
    with pytest.raises(ValueError, match="expected 0 <= start < end <= 3"):
        TextSpan("", "abc", start, end)
