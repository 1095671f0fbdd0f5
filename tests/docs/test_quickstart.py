"""docs/quickstart.md, run from top to bottom as a reader runs it."""

import re

import pytest

from tests.docs.doc_pages import ROOT, blocks

PAGE = ROOT / "docs" / "quickstart.md"


def test_poisoned_peer_is_rejected_as_the_page_shows(tmp_path, monkeypatch, capsys):
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    names = {}
    logs = []
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), names)  # noqa: S102
            logs.append(names["trainer"].state.log_history)
    honest, poisoned = ([log for log in run if "guard/reject_rate" in log] for run in logs)
    assert [log["guard/reject_rate"] for log in honest] == [0, 0]
    assert [log["guard/reject_rate"] for log in poisoned] == [0.25, 0.25]
    assert all(log["guard/node/mallory/reject"] == 1 for log in poisoned)
    shown = re.findall(r"'(guard/[\w/]+)': '([\d.]+)'", PAGE.read_text(encoding="utf-8"))
    logged = [{name: str(log.get(name)) for name, _ in shown} for log in (honest[0], poisoned[0])]
    for name, value in shown:
        assert float(value) in [float(log[name]) for log in logged if log[name] != "None"], name
    table = capsys.readouterr().out
    assert "guard" in table
    assert "reject" in table


@pytest.mark.slow
def test_policy_survives_a_longer_run(tmp_path, monkeypatch):
    """In half precision Adam ruined it within three steps, and everything was rejected."""
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    program = next(block.text for block in blocks(PAGE) if block.language == "python")
    names = {}
    exec(program.replace("max_steps=2", "max_steps=10"), names)  # noqa: S102
    logs = [log for log in names["trainer"].state.log_history if "guard/accept_rate" in log]
    assert len(logs) == 10
    assert all(log["guard/accept_rate"] >= 0.9 for log in logs)
