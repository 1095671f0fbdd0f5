r"""Decode JSON escapes inside a completion without shifting any characters.

Some tasks ask for answers as JSON, and tool calls are JSON: each line break in them is written as
``\n``, and each LaTeX command has two backslashes. Rules must see what a consumer of the JSON sees.
Each run of escapes is replaced by the characters it encodes, padded with spaces to its original
length so that finding spans still refer to the original completion. A string that is itself JSON,
as tool-call arguments often are, is decoded again.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from grpo_guard.content.endings import without_end_marks
from grpo_guard.core.completion import Completion

Span: TypeAlias = tuple[int, int]

MAX_LEVELS: Final = 4
"""Maximum depth of nested JSON strings to decode, counting the outermost level."""
LONG_PADDING: Final = 50
"""Minimum length of padding, in characters, to count as long."""

# Skips LaTeX commands whose backslash was not escaped: "\neq" is not a line break before "eq".
_ESCAPE: Final = (
    r"\\(?:[\"/\\]|u[0-9a-fA-F]{4}|f(?=from\b|import\b)|t(?!(?:ag|anh?|au|binom|[df]?frac|ext[a-z]*+"
    r"|herefore|heta|hinspace|ilde|imes|op?|riangle[a-z]*+)(?![a-z]))"
    r"|r(?!(?:angle|brace|brack|ceil|floor|ho|ight[a-z]*+|m|oot|ule|vert)(?![a-z]))|n(?!(?:"
    r"e|eq|eg|u|i|abla|ot|otin|mid|parallel|subseteq|ewline|onumber|cong|leq|geq)(?![a-z])))"
)
_ONE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_MEANT: Final = {"n": "\n", "t": "\t", "r": "\n", "f": "\f"}
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*+)', re.S)
# Until decoding is complete, padding must be distinguishable from spaces written by the author.
_PADS: Final = tuple(map(chr, range(0xFDD0, 0xFDF0)))
# Occurs in every string that could be a program.
_PROGRAM: Final = re.compile(r"\n|import|exec|__")
_INDENTED: Final = re.compile(r"(?:\\[nt]|\") ++\Z")
_BETWEEN: Final = re.compile(r'"\s{0,80}+,\s{0,80}+"')

# Text counts as JSON if it has a key or is a single string: models forget escapes or get cut off,
# which a strict parser would reject. Bounded, because the pattern is tried at every position.
_OBJECT: Final = r'(?:[\[{]\s{0,200}+){1,12}+"(?:[^"\\\n]|\\[^\n]){0,999}+"\s{0,99}+:'
# JSON at the start of the text or of a fence extends to the end of that text or fence.
_WHOLE: Final = re.compile(
    rf'(?:\A|```(?:json|JSON)?(?=[ \t\r]*\n))\s*+(?={_OBJECT})|\A\s*+(?="(?s:.*)"\s*\Z)'
)
# JSON after a tool-call tag, a label ("Action Input:") or another object, or at the start of a
# line.
_INSIDE: Final = re.compile(
    r"(?:<[^<>\n]{1,200}+>\s{0,200}+|\[[A-Z_]{3,24}+\]\s{0,200}+|[}\]][\s,;]{0,200}+|\bfunctools(?=\[)"
    rf"|^[ \t]{{0,200}}+(?:[A-Za-z][A-Za-z ]{{1,24}}+:\s{{0,200}}+)?+)(?={_OBJECT})",
    re.M,
)
_FENCE: Final = re.compile(r"^[ \t>]{0,12}+(?:```++|~~~++)[ \t]{0,8}+([^\s`]{0,32}+)", re.M)
_DATA: Final = frozenset({"json", "jsonl", "json5", "xml", "tool_call", "tool_calls"})
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.S)


@dataclass(frozen=True, slots=True)
class Read(Completion):
    """A completion as rules see it, with its JSON decoded.

    Args:
        strings: Spans of JSON strings that could be programs. A consumer of the JSON gets each
            string by itself, so the first character of a string begins a line.
        padding: Spans of long padding, which was not written by the author.
    """

    strings: tuple[Span, ...] = field(default=(), kw_only=True)
    padding: tuple[Span, ...] = field(default=(), kw_only=True)


def strings_of(completion: Completion) -> tuple[Span, ...]:
    """Return the spans of JSON strings that could be programs; empty unless `as_read` found any."""
    return completion.strings if isinstance(completion, Read) else ()


def padding_of(completion: Completion) -> tuple[Span, ...]:
    """Return the spans of long padding in a completion; empty unless `as_read` found any."""
    return completion.padding if isinstance(completion, Read) else ()


def as_read(completion: Completion) -> Completion:
    """Return the completion with end-of-text marks stripped and the escapes in its JSON decoded.

    Returns the same object if nothing changes and no JSON string could be a program.
    """
    text = without_end_marks(completion.text)
    pieces: list[str] = []
    strings: list[Span] = []
    padding: list[Span] = []
    pad, at = next((one for one in _PADS if one not in text), " "), 0
    for start, end in _json_parts(text):
        decoded = _decoded(text[start:end], pad, MAX_LEVELS, start, strings)
        padding += _long_runs(decoded, pad, start)
        pieces += [text[at:start], decoded.replace(pad, " ")]
        at = end
    read = "".join([*pieces, text[at:]]) if pieces else text
    if strings or padding:
        given: dict[str, Any] = {one.name: getattr(completion, one.name) for one in _FIELDS}
        found = {"strings": tuple(strings), "padding": tuple(padding)}
        return Read(**(given | {"text": read} | found))
    return completion if read == completion.text else replace(completion, text=read)


_FIELDS: Final = fields(Completion)


def _long_runs(decoded: str, pad: str, offset: int) -> Iterator[Span]:
    """Yield the spans, in the completion, of padding of at least `LONG_PADDING` characters."""
    if pad != " " and pad * LONG_PADDING in decoded:
        for run in re.finditer(f"{pad}{{{LONG_PADDING},}}+", decoded):
            yield offset + run.start(), offset + run.end()


def _decoded(piece: str, pad: str, levels: int, offset: int, strings: list[Span]) -> str:
    """Decode the escapes in a piece of JSON and in JSON nested in its strings, keeping the length.

    Args:
        offset: Where the piece begins in the completion.
        strings: List to which the spans of strings that could be programs are appended.
    """
    runs, words, nested = _patterns(pad)
    decoded = piece
    if "\\" in piece:
        # A word with only some of its letters escaped must stay in one piece.
        decoded = (words if "\\u" in piece else runs).sub(lambda run: _meant(run, pad), piece)
    pieces: list[str] = []
    at = last = 0
    for string in _STRING.finditer(piece):
        start, end = string.span(1)
        inner = decoded[start:end]
        if levels > 1 and nested.match(inner):
            pieces += [decoded[at:start], _decoded(inner, pad, levels - 1, offset + start, strings)]
            at = end
        # A notebook cell's lines are strings in a list; the last line has no line break.
        elif _PROGRAM.search(inner) or (
            last and decoded[last - 1] == "\n" and _BETWEEN.fullmatch(piece, last, start)
        ):
            strings.append((offset + start, offset + end))
            last = end
    return "".join([*pieces, decoded[at:]])


@lru_cache(maxsize=len(_PADS) + 1)
def _patterns(pad: str) -> tuple[re.Pattern[str], ...]:
    """Return patterns for a run of escapes, for a run with adjoining words, and for the start of
    JSON in a string."""
    run = rf"(?:{pad}*+{_ESCAPE})++"
    word = rf"(?:\w++|{pad}*+\\u[0-9a-fA-F]{{4}})"
    blank = rf"[\s{pad}]{{0,99}}+"
    nested = rf'{blank}(?:[\[{{]{blank}){{1,4}}+"[^"\n]{{0,99}}+"{blank}:'
    return re.compile(run), re.compile(rf"{run}{word}*+|{word}++"), re.compile(nested)


def _meant(run: re.Match[str], pad: str) -> str:
    """Decode a run of escapes and pad the result to the same length, in front if possible.

    Lines keep their indentation, and a backslash at the end of a line stays in place.
    """
    if "\\" not in run[0]:
        return run[0]
    decoded = _ONE.sub(_character, run[0].replace(pad, "") if pad in run[0] else run[0])
    decoded = decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    before = 0
    if "\n" in decoded:
        before = len(decoded.partition("\n")[0].rstrip("\\"))
    elif decoded[:1] == '"' and _INDENTED.search(run.string, max(0, run.start() - 80), run.start()):
        before = len(decoded) - len(decoded.lstrip('"'))
    return decoded[:before] + pad * (len(run[0]) - len(decoded)) + decoded[before:]


def _character(one: re.Match[str]) -> str:
    return chr(int(one[1], 16)) if one[1] else _MEANT.get(one[2], one[2])


def _json_parts(text: str) -> Iterator[Span]:
    """Yield the spans of JSON in the text, in order and in linear time; it need not be well formed.

    JSON is the whole text, the content of a fence, or an object at the start of a line or after a
    tool-call tag. An object that is never closed extends to the end of the text.
    """
    if '"' not in text:
        return
    begins = [(match.end(), 0) for match in _WHOLE.finditer(text)]
    begins += [
        (match.end(), 1 if match[0][:1] in ("<", "[") else 2) for match in _INSIDE.finditer(text)
    ]
    programs = _programs(text) if begins else []
    end = 0
    for at, kind in sorted(begins):
        # A dictionary in a program is not JSON, but a tagged tool call counts as JSON anywhere.
        if at < end or (kind == 2 and bisect_right(programs, at) % 2):
            continue
        if kind == 0:
            close = text.find("```", at)
            end = len(text) if close < 0 else close
        else:
            end = _closed(text, at)
        yield at, end


def _programs(text: str) -> list[int]:
    """Return the offsets where fences of anything but data begin and end, alternately."""
    edges: list[int] = []
    label: str | None = None
    for fence in _FENCE.finditer(text):
        if label is None:
            label = fence[1].lower()
            edges += [] if label in _DATA else [fence.start()]
        elif not fence[1]:
            edges += [] if label in _DATA else [fence.start()]
            label = None
    return edges


def _closed(text: str, at: int) -> int:
    """Return the end of the object that begins at ``at``, or of the text if never closed."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return len(text)
