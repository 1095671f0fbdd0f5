"""`CodeVerifier`: checks that a program does only what its question needs."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias, Unpack, get_args

from grpo_guard.content.code.evaluated import check_dynamic, check_evaluated, examples
from grpo_guard.content.code.extract import extract
from grpo_guard.content.code.helpers import check_helpers
from grpo_guard.content.code.imports import check_imports, check_preloaded, scan
from grpo_guard.content.code.installs import check_installs, mentions_installs
from grpo_guard.content.code.instructions import check_texts, instruction
from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.prompt_context import PromptContext, prompt_context, words_of
from grpo_guard.content.code.read import View, read
from grpo_guard.content.code.source import Note, Parsed, Source, parse
from grpo_guard.content.code.stalls import check_stalls
from grpo_guard.content.code.wrapped import MAX_BLOCKS, OWN_IMPORTS, Block
from grpo_guard.content.json_text import Span, strings_of
from grpo_guard.content.rules import RuleOptions, RuleVerifier, short_form
from grpo_guard.content.severity import REJECT, REPORT, Kind, Severity
from grpo_guard.core.arguments import require_choice, require_count
from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, accept, reject

Reaction: TypeAlias = Literal["report", "reject"]

MAX_FINDINGS: Final = 20
MAX_COMMANDS: Final = 5000
# Maximum number of characters of a completion to search for code; no model writes more.
MAX_TEXT: Final = 500_000
# Kinds from earlier versions, each with the kind or verifier that now covers it.
_GONE: Final = {
    "star_import": "unlisted_import",
    "built_string": "dynamic_code",
    "undefined_call": "operator_library",
    "address": "instruction",
    **dict.fromkeys(
        ("control_character", "encoded_payload", "homoglyph", "invisible_character"),
        "ScreensVerifier",
    ),
}


class _Read(NamedTuple):
    """A block that is read as a Python program."""

    block: Block
    source: Source
    parsed: Parsed
    program: Program


class CodeVerifier(RuleVerifier):
    """Rejects programs that teach a library, hide what they run, or stall the reward.

    The checks are static and deterministic, so verdicts carry no p-value. Looks for Python in
    ``<code>`` tags, fenced blocks, JSON strings, diffs and bare lines, and checks every block. A
    completion without code is accepted, because there is nothing to check, unless ``require`` is
    set.

    Rejects imports outside the allow-list, including those in a script's header, a list of
    requirements or an install command (``unlisted_import``); members that allowed modules do not
    have or must not provide (``module_member``); code made at run time (``dynamic_code``);
    unrequested helpers for two or more operators, and calls to functions that exist only in a
    prepared sandbox (``operator_library``); instructions to a reader (``instruction``); endless
    work (``stalls``); and code nested too deeply to be read (``nested_too_deeply``). If code does
    not parse, its imports and installs are still read. Hidden characters and encoded text are left
    to `ScreensVerifier`.

    A program may use anything provided by the question, in code or in prose: parameters, helpers
    and imports. Forgetting to import an allowed module is excused.

    Reports helpers that merely re-implement an operator (``def add(a, b)``), which honest programs
    have too, and blocks in another language, which are not analysed. To reject such blocks, set
    ``severity={"unread_language": "reject"}``.

    Cannot detect what a program does to files, the network or the interpreter's internals (left
    to the sandbox); code in a string that nothing runs; a phrase in a print or comment that asks
    for nothing ("best practice is to use the calc library"); a helper whose name comes from the
    question or means nothing; a wrong computation; and unbounded recursion or an ever-growing list
    behind a condition. Such phrases and helpers recur, so another kind of verifier can count them.

    Args:
        allow: Names of modules to add to the default list (see `modules.DEFAULT`) with all their
            members, or of sets of modules (`modules.SETS`: ``"algorithms"``, ``"text"``,
            ``"data"``, ...), whose members stay restricted to what a solution needs.
        imports: Names of modules or sets of modules that replace the default list.
        on_decoration: What to do with helpers that merely re-implement an operator: ``"report"`` or
            ``"reject"``. Shorthand for the severity of ``operator_helper``.
        require: Whether to reject completions without code.
        reach: Whether tasks ask for programs of any kind: scripts, clients, servers, parts of
            something larger. Programs can then import any well-known module (`modules.well_known`)
            and use its members. Teaching a little-known library, hiding code, and endless loops
            that wait for nothing are still rejected.
        max_chars: Maximum number of characters of code in tags and fences. More is rejected as
            OVERLONG, which bounds time and memory; bare lines beyond the limit are only searched
            for imports, because prose can look like code. A completion of more than 500,000
            characters (`MAX_TEXT`), or more than twice ``max_chars`` if that is larger, is rejected
            as OVERLONG before any search.
        **rules: Options passed to `RuleVerifier`: ``severity``, ``store``, and those for counting.

    Raises:
        ValueError: an argument is out of range or not a list of module names.
    """

    name = "code"
    KINDS: ClassVar[Mapping[str, Kind]] = {
        # More than a solution needs.
        "dynamic_code": REJECT,
        "instruction": REJECT,
        "module_member": REJECT,
        "operator_library": REJECT,
        "stalls": REJECT,
        "unlisted_import": REJECT,
        # Deep nesting must not be a way to avoid being read.
        "nested_too_deeply": REJECT,
        # Honest beginners write such helpers, and honest answers include other languages.
        "operator_helper": REPORT,
        "unread_language": REPORT,
    }
    scope: Scope = "completion"

    def __init__(
        self,
        *,
        allow: Iterable[str] | None = None,
        imports: Iterable[str] | None = None,
        on_decoration: Reaction = "report",
        require: bool = False,
        reach: bool = False,
        max_chars: int = 50_000,
        **rules: Unpack[RuleOptions],
    ) -> None:
        require_choice("on_decoration", on_decoration, get_args(Reaction))
        require_count("max_chars", max_chars)
        severity = rules.get("severity")
        for kind in _GONE.keys() & (severity if isinstance(severity, Mapping) else ()):
            raise ValueError(f"severity.{kind}: leave this kind out; {_GONE[kind]} covers it now")
        self.modules = Modules.build(allow, imports, reach)
        if on_decoration == "reject":
            rules = short_form(rules, "reject", ["operator_helper"])
        super().__init__(**rules)
        self.require = require
        self.max_chars = max_chars

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        # Samples of the same prompt repeat each other, so check each text only once per batch.
        verdict = cache(self._verdict)
        return [verdict(words_of(c.trusted_prompt), c.text, strings_of(c)) for c in batch]

    def _verdict(self, asked: str, text: str, strings: Sequence[Span]) -> Verdict:
        if (overlong := self.overlong(text, max(MAX_TEXT, 2 * self.max_chars))) is not None:
            return overlong
        blocks = extract(text, self.max_chars, strings)
        if not blocks and self.require:
            return reject(self.name, Cause.MALFORMED, "there is no code in the completion")
        marked = [block for block in blocks if not block.bare]
        size = sum(len(block.text) for block in marked)
        if size > self.max_chars or len(marked) > MAX_BLOCKS:
            message = (
                f"{size} characters of code in {len(marked)} blocks; the limits are "
                f"{self.max_chars} and {MAX_BLOCKS}"
            )
            return reject(self.name, Cause.OVERLONG, message)
        if not blocks and not mentions_installs(text):
            return accept(self.name)
        question = prompt_context(asked)
        modules = self.modules.given(question.modules)
        notes = check_installs(text, blocks, modules)
        return self._decide(notes + self._notes(blocks, question, modules))

    def _notes(
        self, blocks: Sequence[Block], question: PromptContext, modules: Modules
    ) -> list[Note]:
        """Return the notes on all blocks, with spans in the completion."""
        notes: list[Note] = []
        programs: list[_Read] = []
        room = self.max_chars
        for block in blocks:
            room -= len(block.text) if block.bare else 0
            if block.bare and room < 0:
                found = scan(block.text, modules)
            else:
                source = Source(block.text)
                parsed = Parsed(None) if block.shell else parse(source)
                if parsed.tree is not None:
                    programs.append(_Read(block, source, parsed, read(parsed.tree)))
                found = self._unread(block, source, parsed, question, modules)
            notes += [_moved(note, block.start) for note in found]
        # Several blocks can form one program, with one block defining what another uses.
        names = {name for one in programs for name in one.program.module.bound}
        defined = [one.program.defined for one in programs]
        for at, (block, source, parsed, program) in enumerate(programs):
            question.complete(program, modules)
            strict = block.explicit or not (block.shown or _only_shows(program))
            known = names | question.names | question.aliases.keys()
            theirs = frozenset[str]().union(*defined[:at], *defined[at + 1 :])
            listed = modules.given(OWN_IMPORTS.get(block.label, ()))
            view = View(
                program, source, parsed.shift, listed, question.text, known, theirs,
                question.defined, strict,
            )  # fmt: skip
            notes += [_moved(note, block.start) for note in _checked(view)]
        return notes

    def _unread(
        self,
        block: Block,
        source: Source,
        parsed: Parsed,
        question: PromptContext,
        modules: Modules,
    ) -> list[Note]:
        """Return the notes on a block that is not read as a Python program, or not only as one."""
        found: list[Note] = []
        if block.shell:
            order = instruction(block.text[:MAX_COMMANDS], question.text, shell=True)
            found = scan(block.text, modules)
            found += [Note("instruction", order, 0, len(block.text))] if order else []
        elif parsed.tree is None and not block.foreign:
            found = self._broken(block, source, parsed, modules)
        # Python under a different label is read all the same.
        if (language := block.language) and (block.label or parsed.tree is None):
            message = f"contains a program in {language[:40]}, which is not read"
            found.append(Note("unread_language", message, 0, len(block.text)))
        return found

    def _broken(self, block: Block, source: Source, parsed: Parsed, modules: Modules) -> list[Note]:
        notes = scan(block.text, modules)
        if not block.explicit and not parsed.too_deep:
            # These lines only looked like Python, but their imports still count.
            return notes
        notes += check_texts(None, source, "", 0)
        if not parsed.too_deep:
            return notes
        # Deep nesting is deliberate, and must not be a way to avoid being read.
        message = f"the code does not parse: {parsed.problem}"
        return [*notes, Note("nested_too_deeply", message, 0, len(block.text))]

    def _decide(self, notes: list[Note]) -> Verdict:
        notes = sorted(notes, key=lambda note: (*self._rank(note.kind), note.start, note.end))
        findings = tuple(
            Finding(note.kind, note.message, char_span=(note.start, note.end)) for note in notes
        )[:MAX_FINDINGS]
        rejecting = {n.kind for n in notes if self.severities[n.kind] is Severity.REJECT}
        if not rejecting:
            return accept(self.name, findings=findings)
        deep = "nested_too_deeply" in rejecting
        return reject(self.name, Cause.MALFORMED if deep else Cause.JUDGED, findings=findings)

    def _rank(self, kind: str) -> tuple[bool, bool]:
        """Return a kind's sort key: deciding kinds come first, so the limit cuts off others."""
        severity = self.severities[kind]
        return severity is not Severity.REJECT, severity is not Severity.COUNT


def _checked(view: View) -> list[Note]:
    """Return all notes on one program, with spans in the program's block."""
    notes = check_imports(view) + check_preloaded(view) + check_dynamic(view) + check_stalls(view)
    notes += check_evaluated(view)
    notes += check_texts(view.program, view.source, view.asked, view.shift)
    return notes + check_helpers(view) + _examples(view)


def _examples(view: View) -> list[Note]:
    """Return notes on docstring examples that the program runs.

    The examples' positions are lost, so every note points to the block's first character.
    """
    text = examples(view.program)
    if text is None:
        return []
    if not text.strip():
        message = "runs doctest without an example: what it runs is not here"
        return [Note("dynamic_code", message, 0, 1)]
    source = Source(text)
    parsed = parse(source)
    inside = view.inside(parsed, source)
    if inside is None:
        found = scan(text, view.modules)
        if parsed.too_deep:
            message = f"the examples that doctest runs do not parse: {parsed.problem}"
            found.append(Note("nested_too_deeply", message, 0, 1))
        return [replace(note, start=0, end=1) for note in found]
    return [replace(note, start=0, end=1) for note in _checked(inside)]


def _only_shows(program: Program) -> bool:
    """Whether the program contains only values, like a program's output: ``sin(a*t)/a``."""
    return all(
        isinstance(node, ast.Expr) and getattr(getattr(node.value, "func", 0), "id", "") != "print"
        for node in program.tree.body
    )


def _moved(note: Note, by: int) -> Note:
    return replace(note, start=note.start + by, end=note.end + by)
