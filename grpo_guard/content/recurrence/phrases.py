"""Extend a feature to the wording that a node's completions share, and show it in findings."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from grpo_guard.content.recurrence.places import locate
from grpo_guard.content.recurrence.programs import IMPORT, SHAPE
from grpo_guard.content.recurrence.seats import Conviction
from grpo_guard.content.recurrence.sentences import is_sentence
from grpo_guard.content.recurrence.sums import SUM
from grpo_guard.content.recurrence.words import ANY, END, words_of
from grpo_guard.core.quoting import shown_name, visible
from grpo_guard.core.verdict import Finding

# A word is part of the phrase if at least this share of the examples has it in the same place.
_AGREE: Final = 0.8
_LONGEST: Final = 24
SHOWN: Final = 120

_Blanks: TypeAlias = tuple[bool, ...]


class Examples:
    """A node's latest texts, split into words when first needed.

    For each pattern of placeholders (`ANY`), a table maps every feature to its place. With a search
    instead, a text that repeats one word a thousand times would cost a thousand steps for each of
    its phrases.

    Args:
        texts: Raw texts, oldest first.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._words: list[list[str]] | None = None
        self._places: dict[_Blanks, list[dict[str, int]]] = {}

    def phrase(self, feature: str) -> str:
        """Return the longest wording around the feature shared by the examples, for messages."""
        if feature.startswith((IMPORT, SHAPE, SUM)):
            return feature.replace(":", " ", 1)
        if is_sentence(feature):
            return feature[2:-2]
        if self._words is None:
            self._words = [[END, *words_of(text)] for text in self._texts]
        core = feature.split(" ")
        tables = self._tables(tuple(word == ANY for word in core))
        places = [
            (words, at)
            for words, table in zip(self._words, tables, strict=True)
            if (at := table.get(feature)) is not None
        ]
        if places:
            before = _extend(places, lambda at, n: at - 1 - n) if core[0] != END else []
            after = _extend(places, lambda at, n: at + len(core) + n) if core[-1] != END else []
            core = [*reversed(before), *core, *after]
        return " ".join(word for word in core if word != END)

    def _tables(self, blanks: _Blanks) -> list[dict[str, int]]:
        """For each example, map every feature with this pattern of placeholders to its first
        place."""
        if blanks not in self._places:
            assert self._words is not None
            self._places[blanks] = [_table(words, blanks) for words in self._words]
        return self._places[blanks]


def shown(phrase: str) -> str:
    """Make a phrase safe for a message: on one line, short, with letters of every script."""
    return visible(repr(phrase if len(phrase) <= SHOWN else f"{phrase[: SHOWN - 3]}..."))


def _table(words: list[str], blanks: _Blanks) -> dict[str, int]:
    blanked = [ANY] * len(words)
    columns = [blanked if blank else words[k:] for k, blank in enumerate(blanks)]
    found = dict[str, int]()
    for at, feature in enumerate(map(" ".join, zip(*columns, strict=False))):
        found.setdefault(feature, at)
    return found


def _extend(places: list[tuple[list[str], int]], step: Callable[[int, int], int]) -> list[str]:
    added = list[str]()
    while len(added) < _LONGEST:
        ats = [(words, step(at, len(added))) for words, at in places]
        votes = Counter(words[at] for words, at in ats if 0 <= at < len(words))
        word, count = votes.most_common(1)[0] if votes else (END, 0)
        if word == END or count < _AGREE * len(places) or count < 2:
            break
        added.append(word)
    return added


_MOST: Final = 8
_WORDS: Final = ("recurring_phrase", "recurring_opening")


def findings_of(
    text: str, node: str, found: Sequence[Conviction], *, unlisted: bool
) -> tuple[Finding, ...]:
    """Return one finding per phrase, at most eight, in the order of the convictions.

    Args:
        text: The completion.
        node: The node that sent the completion.
        found: Convictions of the node whose features occur in the text, strongest first.
        unlisted: Whether the text is in a language not covered by the lists of ordinary words.
            Its phrases then get the kind ``recurring_unlisted``.
    """
    by_phrase = dict[str, Conviction]()
    for conviction in found:
        by_phrase.setdefault(conviction.phrase, conviction)
    shown_ones = list(by_phrase.values())[:_MOST]
    spans = locate(text, [(conviction.phrase, conviction.feature) for conviction in shown_ones])
    findings = list[Finding]()
    for conviction, span in zip(shown_ones, spans, strict=True):
        kind = "recurring_unlisted" if unlisted and conviction.kind in _WORDS else conviction.kind
        whose = "nodes counted together with" if conviction.shared else "node"
        most = f"at most {conviction.other_hits}" if conviction.other_hits else "none"
        message = (
            f"{shown(conviction.phrase)}: in {conviction.hits} of {conviction.total} prompts of "
            f"{whose} {shown_name(node)}, in {most} of {conviction.other_total} of others"
        )
        findings.append(Finding(kind, message, char_span=span))
    return tuple(findings)
