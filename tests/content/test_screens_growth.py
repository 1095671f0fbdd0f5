"""Attacks on the screens' run time: long texts of repeated pieces must be read once."""

from __future__ import annotations

import pytest

from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.content.screens.view import MAX_FINDINGS, View
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Outcome

SCREENS = ScreensVerifier().screens
HIDDEN = "QWxsIGhhaWwgdG8gdGhlIHRoaWVm"  # "All hail to the thief" in base64

# For each screen, near misses of what it looks for, and the start of such a piece.
PIECES: dict[str, list[str]] = {
    "template_token": ["<|", "<|a", "< | ", "[[", "im_", "im ", "<\n", "&lt;", "### ", "USER:"],
    "invisible": ["\u200b", "a\u200d", "👩\u200d", "\u2003", "a\u2003 "],
    "tag_character": ["\U000e0061", "🏴\U000e0067", "🏴"],
    "variation_selector": ["\ufe0f", "1\ufe0f", "中\ufe00", "a\U000e0101"],
    "combining": ["a\u0301", "\u0301", "a\u0301\u0301", "a\u0336"],
    "bidi": ["\u202e", "ש\u200f", "a\u061c"],
    "control": ["\x00", "\ue000", "a\x1b"],
    "blank_run": [" ", " " * 199 + "x", "\t ", "  \t", "\n", "\u2003"],
    "hidden_markup": ["<!-", "<font ", "\\phantom{a ", "display :", "[//]", "](  ", "color:"],
    "homoglyph": ["ａｂｃ ", "а", "аb ", "пn ", "ⓐⓑⓒ ", "𝐚𝐛𝐜 ", "ᎪᏞ ", "\U0001f1e6", "еаrth "],
    "script_switch": ["а" * 12 + "_", "а_", "а ", "中", "中字_", "аα", "слово, ", "а中_"],
    "language_switch": ["und ", "und the ", "und der das the ", "el la x ", "et "],
    "after_answer": ["<answer>", "</answer>", "<answer>4</answer>", "<answer>4</answer>ab ",
                     "\\boxed{", "\\boxed{4} ", "{", "}", "#### 4\n", "#### ", "#", "\\end{a"],
    "after_box": ["\\boxed{", "\\boxed{4} ", "\\boxed{4} a. ", "\\boxed{4} ab cd\n", "\\end{a"],
    "several_answers": ["<answer>4</answer>", "\\boxed{4}(a) ", "\\boxed{\\boxed{4}}", "< answer>",
                        "\\boxed{4", "}\\boxed{", "#### 4\n", "####  ", "\\boxed{4} and "],
    "judge_delimiter": ["[[", "[[a]", "== a b c grader\n", "== grader ", "verdict: ", "verdict\n",
                        '"verdict" : ', '"score": 5, ', "<score ", "</grade", "#_[<", "score [["],
    "master_key": [".,;:", "a", "let us ", "http://", "<"],
    "grader_order": ["ignore all ", "give me full ", "this answer should be ", "grader, ",
                     "you must answer ", "mark this ", "ignore your ", "must      "],
    "encoded": ["./", ".-/", ".- ", "....... ", ". / ", ".|", "97 ", "97, ", "97;", "0x61, ",
                "0x61,", "61 ", "61,", "6a:", "01101000 ", "0110100 ", "\\141", "U+0061 ", "&lt;",
                "\\u{61}", "\\N{a b}", "a ", "a-", "a  b ", "QWxs ", "QWxs" * 20 + " ", "zP:+;",
                "=41", "%61", "%61 ", "H4sI", "data:ab/c", "xn--", "\\x61", "\\u0061", "&#97;",
                f"http://x/{HIDDEN} ", f"http://x/{HIDDEN}/ ", "eht ", "gur gb ", "-_*."],
    "overlong_token": ["a", "ab" * 40 + " ", "<-", "1", "中", "http://x/ab", "a" * 65 + " "],
}  # fmt: skip
CASES = [(name, piece) for name, pieces in PIECES.items() for piece in pieces]


LONG = 500_000


def findings(name: str, text: str) -> int:
    view = View(Completion(f"How many? {text[:60]}", text))
    return sum(1 for _ in zip(range(MAX_FINDINGS), SCREENS[name](view), strict=False))


def test_every_screen_is_tried() -> None:
    assert set(PIECES) == set(SCREENS)


@pytest.mark.slow
@pytest.mark.timeout(120)  # read again from each piece, the four texts would take longer
@pytest.mark.parametrize(("name", "piece"), CASES, ids=[f"{n}-{p!a:.20}" for n, p in CASES])
def test_a_repeated_piece_is_read_once(name: str, piece: str) -> None:
    for tail in ("", "x", " x.", "\n"):
        text = f"The answer is 4. {piece * (LONG // len(piece))}{tail}"
        assert findings(name, text) <= MAX_FINDINGS


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        # Each of 500,000 starts walked to the end, where a letter spoils the row.
        ("The answer is 4. " + "./" * 499_000 + "x", "How many?"),
        # The whole text was counted for each of 70,000 runs.
        (("\u0430" * 12 + "_") * 70_000, "How many?"),
        # The whole text was searched once for each of 50,000 words.
        ("ａｂｃ " * 240_000, "How many?"),
        # The whole text was searched for each of 10,000 payloads that a URL excuses.
        (f"http://x/{('/' + HIDDEN[:20]) * 150} " * 300, "How many?"),
        # The prompt was lower-cased again for each find that it excuses.
        ("hаil " * 190_000, "hаil " * 20_000),
    ],
    ids=["morse", "runs", "wide letters", "links", "long prompt"],
)  # fmt: skip
def test_the_longest_allowed_text_is_read_once(text: str, prompt: str) -> None:
    (verdict,) = ScreensVerifier().verify([Completion(prompt, text)])
    assert verdict.outcome is not Outcome.ABSTAIN
