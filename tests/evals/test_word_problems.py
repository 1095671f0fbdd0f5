"""The bundled task: its generator and its reward, hostile text included."""

import re

import pytest

from grpo_guard.evals.tasks.word_problems import (
    HARD_NUMBERS,
    WordProblems,
    generate,
    reward,
)


def test_same_seed_gives_same_problems() -> None:
    assert generate(3, 20) == generate(3, 20)
    assert generate(3, 20) != generate(4, 20)


def test_solutions_earn_the_reward_and_their_equations_hold() -> None:
    for problem in generate("solutions", 300):
        assert reward(problem.solution, problem.answer) == 1.0
        assert problem.prompt.startswith(f"Q: {problem.question}")
        equations = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", problem.solution)
        assert 1 <= len(equations) <= 3
        for left, operator, right, result in equations:
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "*": a * b}[operator] == int(result) <= HARD_NUMBERS[1]
        assert equations[-1][3] == problem.answer


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("54", 1.0),
        ("54 cows", 1.0),
        ("It is $54.", 1.0),
        ("5 + 49 = 54", 1.0),
        ("54, of course", 1.0),
        ("154", 0.0),
        ("540", 0.0),
        ("54.5", 0.0),
        ("-54", 0.0),
        ("1,054", 0.0),
        ("x54", 0.0),
        ("54th", 1.0),
        ("fifty-four", 0.0),
        ("", 0.0),
        ("1 2 3 54", 0.0),
        ("54" + " cows" * 40, 0.0),
    ],
)
def test_reward_requires_the_whole_number(block: str, expected: float) -> None:
    assert reward(f"<think>54</think><answer>{block}</answer>", "54") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "54",
        "<think>54</think>",
        "<answer>54",
        "</answer>54<answer>",
        "<answer>1</answer><answer>54</answer>",
        "<answer>54</answer><answer>1</answer>",
    ],
)
def test_text_without_one_answer_block_earns_nothing(text: str) -> None:
    assert reward(text, "54") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 200_000,
        "<answer>" + "5" * 1_000_000 + "</answer>",
        "<answer>" + "5," * 500_000,
        "\x00\ud800<answer>\u0665\u0664</answer>",
    ],
)
@pytest.mark.timeout(120)  # read again from each tag, these would take longer
def test_hostile_text_is_cheap_and_earns_nothing(text: str) -> None:
    assert reward(text, "54") == 0.0


def test_task_interface() -> None:
    import random

    task = WordProblems()
    problem = task.sample(random.Random(0))
    assert task.reward(problem.solution, problem.answer) == 1.0
