"""``grpo-guard calibrate`` writes a profile that ``verify`` then accepts or refuses."""

import json
import random

import pytest
import torch
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS, load_bundled
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.tasks.word_problems import WordProblems

SAMPLING = "{engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0, max_new_tokens: 64}"
LEAF = f"model: {WORD_PROBLEMS}, sampling: {SAMPLING}"
CONFIG = f"""
verifier:
  all:
    - {{type: logprob_bound, {LEAF}}}
    - {{type: tail_probability, {LEAF}}}
"""


@pytest.fixture(scope="module")
def lines():
    model, tokenizer = load_bundled()
    rng, task = random.Random(7), WordProblems()
    prompts = [task.sample(rng).prompt for _ in range(32)]
    generator = torch.Generator().manual_seed(7)
    return [
        {
            "prompt": prompts[s.prompt],
            "text": s.text,
            "prompt_ids": s.prompt_ids,
            "completion_ids": s.ids,
        }
        for s in sample(model, tokenizer, prompts, 4, generator=generator)
    ]


def calibrate(folder, lines, config=CONFIG, *options):
    (folder / "guard.yaml").write_text(config)
    text = "\n".join("" if line is None else json.dumps(line) for line in lines)
    (folder / "honest.jsonl").write_text(text + "\n")
    command = ["calibrate", "-c", folder / "guard.yaml", folder / "honest.jsonl"]
    command += ["-o", folder / "profile.json", *options]
    return CliRunner().invoke(app, [str(part) for part in command])


def verify(folder, config):
    (folder / "guard.yaml").write_text(config)
    command = ["verify", "-c", folder / "guard.yaml", folder / "honest.jsonl"]
    return CliRunner().invoke(app, [str(part) for part in [*command, "-o", folder / "out.jsonl"]])


@pytest.mark.slow
def test_from_honest_completions_to_a_guard_that_uses_the_profile(tmp_path, lines):
    result = calibrate(tmp_path, lines, CONFIG, "--base", "float32")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "profile.json").read_text())
    assert data["base"] == "float32"
    assert data["completions"] == 128
    for fpr in data["false_positives"]:
        assert (fpr["rejected"], fpr["abstained"], fpr["completions"]) == (0, 0, 128)
    assert "0 / 128 = 0.00% (0.00%-2.91%)" in result.stdout
    assert not (tmp_path / "profile.json.part").exists()
    used = CONFIG.replace("model:", f"profile: {tmp_path / 'profile.json'}, model:")
    verified = verify(tmp_path, used)
    assert verified.exit_code == 0, verified.output
    assert "accept 128/128" in verified.output
    # Calibrating again does not need the file that it is about to overwrite.
    (tmp_path / "profile.json").unlink()
    assert calibrate(tmp_path, lines, used).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["same_weights", "shared_seed"])
def test_calibrating_a_preset_does_not_touch_its_state(tmp_path, lines, preset):
    coin = "coin: my-run, " if preset == "shared_seed" else ""
    config = f"{{preset: {preset}, {coin}state: {tmp_path / 'state'}, {LEAF}}}"
    result = calibrate(tmp_path, lines, config)
    if preset == "shared_seed":  # these completions were not drawn with the shared seed
        assert result.exit_code == 2, result.output
        assert "coin" in result.stderr
    else:
        assert result.exit_code == 0, result.output
        data = json.loads((tmp_path / "profile.json").read_text())
        assert [fpr["verifier"] for fpr in data["false_positives"]] == ["logprob_bound"]
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
def test_verify_refuses_a_profile_of_another_sampler(tmp_path, lines):
    assert calibrate(tmp_path, lines).exit_code == 0
    other = CONFIG.replace("top_k: 50", "top_k: 20").replace(
        "model:", f"profile: {tmp_path / 'profile.json'}, dtype: bfloat16, model:"
    )
    result = verify(tmp_path, other)
    assert result.exit_code == 2
    assert "sampling.top_k: expected 50, got 20" in result.stderr
    assert "identity.dtype: expected 'float32', got 'bfloat16'" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_line_numbers_in_errors_count_blank_lines(tmp_path, lines):
    broken = {**lines[1], "completion_ids": None}
    result = calibrate(tmp_path, [lines[0], None, broken, *lines[2:]])
    assert result.exit_code == 2
    assert "honest.jsonl:3: completion_ids: expected token ids, got none" in result.stderr
    result = calibrate(tmp_path, [lines[0], {**lines[1], "text": 7}])
    assert result.exit_code == 2
    assert "honest.jsonl:2: text: expected a string, got 7" in result.stderr
    result = calibrate(tmp_path, lines[:4])
    assert result.exit_code == 2
    assert "honest.jsonl: expected at least 2000 tokens, got" in result.stderr
    assert not (tmp_path / "profile.json").exists()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("verifier: {type: logprob_bond}", "did you mean 'logprob_bound'?"),
        (
            CONFIG.replace("top_k: 50", "top_k: 20", 1),
            "tail_probability: sampling: expected that of logprob_bound",
        ),
        (CONFIG.replace("top_k: 50", "top_q: 50"), "sampling: expected one of engine, temp"),
        ("verifier: {all: []}", "nothing to calibrate"),
        ("preset: different_weights", "nothing to calibrate"),
        ("preset: same_wights", "did you mean 'same_weights'?"),
    ],
)
def test_configuration_that_cannot_be_calibrated_is_reported(tmp_path, lines, config, complaint):
    result = calibrate(tmp_path, lines, config)
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr


@pytest.mark.slow
def test_log_probs_of_another_kind_are_reported_and_unused(tmp_path, lines):
    sent = [{**line, "sampler_logprobs": [-9.0] * len(line["completion_ids"])} for line in lines]
    result = calibrate(tmp_path, sent)
    assert result.exit_code == 0, result.output
    assert "were not used for tau" in result.stderr
    data = json.loads((tmp_path / "profile.json").read_text())
    assert data["profile"]["tau"]["source"] == "inherited"
    assert data["drift"]["used_for_tau"] is False
