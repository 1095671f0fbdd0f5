"""What ``--help`` shows on a terminal of 80 columns."""

import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.cli.summary import _shortened


def _all(command, *path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        if inner.context_settings.get("help_option_names") != []:
            yield from _all(inner, *path, name)


@pytest.mark.parametrize("command", [*_all(get_command(app))], ids=" ".join)
def test_flags_show_no_type_and_choices_are_whole(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert "--help" in shown.output
    assert "<bool>" not in shown.output
    assert not re.findall(r"<[a-z](?!.*>).*", shown.output), "a type that is cut within a word"


@pytest.mark.parametrize("command", [*_all(get_command(app))], ids=" ".join)
def test_descriptions_are_shown_whole(command, monkeypatch):
    """In particular, no text in brackets is lost as markup."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, [*command, "--help"]).output
    inner = get_command(app)
    for name in command:
        inner = inner.commands[name]
    lost = [p.help for p in inner.params if any(w not in shown for w in (p.help or "").split())]
    assert not lost


@pytest.mark.parametrize(
    "command", ["", "calibrate", "verify", "serve", "eval detect", "eval swarm"]
)
def test_help_loads_nothing_heavy(command):
    heavy = ["torch", "transformers", "datasets", "trl", "openai", "vllm", "starlette", "uvicorn"]
    heavy += ["numpy"] if not command else []
    probe = (
        "import sys; from typer.testing import CliRunner; from grpo_guard.cli.main import app;"
        f"r = CliRunner().invoke(app, {[*command.split(), '--help']});"
        "assert r.exit_code == 0, r.output;"
        f"assert not (loaded := sys.modules.keys() & set({heavy})), loaded; print(r.output)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout


def test_words_of_a_choice_are_whole_and_one_spelling_is_documented(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["eval", "detect", "--help"]).output
    for word in ("word_problems", "python_maths", "preset:NAME"):
        assert word in shown
    assert "--config" not in shown
    assert "--guard" not in CliRunner().invoke(app, ["verify", "--help"]).output


def test_commands_are_the_same_when_looked_up_again():
    first, second = get_command(app), get_command(app)
    assert set(first.commands) == set(second.commands)


def test_evidence_is_cut_between_words():
    text = "'Trust the calculator': in 11 of 12 prompts of node 'mallory', in none of 24 of others"
    assert _shortened(text, 200)[1:-1] == text
    cut = _shortened(text, 60)
    assert cut == "\"'Trust the calculator': in 11 of 12 prompts of node ...\""
    assert len(_shortened("a" * 500, 120)) <= 120
