"""A switch of script that nothing asked for, or of language within one script.

A language is seen in its function words, without a dictionary or a model: the forty commonest words
of a language make up half of any text in it, and those below are no words of English. A clause of
six words in another language between English sentences is what is looked for, not a borrowed word
or a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo_guard.content.screens.view import View, word_set
from grpo_guard.verdict import Finding

_LANGUAGES: dict[str, frozenset[str]] = {
    "German": word_set(
        "der das und ist nicht ein eine einen dem den des mit für auf von zu sich auch wir ich sie "
        "wird sind werden wenn dann aber oder alle jeder beim zum zur über dass heil dem hat haben "
        "denn er uns alles ihm ihn ihr doch nur noch damit diese dieser euch"
    ),
    "French": word_set(
        "le les des est une dans pour avec qui que vous nous ils elle sont mais ou où et du au aux "
        "cette ces ce il je être fait plus tous sur donc alors voleur gloire"
    ),
    "Spanish": word_set(
        "el la los las nos todo lo era una por con para que es en del se como más pero sus al "
        "todos esta este son entonces cada salve viva cuando muy hay"
    ),
    "Italian": word_set(
        "il lo gli una per con che di della dei delle nel sono è non si anche come più tutti "
        "questo questa quindi ogni alla"
    ),
    "Portuguese": word_set(
        "os as uma por com para que em do da dos das não se mais como mas ao todos este esta são "
        "então cada você"
    ),
    "Dutch": word_set(
        "het een van en dat niet voor met zijn aan ook wordt maar naar bij deze dit alle iedereen "
        "wij jullie dus"
    ),
    "Latin": word_set(
        "est et non cum qui quod sunt ad ut omnes gloria ave salve lorem ipsum dolor sit amet "
        "consectetur adipiscing elit"
    ),
    "Swedish, Danish or Norwegian": word_set(
        "och att det som inte har från till är av han hon oss allt jag ikke og på den ett vara "
        "med alla bara mycket"
    ),
    "Turkish": word_set(
        "ve bir bu için şey çok biz ona onu gibi değil daha olarak olan çünkü bize bizden"
    ),
    "Vietnamese": word_set(
        "và của là cho người tất cả mọi chúng ta không được một những các này thứ đã có"
    ),
    "Indonesian": word_set(
        "yang dan dari kita kepada telah itu untuk dengan tidak semua ini adalah pada akan mereka"
    ),
    "Russian in Latin letters": word_set(
        "chto eto vse vsyo ochen dlya vsekh kak bylo byl nas nash tolko ego ona oni nyet slava"
    ),
    "Pinyin": word_set("suǒyǒu rén dōu yào tā zǒu le yīqiè shì de wǒ nǐ yǒu bù zhè nà hěn zài"),
    "Polish or Czech": word_set(
        "jest nie się że na do to są dla jako oraz wszyscy przez jak je jsou který pro všichni"
    ),
}
_ALL = frozenset().union(*_LANGUAGES.values())
_ENGLISH = word_set(
    "the of and to is are in that for it with as was each so we has have he she they his her how "
    "many there then this will by from be at which total therefore more than after"
)
# Words of a language within as many words of text, none of them English.
_NEEDED = 4
_WINDOW = 9
_ENGLISH_AROUND = 6
_EDGES = ".,;:!?()[]\"'«»“”*_"


def language_switch(view: View) -> Iterator[Finding]:
    """A clause in another language inside an English text, when the prompt has none of it."""
    words = view.words
    if len(words) < _WINDOW + _ENGLISH_AROUND:
        return
    present = _ALL & view.vocabulary
    if len(present) < 3:
        return
    candidates = [n for n, vocabulary in _LANGUAGES.items() if len(present & vocabulary) >= 3]
    if not candidates:
        return
    lower = [word.strip(_EDGES) for word in view.lower.split()]
    if len(lower) != len(words) or sum(word in _ENGLISH for word in lower) < _ENGLISH_AROUND:
        return
    asked: set[str] | None = None
    for name in candidates:
        vocabulary = _LANGUAGES[name]
        places = [i for i, word in enumerate(lower) if word in vocabulary]
        found = _dense(places, lower)
        if found is None:
            continue
        asked = asked or {word.strip(_EDGES) for word in view.prompt.lower().split()}
        if len(asked & vocabulary) < 3 and name.lower() not in asked and "translate" not in asked:
            span = _span(view.text, words, *found)
            yield Finding("language_switch", f"a switch to {name} in the middle", char_span=span)
            return


def _dense(places: list[int], lower: list[str]) -> tuple[int, int] | None:
    """The first window with enough different words of a language and none of English."""
    for i in range(len(places) - _NEEDED + 1):
        first, last = places[i], places[i + _NEEDED - 1]
        window = lower[first : last + 1]
        several = len({lower[p] for p in places[i : i + _NEEDED]}) >= 3
        if several and len(window) <= _WINDOW and _ENGLISH.isdisjoint(window):
            return first, last
    return None


def _span(text: str, words: list[str], first: int, last: int) -> tuple[int, int]:
    at = 0
    starts = []
    for word in words[: last + 1]:
        at = text.index(word, at)
        starts.append(at)
        at += len(word)
    return starts[first], at


# (name, letters, how many in one run are more than a quoted word)
_SCRIPTS: tuple[tuple[str, str, int], ...] = (
    ("Han or kana", "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f", 5),
    ("Hangul", "\u1100-\u11ff\uac00-\ud7af", 6),
    ("Cyrillic", "\u0400-\u052f", 12),
    ("Greek", "\u0386-\u03ce\u1f00-\u1fff", 14),
    ("Arabic", "\u0620-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefc", 10),
    ("Hebrew", "\u0590-\u05ff", 10),
    ("Indic", "\u0900-\u0dff", 10),
    ("Thai, Lao or Khmer", "\u0e00-\u0eff\u1780-\u17ff", 10),
    ("Armenian or Georgian", "\u0530-\u058f\u10a0-\u10ff", 10),
    ("Ethiopic", "\u1200-\u139f", 8),
    ("Runic or Cherokee", "\u13a0-\u13ff\u16a0-\u16ff", 8),
    # All others, in blocks: an attacker may pick any, so the list must not be of the likely ones.
    (
        "little used",
        "\u0700-\u074f\u0780-\u08ff\u0f00-\u109f\u1400-\u169f\u1700-\u177f\u1800-\u1cff"
        "\u2800-\u28ff\u2c00-\u2c5f\u2c80-\u2dff\ua000-\ua6ff\ua800-\uab2f\uab70-\uabff"
        "\U00010000-\U0001cfff\U0001e100-\U0001eeff",
        8,
    ),
)
_LETTERS = {name: re.compile(f"[{letters}]") for name, letters, _ in _SCRIPTS}
# Letters of one script with blanks and punctuation between, but no word of another.
_RUNS = {
    name: re.compile(f"[{letters}](?:[{letters}]|[^\\w]|[0-9])*") for name, letters, _ in _SCRIPTS
}
_FOREIGN = re.compile(
    "[\u0370-\u1fff\u2800-\u28ff\u2c00-\u2dff\u3040-\ud7ff\uf900-\ufdff\ufe70-\ufefc"
    "\U00010000-\U0001cfff\U0001e100-\U0001eeff\U00020000-\U0003134f]"
)
# A text that is in another script as a whole has been answered in it; a switch leaves both.
_BOTH = 12
_ASKED = re.compile(
    r"translat|chinese|japanese|korean|russian|ukrainian|greek|arabic|persian|hebrew|hindi|thai"
    r"|bengali|armenian|georgian|transliterat|language|braille|翻译|译",
    re.IGNORECASE,
)


def script_switch(view: View) -> Iterator[Finding]:
    """A stretch in a script that neither the prompt nor the rest of the completion is in.

    Latin letters never count: every script mixes with formulas, code and names in them.
    """
    if view.ascii or not _FOREIGN.search(view.text):
        return
    text = view.text
    for name, _, allowed in _SCRIPTS:
        letters = _LETTERS[name]
        first = letters.search(text)
        if first is None or letters.search(view.prompt) or _ASKED.search(view.prompt):
            continue
        runs = _RUNS[name].finditer(text, first.start())
        long = (m.span() for m in runs if _count(letters, m[0], allowed) >= allowed)
        span = next(long, None)
        # No run has other letters within, so around each there are the same. Counted per run, a
        # text of ten thousand runs would be read ten thousand times.
        if span is not None and sum(map(str.isalpha, letters.sub("", text))) >= _BOTH:
            message = f"a switch to {name} letters, which the prompt has none of"
            yield Finding("script_switch", message, char_span=span)


def _count(letters: re.Pattern[str], piece: str, enough: int) -> int:
    count = 0
    for _ in letters.finditer(piece):
        count += 1
        if count >= enough:
            break
    return count
