"""Attacks on the screens' run time: long texts of repeated pieces must be read once."""

import pytest

from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.content.screens.view import MAX_FINDINGS, View
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Outcome
from tests.content.screen_rows import ATTACKS, HIDDEN, PIECES

SCREENS = ScreensVerifier().screens
CASES = [(name, piece) for name, pieces in PIECES.items() for piece in pieces]


LONG = 500_000


def findings(name: str, text: str) -> int:
    view = View(Completion(f"How many? {text[:60]}", text))
    return sum(1 for _ in zip(range(MAX_FINDINGS), SCREENS[name](view), strict=False))


def test_every_screen_is_tried() -> None:
    assert set(PIECES) == {kind for kind, _ in ATTACKS} == set(SCREENS)


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
