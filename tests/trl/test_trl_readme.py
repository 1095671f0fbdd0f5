"""The README's first program runs as printed, except for the model, the data and the batch size."""

import re
from pathlib import Path

import pytest

pytest.importorskip("trl")

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "GRPOConfig(output_dir=FOLDER, max_steps=1, per_device_train_batch_size=8, num_generations=4, "
    "max_completion_length=40, report_to=[], logging_steps=1, use_cpu=True, bf16=False, "
)


def test_readme_program_trains(tmp_path, capsys):
    from datasets import Dataset

    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.tasks import word_problems

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = next(block for block in blocks if "GRPOTrainer" in block)
    assert program in (ROOT / "docs" / "trl.md").read_text()
    loading = re.search(r"model = .*\ntokenizer = .*\n", program).group()
    program = program.replace(loading, "").replace("GRPOConfig(", SMALL)
    model, tokenizer = load_bundled()
    problems = list(word_problems.generate("fresh", 4))
    rows = [{"prompt": p.prompt, "answer": p.answer} for p in problems]
    names = {"model": model, "tokenizer": tokenizer, "FOLDER": str(tmp_path)}
    exec(program, names | {"train_dataset": Dataset.from_list(rows)})  # noqa: S102
    assert "guard/accept_rate" in capsys.readouterr().out


def test_own_verifier_is_added_to_the_preset():
    from grpo_guard import Completion

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(next(block for block in blocks if "Shouting" in block), names)  # noqa: S102
    batch = [Completion("Say something.", text, node="ann") for text in ("Fine.", "Hail! " * 4)]
    verdicts = names["guard"].review(batch).verdicts
    assert [v.rejected for v in verdicts] == [False, True]
