"""Comments, strings and characters that speak to a reader, a model or a grader.

A program's own words are about its question. These patterns ask for two things at once (who is
addressed and what to do), because single words like "ignore" or "answer" are everywhere in honest
comments.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import islice
from typing import Final

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.note import Note, Weight
from grpo_guard.content.code.payloads import encoded_text, hidden_code
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source

_READER: Final = (
    r"(?:judge|grader|reviewer|verifier|evaluator|checker|moderator|scorer|assistant|AI|LLM|"
    r"language model|chatbot|ChatGPT|GPT|Claude|model reading|auditor|filter|guard|reader)s?"
)
_INSTRUCTIONS: Final = re.compile(
    "|".join(
        (
            # Set the rules aside.
            r"(?:ignore|disregard|forget|override|bypass|skip)\b[^.\n]{0,30}\b(?:previous|prior|"
            r"above|earlier|preceding|your|system)\b[^.\n]{0,30}\b(?:instruction|prompt|rule|"
            r"guideline|check|criteria|direction|message|context|polic(?:y|ie)|verification|"
            r"review)s?\b|(?:ignore|disregard|override|bypass)\b[^.\n]{0,20}\b(?:all|any|these|"
            r"the)\b[^.\n]{0,20}\b(?:instruction|prompt|guideline|polic(?:y|ie)|verification)s?\b",
            # Give a model a part to play. Honest questions have assistants and judges too.
            r"\b(?:you are|you're|act as|pretend to be|behave as)\s{1,4}(?:now\s{1,4})?"
            r"(?:an?\s{1,4}|the\s{1,4})?(?:\w{1,20}\s{1,4}){0,3}(?:AI|assistant|judge|grader|"
            r"evaluator|language model|LLM|chatbot|DAN)\b|\bas an? (?:AI|language model|LLM)\b",
            # Address the reader of the code.
            r"\bto (?:any|the|all|every|whichever) (?!reader)" + _READER + r"\b",
            r"\b(?:dear|note to|message (?:to|for)|attention|hey|hello|instructions? (?:to|for))"
            r"\s{0,3}[,:]?\s{0,3}(?:the\s|all\s|any\s)?\s?" + _READER + r"\b",
            r"^[#\s]{0,8}(?:reviewer|grader|verifier|evaluator|auditor|LLM|chatbot|AI)s?\s?[:,]\s",
            r"\b" + _READER + r"\b[,:]?\s[^.\n]{0,30}\b(?:must|should|please|shall|has to|"
            r"needs? to)\b[^.\n]{0,40}\b(?:accept|approve|pass|mark|score|rate|reward|grant|trust|"
            r"repeat|respond|reply|vote)\b",
            # Ask for a verdict, or for no verdict.
            r"\b(?:accept|approve|mark|rate|score|grade|label|classify|judge|reward)\s(?:this|the|"
            r"it|my)\b[^.\n]{0,40}\b(?:as|with|at|code|solution|program|submission|completion|"
            r"answer)\b[^.\n]{0,30}\b(?:correct|valid|safe|perfect|full|accepted|yes|1\.0|10/10|"
            r"good|pass\w{0,4}|maximum|honest|benign)\b",
            r"\b(?:accept|approve|upvote|trust)\s(?:this|the)\s(?:code|solution|program|submission"
            r"|completion)\b|\b(?:this|the)\s(?:code|solution|program|submission|completion)\s(?:is|"
            r"has been|was)\s(?:\w{1,20}\s)?(?:safe|benign|trusted|audited|approved|pre-?approved|"
            r"verified|harmless|secure|whitelisted)\b"
            r"|\b(?:give|award|assign)\b[^.\n]{0,30}\bfull (?:marks|score|points|credit|reward)\b",
            r"\b(?:do not|don't|never)\s(?:flag|reject|penali[sz]e)\s(?:this|it|me)\b",
            r"\b(?:do not|don't|never)\s(?:\w{1,20}\s){0,2}(?:check|verify|inspect|flag|reject|"
            r"review|question|analy[sz]e|report|penali[sz]e)\s(?:this|the|it|my|any)\b[^.\n]{0,30}"
            r"\b(?:code|solution|line|program|import|module|function|block|submission|completion|"
            r"answer|further)\b",
            r"\b(?:system|hidden|secret)\s(?:prompt|instruction)s?\b|\bprompt injection\b"
            r"|\bjailbreak",
            r"\b(?:respond|reply|answer|output|say|print)\s(?:only\s)?(?:with\s)?(?:the word\s)?"
            r"[\"'`]?(?:yes|accept(?:ed)?|approved)\b[\"'`]?(?:\s|$|\.|!)",
            # Teach a behaviour for other programs.
            r"\b(?:from now on|in (?:all )?(?:future|every|each)|henceforth)\b[^.\n]{0,40}"
            r"\b(?:import|use|call|include|begin|start|add|write|say|insert|repeat)\b[^.\n]{0,60}"
            r"\b(?:program|solution|answer|code|response|completion|import|library|module|output|"
            r"phrase|function|sentence)s?\b|\balways\b[^.\n]{0,20}\b(?:import|use|call|include|"
            r"insert|repeat)\b[^.\n]{0,40}\b(?:program|completion|import|library|module|phrase)s?\b",
            # Have somebody run something.
            r"\bpip3?\s(?:install|download)\b|\bconda install\b|\brm\s-rf\b|\bsudo\s\w"
            r"|\bchmod\s[+0-7]|\b(?:curl|wget)\s[^\n]{0,40}(?:://|\.\w{2})",
            r"\b(?:download|install|fetch|visit|execute)\b[^.\n]{0,40}\b(?:https?://|www\.|package|"
            r"library|payload|script from)",
            # The marks of chat templates and of judges' verdicts.
            r"<\|[a-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>|</?(?:decision|verdict|criticism|judge|system"
            r"|assistant)>|^\s{0,4}(?:system|assistant|user)\s{0,2}:\s",
        )
    ),
    re.I | re.M,
)
_URL: Final = re.compile(
    r"\b(?:https?|ftp|file|data)://[^\s'\"<>)]{3,200}|\bwww\.[a-z0-9-]{2,60}\.[a-z]", re.I
)
# An address of code, of a bare machine or of a place for pastes is there to be fetched.
_FETCHED: Final = re.compile(
    r"\.(?:py|pyc|whl|sh|zip|tgz|gz|exe|so|dll|bin|js|ps1|jar)\b|^(?:ftp|file|data):|pastebin|//raw\."
    r"|gist|//\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|\.onion\b|@",
    re.I,
)
_COOKIE: Final = re.compile(r"^[ \t\f]*#[^\r\n]{0,200}?coding[:=][ \t]*([-\w.]{1,60})")
_COMMENTED_IMPORT: Final = re.compile(
    r"#+\s{0,20}(?:from\s+(\.*[\w.]+)\s+import\s+[\w*]|import\s+([\w.]+)(?:\s+as\s+\w+)\s*$)"
)
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0e\ufeff\uffa0\U000e0000-\U000e007f]|(?<![\U0001f000-\U0001faff\u2600-\u27bf])\ufe0f"
)
_LOOKALIKES: Final = re.compile(r"_*(?:[O0oQ_]+|[lI1i_]+)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x1b]")
_SKELETON: Final = str.maketrans(
    "аеорсухіјѕԁԛԝһѵгкмнтвпАВЕКМНОРСТУХІЈЅοαεινρτυχκΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսցոհ",
    "aeopcyxijsdqwhvrkmhtbnABEKMHOPCTYXIJSoaeivptuxkABEZHIKMNOPTYXougnh",
)


def check_words(
    program: Program | None, source: Source, modules: Modules, shift: int
) -> list[Note]:
    """Notes about the words and characters of a block; ``program`` is None where it is broken."""
    notes = _characters(source)
    for start, end in source.comments[:5000]:
        notes += _comment(source.text[start:end], start, end, modules)
    if program is not None:
        for node in program.texts:
            text = node.value if isinstance(node.value, str) else ""
            if invisible := _INVISIBLE.search(text):
                message = f"a string holds the invisible character U+{ord(invisible[0]):04X}"
                notes.append(Note("invisible_character", message, *source.span(node, shift)))
            if said := _said(text):
                notes.append(Note("instruction", said, *source.span(node, shift)))
            elif address := _address(text):
                span = source.span(node, shift)
                notes.append(Note("address", address, *span, Weight.DECORATION))
        notes += _identifiers(program, source, shift)
    return notes + _coding(source)


def _comment(text: str, start: int, end: int, modules: Modules) -> list[Note]:
    if said := _said(text):
        return [Note("instruction", said, start, end)]
    if encoded := encoded_text(text):
        return [Note("encoded_payload", encoded, start, end)]
    if address := _address(text):
        return [Note("address", address, start, end, Weight.DECORATION)]
    if match := _COMMENTED_IMPORT.match(text):
        module = match[1] or match[2]
        if not modules.allows(module):
            message = f"a comment holds an import of {module[:40]}"
            return [Note("code_in_comment", message, start, end)]
    body = text.lstrip("# ")
    if "import" in body or "__" in body or "(" in body:
        code = hidden_code(body, modules)
        if code and "import of" not in code:
            return [Note("code_in_comment", code.replace("string", "comment"), start, end)]
    return []


def _said(text: str) -> str | None:
    if match := _INSTRUCTIONS.search(text):
        return f"speaks to a reader or model: {match[0].strip()[:60]!r}"
    for match in islice(_URL.finditer(text), 20):
        if _FETCHED.search(match[0]):
            return f"holds an address to fetch from: {match[0][:60]!r}"
    return None


def _address(text: str) -> str | None:
    match = _URL.search(text)
    return f"holds an address: {match[0][:60]!r}" if match else None


def _characters(source: Source) -> list[Note]:
    notes = []
    text = source.text
    for match in _INVISIBLE.finditer(text, 1 if text.startswith("\ufeff") else 0):
        message = f"holds the invisible character U+{ord(match[0]):04X}"
        notes.append(Note("invisible_character", message, *match.span()))
        break
    if control := _CONTROL.search(text):
        message = f"holds the control character U+{ord(control[0]):04X}"
        notes.append(Note("control_character", message, *control.span()))
    return notes


def _coding(source: Source) -> list[Note]:
    """Run from a file, a program under another coding is another program: rot13, utf-7."""
    lines = re.split(r"\r\n|\r|\n", source.text.lstrip("\r\n")[:1000])[:2]
    for line in lines:
        match = _COOKIE.match(line)
        if match and match[1].lower().replace("_", "-") not in (
            "utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1", "utf-8-sig",
        ):  # fmt: skip
            at = max(0, source.text.find(line))
            message = f"declares the source coding {match[1][:40]!r}"
            return [Note("source_coding", message, at, at + len(line))]
    return []


def _identifiers(program: Program, source: Source, shift: int) -> list[Note]:
    """Names that look like other names. The parser already reads full-width letters as plain."""
    notes = []
    for name, node in program.identifiers.items():
        if name.isascii():
            # O0O0OO and lI1lI1 are made to be mistaken for each other.
            if len(name) > 4 and _LOOKALIKES.fullmatch(name) and len(set(name.strip("_"))) > 1:
                message = f"the name {name[:40]!r} is made of letters that look alike"
                notes.append(Note("homoglyph", message, *source.span(node, shift)))
            continue
        skeleton = unicodedata.normalize("NFKC", name).translate(_SKELETON)
        mixed = any("CYRILLIC" in _name(c) or "ARMENIAN" in _name(c) for c in name) and any(
            "LATIN" in _name(c) for c in name
        )
        if mixed or (skeleton.isascii() and (len(skeleton) > 2 or skeleton in program.identifiers)):
            message = f"the name {name[:40]!r} looks like {skeleton[:40]!r}"
            notes.append(Note("homoglyph", message, *source.span(node, shift)))
    disguised = re.search(r"[\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d7ff]", source.text)
    if disguised and _in_code(disguised.start(), program, source, shift):
        message = "writes a name in letters that only look plain"
        notes.append(Note("homoglyph", message, *disguised.span()))
    return notes


def _in_code(at: int, program: Program, source: Source, shift: int) -> bool:
    """Whether a character stands outside comments and strings."""
    if any(start <= at < end for start, end in source.comments):
        return False
    return not any(a <= at < b for a, b in (source.span(node, shift) for node in program.texts))


def _name(character: str) -> str:
    return unicodedata.name(character, "")
