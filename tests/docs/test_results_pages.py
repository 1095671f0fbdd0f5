"""The marked tables of the results pages match the data in docs/results."""

import re

import pytest

from grpo_guard.evals.studies.pages.__main__ import rewritten
from grpo_guard.evals.studies.pages.names import TABLES
from tests.docs.doc_pages import PAGES, ROOT

pytest.importorskip("scipy")
MARKED = [page for page in PAGES if "<!-- table: " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.stem)
def test_page_is_current(page):
    text = page.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run `python -m grpo_guard.evals.studies.pages`"
    marks = text.count("<!-- table: ")
    assert marks == text.count("<!-- end of table -->")
    assert marks == len(re.findall(r"^<!-- table: [\w-]+ -->\n\n\|", text, re.MULTILINE))


def test_every_table_is_on_a_page():
    shown = re.findall(r"<!-- table: ([\w-]+) -->", "".join(p.read_text("utf-8") for p in MARKED))
    assert sorted(shown) == sorted(TABLES)


def test_block_is_replaced_and_its_surroundings_are_kept():
    page = "before\n\n<!-- table: swarm-unread -->\nold\n<!-- end of table -->\n\nafter\n"
    new = rewritten(page)
    assert new.startswith("before\n\n<!-- table: swarm-unread -->\n\n| attack | undefended |")
    assert new.endswith("|\n\n<!-- end of table -->\n\nafter\n")
    assert "old" not in new
    assert rewritten(new) == new


def test_unknown_table_is_an_error():
    with pytest.raises(KeyError, match="nowhere"):
        rewritten("<!-- table: nowhere -->\n<!-- end of table -->\n")


def test_results_files_named_in_pages_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"docs/results/([\w-]+\.json)", text):
            assert (ROOT / "docs" / "results" / name).is_file(), f"{page.name}: {name}"
