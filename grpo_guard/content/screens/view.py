"""`View`: a completion's text as seen by screens, plus the prompt that could excuse its content."""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from grpo_guard.content.code.prompt_context import words_of
from grpo_guard.content.json_text import padding_of
from grpo_guard.content.severity import Kind
from grpo_guard.content.word_set import word_set
from grpo_guard.core.cached_property import cached_property
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding

# A text full of violations must not produce a list of findings as long as the text.
MAX_FINDINGS = 8
SHOWN = 40
LONG = 16
# No pattern used with `View.around` matches more characters than this.
_REACH = 400
# Tables of UTF-8 bytes: one turns all ASCII characters except letters into spaces, the other lists
# the ASCII characters left out by `View.others`.
_LETTERS_ONLY = bytes(32 if b < 128 and not chr(b).isalpha() else b for b in range(256))
_PLAIN = bytes(b for b in range(128) if chr(b).isprintable() or chr(b) in "\n\t\r")
# Letters only: "½" and "²" match \w, but are neither digits nor letters.
_LETTERS = re.compile("[^\\W\\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u215f]+")
# Code is displayed as written, so nothing can hide in it. An unclosed fence runs to the end.
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]{1,300}+`", re.DOTALL)


class View:
    """A completion's text plus anything that several screens derive from it, computed on first use.

    Args:
        completion: The completion. Its text must be valid Unicode and within the verifier's limit.
        shared: Cache of prompt texts, keyed by the prompt's identity; completions in a batch share
            few prompts.
    """

    def __init__(self, completion: Completion, shared: dict[int, str] | None = None) -> None:
        self.text = completion.text
        self.ascii = self.text.isascii()
        # Results computed by one screen for reuse by another, under a key of the screen's choice.
        self.notes: dict[object, Any] = {}
        self._completion = completion
        self._shared = {} if shared is None else shared

    @cached_property
    def lower(self) -> str:
        """The text in lower case. If it is not ASCII, its length may differ from the original."""
        return self.text.lower()

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """All runs of letters, in lower case. A look-up is far cheaper than a search per phrase."""
        # Split as bytes first, so that the pattern only reads the few words that are not ASCII.
        pieces = set(self.lower.encode().translate(_LETTERS_ONLY).split())
        words = b" ".join(pieces).decode().split()
        if self.ascii:
            return frozenset(words)
        mixed = " ".join(word for word in words if not word.isascii())
        return frozenset(filter(str.isascii, words)).union(_LETTERS.findall(mixed))

    @cached_property
    def data(self) -> bytes:
        """The text in UTF-8."""
        return self.text.encode()

    @cached_property
    def others(self) -> str:
        """The distinct characters in the text other than printable ASCII and line layout.

        If a single-character pattern matches none of them, it matches nowhere in the text.
        """
        return "".join(set(self.data.translate(None, _PLAIN).decode()))

    def padded(self, start: int, end: int) -> int:
        """Return how many characters of a span are long padding that replaces decoded escapes."""
        spans = padding_of(self._completion)
        first = max(0, bisect_left(spans, (start, start)) - 1)
        near = takewhile(lambda span: span[0] < end, islice(spans, first, None))
        return sum(max(0, min(end, b) - max(start, a)) for a, b in near)

    def may_hold(self, table: bytes, length: int) -> bool:
        """Whether the text can contain a run of ``length`` characters of a class (see `table_of`).

        Searching the translated text is ten times as fast as a pattern, and rules out most texts.
        """
        return b"n" * length in self.data.translate(table)

    def runs(self, table: bytes, length: int) -> Iterator[tuple[int, int]]:
        """Yield spans of runs of at least ``length`` characters of an ASCII character class."""
        # One byte per character, so that offsets are the same as in the text.
        marked = self.text.encode("ascii", "replace").translate(table)
        needed, end = b"n" * length, 0
        while (start := marked.find(needed, end)) >= 0:
            end = marked.find(b".", start)
            end = len(marked) if end < 0 else end
            yield start, end

    @cached_property
    def long_words(self) -> list[tuple[int, str]]:
        """Offset and text of each run of at least `LONG` characters without white space."""
        found, at = [], 0
        for word in [word for word in self.text.split() if len(word) >= LONG]:
            at = self.text.index(word, at)
            found.append((at, word))
            at += len(word)
        return found

    @cached_property
    def prose(self) -> str:
        """The text with its code replaced by spaces."""
        return blanked(_CODE, self.text) if "`" in self.text else self.text

    @property
    def prompt(self) -> str:
        """All messages of the prompt as one text; "" if the sender could have set the prompt."""
        if not self._completion.prompt_trusted:
            return ""
        key = id(self._completion.prompt)
        if key not in self._shared:
            self._shared[key] = self._completion.prompt_text
        return self._shared[key]

    @property
    def asked(self) -> str:
        """The trusted prompt as one text, without assistant messages, which a model wrote."""
        return words_of(self._completion.trusted_prompt)

    @property
    def is_chat(self) -> bool:
        """Whether the prompt came as messages, so that no chat template was applied to it."""
        return not isinstance(self._completion.prompt, str)

    @cached_property
    def _lower_prompt(self) -> str:
        # Cached: a single completion can produce thousands of matches to check against the prompt.
        return self.prompt.lower()

    def asked_for(self, piece: str) -> bool:
        """Whether the prompt contains this piece, ignoring case; an answer can then repeat it."""
        return piece.lower() in self._lower_prompt

    def around(self, words: Iterable[str]) -> Iterator[tuple[int, int]]:
        """Yield the spans of the lines around the given lower-case words, in linear time.

        Running a case-insensitive pattern over the whole text takes a hundred times as long as
        finding a word that every match contains. Yields the whole text if lower-casing changes
        offsets.
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
        """Yield a finding for each match outside code that does not also occur in the prompt.

        Args:
            topic: If the prompt matches this pattern, all matches are excused.
            near: Words, at least one of which occurs in each match.
        """
        prose = self.prose
        matches = (match for span in self.around(near) for match in pattern.finditer(prose, *span))
        for match in islice(matches, 64):
            if topic is not None and topic.search(self.prompt):
                return
            piece = match[0].strip()
            if not self.asked_for(piece):
                yield Finding(kind, f"{what}: {shown(piece)}", char_span=match.span())


Look: TypeAlias = Callable[[View], Iterator[Finding]]
"""A function that yields findings; the verifier takes at most `MAX_FINDINGS` from each screen."""


class Screen(NamedTuple):
    """A screen: the kind of its findings, what they do, and the function that looks for them."""

    kind: str
    does: Kind
    look: Look


def blanked(pattern: re.Pattern[str], text: str) -> str:
    """Replace every match in the text with spaces; its length does not change."""
    return pattern.sub(lambda match: " " * len(match[0]), text)


def table_of(belongs: Callable[[str], object], others: bool) -> bytes:
    """Return a byte table for `View.may_hold` or `View.runs`.

    Args:
        belongs: Whether an ASCII character belongs to the class.
        others: Whether the class can contain non-ASCII characters; not supported by `View.runs`.
    """
    within = [bool(belongs(chr(code))) for code in range(128)] + [others] * 128
    return bytes(ord("n" if inside else ".") for inside in within)


_FILE = Path(__file__).with_name("words.json")
WORDS: Mapping[str, frozenset[str]] = {
    name: word_set(words) for name, words in json.loads(_FILE.read_text("utf-8")).items()
}
"""The long word lists of ``words.json``, by name."""


def shown(piece: str) -> str:
    """Make hostile text safe for a message: short, escaped, on one line."""
    cut = piece if len(piece) <= SHOWN else f"{piece[: SHOWN - 3]}..."
    return ascii(cut)
