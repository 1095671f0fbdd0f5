"""Rubrics: the instructions for a judge, as versioned text files that anyone can replace.

A rubric file has a header and two parts::

    name: math
    version: 1

    [system]
    ... {verdict}
    [user]
    <task id="{fence}">
    {prompt}
    </task id="{fence}">
    <completion id="{fence}">
    {completion}
    </completion id="{fence}">

``{verdict}`` becomes the verdict mode's own instructions. ``{fence}`` is an id that no author can
know: put it into the opening and the closing tag around prompt, reference and completion. All three
are untrusted, and a tag without the id inside one of them closes nothing. Any line of the user part
that contains ``{reference}`` is dropped if there is no reference. The system part must not contain
anything from a completion, so that it is the same for all completions and stays in the server's
prefix cache.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_guard.core.pages import page

BUNDLED = Path(__file__).parent / "rubrics"
_PLACEHOLDER = re.compile(r"\{(verdict|prompt|reference|completion|fence)\}")


_FORM = (
    'a header of "name: NAME" and "version: 1", a line [system] with your instructions and '
    f"{{verdict}}, and a line [user] with {{prompt}} and {{completion}}, see {page('own-judge')}"
)


class RubricError(ValueError):
    """A rubric is malformed; the message names the file, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Rubric:
    """The text of a judge's messages, with placeholders for the case; raises RubricError if one is
    missing, or is where it must not be."""

    name: str  # for reports, like ``version``
    version: str
    system: str  # the contract; may contain ``{verdict}``
    user: str  # the case; contains ``{completion}`` once, after all other placeholders

    def __post_init__(self) -> None:
        stray = set(_PLACEHOLDER.findall(self.system)) - {"verdict"}
        if stray:
            raise RubricError(
                f"rubric {self.name!r}: [system]: expected no placeholder but {{verdict}}, "
                f"got {{{min(stray)}}}"
            )
        order = [name for name in _PLACEHOLDER.findall(self.user) if name != "fence"]
        if order.count("completion") != 1 or order[-1] != "completion":
            # A completion placed before the instructions could pretend to answer them.
            raise RubricError(
                f"rubric {self.name!r}: [user]: expected {{completion}} once and last, "
                f"got {', '.join(order) or 'no placeholder'}"
            )

    @property
    def digest(self) -> str:
        """A hash of the text that changes with every character; part of the cache key."""
        text = "\0".join((self.name, self.version, self.system, self.user))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def load(cls, name_or_path: str | Path) -> "Rubric":
        """Load a bundled rubric by name, or any rubric file by path; raises RubricError if it does
        not exist or is malformed."""
        path = Path(name_or_path)
        if not path.suffix and path.name == str(name_or_path):
            path = BUNDLED / f"{name_or_path}.txt"
            if not path.is_file():
                known = ", ".join(sorted(p.stem for p in BUNDLED.glob("*.txt")))
                raise RubricError(
                    f"rubric: expected one of {known}, or a file, got {name_or_path!r}"
                )
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise RubricError(f"{path}: expected a readable rubric, got {error}") from None

    @classmethod
    def parse(cls, text: str, where: str = "rubric") -> "Rubric":
        """Parse the text of a rubric file; raises RubricError if it is malformed."""
        head, system_mark, rest = text.partition("\n[system]\n")
        system, user_mark, user = rest.partition("\n[user]\n")
        if not (system_mark and user_mark):
            raise RubricError(f"{where}: expected {_FORM}; got {_missing(text)}")
        fields = dict(line.partition(":")[::2] for line in head.splitlines() if line.strip())
        if set(fields) != {"name", "version"}:
            got = ", ".join(fields) or "nothing"
            raise RubricError(f"{where}: expected {_FORM}; got {got} in the header")
        return cls(fields["name"].strip(), fields["version"].strip(), system.strip(), user.strip())


def _missing(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    lacking = [mark for mark in ("[system]", "[user]") if mark not in lines]
    return f"no line {' and none '.join(lacking)}" if lacking else "these lines in another order"


def fill(template: str, values: Mapping[str, str | None]) -> str:
    """Replace placeholders in one pass, so that inserted text is never expanded again; lines with a
    placeholder whose value is None are dropped."""
    lines = []
    for line in template.split("\n"):
        names = _PLACEHOLDER.findall(line)
        if all(values.get(name, "") is not None for name in names):
            lines.append(line)
    return _PLACEHOLDER.sub(lambda m: values.get(m[1]) or "", "\n".join(lines))
