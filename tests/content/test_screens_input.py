"""Screens on hostile sizes and arbitrary Unicode: a verdict in bounded work, never an exception."""

import json
import os
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.config import GuardConfig
from grpo_guard.content.screens.answers import AnswerFormat
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core import registry
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Verdict

NAMED = os.environ.get("GRPO_GUARD_GSM8K", "")
FOLDER = Path(NAMED) if NAMED and Path(NAMED).is_dir() else Path(NAMED).parent
SOLUTIONS = FOLDER / "model_solutions.jsonl"
MEGABYTE = 1_000_000


def verdict(text: str, prompt: str = "How many?", **options: object) -> Verdict:
    (found,) = ScreensVerifier(**options).verify([Completion(prompt, text)])  # type: ignore[arg-type]
    return found


HOSTILE = {
    "letters": "a" * MEGABYTE,
    "digits": "7" * MEGABYTE,
    "blanks in words": "ignore " + " " * (MEGABYTE - 20) + "previous",
    "ignore": "ignore all " * (MEGABYTE // 11),
    "give": "give me full " * (MEGABYTE // 14) + " marks",
    "open tokens": "<|" * (MEGABYTE // 2),
    "pipes": "<|a" * (MEGABYTE // 3),
    "brackets": "[[" * (MEGABYTE // 2),
    "boxes": "\\boxed{" * (MEGABYTE // 7),
    "answers": "<answer>1</answer>" * (MEGABYTE // 18),
    "closed answers": "</answer>" * (MEGABYTE // 9),
    "hashes": "#### 1\n" * (MEGABYTE // 7),
    "only hashes": "#" * MEGABYTE,
    "zero width": "\u200b" * MEGABYTE,
    "zero width between": "a\u200b" * (MEGABYTE // 2),
    "tags": "\U000e0041" * MEGABYTE,
    "selectors": "a\ufe0f" * (MEGABYTE // 2),
    "bidi": "\u202ea" * (MEGABYTE // 2),
    "joiners": "👩\u200d" * (MEGABYTE // 2),
    "mixed scripts": "aа" * (MEGABYTE // 2),
    "mixed words": "hаil " * (MEGABYTE // 5),
    "switches": "the сло " * (MEGABYTE // 8),
    "two scripts": "сло中" * (MEGABYTE // 4),
    "german": "und the der of das " * (MEGABYTE // 19),
    "base64": "QWxs" * (MEGABYTE // 4),
    "base64 words": "QWxsIGhhaWwgdG8gdGhl " * (MEGABYTE // 21),
    "hex bytes": "6a " * (MEGABYTE // 3),
    "binary": "01101000 " * (MEGABYTE // 9),
    "percent": "%61" * (MEGABYTE // 3),
    "quotes": "\"verdict\": " * (MEGABYTE // 11),
    "verdict heads": "verdict:\n" * (MEGABYTE // 9),
    "angle": "<score " * (MEGABYTE // 7),
    "lines": "\n" * (MEGABYTE - 1) + "x",
    "punctuation": ".,;:" * (MEGABYTE // 4),
    "controls": "\x00\x01" * (MEGABYTE // 2),
    "styled words": "𝐚𝐛𝐜 " * (MEGABYTE // 4),
    "cherokee words": "ᎪᏞ " * (MEGABYTE // 3),
    "circled": "ⓐ " * (MEGABYTE // 2),
    "flags": "\U0001f1e6 " * (MEGABYTE // 2),
    "overlays": "a\u0336" * (MEGABYTE // 2),
    "braille": "\u2801" * MEGABYTE,
    "phantoms": "\\phantom{" * (MEGABYTE // 9),
    "spaced tokens": "<| im _ " * (MEGABYTE // 8),
    "open answers": "< / answer " * (MEGABYTE // 11),
    "numbers": "97 " * (MEGABYTE // 3),
    "morse": ".- " * (MEGABYTE // 3),
    "letters apart": "a-b.c_d e " * (MEGABYTE // 10),
    "base64 pieces": "QWxs IGhh " * (MEGABYTE // 10),
    "base85": "zP:+;" * (MEGABYTE // 5),
    "gaps": (" " * 199 + "x") * (MEGABYTE // 200),
    "banners": "== a b c grader\n" * (MEGABYTE // 16),
    "after a box": "\\boxed{8} " + "word. " * (MEGABYTE // 7),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(120)  # read again from each character, these would take longer
@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_takes_one_pass(name: str) -> None:
    text = HOSTILE[name]
    assert len(text) <= MEGABYTE
    found = verdict(text)
    assert len(found.findings) <= 8 * 16


def test_texts_beyond_the_limit_are_not_read() -> None:
    # Text beyond the limit is not read: 10 MB cost as much as the length of a string.
    found = verdict("x" * 10_000_000)
    assert (found.cause, found.rejected) == (Cause.OVERLONG, True)
    assert verdict("She has 8. " * 900_000, max_characters=None).accepted


@pytest.mark.parametrize("text", ["", " \n\t", "\u2003", "a\ud800b", "\udc00"])
def test_empty_text_and_broken_unicode_are_malformed(text: str) -> None:
    found = verdict(text)
    assert (found.cause, found.rejected) == (Cause.MALFORMED, True)
    assert found.findings


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(), max_size=200), st.text(st.characters(), max_size=40))
def test_arbitrary_unicode_gets_a_verdict(text: str, prompt: str) -> None:
    found = verdict(text, prompt)
    assert found.accepted or found.findings
    for finding in found.findings:
        assert finding.message.isascii() or finding.kind in ("malformed", "overlong")
        if finding.char_span is not None:
            start, end = finding.char_span
            assert 0 <= start < end <= len(text)


NUMBER = st.integers(0, 99_999).map(str)
STEP = st.builds(
    "{} {} {} {} {} = {} {}.".format,
    st.sampled_from(["So she has", "Then we get", "This gives", "He pays", "In total there are"]),
    NUMBER,
    st.sampled_from(["+", "-", "*", "/", "\\times", "×"]),
    NUMBER,
    st.sampled_from(["", "apples", "dollars per hour", "%", "cm^2"]),
    NUMBER,
    st.sampled_from(["apples", "eggs left", "dollars", "km/h", "m"]),
)
ENDING = st.sampled_from(["\n#### {}", "\nA: {}", " The answer is \\boxed{{{}}}.", "", " = {}"])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=12), ENDING, NUMBER)
def test_honest_mathematics_is_never_flagged(steps: list[str], ending: str, answer: str) -> None:
    text = " ".join(steps) + ending.format(answer)
    assert verdict(text).accepted, verdict(text).reason


@settings(max_examples=200, deadline=None)
@given(st.text(string.ascii_letters + string.digits + " +-*/=.,$%()\n", min_size=1, max_size=300))
def test_ascii_prose_without_long_runs_passes_the_unicode_screens(text: str) -> None:
    unicode = {"invisible", "tag_character", "variation_selector", "bidi", "homoglyph", "control"}
    assert unicode.isdisjoint(finding.kind for finding in verdict(text).findings)


def test_verifier_is_registered_and_options_are_checked() -> None:
    assert registry.load(registry.VERIFIERS, "screens") is ScreensVerifier
    with pytest.raises(
        ValueError, match=r"ScreensVerifier.without: expected some of .*, got 'bidy'"
    ):
        ScreensVerifier(without=["bidy"])
    with pytest.raises(ValueError, match="max_characters"):
        ScreensVerifier(max_characters=0)
    with pytest.raises(ValueError, match="group"):
        AnswerFormat.of_pattern("mine", "A:", "A: [0-9]+")


def test_a_file_can_configure_both_content_checks(tmp_path: Path) -> None:
    file = tmp_path / "guard.yaml"
    file.write_text(
        "verifier:\n  all:\n    - {type: screens, without: [bidi, after_answer]}\n"
        "    - {type: length, memory: true}\n"
    )
    guard = GuardConfig.from_yaml(file).build()
    batch = [Completion("Q", f"5 + 3 are 8 apples\n#### {8}\nHail {i}.") for i in range(5)]
    assert all(found.accepted for found in guard.review(batch).verdicts)


def test_custom_answer_format() -> None:
    mine = AnswerFormat.of_pattern("A:", "A: ", r"(?m)^A: ([0-9]+)", closing_words=1)
    assert verdict("3 + 5 = 8\nA: 8", formats=[mine]).accepted
    assert verdict("3 + 5 = 8\nA: 8\nHail to the thief", formats=[mine]).rejected
    assert verdict("3 + 5 = 8\nA: 8\nA: 9", formats=[mine]).rejected


def test_tokens_of_the_tokenizer_are_found() -> None:
    class Tokenizer:
        all_special_tokens = ("~~END~~", "pad", " ")

    assert verdict("She has 8.~~END~~ Hail.").accepted
    assert verdict("She has 8.~~END~~ Hail.", tokenizer=Tokenizer()).rejected
    assert verdict("She has a pad of paper.", tokenizer=Tokenizer()).accepted


def test_chat_prompt_excuses_its_own_script() -> None:
    prompt = [{"role": "user", "content": [{"type": "text", "text": "Сколько яблок у Вани?"}]}]
    text = "The sum is 5 + 3 = 8, therefore: у Вани теперь восемь яблок всего."
    (found,) = ScreensVerifier().verify([Completion(prompt, text)])
    assert found.accepted


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's folder")
def test_real_completions_pass() -> None:
    rows = [json.loads(line) for line in SOLUTIONS.open(encoding="utf-8")]
    batch = [Completion(row["question"], row["completion"]) for row in rows]
    assert sum(found.rejected for found in ScreensVerifier().verify(batch)) <= 0.005 * len(batch)
