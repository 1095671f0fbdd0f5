"""A switch of language within one script, seen in its function words.

No dictionary and no model: the forty commonest words of a language make up half of any text in it,
and those below are no words of English. A clause of six words in another language between English
sentences is what is looked for, not a borrowed word or a name.
"""

from __future__ import annotations

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
