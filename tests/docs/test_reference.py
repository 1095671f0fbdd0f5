"""The reference pages generated from the code are complete."""

import importlib.util
import inspect
import re

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.config import GuardConfig
from grpo_guard.config.presets import PRESETS
from grpo_guard.core.registry import VERIFIERS, names
from tests.docs.doc_pages import ROOT

PAGES = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("docs_hook", PAGES / "hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_of_a_guard_file_is_listed(hook):
    page = hook.on_page_markdown((PAGES / "guard-file.md").read_text(encoding="utf-8"))
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert {f"`type: {n}`" for n in names(VERIFIERS)} <= sections.keys()
    assert {f"`preset: {n}`" for n in PRESETS} <= sections.keys()
    top = set(re.findall(r"^\| `(\w+)` \|", sections["At the top"], re.MULTILINE))
    assert top == set(GuardConfig.model_fields)
    for section, row in (
        ("`type: screens`", "| `severity` | mapping or null | default null |"),
        ("`policy`", "| `max_abstain_rate` | number | default 0.25 |"),
        ("`ledger`", "| `exclude` | true or false | default true |"),
        ("Next to every `type`", "| `calibration` | text or null | default null |"),
        ("`preset: different_weights`", "| `state` |"),
    ):
        assert row in sections[section]


def test_terminal_prints_what_the_pages_fill_in(hook):
    printed = CliRunner().invoke(app, ["metrics"]).output
    assert set(re.findall(r"^(guard/\S+)  +\w", printed, re.MULTILINE)) == hook.logged_names()
    assert "](" not in printed
    assert "the same, by cause\n" in printed
    keys = CliRunner().invoke(app, ["verifiers"]).output
    for line in ("policy\n", "    max_abstain_rate: number; default 0.25\n", "ledger\n",
                 "    exclude: true or false; default true\n", "identity\n"):  # fmt: skip
        assert f"\n{line}" in keys


def test_every_metric_is_listed(hook):
    page = hook.on_page_markdown((PAGES / "metrics.md").read_text(encoding="utf-8"))
    assert set(re.findall(r"^\| `(guard/\S+)` \| \S", page, re.MULTILINE)) == hook.logged_names()
    for source in ("grpo_guard/guard/guard.py", "adapters/trl/trainer.py"):
        for name in re.findall(r'"(guard/\w+)"', (ROOT / source).read_text(encoding="utf-8")):
            assert f"`{name}`" in page


def test_every_page_and_name_of_the_api_exists(hook):
    from pkgutil import resolve_name

    lines = (PAGES / "api.md").read_text(encoding="utf-8").splitlines()
    names = [line.removeprefix("::: ") for line in lines if line.startswith("::: ")]
    assert "grpo_guard.config.presets" in names
    assert all(resolve_name(name) is not None for name in names)


def described(item):
    """Yield the docstrings that the page shows for one name: its own and its public members'."""
    yield inspect.getdoc(item) or ""
    if inspect.ismodule(item) or inspect.isclass(item):
        for name, member in vars(item).items():
            if not name.startswith("_") and (inspect.isfunction(member) or inspect.isclass(member)):
                yield inspect.getdoc(member) or ""


def test_api_cites_no_private_name():
    from pkgutil import resolve_name

    for line in (PAGES / "api.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("::: "):
            for text in described(resolve_name(line.removeprefix("::: "))):
                assert not re.search(r"`_\w+", text), line


def test_navigation_has_every_page_once_in_three_levels():
    import yaml

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text)["nav"]
    found = []

    def walk(entries, level):
        assert level <= 3
        for entry in entries:
            ((_, value),) = entry.items()
            walk(value, level + 1) if isinstance(value, list) else found.append(value)

    walk(nav, 1)
    assert len(nav) <= 8
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert sorted(found) == sorted(pages)


def test_names_in_cells_can_wrap_at_separators(hook):
    cell = "<td><code>logprob_bound</code> of a_b</td>"
    assert hook.on_page_content(cell) == "<td><code>logprob_<wbr>bound</code> of a_b</td>"
    assert hook.on_page_content("<p><code>a_b</code></p>") == "<p><code>a_b</code></p>"
