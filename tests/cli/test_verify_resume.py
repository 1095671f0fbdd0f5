"""``grpo-guard verify --resume``: what goes on, and what is refused."""

import json

from grpo_guard.core.verdict import accept
from tests.cli.test_verify_command import GOOD, SCREENS, files, rows_of, run, verify

__all__ = ["files"]  # a fixture


def test_resume_continues_where_the_run_stopped(files, monkeypatch):
    (files / "guard.yaml").write_text(SCREENS)
    rows = [{"prompt": f"p{i // 2}", "text": f"t{i}", "node": "ann"} for i in range(300)]
    (files / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    calls = []

    def stopped(self, batch):
        calls.append(len(batch))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [accept("screens") for _ in batch]

    # In the command's own thread, as Ctrl-C would be.
    monkeypatch.setattr(
        "grpo_guard.core.supervise._call_limited", lambda v, ask, _: stopped(v, *ask.args)
    )
    result = verify(files)
    assert result.exit_code == 130
    assert "--resume continues" in result.output
    assert [v["index"] for v in rows_of(files)] == list(range(128))
    with (files / "out.jsonl").open("a") as out:
        out.write('{"index": 128, "outc')  # a line that a crash cut short
    assert verify(files, "--resume").exit_code == 0
    assert [v["index"] for v in rows_of(files)] == list(range(300))
    assert sum(calls[3:]) == 172
    again = verify(files, "--resume")
    assert "accept 0/0" in again.output
    assert "300 before" in again.output


def test_resume_with_another_file_is_refused(files):
    (files / "guard.yaml").write_text(SCREENS)
    run(files, *[json.dumps(GOOD)] * 3)
    (files / "in.jsonl").write_text(json.dumps(GOOD) + "\n")
    result = verify(files, "--resume")
    assert result.exit_code == 2
    assert "out.jsonl:2: index: expected 1 of 1 rows" in result.stderr
    (files / "precious").write_text("precious, half a line")
    (files / "out.jsonl").unlink()
    (files / "out.jsonl").symlink_to(files / "precious")
    assert verify(files, "--resume").exit_code == 2
    assert (files / "precious").read_text() == "precious, half a line"


def test_resume_with_other_rows_is_refused(files):
    """Verdicts on two files in one would put one node's rejection next to another's text."""
    (files / "guard.yaml").write_text(SCREENS)
    rows = [GOOD | {"text": f"It is {i}."} for i in range(3)]
    run(files, *map(json.dumps, rows[:2]))
    (files / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = (files / "out.jsonl").read_text()
    assert verify(files, "--resume").exit_code == 0
    (files / "out.jsonl").write_text(before)
    (files / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    result = verify(files, "--resume")
    assert result.exit_code == 2
    assert "out.jsonl:1: expected a verdict on row 0 of" in result.stderr
    assert (files / "out.jsonl").read_text() == before
