"""Places that the text before them announces: a result, a sentence, an import, an answer's end.

Poison has to stand somewhere, and the places where it pays are few: the result behind ``a op b =``,
the beginning of a sentence, the name in an import, what follows the answer. Whether a token stands
at such a place is a function of the tokens before it and of nothing else. So an honest token there
is an ordinary draw from the policy: bets on these places alone are as fair as bets on all tokens
(`place_bets`), and honest text elsewhere costs them nothing. Were the token itself, or what comes
after it, part of the choice, the bet would look at the draw twice and convict honest nodes.

An author can avoid such places, since the text is theirs; but a wrong sum with an equals sign has
its result behind the equals sign.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from grpo_guard.logprob.shares import Places

CONTEXT: Final = 96
"""Characters before a token that are read."""

# Every quantifier is bounded, and the text has at most `CONTEXT` characters: hostile text costs a
# constant per token.
_NUMERAL: Final = r"\d[\d.,]{0,15}"
_OPERATOR: Final = (
    r"(?:[-+*/×÷·−xX^]|\\(?:times|cdot|div)|plus|minus|times|divided by|multiplied by)"
)
_RESULT: Final = re.compile(
    rf"""(?: [\d)}}\]%a-z] \s{{0,2}} {_OPERATOR} \s{{0,2}} [$€£(]{{0,2}}
           (?: {_NUMERAL} | [a-z]{{2,9}} )  (?: [ ][a-z]{{1,12}} )? [)}}\]%$]{{0,2}} )
        \s{{0,2}} (?: =|≈ | \b(?:is|are|equals?|makes?)\b ) \s{{0,2}}
        [$€£]? -? (?: {_NUMERAL} )? \Z""",
    re.VERBOSE,
)
_NUMERAL_END, _SIGNS = "0123456789.,", " \n\t-$€£"
_EQUALS: Final = ("=", "≈", "is", "are", "equal", "equals", "make", "makes")
# A name may come in several tokens, and several names behind each other.
_IMPORT: Final = re.compile(r"\n[ \t]{0,40}(?:import|from)(?:[ \t][\w., \t]{0,60})?\Z")
_AFTER: Final = re.compile(
    r"(?: </answer> | \\boxed\{[^{}\n]{1,40}\} | \#\#\#\#[ ]{0,2}[^\s]{1,20} ) [\s.$*]{0,4} \Z",
    re.VERBOSE,
)
_BEHIND, _CLOSING = " \n\t.$*", (">", "}")
_SENTENCE: Final = re.compile(r"""(?:[.!?…。！？:]["'”’)*]{0,2}|\n|<\w{1,16}>)\s{0,4}\Z""")


class Announced(IntEnum):
    """What the text before a token announces."""

    NOTHING = 0
    RESULT = 1
    SENTENCE = 2
    IMPORT = 3
    AFTER_ANSWER = 4


class AnnouncedPlaces(Places):
    """Tells which of a completion's tokens stand at an announced place.

    Args:
        tokenizer: A transformers tokenizer.
    """

    def announced(self, ids: Sequence[int]) -> list[Announced]:
        """What is announced of each token, [n] -> [n]; reads ids[:t] for token t."""
        return [announced_after(before) for before in self.before(ids, CONTEXT, start="\n")]


def announced_after(text: str) -> Announced:
    r"""What a text announces to come next; a completion begins behind a line break.

    >>> announced_after("\nso 3 + 4 ="), announced_after("\nDone."), announced_after("\nTom has")
    (<Announced.RESULT: 1>, <Announced.SENTENCE: 2>, <Announced.NOTHING: 0>)
    """
    # What a pattern needs is looked for first: most tokens stand at no such place.
    if text.rstrip(_NUMERAL_END).rstrip(_SIGNS).endswith(_EQUALS) and _RESULT.search(text):
        return Announced.RESULT
    line = text[text.rfind("\n") + 1 :].lstrip(" \t")
    if line.startswith(("import", "from")) and _IMPORT.search(text):
        return Announced.IMPORT
    if (text.rstrip(_BEHIND)[-1:] in _CLOSING or "####" in text) and _AFTER.search(text):
        return Announced.AFTER_ANSWER
    return Announced.SENTENCE if _SENTENCE.search(text) else Announced.NOTHING
