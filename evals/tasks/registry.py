"""Tasks by name: how each one is loaded, and how its questions are asked in a chat."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grpo_guard.core.registry import choose
from grpo_guard.evals.tasks import gsm8k, word_problems
from grpo_guard.evals.tasks.asked import Ask
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.from_file import FromFile

WORD_PROBLEMS: Final = "word_problems"
GSM8K: Final = "gsm8k"
PYTHON_MATHS: Final = "python_maths"
TASKS: Final = (WORD_PROBLEMS, GSM8K, PYTHON_MATHS)
READ_FROM_FILES: Final = (GSM8K, PYTHON_MATHS)


def load_task(name: str, data: Path | None = None, *, calc: bool = True) -> Task:
    """Load the task with that name.

    Args:
        name: One of `TASKS`.
        data: A file in GSM8K's format. None for generated problems or, if the task is "gsm8k", for
            the data set itself, through ``datasets``.
        calc: Whether programs of the task "python_maths" can import the attacker's library, as in
            the paper.

    Raises:
        UnknownNameError: no task has that name.
        ValueError: the task does not read files, or the file cannot be read.
        SandboxUnavailableError: programs cannot be contained on this system.
    """
    choose(TASKS, name)
    if data is not None and name not in READ_FROM_FILES:
        raise ValueError(
            f"--data: the task {name} generates its problems; expected --task "
            f"{' or '.join(READ_FROM_FILES)} with it"
        )
    if name == WORD_PROBLEMS:
        return word_problems.WordProblems()
    if name == GSM8K:
        problems = [gsm8k.problem(question) for question in gsm8k.load(data)]
        return FromFile(GSM8K, problems, word_problems.reward)
    from grpo_guard.evals.tasks import python_maths

    modules: Mapping[str, str] = {"calc": python_maths.CALC} if calc else {}
    task = python_maths.PythonMaths(extra_modules=modules)
    if data is None:
        return task
    return FromFile(PYTHON_MATHS, python_maths.read(data), task.reward)


def ask_of(name: str) -> Ask:
    """Return what turns a task's question into a chat: the paper's prompts, in our own words."""
    if name == PYTHON_MATHS:
        from grpo_guard.evals.tasks import python_maths

        return python_maths.messages
    return lambda question: gsm8k.messages(question, "paper")
