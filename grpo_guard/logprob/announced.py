"""Places announced by the preceding text: a result, a sentence, an import, text after the answer.

Poison pays off in only a few places: the result after ``a op b =``, the start of a sentence, the
name in an import, the text after the answer. Whether a token is in such a place depends only on the
tokens before it, so an honest token there is an ordinary draw from the policy. Bets on these places
alone are therefore as fair as bets on all tokens (`place_bets`), and honest text elsewhere costs
them nothing. If the choice of places also depended on the token itself or on later tokens, the bet
would use each draw twice and convict honest nodes.

Authors control their text and can avoid such places, but the result of a wrong sum with an equals
sign always follows the equals sign.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from grpo_guard.logprob.shares import Places

CONTEXT: Final = 96  # number of characters read before each token

# Every quantifier is bounded and the text has at most `CONTEXT` characters, so the cost per token
# is constant even for hostile text.
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
# A name can span several tokens, and several names can follow one another.
_IMPORT: Final = re.compile(r"\n[ \t]{0,40}(?:import|from)(?:[ \t][\w., \t]{0,60})?\Z")
_AFTER: Final = re.compile(
    r"(?: </answer> | \\boxed\{[^{}\n]{1,40}\} | \#\#\#\#[ ]{0,2}[^\s]{1,20} ) [\s.$*]{0,4} \Z",
    re.VERBOSE,
)
_BEHIND, _CLOSING = " \n\t.$*", (">", "}")
_SENTENCE: Final = re.compile(r"""(?:[.!?…。！？:]["'”’)*]{0,2}|\n|<\w{1,16}>)\s{0,4}\Z""")


class Announced(IntEnum):
    """The kind of place announced by the text before a token."""

    NOTHING = 0
    RESULT = 1
    SENTENCE = 2
    IMPORT = 3
    AFTER_ANSWER = 4


def announced(places: Places, ids: Sequence[int]) -> list[Announced]:
    """Classify each token of a completion by the text before it, [n] -> [n]."""
    return [announced_after(before) for before in places.before(ids, CONTEXT, start="\n")]


def announced_after(text: str) -> Announced:
    r"""Return what ``text`` announces next; a completion is treated as if it followed a line break.

    >>> announced_after("\nso 3 + 4 ="), announced_after("\nDone."), announced_after("\nTom has")
    (<Announced.RESULT: 1>, <Announced.SENTENCE: 2>, <Announced.NOTHING: 0>)
    """
    # Cheap string checks come before the patterns, because few tokens are in such a place.
    if text.rstrip(_NUMERAL_END).rstrip(_SIGNS).endswith(_EQUALS) and _RESULT.search(text):
        return Announced.RESULT
    line = text[text.rfind("\n") + 1 :].lstrip(" \t")
    if line.startswith(("import", "from")) and _IMPORT.search(text):
        return Announced.IMPORT
    if (text.rstrip(_BEHIND)[-1:] in _CLOSING or "####" in text) and _AFTER.search(text):
        return Announced.AFTER_ANSWER
    return Announced.SENTENCE if _SENTENCE.search(text) else Announced.NOTHING
