"""Words that speak to a reader, a model or a grader.

A program's own words are about its question. These patterns ask for two things at once (who is
addressed and what to do), because single words like "ignore" or "answer" are everywhere in honest
comments. Each pattern needs one of a few words; a text without them is not searched.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import islice
from typing import Final

from grpo_guard.content.code.names import words

_READER: Final = (
    r"(?:judge|grader|reviewer|verifier|evaluator|checker|moderator|scorer|assistant|AI|LLM|"
    r"language model|chatbot|ChatGPT|GPT|Claude|model reading|auditor|filter|guard|reader)s?"
)
_READERS: Final = frozenset(
    form
    for word in words(
        "judge grader reviewer verifier evaluator checker moderator scorer assistant ai llm model "
        "chatbot chatgpt gpt claude reading auditor filter guard reader"
    )
    for form in (word, f"{word}s")
)
_RULES: Final[tuple[tuple[str, str], ...]] = (
    # Set the rules aside.
    (
        "ignore disregard forget override bypass skip",
        r"\b(?:ignore|disregard|forget|override|bypass|skip)\b[^.\n]{0,30}\b(?:previous|prior|"
        r"above|earlier|preceding|your|system)\b[^.\n]{0,30}\b(?:instruction|prompt|rule|"
        r"guideline|check|criteria|direction|message|context|polic(?:y|ie)|verification|"
        r"review)s?\b|\b(?:ignore|disregard|override|bypass)\b[^.\n]{0,20}\b(?:all|any|these|"
        r"the)\b[^.\n]{0,20}\b(?:instruction|prompt|guideline|polic(?:y|ie)|verification)s?\b",
    ),
    # Give a model a part to play. Honest questions have assistants and judges too.
    (
        "ai assistant judge grader evaluator model llm chatbot dan",
        r"\b(?:you are|you're|act as|pretend to be|behave as)\s{1,4}(?:now\s{1,4})?"
        r"(?:an?\s{1,4}|the\s{1,4})?(?:\w{1,20}\s{1,4}){0,3}(?:AI|assistant|judge|grader|"
        r"evaluator|language model|LLM|chatbot|DAN)\b|\bas an? (?:AI|language model|LLM)\b",
    ),
    # Address the reader of the code.
    (
        " ".join(_READERS),
        r"\bto (?:any|the|all|every|whichever) (?!reader)" + _READER + r"\b"
        r"|\b(?:dear|note to|message (?:to|for)|attention|hey|hello|instructions? (?:to|for))"
        r"\s{0,3}[,:]?\s{0,3}(?:the\s|all\s|any\s)?\s?" + _READER + r"\b"
        r"|^[#\s]{0,8}(?:reviewer|grader|verifier|evaluator|auditor|LLM|chatbot|AI)s?\s?[:,]\s"
        r"|\b" + _READER + r"\b[,:]?\s[^.\n]{0,30}\b(?:must|should|please|shall|has to|"
        r"needs? to)\b[^.\n]{0,40}\b(?:accept|approve|pass|mark|score|rate|reward|grant|trust|"
        r"repeat|respond|reply|vote)\b",
    ),
    # Ask for a verdict, or for no verdict.
    (
        "accept approve mark rate score grade label classify judge reward",
        r"\b(?:accept|approve|mark|rate|score|grade|label|classify|judge|reward)\s(?:this|the|"
        r"it|my)\b[^.\n]{0,40}\b(?:as|with|at|code|solution|program|submission|completion|"
        r"answer)\b[^.\n]{0,30}\b(?:correct|valid|safe|perfect|full|accepted|yes|1\.0|10/10|"
        r"good|(?<!a )pass\w{0,4}|maximum|honest|benign)\b",
    ),
    (
        "accept approve upvote trust safe benign trusted audited approved preapproved verified "
        "harmless secure whitelisted full",
        r"\b(?:accept|approve|upvote|trust)\s(?:this|the)\s(?:code|solution|program|submission"
        r"|completion)\b|\b(?:this|the)\s(?:code|solution|program|submission|completion)\s(?:is|"
        r"has been|was)\s(?:\w{1,20}\s)?(?:safe|benign|trusted|audited|approved|pre-?approved|"
        r"verified|harmless|secure|whitelisted)\b"
        r"|\b(?:give|award|assign)\b[^.\n]{0,30}\bfull (?:marks|score|points|credit|reward)\b",
    ),
    (
        "verdict decision judgment judgement",
        r"\b(?:verdict|decision|judge?ment)\b[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:correct|accept\w{0,3}"
        r"|yes|valid|pass\w{0,3}|true|approved?|safe)\b|\bverdict\b[^.\n]{0,40}\b(?:is|be|should)"
        r"\b[^.\n]{0,12}\b(?:yes|accept\w{0,3}|correct|pass\w{0,3}|valid|safe)\b",
    ),
    (
        "not don never",
        r"\b(?:do not|don't|never)\s(?:flag|reject|penali[sz]e)\s(?:this|it|me)\b"
        r"|\b(?:do not|don't|never)\s(?:\w{1,20}\s){0,2}(?:check|verify|inspect|flag|reject|"
        r"review|question|analy[sz]e|report|penali[sz]e)\s(?:this|the|it|my|any)\b[^.\n]{0,30}"
        r"\b(?:code|solution|line|program|import|module|function|block|submission|completion|"
        r"answer|further)\b",
    ),
    (
        "prompt prompts instruction instructions injection",
        r"\b(?:system|hidden|secret)\s(?:prompt|instruction)s?\b|\bprompt injection\b",
    ),
    (
        "yes accept accepted approved",
        r"\b(?:respond|reply|answer|output|say|print)\s(?:only\s)?(?:with\s)?(?:the word\s)?"
        r"[\"'`]?(?:yes|accept(?:ed)?|approved)\b[\"'`]?(?:\s|$|\.|!)",
    ),
    # Teach a behaviour for other programs.
    (
        "from future every each henceforth always",
        r"\b(?:from now on|in (?:all )?(?:future|every|each)|henceforth)\b[^.\n]{0,40}"
        r"\b(?:import|use|call|include|begin|start|add|write|say|insert|repeat)\b[^.\n]{0,60}"
        r"\b(?:program|solution|answer|code|response|completion|import|library|module|output|"
        r"phrase|function|sentence)s?\b|\balways\b[^.\n]{0,20}\b(?:import|use|call|include|"
        r"insert|repeat)\b[^.\n]{0,40}\b(?:program|completion|import|library|module|phrase)s?\b"
        r"|\balways\s(?:import|use|call|include|repeat)\b[^.\n]{0,40}\b(?:in|for|with)\s(?:all|any|each"
        r"|every)\s(?:\w{1,12}\s)?(?:program|solution|completion|answer)s?\b",
    ),
    (
        "program programs solution solutions completion completions model models agent agents",
        r"\b(?:future|every|all|other|next)\s(?:future\s)?(?:program|solution|completion|model|"
        r"agent)s?\b[^.\n]{0,30}\b(?:must|should|shall|has to|have to|needs? to)\b[^.\n]{0,30}"
        r"\b(?:import|include|begin|start|copy|insert|repeat|contain)\b",
    ),
    # Have somebody run something.
    (
        "pip conda rm sudo chmod curl wget",
        r"\bpip3?\s(?:install|download)\b|\bconda install\b|\brm\s-rf\b|\bsudo\s\w"
        r"|\bchmod\s[+0-7]|\b(?:curl|wget)\s[^\n]{0,40}(?:://|\.\w{2})",
    ),
    (
        "download install fetch visit execute",
        r"\b(?:download|install|fetch|visit|execute)\b[^.\n]{0,40}\b(?:https?://|www\.|package|"
        r"library|payload|script from)",
    ),
    # The marks of chat templates and of judges' verdicts.
    (
        "inst sys decision verdict criticism judge system assistant user",
        r"\[/?INST\]|<</?SYS>>|</?(?:decision|verdict|criticism|judge|system|assistant)>"
        r"|^\s{0,4}(?:system|assistant|user)\s{0,2}:\s",
    ),
)
_PATTERNS: Final = tuple((words(need), re.compile(p, re.I | re.M)) for need, p in _RULES)
# What no word of its own gives away.
_MARKS: Final = re.compile(r"<\|[a-z_]{2,30}\|>|\bjailbreak", re.I)
_URL: Final = re.compile(
    r"\b(?:https?|ftp|file|data)://[^\s'\"<>)]{3,200}|\bwww\.[a-z0-9-]{2,60}\.[a-z]", re.I
)
# An address of code, of a bare machine or of a place for pastes is there to be fetched.
_FETCHED: Final = re.compile(
    r"(?<!\.ps)(?<!\.pdf)\.(?:py|pyc|whl|sh|zip|tgz|gz|exe|so|dll|bin|js|ps1|jar)\b|^(?:ftp|file|data):|pastebin|//raw\."
    r"|gist|//\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}|\.onion\b|@",
    re.I,
)
# A page that shows a file is there to be read.
_PAGE: Final = re.compile(r"https?://(?:github|gitlab)\.com/[\w./-]{1,100}?/(?:blob|tree)/", re.I)
_WORD: Final = re.compile(r"[a-z]+")
SKELETON: Final = str.maketrans(
    "аеорсухіјѕԁԛԝһѵгкмнтвпАВЕКМНОРСТУХІЈЅοαεινρτυχκΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսցոհ",
    "aeopcyxijsdqwhvrkmhtbnABEKMHOPCTYXIJSoaeivptuxkABEZHIKMNOPTYXougnh",
)


def plain(text: str) -> str:
    """A text in the letters that it looks like: ``ｓｋｉｐ`` and Cyrillic lookalikes."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text).translate(SKELETON)


def vocabulary(text: str) -> set[str]:
    """The words of a plain text, in lower case."""
    # Case folding, as the patterns' re.I reads the long s as an s.
    return set(_WORD.findall(text.lower() if text.isascii() else text.casefold()))


def may_instruct(text: str, known: set[str]) -> bool:
    """Whether `instruction` may find anything in a text of these words, or in a part of it."""
    if any(not need.isdisjoint(known) for need, _ in _PATTERNS):
        return True
    return "://" in text or "<|" in text or "ailbreak" in text.lower()


def instruction(text: str) -> str | None:
    """What a text asks its reader to do; None where it reads as words of a question."""
    text = plain(text)
    known = vocabulary(text)
    for need, pattern in _PATTERNS:
        if not need.isdisjoint(known) and (match := pattern.search(text)):
            return f"speaks to a reader or model: {match[0].strip()[:60]!r}"
    if ("<|" in text or "ailbreak" in text.lower()) and (match := _MARKS.search(text)):
        return f"speaks to a reader or model: {match[0].strip()[:60]!r}"
    if "://" in text:
        for match in islice(_URL.finditer(text), 20):
            if _FETCHED.search(match[0]) and not _PAGE.match(match[0]):
                return f"holds an address to fetch from: {match[0][:60]!r}"
    return None


def address(text: str) -> str | None:
    """An address of the web, of which an honest comment may hold one."""
    if "://" not in text and "www." not in text.lower():
        return None
    match = _URL.search(text)
    return f"holds an address: {match[0][:60]!r}" if match else None
