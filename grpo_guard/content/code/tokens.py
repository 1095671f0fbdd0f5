"""What can be seen in a program that does not parse.

Strings and comments cannot be told apart from code in broken text, so everything is read as code.
"""

from __future__ import annotations

import re
from typing import Final

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.source import Source

_IMPORT: Final = re.compile(
    r"(?:^|[;:])[ \t\f>]{0,80}(?:from[ \t\\\r\n]+(\.*[^\W\d][\w.]*+|\.+)[ \t\\\r\n]+import\b"
    r"|import[ \t\\\r\n]+([^\W\d][\w.]*+))",
    re.M,
)
_DANGEROUS: Final = re.compile(
    r"\b(?:eval|exec|execfile|compile|__import__|open|input|globals|locals|vars|breakpoint|getattr|"
    r"setattr|delattr)\s{0,20}\(|\bexec\s{1,20}['\"]|\b(?:os|sys|subprocess|socket|importlib|ctypes|"
    r"pickle|builtins|shutil)\s{0,4}\.\s{0,4}\w|__(?:builtins|class|bases|subclasses|mro|globals|"
    r"import|loader|dict|code)__"
)


def scan(source: Source, modules: Modules) -> list[Note]:
    """Imports that are not allowed and dangerous names in text that no parser reads."""
    notes = []
    for match in _IMPORT.finditer(source.text):
        module = match[1] or match[2]
        if not modules.allows(module):
            message = f"imports {module[:60]}, which is not on the list of allowed modules"
            notes.append(Note("unlisted_import", message, *match.span()))
            if len(notes) > 20:
                return notes
    for match in _DANGEROUS.finditer(source.text):
        message = f"uses {match[0].strip('( ')[:40]}, which reaches outside the program"
        notes.append(Note("reaches_out", message, *match.span()))
        if len(notes) > 40:
            break
    return notes
