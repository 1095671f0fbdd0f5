"""docs/troubleshooting.md quotes only messages that the package really gives."""

import ast
import re

import pytest

from tests.docs.doc_pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)


def said_by(path):
    """Strings of a source file; for f-strings and logging formats, the fixed parts."""
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
def test_quoted_message_is_in_the_source(message, texts):
    assert re.search(r"[^\0]*".join(map(re.escape, message.split("..."))), texts), message


def test_every_message_has_a_cause_and_a_remedy():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(MESSAGES) > 20
    assert all(len([c for c in row.strip("|").split(" | ") if c.strip()]) == 3 for row in rows)
