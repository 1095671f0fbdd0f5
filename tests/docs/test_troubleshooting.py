"""docs/troubleshooting.md quotes messages that the package really gives."""

import ast
import re

import pytest

from tests.docs.doc_pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)


def said_by(path):
    """Texts of a source file; of f-strings and of logging's formats, what stands in between."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "..." for v in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[.\d]*[sdgr]", "...", node.value)


@pytest.fixture(scope="module")
def texts():
    places = [p for top in ("grpo_guard", "adapters") for p in (ROOT / top).rglob("*.py")]
    return "\0".join(text for path in places for text in said_by(path))


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_in_the_source(message, texts):
    assert re.search(r"[^\0]*".join(map(re.escape, message.split("..."))), texts), message


def test_each_has_a_cause_and_a_remedy():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(MESSAGES) > 20
    assert all(len([c for c in row.strip("|").split(" | ") if c.strip()]) == 3 for row in rows)
