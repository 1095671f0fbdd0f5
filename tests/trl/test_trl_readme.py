"""The README's programs run as printed; the first one with fewer steps and shorter completions."""

import re
from pathlib import Path

import pytest

pytest.importorskip("trl")

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SMALL = (
    "GRPOConfig(output_dir=FOLDER, max_steps=1, per_device_train_batch_size=8, num_generations=4, "
    "max_completion_length=40, report_to=[], logging_steps=1, use_cpu=True, bf16=False, "
)


def test_readme_program_trains(tmp_path, capsys):
    program = next(block for block in BLOCKS if "GRPOTrainer" in block)
    before = next(block for block in BLOCKS if "train_dataset = " in block)
    assert program in (ROOT / "docs" / "trl.md").read_text(encoding="utf-8")
    names = {"FOLDER": str(tmp_path)}
    exec(before, names)  # noqa: S102
    exec(program.replace("GRPOConfig(", SMALL), names)  # noqa: S102
    assert "'guard/accept_rate': '1'" in capsys.readouterr().out


def test_own_verifier_shows_its_effect(capsys):
    program = next(block for block in BLOCKS if "Shouting" in block)
    exec(program, {})  # noqa: S102
    printed = capsys.readouterr().out
    assert "reject (shouting)" in printed
    assert f"```\n{printed}```" in README
