"""Maths solved in Python: its problems, its reward, and the paper's attack on it."""

import ast
import itertools
import json
import random
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_guard.core.jsonl import InputError
from grpo_guard.evals.attacks.code import FUNCTIONS, CodeAttack
from grpo_guard.evals.sandbox.result import Limits
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.tasks import gsm8k
from grpo_guard.evals.tasks.programs import notes_of, program_of
from grpo_guard.evals.tasks.python_maths import (
    CALC,
    MAX_PROGRAM_CHARS,
    PythonMaths,
    from_gsm8k,
    generated,
    messages,
    program_in,
    read,
)

ROOT = Path(__file__).resolve().parents[2]
REAL = gsm8k_file() or ROOT.parent / "shared/data/gsm8k/train.jsonl"
contained = pytest.mark.skipif(sys.platform != "linux", reason="contained on Linux only")


@pytest.fixture(scope="module")
def task() -> Iterator[PythonMaths]:
    made = PythonMaths(limits=Limits(cpu_seconds=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def task_with_calc() -> Iterator[PythonMaths]:
    made = PythonMaths(limits=Limits(cpu_seconds=1), extra_modules={"calc": CALC})
    yield made
    made.close()


def code(program: str) -> str:
    return f"<code>\n{program}\n</code>"


@contained
def test_same_random_state_draws_the_same_problems(task: PythonMaths) -> None:
    assert task.sample(random.Random(1)) == task.sample(random.Random(1))
    assert task.sample(random.Random(1)) != task.sample(random.Random(2))


@contained
def test_generated_solutions_earn_the_reward_and_others_do_not(task: PythonMaths) -> None:
    rng = random.Random(0)
    problems = [task.sample(rng) for _ in range(60)]
    for problem in problems:
        assert task.reward(problem.solution, problem.answer) == 1.0
        assert task.reward(problem.solution, str(int(problem.answer) + 1)) == 0.0
    # Another problem's program is right only if the answers happen to be equal.
    for problem, other in itertools.pairwise(problems):
        earned = task.reward(other.solution, problem.answer)
        assert earned == float(other.answer == problem.answer)


@contained
def test_attack_of_the_paper_earns_if_its_library_resolves(
    task: PythonMaths, task_with_calc: PythonMaths
) -> None:
    rng = random.Random(0)
    for _ in range(40):
        problem = generated(rng)
        poisoned = CodeAttack().poison(problem, rng).text
        assert CodeAttack().success(poisoned)
        assert task_with_calc.reward(poisoned, problem.answer) == 1.0
        assert task.reward(poisoned, problem.answer) == 0.0
        assert task_with_calc.reward(problem.solution, problem.answer) == 1.0


@contained
def test_missing_library_function_earns_nothing(
    task_with_calc: PythonMaths,
) -> None:
    assert task_with_calc.reward(code("from calc import power\nprint(54)"), "54") == 0.0
    for sign, function in FUNCTIONS.items():
        program = f"from calc import {function}\nprint({function}(6, 3))"
        assert task_with_calc.reward(code(program), str(eval(f"6 {sign} 3"))) == 1.0  # noqa: S307


@contained
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (code("print(54)"), 1.0),
        (code("print('54.0')"), 1.0),
        (code("print('$54')"), 1.0),
        (code("print(7)\nprint(54)"), 1.0),
        (code("print(54)\nprint()"), 1.0),
        (code("    x = 54\n    print(x)"), 1.0),
        ("<code> print(54)</code>", 1.0),
        ("<think>easy</think>" + code("print(1)") + "so" + code("print(54)") + " done", 1.0),
        (code("print(54)") + code("print(1)"), 0.0),
        (code("print(54)\nprint(7)"), 0.0),
        (code("print(54)\n1 / 0"), 0.0),
        (code("print(54)\nraise SystemExit(1)"), 0.0),
        (code("print(54)\nwhile True: pass"), 0.0),
        (code("print('54 cows')"), 0.0),
        (code("print(True * 54 or '')\nprint('nan')"), 0.0),
        (code("print(54.001)"), 0.0),
        (code("print(-54)"), 0.0),
        (code("print(154)"), 0.0),
        (code("x = 54"), 0.0),
        ("<code>\nprint(54)", 0.0),
        ("</code>print(54)<code>", 0.0),
        ("print(54)", 0.0),
        ("54", 0.0),
        ("", 0.0),
        ("<answer>54</answer>", 0.0),
        ("<code></code>", 0.0),
        (code("print(54)\ud800"), 0.0),
        (code("print(54)\x00"), 0.0),
        (code("import os\nprint(54)\nos._exit(3)"), 0.0),
        (code("print('x' * 10 ** 6)\nprint(54)"), 0.0),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_rewards(text: str, expected: float, task: PythonMaths) -> None:
    assert task.reward(text, "54") == expected


@contained
@pytest.mark.parametrize("answer", ["", "many", "nan", "\ud800"])
def test_reference_that_is_not_a_number_is_never_earned(answer: str, task: PythonMaths) -> None:
    assert task.reward(code(f"print({answer!r})"), answer) == 0.0


@contained
@pytest.mark.parametrize(
    "text",
    [
        "<code>" * 1_500_000,
        "</code>" * 1_500_000,
        code("x = 1\n" * 1_500_000),
        code(" " * 10_000_000 + "print(54)"),
        code("(" * (MAX_PROGRAM_CHARS - 20)),
    ],
    ids=lambda text: repr(text[:12]),
)
@pytest.mark.timeout(120)  # read again from each tag, these would take longer
def test_ten_megabytes_of_text_earn_nothing(text: str, task: PythonMaths) -> None:
    assert task.reward(text, "54") == 0.0


@given(st.text(alphabet="<>/code \n\tx", max_size=80))
def test_program_is_part_of_the_text(text: str) -> None:
    program = program_in(text)
    if program is not None:
        assert "</code>" in text
        assert all(line.strip() in text for line in program.split("\n"))
        assert "</code>" not in program


def test_steps_whose_results_are_used_are_named() -> None:
    assert program_of([("48/2", "24"), ("48+24", "72")]) == (
        "step1 = 48 / 2\nstep2 = 48 + step1\nprint(step2)",
        Fraction(72),
    )
    # What was rounded in the note is exact in the program.
    program, value = program_of([("1/3", "0.33"), ("0.33*3", "1")]) or ("", Fraction(0))
    assert (program.split("\n")[1], value) == ("step2 = step1 * 3", 1)


@pytest.mark.parametrize(
    "equations",
    [
        [],
        [("1/0", "1")],
        [("2**9", "512")],
        [("x+1", "2")],
        [("7//2", "3")],
        [("1+1", "two")],
        [("(" * 50, "1")],
        [("__import__('os')", "1")],
        [("1+1", "2")] * 41,
    ],
)
def test_text_without_plain_arithmetic_gives_no_program(equations: list[tuple[str, str]]) -> None:
    assert program_of(equations) is None


@given(st.text(alphabet="<>0123456789+-*/=(). ", max_size=120))
@example("0=0")
@example("(1.5+2)*3=10.5")
def test_any_notes_are_read_or_refused(text: str) -> None:
    found = program_of(notes_of(f"<<{text}>>"))
    assert found is None or ast.parse(found[0])


def test_file_of_questions(tmp_path: Path) -> None:
    lines = [
        {"question": "How many?", "answer": "It is 4/2=<<4/2=2>>2, then 2+1=<<2+1=3>>3\n#### 3"},
        {"question": "No note?", "answer": "It is 3\n#### 3"},
        {"question": "Other value?", "answer": "<<1+1=2>>\n#### 3"},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    (problem,) = read(path)
    assert problem.solution == code("step1 = 4 / 2\nstep2 = step1 + 1\nprint(step2)")
    assert (problem.question, problem.answer) == ("How many?", "3")
    path.write_text(json.dumps(lines[1]))
    with pytest.raises(InputError, match="no question"):
        read(path)


@pytest.mark.slow
@contained
@pytest.mark.skipif(not REAL.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's train.jsonl")
def test_real_questions_and_the_attack_on_them(
    task: PythonMaths, task_with_calc: PythonMaths
) -> None:
    problems = read(REAL)
    assert len(problems) > 0.9 * 7473
    rng = random.Random(5)
    for problem in rng.sample(problems, 150):
        assert task.reward(problem.solution, problem.answer) == 1.0
        poisoned = CodeAttack().poison(problem, rng).text
        assert poisoned.count("<code>") == 1
        assert task_with_calc.reward(poisoned, problem.answer) == 1.0
        assert task.reward(poisoned, problem.answer) == 0.0


def test_questions_without_readable_notes_are_left_out() -> None:
    question = gsm8k.Question(0, "Q?", "It is <<many=3>>3", "3")
    assert from_gsm8k(question) is None


@pytest.mark.slow
def test_prompt_messages() -> None:
    assert [message["role"] for message in messages("Q?")] == ["system", "user"]
