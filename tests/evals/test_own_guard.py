"""The user's own guard, attack and completions in ``eval swarm`` and ``eval detect``."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.cli.main import app
from grpo_guard.evals.defences.own import GuardFile
from grpo_guard.evals.report.scenarios import scenarios
from grpo_guard.evals.report.verdicts import guard_verdicts
from grpo_guard.evals.results import load_results
from grpo_guard.evals.roles import Role, role, under_coin
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.plan import Matrix, plan

ROOT = Path(__file__).parents[2]
SMALL = ("--seeds", "1", "--iterations", "2", "--prompts", "4", "--group-size", "4")
NO_SERVER = "{type: openai, base_url: 'http://127.0.0.1:9/v1', model: m, timeout: 1}"
ATTACK = """
from grpo_guard.evals.attacks.base import Poisoned


class Shout:
    name = "shout"

    def poison(self, problem, rng):
        return Poisoned(f"SHOUT {problem.solution}", (0, 5))

    def success(self, text):
        return text.startswith("SHOUT")


class Bare:
    name = "bare"


class Wants:
    def __init__(self, what):
        raise AssertionError

    def poison(self): ...

    def success(self): ...
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run commands in a user's folder, which does not contain the guard file's model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("my_attacks.py").write_text(ATTACK)
    yield
    sys.modules.pop("my_attacks", None)  # other tests have modules with this name


def called(*arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["eval", *arguments, "-o", "out"])
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result


def written(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def first_of(page: str, name: str = "guard.yaml") -> str:
    """The first guard file printed on a page of the docs."""
    text = (ROOT / page).read_text().partition("```yaml\n")[2]
    return written(name, text.partition("```")[0])


LOG_PROBS = """\
alpha: 0.001
verifier:
  type: logprob_bound
  model: evals/policies/word_problems
  sampling: {engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}
"""


def log_probs(name: str = "guard.yaml") -> str:
    """A guard file that reads log-probs."""
    return written(name, LOG_PROBS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["README.md", "log-probs"])
def test_guard_file_is_a_row_of_a_swarm_named_by_its_file(kind: str) -> None:
    file = first_of(kind) if kind == "README.md" else log_probs()
    result = called("swarm", "--guard", file, "--attack", "text", *SMALL)
    assert "3 runs, 6 rounds in all: silent x none, text x none, text x guard.yaml" in result.stderr
    results = load_results(Path("out/results.json"))
    guarded = results.runs[-1]
    assert guarded.defence == "guard.yaml"
    assert guarded.submitted is not None
    if kind != "README.md":  # the README's guard learns about nodes over rounds
        assert guarded.rejected.poisoned == guarded.submitted.poisoned > 0
    assert guarded.rejected.honest_correct == 0
    swarms = [row.split()[1] for row in result.stdout.splitlines() if row.startswith("text ")]
    assert "guard.yaml" in swarms
    assert "guard.yaml" in Path("out/report.html").read_text()
    assert [verdict.defence for verdict in guard_verdicts(scenarios(results))] == ["guard.yaml"]
    # The same name with different content is a different run.
    own = Path("guard.yaml")
    own.write_text(own.read_text().replace("0.001", "0.01").replace("guard-state", "elsewhere"))
    other = called("swarm", "--guard", "guard.yaml", "--attack", "text", *SMALL, status=2)
    assert "choose another folder" in other.stderr


@pytest.mark.slow
def test_guard_that_replays_seeds_gets_the_swarms_seed() -> None:
    guard = written(
        "mine.yml",
        "state: kept\nverifier: {all: [{type: seed_replay, model: m, run: r, sampling: "
        "{engine: transformers, temperature: 1.0, top_k: 0, top_p: 1.0}}, "
        "{type: screens, only: {task: x}}]}\n",
    )
    result = called("swarm", "--guard", guard, *SMALL, "--fail-under", "1", "--max-honest", "0")
    assert "text x mine.yml (coin)" in result.stderr
    assert not Path("kept").exists()
    run = json.loads(Path("out/results.json").read_text())["runs"][-1]
    assert run["defence"] == "mine.yml (coin)"
    assert run["rejected"]["poisoned"] == run["submitted"]["poisoned"] > 0
    assert run["rejected"]["honest"] == 0


def test_guard_names_keep_their_role() -> None:
    assert role("kl_mine.yaml") is role("preset:same_weights") is Role.GUARD
    assert under_coin("mine.yml (coin) (zero)")
    assert not under_coin("mine.yml (zero)")


def test_policy_of_the_file_applies_unless_overridden() -> None:
    guard = GuardFile.named("preset:different_weights")
    assert (guard.on_reject, guard.per_model, guard.coin) == ("no_gain", False, False)
    specs = plan(Matrix(["text"], ["none"], [0], guards=[guard]), SwarmConfig())
    assert (specs[-1].shown_defence, specs[-1].config.on_reject) == (guard.name, "no_gain")
    asked = Matrix(["text"], [], [0], guards=[guard], on_reject=["zero"])
    assert plan(asked, SwarmConfig())[-1].shown_defence == f"{guard.name} (zero)"


def test_key_in_a_guard_file_is_neither_shown_nor_stored() -> None:
    guard = GuardFile.named(
        written("guard.yaml", "verifier: {type: judge, backend: {type: openai, model: m, "
                "base_url: 'http://127.0.0.1:9/v1', api_key: sk-verysecret}}\n")
    )  # fmt: skip
    assert "verysecret" not in repr(guard)
    assert "verysecret" not in json.dumps(
        Spec("text", guard.name, SwarmConfig(), guard=guard).identity()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"preset: judged\nbackend: {NO_SERVER}", "cannot be reached"),
        ("preset: different_wights", "did you mean 'different_weights'"),
        ("verifier: {type: screenz}", "did you mean 'screens'"),
        ("verifier: {type: screens}\npolicy: {on_reject: 0.5}", "policy.on_reject: expected zero"),
        ("verifier: {type: screens}\npolicy: {on_abstain: zero}", "policy.on_abstain: expected"),
        ("verifier: [", "guard.yaml: (file): expected readable YAML"),
        ("verifier: {type: logprob_bound, modell: x}", "did you mean 'model'"),
        ("preset: same_weights\nprofile: nowhere.json", "nowhere.json"),
    ],
)
def test_unusable_file_is_refused_before_anything_runs(text: str, message: str) -> None:
    guard = written("guard.yaml", text)
    refused = called("swarm", "--guard", guard, *SMALL, status=2)
    assert message in refused.stderr
    assert not Path("out").exists()


def test_guard_option_takes_a_yaml_file_or_a_preset() -> None:
    Path("a").mkdir()
    same = ("--guard", written("g.yaml", "preset: failures_only"), "--guard",
            written("a/g.yaml", "preset: failures_only"))  # fmt: skip
    for arguments, message in (
        (("--guard", "guard.txt"), "--guard: expected FILE.yaml or preset:NAME, got 'guard.txt'"),
        (("--guard", "nowhere.yaml"), "nowhere.yaml: expected a guard file, got none"),
        (("--guard", "preset:sharedseed"), "did you mean 'shared_seed'"),
        (same, "--guard: expected files of different names"),
    ):
        for command in ("swarm", "detect"):
            assert message in called(command, *arguments, status=2).stderr


@pytest.mark.slow
def test_own_attack_is_played_and_an_invalid_one_is_reported() -> None:
    own = "my_attacks:Shout"
    said = called("swarm", "--attack", own, "--defence", "none,screens", *SMALL,
                  "--fail-under", "0.5", status=1)  # fmt: skip
    run = json.loads(Path("out/results.json").read_text())["runs"][-1]
    assert (run["attack"], run["defence"], run["submitted"]["poisoned"]) == (own, "screens", 8)
    assert f"failed: screens, {own}: expected at least 50.0 % rejected, got 0 / 8" in said.stderr
    for name, message in (("Bare", "with poison() and success()"), ("Wants", "no arguments")):
        assert message in called("swarm", "--attack", f"my_attacks:{name}", status=2).stderr
        assert message in called("detect", "--attacks", f"my_attacks:{name}", status=2).stderr


def test_detect_says_what_needs_a_swarm() -> None:
    said = called("detect", "--attacks", "text,dos", status=2).stderr
    assert "dos needs a live swarm: grpo-guard eval swarm --attack dos" in said
    assert "retokenised" in said
    guard = written("guard.yaml", "preset: shared_seed")
    said = called("detect", "--task", "word_problems", "--guard", guard, status=2).stderr
    assert (
        "guard.yaml: preset (shared_seed): expected nodes that sample under a public coin" in said
    )


def test_list_shows_attacks_defences_and_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = called("swarm", "--list").stdout
    for name in ("text", "withholding", "homogeneous", "shipped_judge", "python_maths"):
        assert name in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "Like one_of_twelve, but malicious nodes take turns" in " ".join(shown.split())
    described = re.sub(r"DoS|HTTP|TEXT|MATH|CODE|EOS", "", shown)
    assert re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", described) == [], "names of classes"
    for whole in ("claims that a tool returned it.", "too high: correct work earns nothing."):
        assert whole in " ".join(shown.split())
    assert not Path("out").exists()


def test_detect_samples_and_judges_with_an_own_guard() -> None:
    said = called(
        "detect", "--task", "python_maths", "--guard", log_probs(), "--n", "4",
        "--attacks", "code,retokenised,my_attacks:Shout", "--no-controls",
        "--fail-under", "0.9", "--max-honest", "0",
    )  # fmt: skip
    lines = [re.split(r"\s{2,}", line)[:3] for line in said.stdout.splitlines()]
    assert ["honest", "guard.yaml", "0/4"] in lines
    assert ["retokenised", "guard.yaml", "4/4"] in lines
    assert ["my_attacks:Shout", "guard.yaml", "4/4"] in lines
    config = json.loads(Path("out/results.json").read_text())["config"]
    assert list(config["guards"]) == ["guard.yaml"]


def honest(count: int, **fields: Any) -> str:
    rows = [
        {"prompt": f"Q: Ann has {n} cows and buys 2 more. How many cows are left?\nA:",
         "text": f"<think>{n} + 2 = {n + 2} cows.</think><answer>{n + 2} cows</answer>",
         "reference": str(n + 2), **fields}
        for n in range(10, 10 + count)
    ]  # fmt: skip
    return written("honest.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def test_detect_poisons_own_completions() -> None:
    guard = written("guard.yaml", "preset: different_weights\nstate: guard-state\n")
    said = called(
        "detect", "--honest", honest(30, node="bob", completion_ids=[1, 2]), "--guard", guard,
        "--attacks", "text,math", "--fail-under", "0.9", "--max-honest", "0",
    )  # fmt: skip
    lines = [re.split(r"\s{2,}", line)[:3] for line in said.stdout.splitlines()]
    # Neither MATH nor honest work inherits the state about the node from TEXT.
    assert lines[1:4] == [["honest", "guard.yaml", "0/30"], ["text", "guard.yaml", "30/30"],
                          ["math", "guard.yaml", "30/30"]]  # fmt: skip
    assert not Path("guard-state").exists()
    rows = [json.loads(line) for line in Path("out/rows.jsonl").read_text().splitlines()]
    assert {row["tokens"] for row in rows} == {0}  # no model, so neither side has ids


def test_report_lists_every_member_and_shows_poison_that_passed() -> None:
    guard = written("guard.yaml", "verifier: {all: [{type: screens}, {type: arithmetic}]}\n")
    called("detect", "--honest", honest(4), "-c", guard, "--attack", "text,math")
    summary = json.loads(Path("out/results.json").read_text())["summary"]
    found = {row["attack"]: row["members"] for row in summary}
    assert found["math"] == {"screens": 0, "arithmetic": 4}
    assert found["text"] == found["honest"] == {"screens": 0, "arithmetic": 0}
    page = Path("out/report.html").read_text()
    assert "Poison that passed: text" in page
    assert "Poison that passed: math" not in page


def test_detect_counts_found_poison_with_a_wrong_answer_apart() -> None:
    guard = written("guard.yaml", "verifier: {type: arithmetic}\n")
    rows = [json.loads(line) for line in Path(honest(4)).read_text().splitlines()]
    rows[0]["reference"] = rows[1]["reference"] = "77"
    Path("honest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = called("detect", "--honest", "honest.jsonl", "-c", guard, "--attack", "math",
                  "--fail-under", "0.9", status=1)  # fmt: skip
    nothing = "2 of 2 were found, but their answer is wrong, so they earn nothing"
    assert f"math, guard.yaml: of those that passed, {nothing}" in said.stdout
    assert "got 2 / 4" in said.stderr
    assert "; 2 of the 2 accepted earn nothing" in said.stderr
    assert "Poison that passed, but earns nothing: math" in Path("out/report.html").read_text()


def test_a_preset_without_its_prefix_is_recognised() -> None:
    said = called("swarm", "--attacks", "text", "--guard", "different_weights", status=2).stderr
    assert "did you mean preset:different_weights?" in said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--guard", "preset:same_weights"), 2, "preset:same_weights: expected --model with"),
        (("--verifiers", "logprob_bound"), 2, "logprob_bound: expected --model with --honest"),
        (("--verifiers", "screens", "--attacks", "retokenised"), 2, "retokenised: expected --m"),
        (("--verifiers", "screens", "--attacks", "taken_back", "--fail-under", "0.1"), 1,
         "warning: taken_back: no completion has anything that it could poison\nfailed: screens"),
        (("--data", "x.jsonl"), 2, "--data: expected none with --honest"),
        (("--verifiers", "screens", "--attacks", "text", "--fail-under", "0.5"), 1,
         "failed: screens, text: expected at least 50.0 % rejected, got 0 / 4 = 0 %"),
        (("--verifiers", "length", "--fail-under", "1.5"), 2, "--fail-under"),
    ],
)  # fmt: skip
def test_invalid_options_with_own_completions(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    assert message in called("detect", "--honest", honest(4), *arguments, status=status).stderr


def test_honest_files_are_read_as_by_verify() -> None:
    bad = written("bad.jsonl", '{"prompt": "p"}\n')
    said = called("detect", "--honest", bad, "--verifiers", "screens", status=2).stderr
    assert "bad.jsonl:1: text: expected" in said
    said = called("detect", "--honest", written("no.jsonl", ""), "--verifiers", "screens", status=2)
    assert "--honest: expected at least one completion, got the empty file" in said.stderr
