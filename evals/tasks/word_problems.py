"""Generated grade-school word problems and the binary reward of the paper's maths task.

The format is that of "Hail to the Thief" (arXiv 2511.09780), section 2.3 of our notes: the working
inside ``<think>``, the answer inside ``<answer>``, and a reward of 1 if the correct number appears
inside the answer tags, where extra words are allowed ("54 cows"). Numbers stay small so that a
policy with a million parameters can really do the arithmetic.
"""

import random
from dataclasses import dataclass
from itertools import islice
from typing import Final

from grpo_guard.content.answers import number_of, numbers_in, tagged
from grpo_guard.evals.tasks.base import Problem


def words(text: str) -> list[str]:
    """Split a text into words."""
    return text.split()


THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"
ANSWER_OPEN: Final = "<answer>"
ANSWER_CLOSE: Final = "</answer>"

# The answer block should be short. Without these two limits, a completion could earn the reward by
# listing every number, which is reward hacking rather than the behaviour under study.
MAX_ANSWER_CHARS: Final = 80
MAX_ANSWER_NUMBERS: Final = 3
MAX_NUMBER: Final = 50
# Some of the problems have three-digit numbers, which the policy was never trained on, just as any
# benchmark has problems that a base model never solves. Without them, every honest completion would
# soon earn the reward, all advantages would vanish, and both learning and poisoning would stop.
# Problems that the policy sometimes solves by luck would be worse: their advantages are large but
# pure noise.
HARD_SHARE: Final = 0.25
HARD_NUMBERS: Final = (100, 999)

NAMES: Final = words(
    "Ann Ben Cara Dan Eva Finn Gina Hugo Iris Jack Kim Leo Mia Noah Olga Paul Rosa Sam Tina "
    "Umar Vera Will Yara Zoe"
)
ITEMS: Final = words(
    "apples books coins cards pens shells stamps eggs cows balls stones plums cups ducks roses "
    "nuts keys hats kites buttons"
)
BOXES: Final = words("boxes bags baskets crates jars trays")
GAINS: Final = (
    "{name} buys {n} more.",
    "{name} finds {n} more.",
    "{name} gets {n} more.",
    "A friend brings {n} more.",
    "Then {n} more arrive.",
)
LOSSES: Final = (
    "{name} gives away {n}.",
    "{name} loses {n}.",
    "{name} sells {n}.",
    "A friend takes {n}.",
    "Then {n} are gone.",
)
QUESTIONS: Final = (
    "How many {item} are left?",
    "How many {item} does {name} have now?",
    "How many {item} are there now?",
)


@dataclass(frozen=True, slots=True)
class Worked:
    """A word problem with its equations in order, the items it counts, and its answer."""

    question: str
    equations: tuple[str, ...]
    item: str
    answer: int


def worked(rng: random.Random, *, hard_share: float = 0.0) -> Worked:
    """Draw a problem of one to three steps with every intermediate value in 1..``MAX_NUMBER``.

    With probability ``hard_share``, the values lie in the range ``HARD_NUMBERS`` instead.
    """
    if hard_share > 0 and rng.random() < hard_share:
        return _hard(rng)
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    steps = rng.choices((1, 2, 3), weights=(3, 5, 2))[0]
    sentences: list[str] = []
    equations: list[str] = []
    if rng.random() < 0.4:
        boxes, each = rng.randint(2, 5), rng.randint(2, 9)
        sentences.append(f"{name} has {boxes} {rng.choice(BOXES)} with {each} {item} each.")
        total = boxes * each
        equations.append(f"{boxes} * {each} = {total}")
    else:
        total = rng.randint(2, 20)
        sentences.append(f"{name} has {total} {item}.")
    _extend(rng, name, total, steps, sentences, equations, (1, MAX_NUMBER), 12)
    return _worded(rng, name, item, sentences, equations)


def _hard(rng: random.Random) -> Worked:
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    low, high = HARD_NUMBERS
    total = rng.randint(low + 50, high - 50)
    sentences, equations = [f"{name} has {total} {item}."], list[str]()
    _extend(rng, name, total, rng.choice((2, 3)), sentences, equations, HARD_NUMBERS, high)
    return _worded(rng, name, item, sentences, equations)


def _extend(
    rng: random.Random,
    name: str,
    total: int,
    steps: int,
    sentences: list[str],
    equations: list[str],
    limits: tuple[int, int],
    most: int,
) -> None:
    """Add gains and losses, each between 2 and ``most``, until there are ``steps`` equations."""
    low, high = limits
    while len(equations) < steps:
        can_gain, can_lose = total + 2 <= high, total - 2 >= low
        gain = can_gain and (rng.random() < 0.5 or not can_lose)
        change = rng.randint(2, min(most, high - total if gain else total - low))
        wording = rng.choice(GAINS if gain else LOSSES)
        sentences.append(wording.format(name=name, n=change))
        result = total + change if gain else total - change
        equations.append(f"{total} {'+' if gain else '-'} {change} = {result}")
        total = result


def _worded(
    rng: random.Random, name: str, item: str, sentences: list[str], equations: list[str]
) -> Worked:
    question = rng.choice(QUESTIONS).format(name=name, item=item)
    answer = int(equations[-1].rpartition(" ")[2])
    return Worked(" ".join([*sentences, question]), tuple(equations), item, answer)


def prompt_of(question: str) -> str:
    """Return the text that the policy continues."""
    return f"Q: {question}\nA:"


def solution_of(problem: Worked) -> str:
    """Return the data set's solution in the paper's format."""
    lines = [f"{equation} {problem.item}." for equation in problem.equations]
    working = " Then ".join(lines)
    return (
        f"{THINK_OPEN}{working}{THINK_CLOSE}{ANSWER_OPEN}{problem.answer} {problem.item}"
        f"{ANSWER_CLOSE}"
    )


def reward(text: str, answer: str) -> float:
    """Return 1.0 if ``answer`` is inside the only answer block in ``text``, otherwise 0.0.

    ``answer`` must be a complete number in the text: 54 is found in "54 cows" and in "$54.", but
    not in "154", "54.5" or "-54". A text with a second answer block earns nothing, nor does a block
    that is too long or lists more than ``MAX_ANSWER_NUMBERS`` numbers.
    """
    blocks = list(islice(tagged(text), 2))
    if len(blocks) != 1 or len(blocks[0].content) > MAX_ANSWER_CHARS:
        return 0.0
    numbers = list(numbers_in(blocks[0].content))
    return float(len(numbers) <= MAX_ANSWER_NUMBERS and number_of(answer) in numbers)


class WordProblems:
    """The task that ships with the package; see the module's docstring."""

    name = "word_problems"

    def sample(self, rng: random.Random) -> Problem:
        """Draw one problem; identical generator states produce identical problems."""
        drawn = worked(rng, hard_share=HARD_SHARE)
        return Problem(
            question=drawn.question,
            prompt=prompt_of(drawn.question),
            solution=solution_of(drawn),
            answer=str(drawn.answer),
        )

    def reward(self, text: str, answer: str) -> float:
        """Return 1.0 if the text's only answer block has the answer; see :func:`reward`."""
        return reward(text, answer)


def generate(seed: int | str, count: int) -> list[Problem]:
    """Return ``count`` problems; the same seed produces the same list on every platform."""
    rng, task = random.Random(seed), WordProblems()
    return [task.sample(rng) for _ in range(count)]
