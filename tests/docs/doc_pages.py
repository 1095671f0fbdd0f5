"""Code blocks of README and docs/, verbatim."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, the line where its code begins, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def file(self):
        """File name in the block's first line, or None."""
        found = re.match(r"# ([\w-]+\.\w+)\n", self.text)
        return found[1] if found else None


def blocks(page):
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text[: m.start(2)].count("\n") + 1, m[1], m[2]) for m in _BLOCK.finditer(text)
    ]


def all_blocks(*languages):
    return [b for page in PAGES for b in blocks(page) if b.language in languages]


def commands(block):
    """Commands of a console block, without prompts and with continued lines joined."""
    lines = block.text.replace("\\\n", "").splitlines()
    return [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ ")]
