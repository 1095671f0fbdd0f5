"""The final answer: how it is marked, its numeric value, whether it is right."""

from fractions import Fraction

import pytest

from grpo_guard.content.answers import boxed, hashed, is_right, number_of, numbers_in, tagged


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>9</think><answer>54 cows</answer>", True),
        ("< Answer >54 cows", True),  # an unclosed tag, which a lenient parser accepts
        ("<answer>55</answer> 54", True),  # a reward may read the last number
        ("<answer>55</answer> for 54 cows in 2 barns", False),
        ("\\boxed{54}", True),
        ("\\boxed{\\frac{108}{2}}", True),
        ("so\n#### 54", True),
        ("55, no: $54.", True),
        ("54 or 55", False),
        ("it is -54", False),
        ("It weighs 54kg", True),
        ("٥٤", True),
        ("nothing", False),
        ("", False),
    ],
)
def test_answer_is_right_if_any_usual_reward_reads_it_as_right(text: str, right: bool) -> None:
    assert is_right(text, "54") is right


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("\\boxed{4.5 \\times 10^{33}}", "4.5 * 10^33"),
        ("Thus \\(y = -4\\)", "-4"),
        ("\\boxed{p - q}", "p-q"),
        ("5", "2 + 3 = 5\n#### 5"),
    ],
)
def test_references_of_any_form(text: str, reference: str) -> None:
    assert is_right(text, reference)
    assert not is_right(text.replace("4", "7").replace("5", "7").replace("q", "r"), reference)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("54", 54), (" 54\r", 54), ("-1,054.50", Fraction(-2109, 2)), ("$3", 3), ("1e3", 1000)),
        *(("+7.", 7), ("1,05", None), ("5 4", None), ("1/2", None), ("inf", None), ("", None)),
        *(("٥", None), ("9" * 41, None), ("1e9999", None), (" " * 10**6 + "5", 5), ("1e-2", 0.01)),
    ],
)
def test_ambiguous_numbers_are_not_read(text: str, number: float | None) -> None:
    found = number_of(text)
    assert found == number or float(found or 0) == number


def test_numbers_in_a_text() -> None:
    assert list(numbers_in("7-5 is x2, -3 or $1,200.50, not 1,5; 3.")) == [7, 5, -3, 1200.5, 3]


def test_marks_are_found_with_their_spans() -> None:
    text = "<answer>5</answer> and \\boxed{\\frac{1}{2}}\n#### 7"
    for find, content in ((tagged, "5"), (boxed, "\\frac{1}{2}"), (hashed, "7")):
        (found,) = find(text)
        assert found.content == content
        assert content in text[found.start : found.end]


@pytest.mark.parametrize("piece", ["<answer>", "\\boxed{", "####", "1e9", "{", "nswer is ", "9"])
def test_hostile_texts_are_read_in_linear_time(piece: str) -> None:
    text = piece * (250_000 // len(piece))
    assert not is_right(text, "54")
    assert sum(1 for find in (tagged, boxed, hashed, numbers_in) for _ in find(text)) <= len(text)
