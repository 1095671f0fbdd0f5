"""Tables of letters that look like Latin ones, and the Latin letters that they look like."""

from __future__ import annotations

import unicodedata

CYRILLIC, GREEK, ARMENIAN = "\u0400-\u052f", "\u0370-\u03ff", "\u0530-\u058f"
CHEROKEE, COPTIC, LISU = "\u13a0-\u13ff", "\u2c80-\u2cff", "\ua4d0-\ua4ff"
NOT_LATIN = CYRILLIC + GREEK + ARMENIAN + CHEROKEE + COPTIC + LISU
_OTHER_SCRIPTS = {
    # Cyrillic
    **dict(zip("аеорсухіјѕһԁԛԝгкпмтнь", "aeopcyxijshdqwrknmthb", strict=True)),
    **dict(zip("АВЕКМНОРСТУХІЈЅҮԌԚԜЬ", "abekmhopctyxijsygqwb", strict=True)),
    # Greek
    **dict(zip("αοντυικρχγηω", "aovtuikpxynw", strict=True)),
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "abezhikmnoptyx", strict=True)),
    # Armenian, Cherokee, Lisu, Coptic
    **dict(zip("օսհոցզքԼՕՏ", "ouhngqplos", strict=True)),
    **dict(zip("ᎠᎡᎢᎥᎩᎪᎫᎬᎳᎷᎻᎽᏀᏂᏃᏆᏏᏒᏔᏕᏙᏚᏞᏟᏢᏦᏳᏴ", "drtiyajewmhyghzibrwsvslcpkgb", strict=True)),
    **dict(zip("ꓐꓑꓒꓓꓔꓖꓗꓙꓚꓛꓜꓝꓞꓟꓠꓡ", "bpddtgkjcczffmnl", strict=True)),
    **dict(zip("ꓢꓣꓤꓥꓦꓧꓨꓩꓪꓫꓬꓭꓮꓯꓰꓱꓲꓳ", "srrvvhgjwxybaaeeio", strict=True)),
    **dict(zip("ⲟⲣⲥⲭⲁⲉⲓⲕⲙⲛⲧⲩ", "opcxaeikmnty", strict=True)),
}  # fmt: skip
# Letters of phonetic alphabets and of small capitals, and those that are Latin but for a dot.
_PHONETIC = dict(zip("ɑɡıȷʟɪɴʀʜʏʙɢᴀᴄᴅᴇᴊᴋᴍᴏᴘᴛᴜᴠᴡᴢꜰꜱ", "agijlinrhybgacdejkmoptuvwzfs", strict=True))
_TURNED = dict(zip("ɐɔǝɟƃɥᴉɾʞɯɹʇʌʍʎ", "acefghijkmrtvwy", strict=True))
LATIN_LIKE = {ord(letter): latin for letter, latin in _OTHER_SCRIPTS.items()}
_VARIANTS = {ord(letter): latin for letter, latin in (_PHONETIC | _TURNED).items()}
# Full width, mathematical, circled, squared, parenthesised, raised, small capital, turned.
STYLED = (
    "\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d6a3\u24b6-\u24e9\u249c-\u24b5\U0001f110-\U0001f129"
    "\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189\u02b0-\u02b8\u02e1-\u02e3"
    "\u1d2c-\u1d6a\u2071\u207f\u2090-\u209c"
) + "".join(map(chr, _VARIANTS))


def latin(char: str) -> str:
    """The Latin letter, in lower case, that a character looks like; itself where none."""
    code = ord(char)
    if code < 0x80:
        return char.lower()
    found = LATIN_LIKE.get(code) or _VARIANTS.get(code)
    if found is not None:
        return found
    if 0x1F130 <= code <= 0x1F189:  # squared and circled on black: without a decomposition
        return chr(ord("a") + (code - 0x1F130) % 32 % 26) if (code - 0x1F130) % 32 < 26 else char
    plain = unicodedata.normalize("NFKC", char).strip("()").lower()
    return plain if len(plain) == 1 and plain.isascii() else char
