"""The wordings of a calculation, each with the signs that replace it.

A replacement is as long as what it replaces, so that all offsets stay valid.
"""

import re
from collections.abc import Callable
from typing import Final

_NUMBER: Final = r"\$?[0-9][0-9.,]{0,20}(?<![.,])"
_MEASURE: Final = (
    r"(?:seconds?|minutes?|hours?|inch(?:es)?|feet|foot|yards?|miles?|met(?:er|re)s?|cm|km|"
    r"centimet(?:er|re)s?|kilomet(?:er|re)s?|grams?|kilograms?|kg|ounces?|pounds?|tons?|lit(?:er|re)s?|"
    r"cups?|pints?|quarts?|gallons?|ml|cents?|dimes?|nickels?|quarters?|dollars?)(?!\w)"
)
_FIRST: Final = r"(?<![\w.,$-])(?<![-+*/x=0-9] )"
_UNIT: Final = r"(?:[ ]+[a-z]{2,15}){0,2}?"
_SAYS: Final = (
    r"(?=[ ]*,?[ ]*(?:=|is|are|makes?|gives?|equals?|totals?|we get|to get|leaves?|yields?"
    r"|produces?|results in|comes to|amounts to)\b|[ ]*=)"
)

Rewrite = Callable[["re.Match[str]"], str]


def _signed(sign: str, before: str = " ") -> Rewrite:
    """Return a rule that keeps the groups ``a`` and ``b`` of a phrase, with a sign in between."""

    def rewrite(match: re.Match[str]) -> str:
        text, at = list(" " * len(match.group())), match.start()
        for name in ("a", "b"):
            start, end = match.span(name)
            text[start - at : end - at] = match[name]
        joint = match.start("joint") - at
        text[joint] = sign
        if before != " ":
            text[match.start("a") - at - 2] = before
        return "".join(text)

    return rewrite


def _replaced_by(formula: str) -> Rewrite:
    """Return a rule that replaces a phrase with a formula, which must not be longer."""
    return lambda match: formula.ljust(len(match.group()))


def _counted(words: str, formula: str) -> tuple[re.Pattern[str], Rewrite]:
    """Return a pattern for words before a number, and a rule to replace them with a formula."""
    return re.compile(rf"(?<!\w){words}(?= \$?[0-9])", re.IGNORECASE), _replaced_by(formula)


def _pair(opening: str, joint: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<!\w){opening}[ ]+(?P<a>{_NUMBER}){_UNIT}[ ]+(?P<joint>{joint})[ ]+"
        rf"(?P<b>{_NUMBER}){_UNIT}{_SAYS}",
        re.IGNORECASE,
    )


_TIMES: Final = {"twi": "2", "dou": "2", "thr": "3", "tri": "3", "qua": "4", "hal": "1/2"}
_PARTS: Final = {
    "half": 2, "thir": 3, "quar": 4, "fift": 5, "sixt": 6, "seve": 7, "eigh": 8, "nint": 9,
    "tent": 10,
}  # fmt: skip
_PLURAL: Final = ("third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_FRACTIONS: Final = ("half", *_PLURAL, *(f"{part}s" for part in _PLURAL))
PARTS: Final = f"(?:{'|'.join(_PLURAL)})s?"
MULTIPLES: Final = "twice|thrice|double|triple|doubling|tripling|halving|quadrupling"


def _multiplied(match: re.Match[str]) -> str:
    """Rewrite "doubling 4" as "2 * 4"."""
    return f"{_TIMES[match.group()[:3].lower()]} *".ljust(len(match.group()))


def _part(match: re.Match[str]) -> str:
    """Rewrite "2 thirds of" as "2/3 of"."""
    count = match["count"] if (match["count"] or "").isdigit() else "1"
    return f"{count}/{_PARTS[match['part'][:4].lower()]} of".ljust(len(match.group()))


def _mean(match: re.Match[str]) -> str:
    """Rewrite "the average of 4 and 8" as "(4 + 8)/2", which is not longer."""
    return f"({match['a']}+{match['b']})/2".ljust(len(match.group()))


def _compared(match: re.Match[str]) -> str:
    """Rewrite "5 less than 20" as "20 - 5"."""
    sign = "-" if match["joint"][0] in "lL" else "+"
    return f"{match['b']} {sign} {match['a']}".ljust(len(match.group()))


_SIGNS: Final = {"s": "+", "p": "*", "d": "-"}


def _turned(match: re.Match[str]) -> str:
    """Rewrite "5 is the sum of 2 and 2" as "2 + 2 = 5"."""
    sign = _SIGNS[match["joint"][0].lower()]
    return f"{match['a']} {sign} {match['b']} = {match['c']}".ljust(len(match.group()))


def _powered(match: re.Match[str]) -> str:
    """Rewrite "the square of 7" as "7^2"."""
    return f"{match['a']}^{2 if match['power'][0] in 'sS' else 3}".ljust(len(match.group()))


# Each phrase contains one of its words, so that most phrases can be skipped for a line.
PHRASES: Final[tuple[tuple[tuple[str, ...], re.Pattern[str], Rewrite], ...]] = (
    (("sum",), _pair("(?:the )?sum of", "and"), _signed("+")),
    (("product",), _pair("(?:the )?product of", "and"), _signed("*")),
    (("difference",), _pair("(?:the )?difference between", "and"), _signed("-")),
    (("add",), _pair("add(?:ing)?", "and|to"), _signed("+")),
    (("ing",), _pair("(?:summing|combining|putting together)", "and|with"), _signed("+")),
    (("multiply",), _pair("multiply(?:ing)?", "by|and|with"), _signed("*")),
    (("divid",), _pair("divid(?:e|ing)", "by"), _signed("/")),
    (("from",), _pair("(?:subtract|deduct|tak)(?:e|ing)?", "from"), _signed("+", "-")),
    (
        ("and",),
        re.compile(
            rf"(?P<a>{_NUMBER})(?:[ ]+[a-z]{{2,15}}){{0,2}}?[ ]+(?P<joint>and)[ ]+(?P<b>{_NUMBER})"
            r"(?=(?:[ ]+[a-z]{2,15}){0,2}?[ ]+(?:makes?|gives?|equals?|totals?)\b)",
            re.IGNORECASE,
        ),
        lambda match: match.group().replace("and", "+  "),
    ),
    (
        ("more than", "less than"),
        re.compile(
            rf"{_FIRST}(?P<a>{_NUMBER}) (?P<joint>more|less) than "
            rf"(?P<b>{_NUMBER}){_SAYS}",
            re.I,
        ),
        _compared,
    ),
    (
        ("the sum", "the product", "the difference"),
        re.compile(
            rf"{_FIRST}(?P<c>{_NUMBER}) (?:is|equals) the (?P<joint>sum|product|difference) "
            rf"(?:of|between) (?P<a>{_NUMBER}) and (?P<b>{_NUMBER})"
            r"(?!,? (?:and|plus|minus|times)|,? ?[0-9*/+-])",
            re.I,
        ),
        _turned,
    ),
    (
        ("average",),
        re.compile(
            rf"(?<!\w)(?:the )?average of (?P<a>{_NUMBER}) and (?P<b>{_NUMBER}){_SAYS}", re.I
        ),
        _mean,
    ),
    (
        ("square of", "cube of"),
        re.compile(rf"(?<!\w)the (?P<power>square|cube) of (?P<a>{_NUMBER}){_SAYS}", re.I),
        _powered,
    ),
    (
        tuple(f"{part} of" for part in _FRACTIONS),
        re.compile(
            rf"(?<!\w)(?:(?P<count>an?|[1-9]) {{1,6}})?(?P<part>half|{PARTS}) of(?= \$?[0-9])", re.I
        ),
        _part,
    ),
    (
        ("twice", "thrice", "doubl", "tripl", "halving", "quadrupl"),
        re.compile(rf"(?<!\w)(?:{MULTIPLES})(?= \$?[0-9])", re.I),
        _multiplied,
    ),
    (
        (" is ", " are ", " equal"),
        re.compile(
            rf"(?<=[0-9] )(?P<unit>{_MEASURE}) (?:is|are|equals?)(?= \$?[0-9.,]{{1,9}} {_MEASURE}"
            r"(?! (?:more|less|long|late|earl|fast|slow|tall|short|old|young|high|deep|wide|per|"
            r"too|and|than|of|from|in|at)))",
            re.I,
        ),
        lambda match: f"{match['unit']} =".ljust(len(match.group())),
    ),
    (("get",), *_counted("(?:to|we) get", "=")),
    (
        ("leave", "yield", "produce", "results", "comes"),
        *_counted("(?:leaves?|yields?|produces?|results in|comes to)", "="),
    ),
    (("squared",), re.compile(r"(?<=[0-9])[ ]squared(?!\w)", re.IGNORECASE), _replaced_by("^2")),
    (("cubed",), re.compile(r"(?<=[0-9])[ ]cubed(?!\w)", re.IGNORECASE), _replaced_by("^3")),
)
