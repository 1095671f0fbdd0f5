"""GSM8K: how files are read, and the errors for unreadable ones."""

import json
from pathlib import Path

import pytest

from grpo_guard.core.jsonl import InputError
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.tasks import gsm8k, word_problems

ROOT = Path(__file__).resolve().parents[2]
REAL = gsm8k_file() or ROOT.parent / "shared/data/gsm8k/train.jsonl"
GOOD = {"question": "How many?", "answer": "It is 1+1=<<1+1=2>>2.\n#### 1,002"}


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


@pytest.mark.skipif(not REAL.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's train.jsonl")
def test_real_file() -> None:
    questions = gsm8k.load(REAL)
    assert len(questions) == 7473
    assert questions[0].answer == "72"
    assert all(
        word_problems.reward(gsm8k.problem(q).solution, q.answer) == 1.0 for q in questions[:500]
    )
    assert [q.index for q in gsm8k.subset(questions, 5, 0)] == [
        q.index for q in gsm8k.subset(questions, 50, 0)[:5]
    ]


def test_fields_are_parsed_and_blank_lines_skipped(tmp_path: Path) -> None:
    (question,) = gsm8k.load(write(tmp_path, "", GOOD, "  "))
    assert question.question == "How many?"
    assert question.solution == "It is 1+1=<<1+1=2>>2."
    assert question.answer == "1002"
    assert gsm8k.problem(question).solution == ("<think>It is 1+1=2.</think><answer>1002</answer>")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"data.jsonl:2: \(line\): expected a JSON object, got invalid JSON"),
        ("[]", r"data.jsonl:2: \(line\): expected a JSON object, got list"),
        ("[" * 100_000, r"data.jsonl:2: \(line\): expected a JSON object"),
        ({"question": "q"}, "data.jsonl:2: answer: expected a text .* got nothing"),
        ({"question": 3, "answer": "#### 1"}, "data.jsonl:2: question: expected a text .* got 3"),
        ({"question": " ", "answer": "#### 1"}, "data.jsonl:2: question: expected"),
        ({"question": "q", "answer": "it is 1"}, "data.jsonl:2: answer: expected '#### NUMBER'"),
        ({"question": "q", "answer": "#### many"}, "data.jsonl:2: answer: expected '#### NUMBER'"),
    ],
)
def test_malformed_line_is_reported(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gsm8k.load(write(tmp_path, GOOD, line))


def test_missing_empty_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl: \(file\): expected a readable"):
        gsm8k.load(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="expected at least one question"):
        gsm8k.load(write(tmp_path))
    (tmp_path / "data.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="expected UTF-8"):
        gsm8k.load(tmp_path / "data.jsonl")


def test_error_without_file_and_datasets_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match="--data FILE"):
        gsm8k.load(None)


def test_prompt_messages() -> None:
    assert [m["role"] for m in gsm8k.messages("Q?")] == ["user"]
    assert [m["role"] for m in gsm8k.messages("Q?", "paper")] == ["system", "user"]
    with pytest.raises(ValueError, match="style"):
        gsm8k.messages("Q?", "other")  # type: ignore[arg-type]
