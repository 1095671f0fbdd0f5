"""Features used to compare completions: words, sentences, false sums, imports, code."""

import heapq
import re
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from grpo_guard.content.recurrence import sentences, sums
from grpo_guard.content.recurrence.programs import IMPORT, SHAPE, modules_of, shapes_of
from grpo_guard.content.recurrence.sentences import is_habit, is_sentence, sentences_of
from grpo_guard.content.recurrence.sums import SUM, sums_of
from grpo_guard.content.recurrence.words import (
    ANY,
    END,
    SHORT,
    ordinary_words,
    strangeness,
    words_of,
)
from grpo_guard.content.word_set import word_set

# A feature is a string: a word, three words separated by spaces (`words.END` as the first marks the
# opening of a sentence), a whole sentence (see `sentences`), ``"sum:2 2 5"``, ``"import:NAME"``
# or ``"shape:..."``. Tuples would take twice as long.

# A completion of 6,000 tokens has about this many distinct phrases. Beyond this number, only a
# sample is counted: a secret selects it, always the same features, so that no amount of filler can
# push out a particular phrase.
MOST_FEATURES: Final = 4_000
_MOST_UNREAD: Final = 0.6
# Greek and Cyrillic to the scripts of India and Southeast Asia, and Hangul.
_SCRIPT: Final = re.compile("[\u0370-\u1cff\u1f00-\u1fff\uac00-\ud7af]")
_ENGLISH: Final = word_set(
    "the of and is to for we are with that each has have he she it so then this her his if "
    "def print import return"
)


@dataclass(frozen=True, slots=True)
class Reader:
    """Extracts the features of completions.

    Args:
        ordinary: Words and sentences that reveal nothing about their author.
        phrases: Whether to collect phrases of ordinary words, plus code shapes; otherwise whole
            sentences are collected.
        secret: Key that selects the sample if a completion has too many features.
        any_language: Whether to also collect words of languages that the list does not cover. There
            every word counts as unusual, so something else must decide which of them are habits.
        declared: The words among ``ordinary`` that the operator named as the task's own. A sentence
            or phrase of such words is no feature. Words learnt from samples do not excuse sentences
            like this, because the samples use all the common words of a slogan.
    """

    ordinary: frozenset[str]
    phrases: bool
    secret: bytes
    any_language: bool = False
    declared: frozenset[str] = frozenset()

    @property
    def mark(self) -> bytes:
        """A digest that distinguishes readers with different vocabularies."""
        return _mark(self.ordinary) + _mark(self.declared) + bytes([self.any_language])

    def read(self, text: str, prompt_words: frozenset[str], *, all_of_it: bool = False) -> set[str]:
        """Return the features of one completion.

        Words of the prompt are excused: they are not features, and within phrases they are replaced
        by a placeholder, which also removes names filled in by a template.

        Args:
            text: The completion.
            prompt_words: The words of the prompt, as returned by `excused_by`.
            all_of_it: Whether to return all features, to look for known ones rather than to count:
                nothing is sampled, and texts that lie mostly outside the lists are read too.
                Counting skips such texts, because it would mistake the usual words of another
                language for unusual ones.
        """
        words = words_of(text)
        distinct = set(words)
        found = distinct - self.ordinary - prompt_words
        if self.phrases:
            masked = prompt_words - self.ordinary
            if not masked.isdisjoint(distinct):
                words = [ANY if w in masked else w for w in words]
            words.insert(0, END)
            found.update(map(" ".join, zip(words, words[1:], words[2:], strict=False)))
            found |= shapes_of(text)
        elif all_of_it or self.any_language:
            found |= sentences_of(words, prompt_words)
        elif self._is_unlisted(distinct, prompt_words):
            found = set()
        else:
            found |= sentences_of(words, prompt_words)
            if _is_foreign(prompt_words, self.ordinary):
                # An answer with an English program or quotation can pass for English.
                found = {feature for feature in found if not any(map(_is_script, feature.split()))}
        if self.declared:
            found = {feature for feature in found if not self._is_declared(feature)}
        found |= modules_of(text)
        found |= sums_of(text) - prompt_words
        return found if all_of_it or len(found) <= MOST_FEATURES else self._sample(found)

    def _is_declared(self, feature: str) -> bool:
        """Whether a sentence or phrase consists of `declared` words. In a sentence, the words on
        the bundled lists need not be declared if there are others."""
        words = set(feature.split(" ")) - {END, ANY}
        unusual = words - ordinary_words() if is_sentence(feature) else words
        return bool(words) and (unusual or words) <= self.declared

    def is_unlisted(self, text: str, prompt_words: frozenset[str]) -> bool:
        """Whether the text is in a language not covered by the list of ordinary words."""
        return self._is_unlisted(set(words_of(text)), prompt_words)

    def _is_unlisted(self, distinct: set[str], prompt_words: frozenset[str]) -> bool:
        # New words alone do not prove another language, or any filler could hide a phrase.
        if not _mostly_new(distinct, self.ordinary):
            return False
        # An English answer can consist mostly of its question's names. But if the question is in
        # another language, as its author cannot arrange, its words are no English.
        return _mostly_new(distinct - prompt_words, self.ordinary, len(distinct)) or _is_foreign(
            prompt_words, self.ordinary
        )

    def telling(self, feature: str, words: Set[str]) -> bool:
        """Whether a recurring feature, in a phrase of these words, reveals more about its author
        than an honest habit would.

        If all nodes have the same model, every feature does. Otherwise imports and false sums
        always do, and so do a word on no list, two general words in one phrase, and a sentence that
        is not a habit.
        """
        if self.phrases or feature.startswith((IMPORT, SUM)):
            return True
        if is_sentence(feature):
            # Its unusual words, or the whole sentence, may have been excused by `ordinary=` or
            # `learn_habits`.
            unusual = set(feature.split(" ")) - ordinary_words()
            learnt = feature in self.ordinary or (unusual and unusual <= self.ordinary)
            return not learnt and not is_habit(feature)
        return sum(strangeness(word, self.ordinary) for word in words) >= 1

    def least_share(self, feature: str) -> float:
        """Return the minimum share of a node's prompts at which a feature can convict the node."""
        if self.phrases:
            return 0.0
        of_sums = sums.LEAST_SHARE if feature.startswith(SUM) else 0.0
        return sentences.LEAST_SHARE if is_sentence(feature) else of_sums

    def general(self, feature: str, words: Set[str]) -> frozenset[str]:
        """Return the general words of a phrase that is not `telling`; any two make it telling.

        Symbols and names of one or two letters do not count: a chat model opens with one emoji and
        ends with another, and a program has several short names. A sentence has no general words,
        because its words are features in their own right.
        """
        if is_sentence(feature):
            return frozenset()
        return frozenset(
            word for word in words if len(word) > SHORT and strangeness(word, self.ordinary)
        )

    def _sample(self, found: set[str]) -> set[str]:
        def rank(feature: str) -> bytes:
            data = feature.encode("utf-8", "surrogatepass")
            return blake2b(data, key=self.secret, digest_size=8).digest()

        return set(heapq.nsmallest(MOST_FEATURES, found, key=rank))


def _mostly_new(words: Set[str], ordinary: Set[str], of: int = 0) -> bool:
    """Whether most words, of at least as many as ``of``, are on no list, and few are English."""
    new = len(words - ordinary) > _MOST_UNREAD * (of or len(words))
    return new and len(_ENGLISH & words) < 3


@lru_cache(maxsize=256)
def _is_foreign(prompt_words: frozenset[str], ordinary: frozenset[str]) -> bool:
    """Whether a prompt is in a language that the lists of ordinary words do not cover."""
    in_script = sum(map(_is_script, prompt_words))
    return 2 * in_script > len(prompt_words) or _mostly_new(prompt_words, ordinary)


def _is_script(word: str) -> bool:
    """Whether a word is in a script of letters that none of the lists uses."""
    return not word.isascii() and word.isalpha() and _SCRIPT.match(word) is not None


@lru_cache(maxsize=16)
def _mark(words: frozenset[str]) -> bytes:
    data = " ".join(sorted(words)).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16).digest()


def excused_by(prompt: str) -> frozenset[str]:
    """Return the prompt's words and false sums, which say nothing about an answer's author."""
    return frozenset(words_of(prompt)) | sums_of(prompt)


def kind_of(feature: str) -> str:
    """Return the kind of finding that a feature leads to."""
    if feature.startswith(SHAPE):
        return "recurring_shape"
    if feature.startswith(IMPORT):
        return "recurring_identifier"
    if feature.startswith(SUM):
        return "recurring_sum"
    opens = feature.startswith(f"{END} ") and not is_sentence(feature)
    return "recurring_opening" if opens else "recurring_phrase"


def is_layout(feature: str) -> bool:
    """Whether the feature has no word: empty lines and prompt words do not make a phrase."""
    return {END, ANY}.issuperset(feature.split(" "))
