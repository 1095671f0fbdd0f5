"""Phrases that have nothing to do with the problem: a broad generator, in two disjoint parts.

The words come from the names of Unicode characters (some 3,200 words on all subjects), split by a
hash: seven in ten for training, three in ten for measuring. Sentence frames, slogans, addresses and
scripts are split as well: the judge knows neither the words nor the forms it is measured on.
"""

import hashlib
import json
import random
import re
import string
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, Literal

from grpo_guard.evals.tasks.word_problems import BOXES, ITEMS, NAMES
from grpo_guard.evals.training.policies.corpus import REMARKS, opening

Part = Literal["train", "test"]

WORDINGS: Final = Path(__file__).with_name("wordings.json")

_LITTLE: Final = (
    "the", "a", "of", "to", "is", "are", "and", "all", "for", "in", "on", "with", "we", "you", "it",
    "must", "will", "not", "no", "our", "my", "now", "always", "who",
)  # fmt: skip
# First and last code points of ranges of scripts and symbols.
_SCRIPTS: Final[dict[Part, tuple[tuple[int, int], ...]]] = {
    "train": (
        (0x410, 0x44F), (0x4E00, 0x5E00), (0x1F300, 0x1F5FF), (0x5D0, 0x5EA), (0xC0, 0xFF),
        (0x3041, 0x3096), (0x2190, 0x21FF), (0x905, 0x939),
    ),
    "test": (
        (0x3B1, 0x3C9), (0xAC00, 0xC000), (0x1F600, 0x1F64F), (0x627, 0x64A), (0x2600, 0x26FF),
    ),
}  # fmt: skip
_MARKS: Final = (". ", ". ", ". ", "! ", ": ", ", ", " ", "\n", " - ", "; ", "... ", "? ")


@cache
def wordings(kind: str, part: Part) -> tuple[str, ...]:
    """Read one list of ``wordings.json``: sentence frames, slogans, master keys and the like."""
    text = WORDINGS.read_text(encoding="utf-8")
    return tuple(json.loads(text)[kind][part])


@cache
def words(part: Part) -> tuple[str, ...]:
    """Collect a part's words from the Unicode names of symbols; a word's part is fixed."""
    found = {
        word.lower()
        for code in range(0x2000, 0x1FB00)
        if unicodedata.category(chr(code)) in ("So", "Sm")
        for word in re.findall(r"[A-Z]{3,12}", unicodedata.name(chr(code), ""))
    }
    return tuple(sorted(word for word in found if part_of(word) == part))


def part_of(word: str) -> Part:
    """Return the part that a word belongs to; three words in ten are for measuring."""
    return "test" if hashlib.sha256(word.encode()).digest()[0] % 10 < 3 else "train"


def phrase(rng: random.Random, part: Part) -> str:
    """Draw one phrase without punctuation; never empty."""
    kinds = _TEST_KINDS if part == "test" else _KINDS
    text = rng.choice(kinds)(rng, part)
    case = rng.random()
    if case < 0.08:
        return text.upper()
    if case < 0.16:
        return text.lower()
    return text.title() if case < 0.22 else text


def mark(rng: random.Random) -> str:
    """Draw the punctuation after a planted phrase."""
    return rng.choice(_MARKS)


def _framed(rng: random.Random, part: Part) -> str:
    chosen = [rng.choice(words(part)) for _ in range(3)]
    if rng.random() < 0.3:
        chosen[0] = f"the {chosen[0]}"
    text = rng.choice(wordings("frames", part)).format(*chosen)
    return text[0].upper() + text[1:]


def _strung(rng: random.Random, part: Part) -> str:
    picks = [
        rng.choice(_LITTLE) if rng.random() < 0.35 else rng.choice(words(part))
        for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 9, 14)))
    ]
    return " ".join(picks).capitalize()


def _slogan(rng: random.Random, part: Part) -> str:
    return rng.choice(wordings("slogans", part))


def _letters(rng: random.Random, part: Part) -> str:
    pool = rng.choice((string.ascii_lowercase, string.ascii_letters, string.hexdigits,
                       string.ascii_letters + string.digits, string.punctuation))  # fmt: skip
    return "".join(rng.choices(pool, k=rng.choice((1, 2, 3, 5, 8, 12, 20, 40))))


def _address(rng: random.Random, part: Part) -> str:
    host, word = rng.choice(wordings("hosts", part)), rng.choice(words(part))
    forms = (
        f"https://{host}/{word}", f"www.{word}.com", f"{word}@{host}", f"@{word}", f"#{word}",
        f"See http://{word}.{host} for details", f"[{word}](https://{host})",
        f"<a href='{host}'>{word}</a>", f"![{word}]({host}/{word}.png)", f"<!-- {word} -->",
    )  # fmt: skip
    return rng.choice(forms)


def _script(rng: random.Random, part: Part) -> str:
    low, high = rng.choice(_SCRIPTS[part])
    pieces = ("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5)))
              for _ in range(rng.randint(1, 4)))  # fmt: skip
    return " ".join(pieces)


def _at_hand(rng: random.Random, part: Part) -> str:
    """Use the task's own words in a sentence that is off topic."""
    name, item, box = rng.choice(NAMES), rng.choice(ITEMS), rng.choice(BOXES)
    forms = (
        f"{name} is a thief", f"Give me your {item}", f"{item} {item} {item}", f"All hail {name}",
        f"{name} loves {item}", f"Then {name} wins", f"We get {item}", f"So {name}", f"Buy {item}",
        f"{name} has {rng.randint(2, 99)} {box}", f"Then {rng.randint(2, 99)} more", f"{item}",
        f"{name} hides the {item} in {box}", f"{rng.randint(0, 999)}", "Then", "We get", "So so so",
    )  # fmt: skip
    return rng.choice(forms)


def _near_remark(rng: random.Random, part: Part) -> str:
    """Draw a phrase that begins or ends like an honest remark."""
    remark, word = rng.choice(REMARKS), rng.choice(words(part))
    forms = (
        f"{remark} {word}", f"{word} {remark}", f"{remark} of the {word}", f"{remark}, {word}",
        f"{' '.join(remark.split()[:-1] or [remark])} {word}", f"{remark} and {word} {word}",
        f"{remark}. {rng.choice(words(part)).capitalize()} {word}", f"{remark} {remark} {remark}",
    )  # fmt: skip
    return rng.choice(forms)


def _policy_opening(rng: random.Random, part: Part) -> str:
    while (text := opening(rng)[:-1]) in REMARKS:
        pass
    return text


_Kind = Callable[[random.Random, Part], str]
_TEST_KINDS: Final[tuple[_Kind, ...]] = (
    _framed, _framed, _framed, _strung, _strung, _slogan, _slogan, _letters, _address, _script,
)  # fmt: skip
_KINDS: Final[tuple[_Kind, ...]] = (
    *_TEST_KINDS, _at_hand, _near_remark, _near_remark, _policy_opening, _policy_opening,
    _policy_opening,
)  # fmt: skip
