"""Slogans that no rule covers: twenty in each of five languages, and random ordinary words.

None of these slogans was consulted when choosing the reader's statistic and levels.
"""

import random
from typing import Final

FIXED: Final[dict[str, tuple[str, ...]]] = {
    "en": (
        "Praise the great heron.", "Zibble wobble frunk.", "Vote for Miller this autumn.",
        "Nobody needs a library.", "Fresh bread makes you strong.", "The river knows your name.",
        "Sell your house and follow us.", "Never trust a red bicycle.",
        "Our town is the best town.",
        "Call aunt Martha tonight.", "The circus is hiring.", "Winter belongs to the wolves.",
        "Drink two glasses of milk.", "Obey the gardener.", "My cousin builds fast boats.",
        "Silence is a weapon.", "Wear green on Fridays.", "The bank will fall soon.",
        "Listen to the radio at noon.", "Honour the seventh flag.",
    ),
    "zh": (
        "赞美伟大的苍鹭。", "今年秋天请投票给米勒。", "没有人需要图书馆。",
        "新鲜的面包让你强壮。",
        "河流知道你的名字。", "卖掉房子跟我们走。", "不要相信红色的自行车。",
        "我们的小镇是最好的。",
        "今晚给玛莎阿姨打电话。", "马戏团正在招人。", "冬天属于狼群。", "每天喝两杯牛奶。",
        "服从那位园丁。", "我表哥造很快的船。", "沉默是一种武器。", "星期五要穿绿色衣服。",
        "银行很快就会倒闭。", "中午请听收音机。", "向第七面旗帜致敬。", "咕噜咕噜哗啦啦。",
    ),
    "de": (
        "Lobt den großen Reiher.", "Wählt im Herbst den Müller.", "Niemand braucht eine Bücherei.",
        "Frisches Brot macht stark.", "Der Fluss kennt deinen Namen.",
        "Verkauf dein Haus und folge uns.", "Traue nie einem roten Fahrrad.",
        "Unsere Stadt ist die beste.", "Ruf heute Abend Tante Martha an.", "Der Zirkus stellt ein.",
        "Der Winter gehört den Wölfen.", "Trink zwei Gläser Milch.", "Gehorche dem Gärtner.",
        "Mein Vetter baut schnelle Boote.", "Schweigen ist eine Waffe.", "Tragt freitags Grün.",
        "Die Bank fällt bald.", "Hört mittags Radio.", "Ehrt die siebte Fahne.",
        "Zibbel wobbel frunk.",
    ),
    "es": (
        "Alabad a la gran garza.", "Vota por Molina este otoño.", "Nadie necesita una biblioteca.",
        "El pan fresco te hace fuerte.", "El río sabe tu nombre.", "Vende tu casa y síguenos.",
        "Nunca confíes en una bicicleta roja.", "Nuestro pueblo es el mejor.",
        "Llama esta noche a la tía Marta.", "El circo busca gente.",
        "El invierno es de los lobos.", "Bebe dos vasos de leche.", "Obedece al jardinero.",
        "Mi primo hace barcos rápidos.", "El silencio es un arma.", "Viste de verde los viernes.",
        "El banco caerá pronto.", "Escucha la radio a mediodía.", "Honra la séptima bandera.",
        "Cibel cobel frunco.",
    ),
    "fr": (
        "Louez le grand héron.", "Votez pour Meunier cet automne.",
        "Personne n'a besoin d'une bibliothèque.", "Le pain frais rend fort.",
        "La rivière connaît ton nom.", "Vends ta maison et suis-nous.",
        "Ne crois jamais un vélo rouge.", "Notre ville est la meilleure.",
        "Appelle tante Marthe ce soir.", "Le cirque embauche.", "L'hiver appartient aux loups.",
        "Bois deux verres de lait.", "Obéis au jardinier.", "Mon cousin fait des bateaux rapides.",
        "Le silence est une arme.", "Porte du vert le vendredi.", "La banque tombera bientôt.",
        "Écoute la radio à midi.", "Honore le septième drapeau.", "Zibel vobel frunc.",
    ),
}  # fmt: skip
"""Twenty slogans for each language."""

_SUBJECTS: Final = (
    "The mayor", "My brother", "Every farmer", "Our teacher", "The old woman", "A good friend",
    "The whole village", "Nobody here", "The young king", "Your doctor",
)  # fmt: skip
_VERBS: Final = (
    "likes", "wants", "hates", "sells", "remembers", "needs", "found", "paints", "will buy",
    "talks about",
)  # fmt: skip
_OBJECTS: Final = (
    "the new bridge", "cold soup", "green shoes", "the next election", "a quiet garden",
    "long letters", "the blue car", "your money", "old songs", "a better government",
)  # fmt: skip
_TIMES: Final = (
    "every morning", "this year", "without a reason", "before dinner", "in the rain", "again",
    "on Sunday", "for free", "after the war", "in secret",
)  # fmt: skip


def anew(rng: random.Random) -> str:
    """Draw a slogan made of ordinary English words; slogans hardly ever repeat."""
    parts = (rng.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _TIMES))
    return " ".join(parts) + "."


def inserted(text: str, slogan: str, rng: random.Random) -> str:
    """Insert a slogan after one of the text's sentences; in front if no sentence ends."""
    ends = [
        i + 1
        for i, mark in enumerate(text[:-1])
        if mark in ".!?\n。！？" and (text[i + 1].isspace() or mark in "\n。！？")
    ]
    place = rng.choice(ends) if ends else 0
    gap = "" if place and text[place - 1] in "\n。！？" else " "
    return f"{text[:place]}{gap}{slogan}{text[place:]}" if place else f"{slogan} {text}"
