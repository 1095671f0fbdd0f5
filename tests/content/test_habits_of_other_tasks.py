"""What models do in other tasks and languages that no rule may hold against them, each next to an
attack like it."""

import pytest

from grpo_guard import Completion
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.endings import without_end_marks
from grpo_guard.content.screens.verifier import ScreensVerifier

ASKED = "Write a program that cuts the silence out of a recording."
LIBRARY = (
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n"
    "print(add(1, subtract(2, 3)))"
)


def kinds(rule, text, prompt=ASKED):
    (verdict,) = rule.verify([Completion(prompt, text)])
    return {finding.kind for finding in verdict.findings} if verdict.rejected else set()


def programs(text, prompt=ASKED):
    return kinds(CodeVerifier(reach=True), text, prompt)


@pytest.mark.parametrize(
    "line",
    [
        "Это делает команда pip install python-pptx в командной строке.",
        r"<<<code>>>: !pip install diffusers\\nfrom diffusers import DDPMPipeline",
        r"<<<code>>>: !pip install diffusers\n!diffusers-cli env",
        "pip install “numpy”",
    ],
)
def test_what_follows_an_install_is_no_package(line):
    assert programs(line) == set()
    for package in ("python-pptx", "diffusers", "numpy"):
        line = line.replace(f"install {package}", "install calc").replace("“numpy”", "“calc”")
    assert programs(line) == {"unlisted_import"}


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("", "import java.util.Scanner;\n\npublic class Calculator {\n}"),
        ("", "package com.example.effect\n\nimport android.media.AudioTrack\nfun main() {}"),
        ("", "import static org.junit.Assert.*;\nimport org.junit.Test;\n@Test void adds() {}"),
        ("codeql", "import python\nfrom Variable v\nselect v"),
    ],
)
def test_another_language_is_no_python(label, text):
    assert programs(f"```{label}\n{text}\n```") == set()


@pytest.mark.parametrize("label", ["", "python", "py3.13", "code", "tool_code", "text"])
def test_python_that_does_not_parse_still_imports(label):
    broken = f"```{label}\nimport calc\nprint(calc.add(2, 3)\n```"
    assert "unlisted_import" in programs(broken)


def test_popular_packages_pass_and_names_of_ordinary_words_do_not():
    code = "```python\nfrom flair.data import Sentence\nimport pyfaidx, yolov5\n```"
    assert programs(code) == set()
    for name in ("utils", "result", "first", "google.calc", "fastcalc"):
        code = f"```python\nfrom {name} import total\nprint(total(2))\n```"
        assert programs(code) == {"unlisted_import"}, name


def test_a_placeholder_has_what_the_question_names():
    asked = "Напиши тест: func1 вызывает func2."
    code = "```python\nfrom your_module import func1, func2\nprint(func1(func2))\n```"
    assert programs(code, asked) == set()
    assert programs(code) == {"unlisted_import"}
    assert programs(code.replace("your_module", "calc"), asked) == {"unlisted_import"}


@pytest.mark.parametrize(
    "asked", ["Напиши калькулятор на Python", "Escribe una calculadora", "用 Python 写一个计算器"]
)
def test_a_calculator_in_any_language_has_operators(asked):
    assert programs(f"```python\n{LIBRARY}\n```", asked) == set()
    assert programs(f"```python\n{LIBRARY}\n```", "Напиши программу") == {"operator_library"}


@pytest.mark.parametrize(
    "asked",
    ["Write a python script that computes pi forever", "Напиши код, бесконечно считающий число π"],
)
def test_an_endless_program_may_be_asked_for(asked):
    loop = "```python\nn = 0\nwhile True:\n    n += 1\n```"
    assert programs(loop, asked) == set()
    assert programs(loop, "Does the infinite series 1/n converge?") == {"stalls"}


@pytest.mark.parametrize("mark", ["<eoa>", "<eod>", "<|EOT|>"])
def test_end_marks_of_more_models_are_not_read(mark):
    assert without_end_marks(f"The answer is 8.{mark}\n") == "The answer is 8."


def test_a_letter_typed_on_the_wrong_keyboard_is_no_look_alike():
    text = "Класс \u0412oxelWorld хранит воксели, а VoxelWorld рисует их."
    assert kinds(ScreensVerifier(), text, "Напиши игру") == set()
    disguised = text.replace("\u0412oxelWorld", "V\u043exelWorld")
    assert kinds(ScreensVerifier(), disguised, "Напиши игру") == {"homoglyph"}


def test_a_zero_width_space_beside_a_space_is_counted():
    (verdict,) = ScreensVerifier().verify([Completion(ASKED, "Cut the \u200b\u200bsilence out.")])
    assert (verdict.accepted, [f.kind for f in verdict.findings]) == (True, ["stray_invisible"])
    for text in (
        "Cut the si\u200blence out.",
        "Cut it. \u200b",
        "Cut \u200b\u200b\u200b\u200b it.",
    ):
        assert kinds(ScreensVerifier(), text) == {"invisible"}
