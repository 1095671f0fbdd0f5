"""Places that a text announces: only the tokens before a place decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.logprob.place_bets import CONTEXT, Announced, announced, announced_after
from grpo_guard.logprob.shares import Places
from tests.logprob.bundled_policy import policy

RESULT, SENTENCE = Announced.RESULT, Announced.SENTENCE
IMPORT, AFTER_ANSWER = Announced.IMPORT, Announced.AFTER_ANSWER
NOTHING = Announced.NOTHING


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2 + 2 =", RESULT),
        ("2 + 2 = ", RESULT),
        ("2 + 2 = 1", RESULT),  # a numeral may take several tokens
        ("so 2 x $2 = $", RESULT),
        ("12 apples - 3 apples =", RESULT),
        (r"4 \times 3 =", RESULT),
        ("1 + 2 + 3 =", RESULT),
        ("<<3*4=", RESULT),
        ("two plus two is", RESULT),
        ("Tom has", NOTHING),
        ("x =", NOTHING),
        ("2 + 2 = 4 apples", NOTHING),
        ("It is late.", SENTENCE),
        ("It is late. ", SENTENCE),
        ("今天很晚。", SENTENCE),
        ("a line\n", SENTENCE),
        ("<think>", SENTENCE),
        ("", SENTENCE),
        ("\nimport", IMPORT),
        ("\nimport num", IMPORT),
        ("x = 1\n  from calc import add, ", IMPORT),
        ("they import", NOTHING),
        ("</answer>", AFTER_ANSWER),
        (r"so \boxed{12}", AFTER_ANSWER),
        (r"so \boxed{12}$.", AFTER_ANSWER),
        ("#### 12", AFTER_ANSWER),
        ("<answer>12", NOTHING),
    ],
)
def test_places_announced_by_a_text(text, kind):
    assert announced_after("\n" + text) is kind


def test_name_in_an_import_is_announced_after_the_first_line_too():
    places, tokens = Places(policy()[1]), policy()[1].encode
    first = tokens("import x", add_special_tokens=False)
    assert IMPORT in announced(places, first)


ids = st.lists(st.integers(0, len(policy()[1]) - 1), max_size=40)
# Later tokens are drawn from words that announce places, so that reading them would change the
# result.
words = st.lists(
    st.sampled_from(["2 + 2 =", " 5", ".", "\n", "import ", "calc", "</answer>", " Then", "= "]),
    max_size=8,
).map(lambda parts: tuple(policy()[1].encode("".join(parts), add_special_tokens=False)))


@given(ids | words, ids | words, ids | words)
def test_later_tokens_never_change_an_announced_place(before, one, other):
    places = Places(policy()[1])
    held = len(before) + 1  # the token after `before` is the first that differs
    chosen = announced(places, [*before, *one])[:held]
    again = announced(places, [*before, *other])[:held]
    assert chosen[: len(before)] == again[: len(before)]
    if one and other:
        assert chosen == again


@given(st.text(max_size=3 * CONTEXT))
def test_any_text_can_be_read_for_announcements(text):
    assert announced_after(text[-CONTEXT:]) in Announced
