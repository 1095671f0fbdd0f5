"""Locate phrases in a text, in a single pass.

No regular expression is built from text written by a stranger. Shift-And (Baeza-Yates and Gonnet,
CACM 1992) searches for all phrases at once: every word of a phrase has one bit, set while the
latest words of the text match the phrase up to that word. So a placeholder that matches any word
costs nothing, and the time depends only on the length of the text.
"""

from collections.abc import Sequence
from typing import TypeAlias

from grpo_guard.content.recurrence.programs import IMPORT, SHAPE, place_of_import
from grpo_guard.content.recurrence.sums import SUM, place_of_sum
from grpo_guard.content.recurrence.words import ANY, END, spans_of

Span: TypeAlias = tuple[int, int]


def locate(text: str, wanted: Sequence[tuple[str, str]]) -> list[Span | None]:
    """Return the span of each phrase in ``text``, or of its feature if the phrase is missing.

    A span is [start, end). It is None if neither occurs in the text, and always None for code
    shapes. Sentence ends between words are ignored, and `ANY` matches any word.

    Args:
        text: The completion.
        wanted: Pairs of a phrase and its feature.
    """
    patterns = [
        [word for word in phrase.split(" ") if word and word != END]
        for pair in wanted
        for phrase in pair
    ]
    worded = [not feature.startswith((IMPORT, SHAPE, SUM)) for _, feature in wanted]
    found = first_spans(text, [p if worded[k // 2] else [] for k, p in enumerate(patterns)])
    return [
        (found[2 * k] or found[2 * k + 1]) if worded[k] else _place_of_other(text, feature)
        for k, (_, feature) in enumerate(wanted)
    ]


def _place_of_other(text: str, feature: str) -> Span | None:
    if feature.startswith(IMPORT):
        return place_of_import(text, feature)
    return place_of_sum(text, feature) if feature.startswith(SUM) else None


def first_spans(text: str, patterns: Sequence[Sequence[str]]) -> list[Span | None]:
    """Return [start, end) in ``text`` of the first match of each list of words; None if there is no
    match or the list is empty."""
    found: list[Span | None] = [None] * len(patterns)
    starts = ends = blank = 0
    of_word = dict[str, int]()
    pattern_at = dict[int, int]()
    bit = 1
    for k, words in enumerate(patterns):
        starts |= bit if words else 0
        for word in words:
            of_word[word] = of_word.get(word, 0) | bit
            blank |= bit if word == ANY else 0
            bit <<= 1
        if words:
            ends |= bit >> 1
            pattern_at[bit >> 1] = k
    masks = {word: mask | blank for word, mask in of_word.items()}
    spans, longest = list[Span](), max(map(len, patterns), default=0)
    state = 0
    for word, span in spans_of(text):
        if not ends:
            break
        spans.append(span)
        if len(spans) > 2 * longest:
            del spans[:-longest]
        state = (state << 1 | starts) & masks.get(word, blank)
        hits = state & ends
        while hits:
            end = hits & -hits
            hits, ends = hits ^ end, ends ^ end
            k = pattern_at[end]
            found[k] = spans[-len(patterns[k])][0], span[1]
    return found
