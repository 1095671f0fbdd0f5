"""Tasks by name: how each one is loaded, and how its questions are asked in a chat."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from grpo_guard.core.registry import choose
from grpo_guard.evals.tasks import gsm8k, word_problems
from grpo_guard.evals.tasks.asked import Ask
from grpo_guard.evals.tasks.base import Problem, Task

WORD_PROBLEMS: Final = "word_problems"
GSM8K: Final = "gsm8k"
PYTHON_MATHS: Final = "python_maths"
TASKS: Final = (WORD_PROBLEMS, GSM8K, PYTHON_MATHS)
READ_FROM_FILES: Final = (GSM8K, PYTHON_MATHS)
HELD_OUT_EVERY: Final = 10


class FromFile:
    """Draws from a list of problems; every tenth problem (or else the last) is held out.

    Args:
        problems: At least two problems, in the order of the file.

    Raises:
        ValueError: there are fewer than two problems.
    """

    def __init__(
        self, name: str, problems: Sequence[Problem], reward: Callable[[str, str], float]
    ) -> None:
        if len(problems) < 2:
            raise ValueError(
                f"{name}: expected at least 2 problems, one to train on and one held out, "
                f"got {len(problems)}"
            )
        self.name = name
        self._held_out = problems[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] or problems[-1:]
        kept = [p for n, p in enumerate(problems, 1) if n % HELD_OUT_EVERY]
        self._problems = kept if len(problems) >= HELD_OUT_EVERY else problems[:-1]
        self._reward = reward

    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem to train on; identical generator states produce identical problems."""
        return rng.choice(self._problems)

    def sample_held_out(self, rng: random.Random) -> Problem:
        """Draw one of the problems that `sample` never returns."""
        return rng.choice(self._held_out)

    def reward(self, text: str, answer: str) -> float:
        """Compute the task's own reward."""
        return self._reward(text, answer)


def load_task(name: str, data: Path | None = None, *, calc: bool = True) -> Task:
    """Load the task with that name.

    Args:
        name: One of `TASKS`.
        data: A file in GSM8K's format. None for generated problems or, if the task is "gsm8k", for
            the data set itself, through ``datasets``.
        calc: Whether "python_maths" has the attacker's library to import, as in the paper.

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
