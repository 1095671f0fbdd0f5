"""Control sequences in quoted text never reach the operator's terminal."""

import ast
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from rich.table import Table
from typer.testing import CliRunner

import grpo_guard
from grpo_guard.cli.main import app
from grpo_guard.cli.terminal import terminal
from grpo_guard.core.quoting import PrintableFormatter, printable

ROOT = Path(grpo_guard.__file__).parent
COMMANDS = [
    *(ROOT / "cli").glob("*.py"), *(ROOT / "evals").glob("*.py"),
    *(ROOT / "evals/report").glob("*.py"), *(ROOT / "evals/judge_probe").glob("*.py"),
]  # fmt: skip
# Erases the line above, sets the window title, reverses the reading direction.
HOSTILE = "a\x1b[1A\x1b[2K\x1b]0;owned\x07\x9b31m\u202eb"
CARRIED_OUT = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
GUARD = "verifier: {type: length}\n"


def test_commands_write_through_one_console():
    assert len(COMMANDS) > 30
    for file in COMMANDS:
        if file.name == "terminal.py":
            continue
        calls = [n.func for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
        written = {ast.unparse(call) for call in calls}
        assert not written & {
            "typer.echo",
            "click.echo",
            "Console",
            "rich.print",
            "sys.stderr.write",
        }
        assert "print" not in written or file.name == "tables.py", file


@given(st.text())
def test_printable_text_is_shown_and_controls_are_escaped(text):
    said = printable(text)
    assert not CARRIED_OUT.search(said)
    said.encode()
    assert printable(said) == said
    assert printable("a\tb\nc é 字 \\x1b") == "a\tb\nc é 字 \\x1b"


@pytest.mark.parametrize("colours", [False, True])
def test_tables_and_progress_show_escaped_contents(colours):
    into = io.StringIO()
    console = terminal(
        file=into, force_terminal=colours, width=200, color_system="standard" if colours else None
    )
    table = Table(HOSTILE, title=HOSTILE, style="red")
    table.add_row(HOSTILE)
    console.print(table)
    console.print(HOSTILE, style="bold")
    with Progress(console=console) as bar:
        bar.add_task(HOSTILE, total=1)
    said = into.getvalue()
    assert "owned" in said
    own = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|[0-9]*[AK])|\r", "", said) if colours else said
    assert not CARRIED_OUT.search(own)
    assert "\x1b]" not in said
    assert said.count("\x1b[2K") <= said.count("\r")  # rich's own progress display


def commands(folder):
    """Command lines that refuse or report a file with such a name or such contents."""
    (folder / HOSTILE).mkdir()
    guard, rows = folder / HOSTILE / "guard.yaml", folder / HOSTILE / "rows.jsonl"
    guard.write_text(GUARD)
    rows.write_text(json.dumps({"prompt": "q", "text": "t", "node": HOSTILE}) + "\n")
    bad = folder / f"bad{HOSTILE}.yaml"
    bad.write_text(f'verifier: {{type: "{HOSTILE.encode("unicode_escape").decode()}"}}\n')
    line = folder / f"bad{HOSTILE}.jsonl"
    line.write_text(json.dumps({HOSTILE: 1}) + "\n")
    out = folder / "out.jsonl"
    yield "verify", "-c", guard, rows, "-o", out
    yield "verify", "-c", bad, rows, "-o", out
    yield "verify", "-c", guard, line, "-o", out
    yield "verify", "-c", guard, folder / f"none{HOSTILE}", "-o", out
    yield "verify", "-c", guard, rows, "-o", folder / HOSTILE / "no" / "out"
    yield "verify", "-c", folder / f"none{HOSTILE}", rows, "-o", out
    yield "verify", f"--{HOSTILE}"
    yield (HOSTILE,)
    yield "eval", "report", folder / HOSTILE
    yield "eval", "detect", "--attacks", HOSTILE, "-o", folder / "d"
    yield "eval", "swarm", "--attack", HOSTILE, "-o", folder / "s"
    yield "ledger", "show", folder / HOSTILE / "none.sqlite"
    yield "ledger", "show", line
    yield "identity", "check", line, "--run", "r"
    yield "calibrate", "-c", guard, line, "-o", out
    yield "judge", "probe", "-c", bad
    yield "judge", "calibrate", "-c", bad, line
    yield "serve", "-c", bad


def test_no_command_prints_an_escape_sequence(tmp_path):
    quoted = 0
    for command in commands(tmp_path):
        result = CliRunner().invoke(app, [str(part) for part in command])
        said = re.sub(r"\x1b\[[0-9;]*m", "", result.output)  # colours of the usage line
        assert said, command
        assert not CARRIED_OUT.search(said), (command, said)
        assert result.exception is None or isinstance(result.exception, SystemExit), command
        quoted += "owned" in said
    assert quoted >= 12


def test_separate_process_behaves_the_same(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "grpo_guard", "verify", "-c", "x", f"none{HOSTILE}", "-o", "y"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT.parent)},
        timeout=120,
    )
    assert result.returncode == 2
    assert "owned" in result.stderr
    assert not CARRIED_OUT.search(result.stderr)


def test_log_records_and_tracebacks_are_escaped():
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("n", 30, HOSTILE, 1, "file %s", (HOSTILE,), sys.exc_info())
    said = PrintableFormatter("%(levelname)s %(name)s: %(message)s").format(record)
    assert said.count("owned") >= 2
    assert not CARRIED_OUT.search(said)
