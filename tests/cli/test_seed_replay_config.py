"""``seed_replay`` from a config: verify a file of completions, and calibrate a profile on it."""

import json
import random

import pytest
from typer.testing import CliRunner

from grpo_guard import SamplingSpec
from grpo_guard.cli.main import app
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS, load_bundled
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin

CONFIG = f"""
verifier:
  type: seed_replay
  model: {WORD_PROBLEMS}
  run: my-run
  sampling:
    {{engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0, max_new_tokens: 64}}
"""
SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=64)


@pytest.fixture(scope="module")
def lines():
    """Four completions each for 32 prompts, drawn by node alice."""
    model, tokenizer = load_bundled()
    rng, task = random.Random(3), WordProblems()
    places = [(p, slot) for p in (task.sample(rng).prompt for _ in range(32)) for slot in range(4)]
    coin = PublicCoin("my-run")
    rows = generate_under_coin(
        model,
        [tokenizer.encode(prompt) for prompt, _ in places],
        [coin.seed(round=0, node="alice", slot=slot, prompt=prompt) for prompt, slot in places],
        SPEC,
        eos_ids=[tokenizer.eos_token_id],
    )
    return [
        {
            "prompt": prompt,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
            "completion_ids": ids,
            "node": "alice",
            "round": 0,
            "slot": slot,
        }
        for (prompt, slot), ids in zip(places, rows, strict=True)
    ]


@pytest.fixture
def files(tmp_path, lines):
    (tmp_path / "guard.yaml").write_text(CONFIG)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def run(files, command, out):
    words = [command, "-c", files / "guard.yaml", files / "in.jsonl", "-o", files / out]
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
def test_honest_file_is_accepted_and_a_relabelled_one_is_not(files, lines):
    moved = lines[0] | {"node": "bob"}
    with (files / "in.jsonl").open("a") as file:
        file.write(json.dumps(moved) + "\n")
    result = run(files, "verify", "out.jsonl")
    assert result.exit_code == 0, result.output
    verdicts = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    assert [v["outcome"] for v in verdicts[:-1]] == ["accept"] * len(lines)
    assert verdicts[-1]["outcome"] == "reject"


@pytest.mark.slow
def test_calibration_measures_replay_drift(files):
    result = run(files, "calibrate", "profile.json")
    assert result.exit_code == 0, result.output
    profile = json.loads((files / "profile.json").read_text())["profile"]
    assert profile["replay"][0]["gap"] == 0
    rates = [entry["rate"] for entry in profile["replay"]]
    assert rates == sorted(rates, reverse=True)
    (files / "guard.yaml").write_text(CONFIG + f"  profile: {files / 'profile.json'}\n")
    verified = run(files, "verify", "out.jsonl")
    assert verified.exit_code == 0, verified.output
    assert "accept" in (files / "out.jsonl").read_text()


def test_completions_of_another_run_are_refused_for_calibration(files):
    (files / "guard.yaml").write_text(CONFIG.replace("my-run", "other-run"))
    result = run(files, "calibrate", "profile.json")
    assert result.exit_code == 2
    assert "differ from those that the seeds draw" in result.output
