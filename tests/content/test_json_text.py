"""Escapes in JSON are decoded before any rule reads the text, and offsets stay valid."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import ArithmeticVerifier, CodeVerifier, Completion, ScreensVerifier
from grpo_guard.content.json_text import as_read


def read(text: str) -> str:
    return as_read(Completion("q", text)).text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r'{"a": "x\ny"}', '{"a": "x \ny"}'),
        (r'{"a": "\\frac{1}{2}"}', r'{"a": " \frac{1}{2}"}'),
        (r'{"a": "x \\\\ y"}', r'{"a": "x   \\ y"}'),
        (r'{"a": "\u4e2d"}', '{"a": "     中"}'),
        (r'{"a": "\ud83d\ude00"}', '{"a": "           😀"}'),
        (r'"one\ntwo"', '"one \ntwo"'),
        ('Ok:\n```json\n{"a": "x\\ny"}\n```\n\\neq', 'Ok:\n```json\n{"a": "x \ny"}\n```\n\\neq'),
        # Cut off, and with an unescaped command: no strict parser accepts these.
        (r'{"a": "x\ny', '{"a": "x \ny'),
        (r'{"a": "3 \neq 4, \times, \frac"}', r'{"a": "3 \neq 4, \times, \frac"}'),
    ],
)
def test_escapes_are_decoded_in_place(text: str, meant: str) -> None:
    assert read(text) == meant
    assert len(meant) == len(text)


@pytest.mark.parametrize(
    "text",
    [
        'print({"a": "x\\n"})',
        '```python\nx = {"a": "b\\n"}\n```',
        "\\[ 3 \\neq 4 \\]",
        "He wrote \\n twice.",
        '[1, 2, "\\n"] is a list.',
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert read(text) == text


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=40), min_size=1, max_size=3))
def test_dumped_json_keeps_its_length_and_letters(data: dict[str, str]) -> None:
    text = json.dumps(data)
    meant = read(text)
    assert len(meant) == len(text)
    assert meant.isascii() == all(ord(c) < 128 for c in meant)


@given(st.text(alphabet='{}[]":\\nut0dc8`jso \n', max_size=200))
def test_any_text_keeps_its_length(text: str) -> None:
    assert len(read(text)) == len(text)


# Each rule reports the span in the completion as it was sent.
def test_rules_find_the_same_spans_inside_json() -> None:
    said = {"reasoning": "We get \\(3 \\times 4 = 13\\).\n\nThen 5 \\cdot 2 = 10.", "answer": "12"}
    text = json.dumps(said)
    (verdict,) = ArithmeticVerifier().verify([Completion("How many?", text, reference="12")])
    assert verdict.rejected
    start, end = verdict.findings[0].char_span or (0, 0)
    assert text[start:end] == "13"
    hidden = json.dumps({"a": "All is we\u200b\u200bll. So it is."})
    assert ScreensVerifier().verify([Completion("q", hidden)])[0].rejected
    program = json.dumps({"tool": "x = 1\nimport calc\nprint(calc.add(1, 2))"})
    assert CodeVerifier().verify([Completion("q", program)])[0].rejected
