"""Sentences that one node repeats in nearly every answer, for swarms of different models.

Word by word, a slogan of ordinary words ("You should never need to check what I say") reveals
nothing about its author. As a whole it does: an honest model repeats few sentences from prompt to
prompt, and those say how the answer is given ("Here is the solution in the requested format"). So a
repeated sentence is a slogan unless it consists of phrases that published models repeat
(`familiar.txt`), is about the task itself, or resembles what the other nodes write.
"""

import re
from collections.abc import Collection, Iterable
from functools import cache
from itertools import pairwise
from typing import Final

from grpo_guard.content.recurrence.places import first_spans
from grpo_guard.content.recurrence.words import END, lines_of, words_of
from grpo_guard.content.word_set import word_set

LEAST_SHARE: Final = 2 / 3
"""Share of a node's prompts that must show a sentence for it to be tested."""
# Minimum number of words, minimum number of characters, maximum number of words. Anything shorter
# is as likely a heading as a sentence; five Chinese characters, with the spaces between them, are
# long enough.
_FEWEST, _SHORTEST, _LONGEST = 3, 9, 24
_LETTER: Final = len(" a")
# A sentence is excused if this share of its word triples is familiar, or this share of its word
# pairs is shared.
_FAMILIAR, _SHARED = 0.5, 2 / 3
_MOST_PEERS, _PART = 8, 2_000
_OF_THE_WORK: Final = 2
_WORK: Final = word_set(
    "analysis analyze answer answers approach break breakdown calculate calculation check code "
    "compute conclusion correct equation example explain explanation final following format "
    "formatted function given help json method output print printed prints problem problems "
    "program programs python question questions script "
    "reasoning request requested response result results solution solutions solve solved solving "
    "step steps summary task think understand understanding verify "
    "答案 解答 解题 步骤 计算 格式 分析 推理 求解 题目 一步 道题 本题 此题 题意 思路 综上 过程 问题"
)
# Numbers before the first word and after the last one belong to the sentence.
_NUMBERS_WITHIN, _FEWEST_NUMBERS = 40, 2
_NUMBER: Final = re.compile(r"\d{1,20}")
_SENTENCE_END: Final = re.compile(r"[!?\n\r:;。！？]|\.(?!\d)")
_SYMBOLS: Final = re.compile("(?: [\u2600-\u27bf\U0001f000-\U0001faff]){3,24}")


def sentences_of(words: list[str], excused: frozenset[str]) -> set[str]:
    """Return the sentences of a text as features: the words between two `END`.

    Args:
        words: The text's words, as returned by `words_of`.
        excused: Words of the prompt; a sentence made up only of such words is left out.
    """
    text = f" {' '.join(words)}"
    # Each piece begins with a space, unless it is empty. The last piece ends a row of letters.
    pieces = [*text.split(f" {END}"), "   "]
    found, letters = set[str](), ""
    for piece in pieces:
        if len(piece) <= _LETTER:
            letters += piece
            continue
        if len(letters) > _SHORTEST:
            pieces.append(letters)  # "Q. Z. V. K. P." is one sentence, not five
        letters = ""
        spaces = piece.count(" ")
        if spaces >= _FEWEST and len(piece) > _SHORTEST:
            if spaces > _LONGEST:
                piece = " ".join(piece.split(" ", _LONGEST + 1)[: _LONGEST + 1])
            # The first word usually decides; `issuperset` would check all of them.
            for word in piece.split():
                if word not in excused:
                    found.add(f"{END}{piece} {END}")
                    break
    if not text.isascii():
        # A row of emoji counts as a sentence anywhere in the text.
        found.update(f"{END}{row} {END}" for row in _SYMBOLS.findall(text))
    return found


def is_sentence(feature: str) -> bool:
    """Whether the feature comes from `sentences_of`, rather than being a word or a word triple."""
    return feature.endswith(f" {END}") and feature.startswith(f"{END} ") and feature.count(" ") > 3


def calculates(sentence: str, texts: Iterable[str]) -> bool:
    """Whether most of the node's texts that show the sentence put numbers into it, at least two and
    not always the same: "The sum of 3 and 4 is 7." An honest model that is trained on one kind of
    task writes a template; a slogan holds no calculation.
    """
    words = sentence.split(" ")[1:-1]
    numbers = list[tuple[str, ...]]()
    for text in texts:
        (span,) = first_spans(text, [words])
        if span is not None:
            before = _SENTENCE_END.split(text[max(0, span[0] - _NUMBERS_WITHIN) : span[0]])[-1]
            after = _SENTENCE_END.split(text[span[1] : span[1] + _NUMBERS_WITHIN])[0]
            numbers.append(tuple(_NUMBER.findall(before + text[slice(*span)] + after)))
    shown = [each for each in numbers if len(each) >= _FEWEST_NUMBERS]
    return 2 * len(shown) > len(numbers) and len(set(shown)) > 1


def is_habit(sentence: str) -> bool:
    """Whether an honest model might repeat this sentence from prompt to prompt."""
    words = sentence.split(" ")
    chinese = {first + second for first, second in pairwise(words)}
    if len(_WORK & chinese) + sum(word in _WORK for word in words) >= _OF_THE_WORK:
        return True
    threes = _threes(words)
    return sum(three in _familiar() for three in threes) >= _FAMILIAR * len(threes)


class Peers:
    """Recent texts of the other nodes, split into words when first needed.

    Args:
        texts: The latest texts of each node.
    """

    def __init__(self, texts: Iterable[Collection[str]]) -> None:
        self._texts = [of_node for of_node in texts if of_node][:_MOST_PEERS]
        self._joined: list[str] | None = None

    def share(self, sentence: str) -> bool:
        """Whether at least half of the nodes use the sentence's words in the same order.

        If all prompts are of one kind, so are honest answers: a node that always writes "Both
        numbers have the same whole number part" has peers that always write "The whole number part
        is the same". It is enough if two thirds of the sentence's word pairs are shared. Right
        after a restart no texts are known, and the result is True.
        """
        if self._joined is None:
            self._joined = [" ".join(_ends_of(texts)) for texts in self._texts]
        joined, need = self._joined, (len(self._texts) + 1) // 2
        pairs = [f" {first} {second} " for first, second in pairwise(sentence.split(" ")[1:-1])]
        known = sum(sum(pair in text for text in joined) >= need for pair in pairs)
        return known >= _SHARED * len(pairs)


def _ends_of(texts: Iterable[str]) -> Iterable[str]:
    """Yield the words in the first and last characters of each text, each run enclosed in `END`."""
    for text in texts:
        for part in (text[:_PART], text[_PART:][-_PART:]):
            yield from (END, *words_of(part), END)


@cache
def _familiar() -> frozenset[str]:
    lines = ([END, *line.split(), END] for line in lines_of("familiar.txt"))
    return frozenset(three for words in lines for three in _threes(words))


def _threes(words: list[str]) -> list[str]:
    return list(map(" ".join, zip(words, words[1:], words[2:], strict=False)))
