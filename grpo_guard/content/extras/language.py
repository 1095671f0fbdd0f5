"""`LanguageVerifier`: finds text in a language other than the prompt's, using lingua."""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, Unpack

from grpo_guard.content.extras.rule import MAX_CHARACTERS, LibraryRule, imported, named
from grpo_guard.content.rules import RuleOptions
from grpo_guard.content.screens.languages import ASKED
from grpo_guard.content.screens.view import blanked
from grpo_guard.content.severity import REJECT, Kind
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding

LANGUAGES: Final = (
    "en", "zh", "es", "fr", "de", "ru", "ja", "ko", "ar", "pt", "it", "hi", "tr", "vi",
    "nl", "pl", "id", "fa", "uk", "sv", "cs", "ro", "el", "he", "th", "hu", "da", "fi",
    "bg", "bn", "hr", "ms", "nb", "sk", "sr", "ta",
)  # fmt: skip
"""ISO 639-1 codes of the languages detected by default: the most common ones on the web."""
# Number of characters judged together.
_PIECE: Final = 1_000
# A prompt has few words, so its language is uncertain: every language with at least this
# probability is allowed. A prompt with fewer than `_PROMPT_LETTERS` bytes of letters is too short
# to identify its language.
_PROMPT: Final = 1e-4
_PROMPT_LETTERS: Final = 24
_PROMPT_LINES: Final = 200
# Text that is not in any language: code, formulas, tags, URLs.
_NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]{1,300}+`|\$\$[^$]{1,3000}+\$\$|\$[^$\n]{1,500}+\$"
    r"|\\\[.{1,1000}?\\\]|\\\([^\n]{1,500}?\\\)|\\begin\{(\w{1,20})\*?\}.{1,3000}?\\end\{\1\*?\}"
    r"|\\[A-Za-z]{1,30}|<[^<>\n]{1,200}+>|https?://\S{1,500}+",
    re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]++")
# Scripts in which a single character can be a word. In others, single letters are variables.
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


class LanguageVerifier(LibraryRule):
    """Rejects completions with a thousand characters in a language other than the prompt's.

    Formulas, code, tags and URLs are ignored. A stretch whose words have fewer than ``min_letters``
    letters is accepted, and so is any stretch if neither the prompt nor ``allowed`` indicates which
    language to expect. If the prompt is about languages (a translation, a cipher), everything is
    accepted. A single foreign sentence goes unnoticed; use ``language_switch`` of
    `ScreensVerifier` for that.

    Args:
        allowed: ISO 639-1 codes of languages that are always accepted, such as ``["en"]``. The
            prompt's language is accepted, too.
        languages: ISO 639-1 codes of the languages to tell apart. Detection is more reliable with
            fewer languages.
        min_letters: Minimum number of letters for a stretch to be judged, counted in UTF-8 bytes:
            a Chinese character says as much as three Latin letters.
        confidence: Minimum probability, in (0, 1], of the detected language for a rejection.
        max_characters: Maximum number of characters in a completion; longer ones are rejected.
        **rules: Options passed to `RuleVerifier`.

    Raises:
        ImportError: lingua-language-detector is not installed; the message names the install
            command.
        ValueError: an argument is out of range, or a language code is unknown.
    """

    name = "language"
    needs = "lingua-language-detector, pip install 'grpo-guard[language]'"
    package = "lingua"
    KINDS: ClassVar[Mapping[str, Kind]] = {"other_language": REJECT}

    def __init__(
        self,
        *,
        allowed: Collection[str] = (),
        languages: Collection[str] = LANGUAGES,
        min_letters: int = 200,
        confidence: float = 0.99,
        max_characters: int = MAX_CHARACTERS,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(max_characters=max_characters, **rules)
        if min_letters < 1 or not 0 < confidence <= 1:
            raise ValueError(
                "LanguageVerifier: expected min_letters >= 1 and confidence in (0, 1], got "
                f"{min_letters!r} and {confidence!r}"
            )
        known = _codes()
        self.allowed = frozenset(named("LanguageVerifier.allowed", known, allowed))
        given = named("LanguageVerifier.languages", known, languages)
        self.languages = tuple(sorted({*given, *allowed}))
        if len(self.languages) < 2:
            raise ValueError(
                f"LanguageVerifier.languages: expected at least two, got {[*self.languages]}"
            )
        self.min_letters, self.confidence = min_letters, confidence

    def load(self) -> Any:
        """Return a function that maps words to the (code, probability) of every language, most
        likely first."""
        known = _codes()
        codes = [known[name] for name in self.languages]
        builder = imported("lingua").LanguageDetectorBuilder.from_iso_codes_639_1(*codes)
        # Pieces are long, and on long text this mode is as accurate with a tenth of the memory.
        detector = builder.with_low_accuracy_mode().build()

        @lru_cache(maxsize=1024)
        def likely(words: str) -> list[tuple[str, float]]:
            values = detector.compute_language_confidence_values(words)
            return [(one.language.iso_code_639_1.name.lower(), one.value) for one in values]

        return likely

    def find(self, loaded: Any, completion: Completion, text: str) -> Iterator[Finding]:
        """Yield a finding for each stretch of a thousand characters in another language."""
        prompt = completion.trusted_prompt_text[: self.max_characters]
        if ASKED.search(prompt):
            return
        right: frozenset[str] | None = None
        prose = blanked(_NOT_PROSE, text)
        for start in range(0, len(prose), _PIECE):
            words = _words(prose[start : start + _PIECE])
            if len(words.replace(" ", "").encode()) < self.min_letters:
                continue
            code, probability = loaded(words)[0]
            if probability < self.confidence or code in self.allowed:
                continue
            right = self._right(loaded, prompt) if right is None else right
            if right and code not in right:
                message = f"is in another language than asked for: {code}"
                end = min(len(text), start + _PIECE)
                yield Finding("other_language", message, char_span=(start, end))

    def _right(self, loaded: Any, prompt: str) -> frozenset[str]:
        """Return the languages to expect; empty if there is no indication.

        The prompt is read line by line, because the question could be a single line above a page
        of code.
        """
        lines = blanked(_NOT_PROSE, prompt).split("\n")[:_PROMPT_LINES]
        asked = [words for line in lines if (words := _words(line)[:_PIECE])]
        if sum(len(words.encode()) for words in asked) < _PROMPT_LETTERS:
            return self.allowed
        in_prompt = {code for words in asked for code, value in loaded(words) if value >= _PROMPT}
        return self.allowed | in_prompt


def _words(prose: str) -> str:
    return " ".join(
        word[0] for word in _WORD.finditer(prose)
        if len(word[0]) > 1 or _WIDE.match(word[0])
    )  # fmt: skip


def _codes() -> dict[str, Any]:
    codes = {one.iso_code_639_1 for one in imported("lingua").Language.all()}
    return {one.name.lower(): one for one in codes}
