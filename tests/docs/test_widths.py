"""Code blocks fit the page: at 1280 px a block has room for 88 columns."""

import unicodedata

import pytest

from tests.docs.doc_pages import PAGES, blocks

COLUMNS = 88


def columns(line):
    """Width in terminal columns; a Chinese character takes two."""
    return sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_fit(page):
    wide = [
        f"{block.page}:{block.line + i}: {columns(line)} columns"
        for block in blocks(page)
        for i, line in enumerate(block.text.splitlines())
        if columns(line) > COLUMNS
    ]
    assert not wide, "\n".join(wide)


def test_wide_characters_count_twice():
    assert columns("a中") == 3
