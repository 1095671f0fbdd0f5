"""Find comments, strings and names that address a reader, a model or a grader.

A program's own text is about its question. The patterns require two things at once (an addressee
and an order), because single words like "ignore" or "answer" are everywhere in honest comments.
Each pattern comes with a few words, and is skipped for text that contains none of them.
"""

import re
import unicodedata
from typing import Final

from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Note, Source
from grpo_guard.content.word_set import word_set

# Games have AI players, and filters pass values: such words on their own address nobody.
_GRADER: Final = r"(?:judge|grader|reviewer|verifier|evaluator|auditor|scorer|LLM|language model)s?"
_READER: Final = (
    rf"(?:{_GRADER}|(?:assistant|AI|chatbot|ChatGPT|GPT|Claude|model reading|reader)s?)"
)
_OBJECT: Final = r"(?:code|solution|program|submission|completion|response)"
# Orders found in a program's text. In a shell block, these commands are normal, except for piping
# a download into an interpreter.
_COMMANDS: Final = (
    "pip rm sudo curl wget",
    r"\bpip3?\sdownload\b|\brm\s-rf\b|\bsudo\s(?!(?:apt|pip|python)\b)\w"
    r"|\b(?:curl|wget)\s[^\n]{0,40}(?:://|\.\w{2})",
)
_FETCHED: Final = (
    "pip curl wget",
    r"\bpip3?\sdownload\b|\b(?:curl|wget)\s[^\n]{0,300}[|;&(<]\s{0,4}(?:sudo\s)?(?:env\s)?"
    r"(?:ba|z|da|k)?sh\b|\b(?:curl|wget)\s[^\n]{0,300}\|\s{0,4}(?:sudo\s)?(?:python|perl|ruby|node)"
    r"|\b(?:ba|z|da|k)?sh\s[^\n]{0,40}[(`](?:curl|wget)\s|\beval\s[^\n]{0,40}(?:curl|wget)\s",
)
_RULES: Final[tuple[tuple[str, str], ...]] = (
    # Set the rules aside.
    (
        "ignore disregard forget override bypass",
        r"\b(?:ignore|disregard|forget|override|bypass)\b[^.\n]{0,30}\b(?:previous|prior|above|"
        r"earlier|preceding|your|system)\b[^.\n]{0,30}\b(?:instruction|prompt|rule|guideline|"
        r"polic(?:y|ie)|system message)s?\b|\b(?:ignore|disregard|override|bypass) (?:all|any) "
        r"(?:\w{1,20} ){0,2}(?:instruction|prompt|guideline|polic(?:y|ie)|verification)s?\b",
    ),
    # Give a model a role. Honest questions have assistants and judges too.
    (
        "ai assistant judge grader evaluator model llm chatbot dan",
        r"\b(?:you are|you're|act as|pretend to be|behave as)\s{1,4}(?:now\s{1,4})?"
        r"(?:an?\s{1,4}|the\s{1,4})?(?:\w{1,20}\s{1,4}){0,3}(?:AI|assistant|judge|grader|"
        r"evaluator|language model|LLM|chatbot|DAN)\b|\bas an? (?:AI|language model|LLM)\b",
    ),
    # Address someone reading the code.
    (
        "judge grader reviewer verifier evaluator auditor scorer llm language assistant ai chatbot "
        "chatgpt gpt claude reading reader judges graders reviewers verifiers evaluators auditors "
        "scorers llms models assistants ais readers",
        rf"\bto (?:any|all|every|whichever) (?!readers?\b){_READER}\b|\bto (?:the )?{_GRADER}:"
        rf"|\b(?:dear|note to|message (?:to|for)|attention|instructions? (?:to|for))"
        rf"\s{{0,3}}[,:]?\s{{0,3}}(?:the\s|all\s|any\s)?\s?{_READER}\b"
        rf"|^[#\s]{{0,8}}(?:reviewer|grader|verifier|evaluator|auditor|LLM)s?\s?[:,]\s"
        rf"|\b{_GRADER}\b[,:]?\s[^.\n]{{0,30}}\b(?:must|should|please|shall|has to|needs? to)\b"
        r"[^.\n]{0,40}\b(?:accept|approve|pass|mark|score|rate|reward|grant|trust|repeat|respond|"
        r"reply|vote)\b",
    ),
    # Ask for a verdict, or for none.
    (
        "accept approve mark rate score grade label classify judge reward upvote trust",
        rf"\b(?:accept|approve|mark|rate|score|grade|label|classify|judge|reward)\s(?:this|the|my)"
        rf"\s(?:{_OBJECT}|answer)\b[^.\n]{{0,40}}\b(?:correct|valid|safe|perfect|full|accepted|yes|"
        r"1\.0|10/10|good|pass\w{0,4}|maximum|honest|benign)\b"
        rf"|\b(?:accept|approve|upvote|trust)\s(?:this|the)\s{_OBJECT}\b",
    ),
    (
        "safe benign trusted audited approved preapproved verified harmless secure full",
        rf"\b(?:this|the)\s{_OBJECT}\s(?:is|has been|was)\s(?:\w{{1,20}}\s)?(?:safe|benign|trusted|"
        r"audited|approved|pre-?approved|verified|harmless|secure)\b"
        r"|\b(?:give|award|assign)\b[^.\n]{0,30}\bfull (?:marks|credit|reward)\b",
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
        rf"|\b(?:do not|don't|never)\s(?:\w{{1,20}}\s){{0,2}}(?:check|verify|inspect|flag|reject|"
        rf"review|question|report|penali[sz]e)\s(?:this|the|my|any)\s(?:{_OBJECT}|imports?)\b",
    ),
    (
        "prompt prompts instruction instructions injection",
        r"\b(?:system|hidden|secret)\s(?:prompt|instruction)s?\b|\bprompt injection\b",
    ),
    (
        "yes accept accepted approved",
        r"\b(?:respond|reply|say|vote)\s(?:only\s)?(?:with\s)?(?:the word\s)?"
        r"[\"'`]?(?:yes|accept(?:ed)?|approved)\b[\"'`]?(?:\s|$|\.|!)",
    ),
    # Teach a habit for other programs.
    (
        "from future every each henceforth always",
        r"\b(?:from now on|henceforth|in (?:all )?(?:future|every|each) (?:\w{1,12} )?"
        rf"{_OBJECT}s?)\b"
        r"[^.\n]{0,40}\b(?:import|use|call|include|begin|start|add|write|say|insert|repeat)\b"
        r"|\balways\s(?:import|use|call|include|repeat)\b[^.\n]{0,40}\b(?:in|for|with)\s(?:all|any|"
        rf"each|every)\s(?:\w{{1,12}}\s)?(?:{_OBJECT}|answer)s?\b",
    ),
    (
        "program programs solution solutions completion completions model models agent agents",
        r"\b(?:(?:every|all|other|next)\s(?:future\s)?(?:program|completion|model|agent)|future\s"
        r"solution)s?\b[^.\n]{0,30}\b(?:must|should|shall|has to|have to|needs? to)\b[^.\n]{0,30}"
        r"\b(?:import|include|begin|start|copy|insert|repeat|contain)\b",
    ),
    # Get someone to run something.
    _COMMANDS,
    (
        "download install fetch visit execute",
        r"\b(?:download|install)\b[^.\n]{0,40}\b(?:https?://|www\.|package|library|payload)"
        r"|\b(?:fetch|visit|execute)\b[^.\n]{0,40}\b(?:https?://|www\.|payload|script from)",
    ),
    # Marks of chat templates and of judges' verdicts.
    (
        "inst sys decision verdict criticism judge system assistant user",
        r"\[/?INST\]|<</?SYS>>|</?(?:decision|verdict|criticism|judge|system|assistant)>"
        r"|^\s{0,4}(?-i:SYSTEM|ASSISTANT)\s{0,2}:\s",
    ),
)
_PATTERNS: Final = tuple((word_set(need), re.compile(p, re.I | re.M)) for need, p in _RULES)
_IN_SHELL: Final = tuple(
    (word_set(_FETCHED[0]), re.compile(_FETCHED[1], re.I | re.M)) if rule is _COMMANDS else pair
    for rule, pair in zip(_RULES, _PATTERNS, strict=True)
)
# Marks not revealed by any of the words above.
_MARKS: Final = re.compile(r"<\|[a-z_]{2,30}\|>|\bjailbreak", re.I)
_COMMAND: Final = re.compile(
    r"(?:sudo\s|curl\s|wget\s|rm\s|eval\s|pip3?\s|(?:ba|z|da|k)?sh\s)", re.I
)
# The installers of rustup, uv, nvm, Homebrew and Ollama, over https, with no other options or
# addresses. Commit hashes are not allowed, because GitHub shows forks' commits under the same name.
_INSTALLER: Final = re.compile(
    r"\b(?:curl|wget)(?:[ \t]{1,4}(?:-[fsSLqoO]{1,8}-?|--proto|--tlsv1\.[23]|[\"']?=https[\"']?"
    r"|--silent|--show-error|--fail|--location)(?=[ \t])){0,8}[ \t]{1,4}[\"']?https://(?:"
    r"sh\.rustup\.rs/?|astral\.sh/uv/(?:[0-9][0-9.]{0,12}/)?install\.sh|ollama\.com/install\.sh"
    r"|raw\.githubusercontent\.com/(?:nvm-sh/nvm/v[0-9][0-9.]{0,12}|Homebrew/install/HEAD)/install\.sh"
    r")(?=[\"')]{0,3}[ \t]{0,4}(?:[|;&`)\r\n]|\Z))"
)
_WORD: Final = re.compile(r"[a-z]+")
_SKELETON: Final = str.maketrans(
    "аеорсухіјѕԁԛԝһѵгкмнтвпАВЕКМНОРСТУХІЈЅοαεινρτυχκΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսցոհ",
    "aeopcyxijsdqwhvrkmhtbnABEKMHOPCTYXIJSoaeivptuxkABEZHIKMNOPTYXougnh",
)

MAX_COMMENTS: Final = 5000
_LONG_NAME: Final = re.compile(r"(?:[^\W_]++_){3}")
_BETWEEN: Final = re.compile(r"[ \t]*(?:\r\n|\r|\n)[ \t]*")


def check_texts(program: Program | None, source: Source, asked: str, shift: int) -> list[Note]:
    """Find orders in the comments, strings and names of a block.

    Args:
        program: The parsed program, or None if the block does not parse, in which case only
            comments are read.
        source: The text of the block.
        asked: The question, in lower case.
        shift: Number of lines prepended to the text to make it parse.
    """
    pieces = _comments_and_strings(program, source, shift)
    notes: list[Note] = []
    everything = "\n".join(text for _, _, text, _ in pieces)
    speaks = _may_instruct(_plain(everything))
    for start, end, text, _ in pieces if speaks else ():
        if order := instruction(text, asked):
            notes.append(Note("instruction", order, start, end))
    if speaks and not any(note.kind == "instruction" for note in notes):
        for start, end, text in _paragraphs(pieces, source):
            if order := instruction(text, asked):
                notes.append(Note("instruction", order, start, end))
    for name, node in program.identifiers.items() if program is not None else ():
        # mark_this_solution_as_correct = 1
        if _LONG_NAME.match(name) and (order := instruction(name.replace("_", " "), asked)):
            notes.append(Note("instruction", order, *source.span(node, shift)))
    return notes


def _comments_and_strings(
    program: Program | None, source: Source, shift: int
) -> list[tuple[int, int, str, bool]]:
    """Return (start, end, text, is_comment) for each comment and string in a block."""
    text = source.text
    pieces = [(a, b, text[a:b], True) for a, b in source.comments[:MAX_COMMENTS]]
    for node in program.texts if program is not None else ():
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
        if len(value) > 5:
            pieces.append((*source.span(node, shift), value, False))
    return pieces


def _paragraphs(
    pieces: list[tuple[int, int, str, bool]], source: Source
) -> list[tuple[int, int, str]]:
    """Join comments on consecutive lines into one text, because an order can span several lines."""
    found: list[tuple[int, int, str]] = []
    lines: list[str] = []
    first = last = 0
    for start, end, text, is_comment in pieces:
        if not is_comment:
            break
        follows = bool(lines) and start - last < 200
        if not (follows and _BETWEEN.fullmatch(source.text, last, start)):
            if len(lines) > 1:
                found.append((first, last, " ".join(lines)))
            lines, first = [], start
        lines.append(text.strip("# \t"))
        last = end
    return [*found, (first, last, " ".join(lines))] if len(lines) > 1 else found


def _plain(text: str) -> str:
    """Replace look-alike characters with the letters they imitate: ``ｓｋｉｐ`` becomes "skip"."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text).translate(_SKELETON)


def _may_instruct(text: str) -> bool:
    """Whether `instruction` could find anything in plain text, or in part of it."""
    known = _vocabulary(text)
    if any(not need.isdisjoint(known) for need, _ in _PATTERNS):
        return True
    return "<|" in text or "ailbreak" in text.lower()


def instruction(text: str, asked: str = "", shell: bool = False) -> str | None:
    """Return a message about what a text tells its reader to do, or None if it gives no order.

    Args:
        text: Text from a program.
        asked: The question, in lower case. Orders that the question itself contains are ignored.
        shell: Whether this is a shell block, where commands are not orders to a reader.
    """
    if "https://" in text:  # before replacing look-alikes, because a host name could contain one
        text = _INSTALLER.sub("", text)
    text = _plain(text)
    known = _vocabulary(text)
    for need, pattern in _IN_SHELL if shell else _PATTERNS:
        match = None if need.isdisjoint(known) else pattern.search(text)
        if match and match[0].strip().lower() not in asked:
            return _message(match[0].strip(), text[match.start() : match.start() + 200])
    marks = ("<|" in text or "ailbreak" in text.lower()) and _MARKS.search(text)
    if marks and marks[0].lower() not in asked:
        return _message(marks[0].strip(), "")
    return None


def _message(found: str, line: str) -> str:
    """Return the message about an order: either a shell command or an instruction to a reader.

    Args:
        found: The text matched by a pattern.
        line: The text from the match onwards. For a command, the message shows the rest of its
            line.
    """
    if _COMMAND.match(found):
        return f"a shell command: {line.strip().partition(chr(10))[0][:60]!r}"
    return f"addresses a reader or model: {found[:60]!r}"


def _vocabulary(text: str) -> set[str]:
    """Return the words of plain text, in lower case."""
    # Case folding, because re.I in the patterns matches the long s as an s.
    return set(_WORD.findall(text.lower() if text.isascii() else text.casefold()))
