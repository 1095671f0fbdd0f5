"""What the question provides: names and imports that answers can use without defining them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from grpo_guard.content.code.modules import BEFOREHAND, Modules, well_known
from grpo_guard.content.code.program import Program
from grpo_guard.content.word_set import word_set
from grpo_guard.core.prompts import Message

MAX_PROMPT: Final = 100_000
# Possessive, because prompts can be long; the prompt is the trainer's, so not hostile.
_DEFINED: Final = re.compile(r"\b(?:def|class)[ \t]++([^\W\d]\w{0,80}+)")
_SIGNATURE: Final = re.compile(
    r"\bdef[ \t]++\w{1,80}+[ \t]*+\(((?:[^()]|\([^()]{0,200}+\)){0,2000}+)\)"
)
_PARAMETER: Final = re.compile(r"([^\W\d]\w{0,80}+)[ \t]*+(?=[:=,)]|\s*\Z)")
_ASSIGNED: Final = re.compile(
    r"^[ \t]{0,40}+([^\W\d]\w{0,80}+)[ \t]*+(?::[^=\r\n]{1,80})?=(?!=)", re.M
)
# "You are given is_valid(board, row, col)", in prose.
_CALLED: Final = re.compile(r"\b([^\W\d]\w{0,80}+)\(")
_IMPORT: Final = re.compile(
    r"^[ \t>#]{0,40}+(?:from[ \t]++([^\W\d][\w.]{0,80}+)[ \t]++import[ \t]++([^\r\n]{1,300})"
    r"|import[ \t]++([^\r\n]{1,300}))",
    re.M,
)
# "You may use `rich`", or "using polars and pydantic". In the latter, only well-known names count:
# a problem "with a basket" does not name a library.
_TICKED: Final = re.compile(r"`(\w{2,40}+)/?`|\b(\w{1,40}+)\.py\b")
_NAMED: Final = re.compile(r"\b(?i:use|using|with)[ \t]++[\w, \t]{2,60}+")
# "the marker package", "in Maya Python": the question is about a little-known package. Not every
# word of a question counts, or a problem about apples would permit importing "apples".
_PACKAGE: Final = re.compile(
    r"\b(\w{2,40}+)[ \t]++(?i:package|library|module|python)\b"
    r"|\b(?i:package|library|module)[ \t]++(\w{2,40}+)\b|/site-packages/(\w{2,40}+)/"
)
# "utils/paginator.py": what a patch imports from the code base shown in the question.
_FOLDERS: Final = re.compile(r"\b((?:\w{1,40}+/){1,8}+)\w{1,60}+\.py\b")
_PIECE: Final = re.compile(r"\s*+([^\W\d][\w.]{0,80}+)(?:\s++as\s++([^\W\d]\w{0,80}+))?\s*+\Z")
# Words next to "library" and the like that are not the library's name: "the Python library".
_ANY_PACKAGE: Final = word_set(
    "a an any and each every external for from in is it my no of one or our own python script some "
    "standard that the this third to use using which with write your"
)


@dataclass(frozen=True, slots=True)
class PromptContext:
    """Everything defined by a question.

    Args:
        text: The question, in lower case.
        names: Functions, classes, parameters and values, including those named only in prose.
        aliases: Modules imported by the question's code, keyed by the names they are bound to.
        defined: Functions and classes defined by the question's code.
        modules: All modules that the question imports, imports from or suggests.
    """

    text: str
    names: frozenset[str]
    aliases: dict[str, str]
    defined: frozenset[str]
    modules: frozenset[str]

    def complete(self, program: Program, modules: Modules) -> None:
        """Add modules that a program uses without importing to the program's aliases.

        Their members are then checked too.
        """
        for name in program.read_names & (BEFOREHAND | self.aliases.keys()) - self.names:
            module = self.aliases.get(name, name)
            if modules.allows(module) and name not in program.module.bound:
                program.aliases.setdefault(name, module)


def words_of(prompt: str | Sequence[Message]) -> str:
    """Return the prompt's text without earlier assistant messages, which a model wrote."""
    if isinstance(prompt, str):
        return prompt[:MAX_PROMPT]
    messages = [message for message in prompt if message.get("role") != "assistant"]
    return "\n".join(str(m.get("content", "")) for m in messages)[:MAX_PROMPT]


@lru_cache(maxsize=256)
def prompt_context(text: str) -> PromptContext:
    """Collect what the question defines, be it in plain code, a fence, a comment or a sentence."""
    defined = frozenset(_DEFINED.findall(text))
    names = {*defined, *_ASSIGNED.findall(text), *_CALLED.findall(text)}
    for signature in _SIGNATURE.findall(text):
        names.update(_PARAMETER.findall(signature))
    aliases: dict[str, str] = {}
    suggested = {name for piece in _NAMED.findall(text) for name in re.split(r"\W+", piece.lower())}
    modules = (suggested & well_known()).union(a or b for a, b in _TICKED.findall(text))
    packages = {(a or b or c).lower() for a, b, c in _PACKAGE.findall(text)}
    modules |= packages - _ANY_PACKAGE
    modules |= {name for path in _FOLDERS.findall(text) for name in path.split("/") if name}
    for source, members, whole in _IMPORT.findall(text):
        pieces = [_PIECE.match(piece) for piece in (members or whole).strip(" ()").split(",")]
        if not all(pieces) or not pieces:
            continue  # "import taxes are 5 %" is a sentence
        if source:
            modules |= {source, source.partition(".")[0]}
            names.update(piece[2] or piece[1] for piece in pieces if piece)
            continue
        for piece in pieces:
            assert piece is not None
            modules.add(piece[1])
            name = piece[2] or piece[1].partition(".")[0]
            aliases[name] = piece[1] if piece[2] else name
    return PromptContext(text.lower(), frozenset(names), aliases, defined, frozenset(modules))
