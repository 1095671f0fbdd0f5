"""``grpo-guard init`` writes valid files, and ``config check`` confirms it."""

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.init import guard_text
from grpo_guard.cli.main import app
from grpo_guard.config import GuardConfig
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(a) for a in arguments], **options)


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Check a guard file with this text, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def check(text):
        (tmp_path / "guard.yaml").write_text(text)
        return run("config", "check", "guard.yaml")

    return check


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize(
    ("same", "seeds", "preset"),
    [
        (True, True, "shared_seed"),
        (True, False, "same_weights"),
        (False, False, "different_weights"),
    ],
)
def test_every_answer_gives_a_guard_that_builds(tmp_path, monkeypatch, same, seeds, preset, names):
    monkeypatch.chdir(tmp_path)
    text = guard_text(same, seeds, names).replace("PATH_OR_ID", str(WORD_PROBLEMS))
    config = GuardConfig.from_text(text, "guard.yaml")
    assert config.preset == preset
    assert (config.state is not None) is names
    config.build()


def test_prompts_only_for_missing_options(tmp_path):
    out = tmp_path / "guard.yaml"
    result = run("init", "-o", out, input="n\ny\n")
    assert result.exit_code == 0, result.output
    assert out.read_text() == guard_text(False, False, True)
    again = run("init", "-o", out, "--different-weights", "--names")
    assert again.exit_code == 2
    assert "expected a new file, got one that exists" in again.stderr


def test_check_describes_a_guard_and_its_requirements(checked):
    result = checked(guard_text(False, False, False))
    assert result.exit_code == 0, result.output
    assert "guard.yaml: valid" in result.output
    assert "if completions have no node: standing cannot reject convicted nodes" in result.output
    result = checked("preset: different-weights")
    assert result.exit_code == 2
    assert "did you mean 'different_weights'?" in result.stderr


def test_check_writes_nothing_and_names_what_a_reader_asks_about(checked, tmp_path):
    guard = f"preset: different_weights\nstate: st/remembered\nreader: {WORD_PROBLEMS}\n"
    guard += "log: runs/7/verdicts.jsonl"
    result = checked(guard)
    assert result.exit_code == 0, result.output
    assert "verifiers: standing, screens, arithmetic, answer_words, code, recurrence, reader" in (
        result.output
    )
    assert [path.name for path in tmp_path.iterdir()] == ["guard.yaml"]
    (tmp_path / "st").write_text("a file")
    result = checked(guard)
    assert result.exit_code == 2
    assert "guard.yaml: state: expected a folder that exists or can be made" in result.stderr


def test_check_refuses_a_log_that_cannot_be_written(checked):
    result = checked("preset: different_weights\nlog: guard.yaml/7/log.jsonl")
    assert result.exit_code == 2
    assert "does not exist and cannot be made (in guard.yaml)" in " ".join(result.stderr.split())


@pytest.mark.parametrize("named", ["state: st", "ledger: {path: st/nodes.sqlite}"])
def test_check_refuses_another_file_and_leaves_it_alone(checked, tmp_path, named):
    (tmp_path / "st").mkdir()
    (tmp_path / "st" / "nodes.sqlite").write_text("no database, but a letter to somebody" * 99)
    before = (tmp_path / "st" / "nodes.sqlite").read_bytes()
    result = checked(f"verifier: {{type: screens}}\n{named}")
    assert result.exit_code == 2
    assert "expected a ledger, got a different file" in result.stderr
    assert (tmp_path / "st" / "nodes.sqlite").read_bytes() == before
