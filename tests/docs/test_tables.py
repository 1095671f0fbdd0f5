"""Tables of the pages fit a screen: few columns, and each row as long as its header."""

import re

import pytest

from tests.docs.doc_pages import PAGES

WIDEST = 7  # on a desktop; the first pages fit a phone of 400 px with 5
FIRST = {"index", "trl", "verl", "openrlhf", "genrl", "agents", "presets", "identity", "trainers"}
TABLES = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


def tables(text):
    """Parse each table into rows of cells."""
    for found in TABLES.findall(text):
        yield [re.split(r"(?<!\\)\|", line)[1:-1] for line in found.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_fit(page):
    most = 5 if page.stem in FIRST and page.parent.name == "docs" else WIDEST
    for rows in tables(page.read_text(encoding="utf-8")):
        assert {len(row) for row in rows} == {len(rows[0])}, f"a row differs from {rows[0]}"
        assert len(rows[0]) <= most, f"{len(rows[0])} columns: split the table {rows[0]}"


def test_wide_tables_are_found():
    (rows,) = tables("before\n\n| a | b \\| c |\n|---|---|\n| 1 | 2 |\n\nafter\n")
    assert [len(row) for row in rows] == [2, 2, 2]
