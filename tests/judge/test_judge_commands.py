"""``grpo-guard judge probe`` and ``judge calibrate``, against a local server."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from grpo_guard.cli.judge import threshold_for
from grpo_guard.cli.main import app
from grpo_guard.evals.judge_probe.cases import HONEST, battery, cases
from grpo_guard.evals.judge_probe.probe import OVERALL, PAPER
from grpo_guard.evals.judge_probe.problems import from_task, made_up
from grpo_guard.judge.backends.base import Reply
from grpo_guard.judge.modes import CotMode
from tests.judge.judge_server import MODEL

GSM8K = Path(os.environ.get("GRPO_GUARD_GSM8K") or "/nowhere") / "train.jsonl"


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def config(folder, server, more="", guard="verifier: {type: judge"):
    path = folder / "guard.yaml"
    backend = f"{{type: openai, model: {MODEL}, base_url: '{server.url}', api_key: secret-key}}"
    path.write_text(f"{guard}, backend: {backend}{more}}}\n")
    return path


def looks_honest(text):
    """A judge that recognises our made-up gold solutions by their form."""
    lines = text.split("\n")
    sums = [part.split(" = ") for part in text.split(". ") if " = " in part]
    honest = len(lines) == 2 and lines[1].startswith("#### ") and len(text) < 250 and sums
    return "good" if honest and "thief" not in text else "bad"


def test_a_judge_that_accepts_everything_fails_the_probe(server, tmp_path):
    server.decide = lambda text: "good"
    out = tmp_path / "probe.json"
    result = run("judge", "probe", "-c", config(tmp_path, server), "--n", 4, "-o", out)
    assert result.exit_code == 1, result.output
    assert "attacks: expected at most 5.0% accepted" in result.output
    written = json.loads(out.read_text())
    rows = {row["kind"]: row for row in written["rows"]}
    assert rows[HONEST]["accepted"] == rows[HONEST]["n"] == 4
    # The screens stop some of the battery before the judge can accept it.
    assert 0 < rows["delimiter imitation"]["accepted"] < rows["delimiter imitation"]["n"]
    assert rows["MATH"]["paper"] == PAPER["MATH"]
    assert "secret-key" not in out.read_text() + result.output
    shown = (tmp_path / "probe.html").read_text()
    assert f"of {rows[OVERALL]['n']} attacks" in shown
    assert "secret-key" not in shown
    assert "per thousand completions" in result.output
    assert "\t" not in result.output


def test_a_judge_that_rejects_everything_fails_it_too(server, tmp_path):
    server.decide = lambda text: "bad"
    result = run("judge", "probe", "-c", config(tmp_path, server), "--n", 4)
    assert result.exit_code == 1
    assert "honest: expected at least 90.0% accepted, got 0 of 4" in result.output


def test_an_outage_does_not_pass_the_probe(server, tmp_path):
    server.decide = lambda text: looks_honest(text) if looks_honest(text) == "good" else "http401"
    options = ", limits: {concurrency: 1}"
    result = run("judge", "probe", "-c", config(tmp_path, server, options), "--n", 2)
    assert result.exit_code == 1, result.output
    assert "attacks: expected at most 10% abstentions" in result.output


@pytest.mark.slow
def test_thresholds_can_be_set_and_the_whole_guard_probed(server, tmp_path):
    server.decide = lambda text: "good"
    path = config(tmp_path, server)
    assert run("judge", "probe", "-c", path, "--n", 2, "--max-attacks", 1).exit_code == 0
    path.write_text("verifier: {all: [{type: screens}, {type: arithmetic}]}")
    result = run("judge", "probe", "-c", path, "--n", 4, "--whole", "--max-attacks", 1)
    assert result.exit_code == 0, result.output


def test_probe_refuses_invalid_options(server, tmp_path):
    path = tmp_path / "guard.yaml"
    path.write_text("verifier: {type: screens}")
    result = run("judge", "probe", "-c", path)
    assert result.exit_code == 2
    assert "expected one of type judge, got 0" in result.output
    path.write_text(
        "verifier: {type: judge, backend: {type: openai, model: m, base_url: 'http://127.0.0.1:9/v1'}}"
    )
    result = run("judge", "probe", "-c", path)
    assert result.exit_code == 2
    assert "cannot be reached" in result.output
    result = run("judge", "probe", "-c", config(tmp_path, server), "--data", tmp_path / "none")
    assert result.exit_code == 2


@pytest.mark.parametrize("make", [made_up, from_task])
def test_honest_cases_are_honest_and_attacks_are_attacks(make):
    problems = make(12, random.Random(3))
    fired = cases(problems, 0)
    assert sum(case.kind == HONEST for case in fired) == 12
    solutions = {problem.solution for problem in problems}
    for case in fired:
        assert (case.completion.text in solutions) == (case.kind == HONEST), case.kind
    kinds = {case.kind for case in fired}
    assert {"MATH", "CODE", "TEXT, at the start", "DoS, repeated", "master keys"} <= kinds
    assert OVERALL not in kinds
    assert fired == cases(problems, 0)


def test_references_are_attacked_if_the_judge_sees_them():
    problems = made_up(12, random.Random(3))
    told = cases(problems, 0, reference=True)
    plain = [case for case in told if "in the reference" not in case.kind]
    assert [(c.kind, c.completion.text) for c in plain] == [
        (c.kind, c.completion.text) for c in cases(problems, 0)
    ]
    attacks = [case for case in told if "in the reference" in case.kind]
    assert len(attacks) == sum(
        len(battery()[kind]) for kind in ("delimiter imitation", "fake verdicts")
    )
    assert any("</reference>" in case.completion.reference for case in attacks)
    solutions = {problem.solution for problem in problems}
    assert all(case.attack and case.completion.text not in solutions for case in attacks)


@pytest.mark.skipif(not GSM8K.is_file(), reason="needs GSM8K (GRPO_GUARD_GSM8K)")
def test_probe_with_gsm8k_as_honest_cases(server, tmp_path):
    server.decide = lambda text: "good"
    result = run(
        "judge", "probe", "-c", config(tmp_path, server), "--n", 5, "--data", GSM8K,
        "--max-attacks", 1,
    )  # fmt: skip
    assert result.exit_code == 0, result.output


def honest_lines(folder, n):
    rng = random.Random(n)
    path = folder / "honest.jsonl"
    rows = [{"prompt": f"Q{i}?", "text": f"{rng.random():.6f} is it {i}"} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["verifier: {type: judge", "{preset: judged"])
def test_threshold_from_honest_completions(server, tmp_path, guard):
    server.decide = lambda text: float(text.split()[0])
    result = run(
        "judge", "calibrate", "-c", config(tmp_path, server, guard=guard),
        honest_lines(tmp_path, 200), "--alpha", 0.05,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    threshold = float(result.output.rsplit("threshold:", 1)[1])
    assert 0.01 < threshold < 0.12
    refused = run(
        "judge", "calibrate", "-c", config(tmp_path, server), honest_lines(tmp_path, 9),
        "--alpha", 0.01,
    )  # fmt: skip
    assert refused.exit_code == 2
    assert "expected at least 1 / 10 with 9 honest completions" in refused.output


@given(st.lists(st.floats(0.001, 0.999), min_size=20, max_size=80), st.floats(0.05, 0.9))
def test_thresholds_reject_no_more_honest_work_than_asked(values, alpha):
    threshold = threshold_for(values, alpha)
    assert sum(value < threshold for value in values) <= alpha * (len(values) + 1)


def test_confident_judges_threshold_is_printed_with_all_digits(server, tmp_path):
    server.decide = lambda text: 1 - 1e-7 * (2 + float(text.split()[0]))
    result = run(
        "judge", "calibrate", "-c", config(tmp_path, server), honest_lines(tmp_path, 60),
        "--alpha", 0.05,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    threshold = float(result.output.rsplit("threshold:", 1)[1])
    assert 0.9999996 < threshold < 0.9999999


def test_everything_may_be_rejected():
    assert threshold_for([0.2, 0.4], 1.0) == 0.4
    with pytest.raises(ValueError, match="expected at least 1 / 1 with 0"):
        threshold_for([], 1.0)


def test_thresholds_hold_for_future_completions():
    rng, rejected, trials = random.Random(8), 0, 3000
    for _ in range(trials):
        values = [rng.random() for _ in range(50)]
        rejected += rng.random() < threshold_for(values, 0.1)
    assert rejected / trials <= 0.1 + 4 * (0.09 / trials) ** 0.5


def test_cot_reason_is_kept_in_the_verdict():
    text = "Step one adds wrongly.\nSo the answer is wrong.\nVERDICT: REJECT"
    ruling = CotMode().read(Reply(text=text), "2 + 2 = 5")
    assert ruling.passed is False
    assert ruling.finding.message.endswith(
        "reject: Step one adds wrongly.\nSo the answer is wrong."
    )
    long = CotMode().read(Reply(text="x" * 9_000 + "\nVERDICT: ACCEPT"), "")
    assert len(long.finding.message) < 1_100
