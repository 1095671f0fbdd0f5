"""The version is the same in all places that name it."""

import re

import grpo_guard
from tests.docs.doc_pages import PAGES, ROOT

VERSION = grpo_guard.__version__


def said(file, pattern):
    return re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)[1]


def test_package_citation_and_changelog_agree():
    assert said("pyproject.toml", r'^version = "(.*)"') == VERSION
    assert said("CITATION.cff", r"^version: (.*)") == VERSION
    head, *releases = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert head == "Unreleased"
    assert re.fullmatch(rf"{re.escape(VERSION)} \(\d{{4}}-\d\d-\d\d\)", releases[0])


def test_pages_install_the_wheel_of_this_version():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"grpo_guard-([\d.]+)-py3", text)) == {VERSION}
