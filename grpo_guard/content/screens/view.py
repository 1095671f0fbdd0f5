"""What a screen looks at: one completion's text, and the prompt that may excuse what is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from grpo_guard.completion import Completion
from grpo_guard.verdict import Finding

# A text of nothing but violations must not become a list as long as itself.
MAX_FINDINGS = 8
SHOWN = 40
# No pattern that is looked for around a word is longer.
_REACH = 400
_LETTERS_ONLY = {code: " " for code in range(128) if not chr(code).isalpha()}
# Letters; "½" and "²" are word characters and neither digits nor letters.
_LETTERS = re.compile("[^\\W\\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u215f]+")
# Code is shown as it is written, to the reader too. A fence that nothing closes runs to the end.
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,300}+`", re.DOTALL)


class View:
    """A completion's text with what several screens derive from it, made when first asked for.

    Args:
        completion: With a text that is valid Unicode and within the verifier's limit.
        shared: Prompt texts made so far, by the identity of the prompt; one batch asks few
            prompts many times.
    """

    def __init__(self, completion: Completion, shared: dict[int, str] | None = None) -> None:
        self.text = completion.text
        self.ascii = self.text.isascii()
        # What one screen found out and another will ask again, by whose it is.
        self.notes: dict[object, Any] = {}
        self._completion = completion
        self._shared = {} if shared is None else shared

    @cached_property
    def lower(self) -> str:
        """The text in lower case; as long as the text where it is ASCII, and only then."""
        return self.text.lower()

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """The runs of letters that occur, in lower case. Far cheaper than a search per phrase."""
        if self.ascii:
            return frozenset(self.lower.translate(_LETTERS_ONLY).split())
        return frozenset(_LETTERS.findall(self.lower))

    @cached_property
    def data(self) -> bytes:
        """The text in UTF-8."""
        return self.text.encode()

    @cached_property
    def prose(self) -> str:
        """The text with blanks for its code."""
        return blanked(_CODE, self.text) if "`" in self.text else self.text

    @property
    def prompt(self) -> str:
        """Everything that was asked, as one text; "" where its sender may have asked it."""
        if not self._completion.prompt_trusted:
            return ""
        key = id(self._completion.prompt)
        if key not in self._shared:
            self._shared[key] = self._completion.prompt_text
        return self._shared[key]

    @property
    def is_chat(self) -> bool:
        """Whether the prompt came as messages, which no chat template has been put around."""
        return not isinstance(self._completion.prompt, str)

    @cached_property
    def _lower_prompt(self) -> str:
        # A completion can make thousands of finds for the prompt to be asked about.
        return self.prompt.lower()

    def asked_for(self, piece: str) -> bool:
        """Whether the prompt holds this piece, in any case: then the completion may repeat it."""
        return piece.lower() in self._lower_prompt

    def around(self, words: Iterable[str]) -> Iterator[tuple[int, int]]:
        """Places of the lines around these words, in small letters; linear time.

        A pattern that ignores case and needs one of them takes a hundred times as long for a text
        as it takes to find the word. The whole text where places in small letters are others.
        """
        if len(self.lower) != len(self.text):
            yield 0, len(self.text)
            return
        found = (re.finditer(re.escape(word), self.lower) for word in words)
        begin = stop = 0
        for at in sorted(match.start() for matches in found for match in matches):
            if at + _REACH <= stop:
                continue
            if at - _REACH > stop:
                if stop:
                    yield begin, stop
                begin = self.lower.rfind("\n", stop, at - _REACH) + 1 or stop
            end = self.lower.find("\n", max(stop, at + _REACH))
            stop = len(self.text) if end < 0 else end
        if stop:
            yield begin, stop

    def unasked(
        self,
        pattern: re.Pattern[str],
        kind: str,
        what: str,
        topic: re.Pattern[str] | None = None,
        *,
        near: Iterable[str],
    ) -> Iterator[Finding]:
        """What a pattern finds outside code and the prompt does not hold, as findings.

        Args:
            topic: What the prompt may be about, to excuse all of them.
            near: Words, of which each match has one.
        """
        prose = self.prose
        matches = (match for span in self.around(near) for match in pattern.finditer(prose, *span))
        for match in islice(matches, 64):
            if topic is not None and topic.search(self.prompt):
                return
            piece = match[0].strip()
            if not self.asked_for(piece):
                yield Finding(kind, f"{what}: {shown(piece)}", char_span=match.span())


Screen: TypeAlias = Callable[[View], Iterator[Finding]]
"""Yields what it found; the verifier takes at most `MAX_FINDINGS` of each."""


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text, as long as before, with blanks for what a pattern finds."""
    return pattern.sub(lambda match: " " * len(match[0]), text)


def word_set(text: str) -> frozenset[str]:
    """The words of a string, for tables."""
    return frozenset(text.split())


_FILE = Path(__file__).with_name("words.json")
WORDS: Mapping[str, frozenset[str]] = {
    name: word_set(words) for name, words in json.loads(_FILE.read_text("utf-8")).items()
}
"""The long lists of words, by name."""


def shown(piece: str) -> str:
    """A piece of hostile text as it may stand in a message: short, escaped, on one line."""
    cut = piece if len(piece) <= SHOWN else f"{piece[: SHOWN - 3]}..."
    return ascii(cut)
