"""Figures from an earlier minor version are listed as such; all others are from this one."""

import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("scipy")

from grpo_guard.evals.studies import figures
from tests.docs.doc_pages import ROOT


def test_pages_show_no_unlisted_figure_of_an_earlier_version():
    assert list(figures.misplaced()) == []


def test_after_the_next_release_every_current_file_is_listed():
    current = [name for name in figures.files() if name not in kept()]
    problems = list(figures.misplaced("99.1.0"))
    assert [problem.partition(":")[0] for problem in problems] == current
    assert all("this is 99.1.0" in problem for problem in problems)
    assert set(figures.stale("99.1.0")) == set(figures.RERUN)


def kept():
    return {name for names in figures.KEPT.values() for name in names}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Three files: one of this version, an old one that is listed, one without a version."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "_BENCHMARKS", tmp_path / "none")
    monkeypatch.setattr(figures, "KEPT", {"0.1.0": ("old",), "unknown": ("bare",)})
    monkeypatch.setattr(figures, "RERUN", {"new": "-c pass"})
    for name, version in {"new": "1.2.3", "old": "0.1.0"}.items():
        text = json.dumps({"versions": {"grpo_guard": version}, "date": "2026-01-01"})
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    (tmp_path / "bare.json").write_text("{}", encoding="utf-8")
    return tmp_path


def test_later_version_is_not_an_earlier_one(results):
    assert list(figures.misplaced("1.1.0")) == []
    assert figures.stale("1.10.0") == ["new"]


def test_patch_release_keeps_the_minor_version(results):
    assert list(figures.misplaced("1.2.9")) == []
    assert figures.stale("1.2.9") == []
    assert figures.stale("1.3.0") == ["new"]
    (problem,) = figures.misplaced("1.3.0")
    assert problem == "new: made by 1.2.3, and this is 1.3.0; make figures reruns it"


def test_outdated_list_is_an_error(results):
    (results / "old.json").write_text('{"versions": {"grpo_guard": "1.2.0"}}', encoding="utf-8")
    (results / "bare.json").unlink()
    (results / "more.json").write_text("{}", encoding="utf-8")
    assert list(figures.misplaced("1.2.9")) == [
        "bare: KEPT says that unknown made it, the file says no version: it is gone",
        "more: made by unknown, and this is 1.2.9; rerun it, or list it in KEPT",
        "old: KEPT says that 0.1.0 made it, the file says 1.2.0",
    ]


def test_rerun_sets_version_and_date_and_a_failure_keeps_the_old_file(
    results, monkeypatch, tmp_path
):
    made = json.dumps({"versions": {"grpo_guard": "1.3.0"}})
    script = tmp_path / "made.py"
    script.write_text(f"import sys; open(sys.argv[1], 'w').write({made!r})", encoding="utf-8")
    monkeypatch.setattr(figures, "RERUN", {"new": f"{script} FILE", "bad": "-c raise FILE"})
    monkeypatch.setattr(figures, "CACHE", tmp_path / "cache")
    figures.rerun("new")
    assert figures.made_by("new")[0] == "1.3.0"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", figures.made_by("new")[1])
    with pytest.raises(subprocess.CalledProcessError):
        figures.rerun("bad")
    assert not (results / "bad.json").exists()


def test_every_command_names_a_module_that_exists():
    for name, words in figures.RERUN.items():
        module = words.split()[1]
        path = ROOT / module.replace("grpo_guard.evals", "evals").replace(".", "/")
        assert path.with_suffix(".py").is_file() or path.is_dir(), name
        assert {"FILE", "DIR"} & set(words.split()), name


def test_command_lists_all_files():
    command = [sys.executable, "-m", "grpo_guard.evals.studies.figures", "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert [line.split()[0] for line in listed.splitlines()] == figures.files()
