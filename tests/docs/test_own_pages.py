"""The pages on extending the package: every block runs in order, as a reader would run it."""

import random
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.evals.attacks.registry import adversary
from grpo_guard.evals.tasks.word_problems import generate
from grpo_guard.judge.backends.base import build_backend
from tests.docs.doc_pages import ROOT, blocks, commands


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Run a page in an empty folder and return the namespace of its Python blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    known = set(sys.modules)

    def run(page):
        names = {}
        for block in blocks(ROOT / "docs" / page):
            if block.file:
                Path(block.file).write_text(block.text)
            elif block.language == "python":
                exec(compile(block.text, str(block), "exec"), names)  # noqa: S102
            elif block.language == "console":
                console(block)
        return names

    yield run
    for name in set(sys.modules) - known:
        if name.startswith(("my_", "test_my_")):
            del sys.modules[name]


def console(block):
    """Run each command; after ``cat FILE`` the output shown is the file."""
    shown = re.findall(r"^\$ cat (\S+)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)
    for name, text in shown:
        Path(name).write_text(text)
    for command in commands(block):
        program, *arguments = shlex.split(command)
        if arguments[:2] == ["eval", "swarm"]:
            continue  # tests/evals/test_own_guard.py plays a custom attack in a swarm
        if program == "pytest":
            assert pytest.main(["-q", "-p", "no:cacheprovider", *arguments]) == 0
        elif program == "grpo-guard":
            result = CliRunner().invoke(app, arguments)
            expected = re.search(re.escape(command) + r"  # exits (\d)", block.text)
            assert result.exit_code == int(expected[1] if expected else 0), result.output
        else:
            assert program == "cat", command


def test_own_verifier_page(run_page):
    run_page("own-verifier.md")
    said = Path("verdicts.jsonl").read_text().splitlines()
    assert ['"outcome": "reject"' in line for line in said] == [False, True]
    assert "guard.yaml" in Path("out/results.json").read_text()


def test_own_judge_backend_page(run_page):
    run_page("own-judge.md")
    assert build_backend({"type": "my_backend:MyModel"}).model == "my-model-1"
    for kind, message in (
        ("my_backend:Nowhere", "backend.type: expected a class that can be imported"),
        ("my_backend:Request", "backend.type: expected a Backend, got 'my_backend:Request'"),
        ("collections:Counter", "expected a Backend, got 'collections:Counter'"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            build_backend({"type": kind})


def test_own_attack_page(run_page):
    pytest.importorskip("torch")
    Path("guard.yaml").write_text("verifier: {type: screens}\n")
    Path("completions.jsonl").write_text('{"prompt": "3 + 4?", "text": "It is 7."}\n')
    run_page("own-attack.md")
    assert "my_attacks:Advert" in Path("detected/results.json").read_text()
    found = adversary("my_attacks:Advert")  # as a swarm creates it
    assert found.success(found.attack.poison(generate("own-attack", 1)[0], random.Random(0)).text)
