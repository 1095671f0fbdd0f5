"""Messages name a page by its path in the checkout; an installed wheel says where that is."""

from pathlib import Path

import pytest

from grpo_guard.core import pages


def test_a_page_of_the_checkout_is_named_by_its_path():
    assert pages.page("trl") == "docs/trl.md"
    assert pages.page("trl#other-nodes-completions") == "docs/trl.md#other-nodes-completions"


@pytest.mark.parametrize(
    ("urls", "where"),
    [
        (["Paper, https://arxiv.org/abs/1"], "docs/trl.md in grpo-guard's repository"),
        (["Paper, https://a", "Repository, https://b"], "docs/trl.md in https://b"),
        (None, "docs/trl.md in grpo-guard's repository"),
    ],
)
def test_an_installed_wheel_has_no_pages(monkeypatch, tmp_path, urls, where):
    class Metadata:
        def get_all(self, name: str) -> list[str] | None:
            return urls

    monkeypatch.setattr(pages, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(pages, "metadata", lambda name: Metadata())
    assert pages.page("trl") == where


def test_every_page_that_a_message_names_exists():
    import re

    root = Path(pages.__file__).parents[2]
    named = {
        found
        for folder in ("grpo_guard", "adapters")
        for file in (root / folder).rglob("*.py")
        for found in re.findall(r"\bpage\(['\"]([a-z-]+)", file.read_text(encoding="utf-8"))
    }
    assert {"trl", "migration", "troubleshooting"} <= named
    assert [name for name in named if not (root / "docs" / f"{name}.md").is_file()] == []
