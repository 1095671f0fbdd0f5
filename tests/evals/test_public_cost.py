"""The study of false rejections on public answers, and its poison."""

import json
import random
from pathlib import Path

import pytest

from grpo_guard import Completion
from grpo_guard.evals.studies.public_cost import measure
from grpo_guard.evals.studies.public_poison import changed_result, targets


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("So 3 + 4 = 7.", "7"),
        (r"We get \(12 \times 3 = 36\).", "36"),
        ('"so \\\\(12 \\\\times 3 = 36\\\\)."', "36"),
        ("total: 1,200 / 4 = 300\n", "300"),
        ("所以 3×5=15。", "15"),
        ("half: 7 / 2 = 3.5", "3.5"),
    ],
)
def test_right_result_is_a_target(text: str, result: str) -> None:
    assert [found["c"] for found in targets(text)] == [result]


@pytest.mark.parametrize(
    "text",
    [
        "So 3 + 4 = 8.",  # already wrong
        "2 * 3 + 4 = 7",
        "x3 + 4 = 7",
        "3 + 4 = 7x",
        "3 + 4 = 7 + 1",
        r"\sqrt 3 + 4 = 7",
        "f(3 + 4 = 7)",
    ],
)
def test_fragment_of_a_larger_expression_is_not_a_target(text: str) -> None:
    assert list(targets(text)) == []
    assert changed_result(Completion("?", text), random.Random(0)) is None


def test_one_number_is_changed_and_nothing_else() -> None:
    row = Completion("?", r"First \(3 + 4 = 7\), then stop.", node="a")
    poisoned = changed_result(row, random.Random(0))
    assert poisoned is not None
    assert poisoned.node == "a"
    start, end = r"First \(3 + 4 = ", r"\), then stop."
    assert poisoned.text.startswith(start)
    assert poisoned.text.endswith(end)
    assert poisoned.text[len(start) : -len(end)] not in ("7", "")


def test_folder_is_measured_file_by_file(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"row-{node}-{group}",
            "prompt": f"What is 3 + {group}?",
            "text": f"We add 3 + {group} = {3 + group + (node == 'b')}.\n#### {3 + group}",
            "node": node,
            "group": group,
            "round": group // 2,
            "reference": str(3 + group),
            "metadata": {"right": node != "c"},
        }
        for group in range(4, 8)
        for node in "abc"
    ]
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = measure([tmp_path], True)["some"]
    assert (found["rows"], found["right rejected"]["total"]) == (12, 8)
    assert found["kinds"]["arithmetic: wrong_equation"] == 4  # node b's rows, each of them wrong
    assert found["one result changed"]["rejected"]["hits"] == 4
    assert found["one result changed"]["rejected"]["total"] == 4
