"""A switch of script that nothing asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo_guard.content.screens.view import View
from grpo_guard.verdict import Finding

# (name, letters, how many in one run are more than a quoted word)
_SCRIPTS: tuple[tuple[str, str, int], ...] = (
    ("Han or kana", "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f", 5),
    ("Hangul", "\u1100-\u11ff\uac00-\ud7af", 6),
    ("Cyrillic", "\u0400-\u052f", 12),
    ("Greek", "\u0386-\u03ce\u1f00-\u1fff", 14),
    ("Arabic", "\u0620-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc", 10),
    ("Hebrew", "\u0590-\u05ff", 10),
    ("Indic", "\u0900-\u0dff", 10),
    ("Thai, Lao or Khmer", "\u0e00-\u0eff\u1780-\u17ff", 10),
    ("Armenian or Georgian", "\u0530-\u058f\u10a0-\u10ff", 10),
    ("Ethiopic", "\u1200-\u139f", 8),
    ("Runic or Cherokee", "\u13a0-\u13ff\u16a0-\u16ff", 8),
    # All others, in blocks: an attacker may pick any, so the list must not be of the likely ones.
    (
        "little used",
        "\u0700-\u074f\u0780-\u08ff\u0f00-\u109f\u1400-\u169f\u1700-\u177f\u1800-\u1cff"
        "\u2800-\u28ff\u2c00-\u2c5f\u2c80-\u2dff\ua000-\ua6ff\ua800-\uab2f\uab70-\uabff"
        "\U00010000-\U0001cfff\U0001e100-\U0001eeff",
        8,
    ),
)
_LETTERS = {name: re.compile(f"[{letters}]") for name, letters, _ in _SCRIPTS}
# Letters of one script with blanks and punctuation between, but no word of another.
_RUNS = {
    name: re.compile(f"[{letters}](?:[{letters}]|[^\\w]|[0-9])*") for name, letters, _ in _SCRIPTS
}
_FOREIGN = re.compile(
    "[\u0370-\u1fff\u2800-\u28ff\u2c00-\u2dff\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufefc"
    "\U00010000-\U0001cfff\U0001e100-\U0001eeff\U00020000-\U0003134f]"
)
# A text that is in another script as a whole has been answered in it; a switch leaves both.
_BOTH = 12
_ASKED = re.compile(
    r"translat|chinese|japanese|korean|russian|ukrainian|greek|arabic|persian|hebrew|hindi|thai"
    r"|bengali|armenian|georgian|transliterat|language|braille|翻译|译",
    re.IGNORECASE,
)


def script_switch(view: View) -> Iterator[Finding]:
    """A stretch in a script that neither the prompt nor the rest of the completion is in.

    Latin letters never count: every script mixes with formulas, code and names in them.
    """
    if view.ascii or not _FOREIGN.search(view.text):
        return
    text = view.text
    for name, _, allowed in _SCRIPTS:
        letters = _LETTERS[name]
        first = letters.search(text)
        if first is None or letters.search(view.prompt) or _ASKED.search(view.prompt):
            continue
        runs = _RUNS[name].finditer(text, first.start())
        long = (m.span() for m in runs if _count(letters, m[0], allowed) >= allowed)
        span = next(long, None)
        # No run has other letters within, so around each there are the same. Counted per run, a
        # text of ten thousand runs would be read ten thousand times.
        if span is not None and sum(map(str.isalpha, letters.sub("", text))) >= _BOTH:
            message = f"a switch to {name} letters, which the prompt has none of"
            yield Finding("script_switch", message, char_span=span)


def _count(letters: re.Pattern[str], piece: str, enough: int) -> int:
    count = 0
    for _ in letters.finditer(piece):
        count += 1
        if count >= enough:
            break
    return count
