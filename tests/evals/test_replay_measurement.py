"""The seed replay example as a user runs it, and the parts of its measurement."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS, load_bundled
from grpo_guard.evals.studies.replay.forgeries import flipped_digit, swapped_token
from grpo_guard.evals.studies.replay.measure import Sample, measured, one_step_later
from grpo_guard.evals.studies.replay.sets import COIN, NODE, ROUND, Draw, Question, Sets, completion
from grpo_guard.evals.studies.replay.sets import FLOAT32 as FLOAT
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.logprob.profile import FLOAT32

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "seed_replay.py"
SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=24)


@pytest.fixture(scope="module")
def policy():
    return load_bundled()


@pytest.mark.slow
def test_example_writes_counts_with_intervals(tmp_path):
    rng, task = random.Random(0), WordProblems()
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": task.sample(rng).prompt} for _ in range(8)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", WORD_PROBLEMS, "--prompts", prompts, "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *words, "--best-of", "4", "--max-new-tokens", "64"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["honest_rejected"] == 0
    assert results["honest_total"] == 16
    assert results["math_flip_rejected"] >= results["math_flip_total"] / 2 > 0
    assert results["best_of_n_rejected"] >= results["best_of_n_total"] / 2 > 0
    for name in ("honest", "math_flip", "best_of_n"):
        low, high = results[f"{name}_interval"]
        assert 0 <= low <= results[f"{name}_rejected"] / results[f"{name}_total"] <= high <= 1


@pytest.mark.slow
def test_prompt_file_error_names_the_line(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Q"}\n{"text": "no prompt"}\n')
    words = ["--model", WORD_PROBLEMS, "--prompts", prompts, "--out", tmp_path / "out"]
    done = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True)
    assert done.returncode != 0
    assert "prompts.jsonl:2" in done.stderr


def test_a_flip_changes_one_token_of_a_result(policy):
    _, tokenizer = policy
    ids = tuple(tokenizer.encode("<think>12 + 30 = 42 plums.</think>", add_special_tokens=False))
    for seed in range(20):
        flipped, t = flipped_digit(ids, tokenizer, random.Random(seed))
        assert [i for i, (a, b) in enumerate(zip(ids, flipped, strict=True)) if a != b] == [t]
        assert "12 + 30 = " in tokenizer.decode(flipped)
        assert "= 42" not in tokenizer.decode(flipped)


def test_a_text_without_equations_has_no_digit_to_flip(policy):
    _, tokenizer = policy
    ids = tuple(tokenizer.encode("Zoe has 18 plums.", add_special_tokens=False))
    assert flipped_digit(ids, tokenizer, random.Random(0)) is None


def test_a_swap_keeps_the_last_token_and_takes_a_likely_one(policy):
    model, _ = policy
    prompt, ids = (5, 6, 7), (8, 9, 10, 11)
    swapped = swapped_token(prompt, ids, model, random.Random(1), among=2)
    assert sum(a != b for a, b in zip(ids, swapped, strict=True)) == 1
    assert swapped[-1] == ids[-1]


def test_sets_are_kept_and_a_half_written_line_is_redone(policy, tmp_path):
    model, tokenizer = policy
    prompt = tuple(tokenizer.encode("Q: Zoe has 18 plums.\nA:"))
    draws = [Draw(str(i), prompt, i) for i in range(3)]
    said = []
    eos = (int(tokenizer.eos_token_id),)
    sets = Sets({FLOAT: model}, eos, tmp_path, lambda *words: said.append(words))
    first = sets.drawn("set", draws, FLOAT, SPEC, 2)
    (file,) = tmp_path.iterdir()
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], lines[2][:10]]))
    said.clear()
    again = sets.drawn("set", draws, FLOAT, SPEC, 2)
    assert again == first
    assert said == [("set", 3, 3)]


def test_a_step_moves_every_weight_a_little_and_leaves_the_policy_alone(policy):
    model, _ = policy
    before = [p.detach().clone() for p in model.parameters()]
    stepped = one_step_later(model, [((5, 6, 7), [(8, 9), (8, 9, 10, 11)])])
    moved = [
        float((a - b).abs().max())
        for a, b in zip(stepped.parameters(), model.parameters(), strict=True)
    ]
    assert 0 < np.max(moved) <= 2e-6
    assert all((a == b).all() for a, b in zip(before, model.parameters(), strict=True))


def test_honest_work_passes_and_other_seeds_fail(policy, tmp_path):
    model, tokenizer = policy
    rng, task = random.Random(3), WordProblems()
    questions = []
    for slot in range(6):
        prompt = task.sample(rng).prompt
        ids = tuple(tokenizer.encode(prompt))
        seed = COIN.seed(round=ROUND, node=NODE, slot=slot, prompt=prompt)
        questions.append(Question(slot, prompt, ids, seed))
    sets = Sets({FLOAT: model}, (int(tokenizer.eos_token_id),), tmp_path, lambda *_: None)
    samples = [
        Sample(
            name, [completion(q, ids, tokenizer) for q, ids in zip(questions, rows, strict=True)]
        )
        for name, rows in (
            ("honest", sets.honest(questions, FLOAT)),
            ("longest of 2", sets.longest_of(questions, 2)),
        )
    ]
    found = measured(model, tokenizer, samples, FLOAT32)
    assert found["samples"]["honest"]["hits"] == 0
    assert found["samples"]["longest of 2"]["hits"] > 0
    assert found["match_rate"] == 1.0
    assert set(found["margins"]) >= {"0", "0.05", "1"}
