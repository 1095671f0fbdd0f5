"""The policy that solves maths in Python, and the programs on which it was trained."""

import random
import sys
from collections.abc import Iterator

import pytest
import torch

from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.evals.attacks.code import FUNCTIONS, LIBRARY, CodeAttack
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.swarm.generate import Sampled
from grpo_guard.evals.swarm.generate import sample as sample_policy
from grpo_guard.evals.tasks.python_maths import CALC, PythonMaths
from grpo_guard.evals.tasks.word_problems import worked
from grpo_guard.evals.training.policies.program_corpus import completion, sample

contained = pytest.mark.skipif(sys.platform != "linux", reason="contained on Linux only")
PROBLEMS, EACH = 60, 4


@pytest.fixture(scope="module")
def task() -> Iterator[PythonMaths]:
    made = PythonMaths(extra_modules={"calc": CALC})
    yield made
    made.close()


@pytest.fixture(scope="module")
def drawn(task: PythonMaths) -> list[tuple[Sampled, str, float]]:
    """(sample, answer, reward) of the bundled policy on problems that it was not trained on."""
    model, tokenizer = load_bundled("python_maths")
    rng = random.Random("held-out programs")
    problems = [task.sample(rng) for _ in range(PROBLEMS)]
    generator = torch.Generator().manual_seed(0)
    samples = sample_policy(
        model, tokenizer, [p.prompt for p in problems], EACH, generator=generator,
        max_new_tokens=128,
    )  # fmt: skip
    answers = [problems[one.prompt].answer for one in samples]
    return [(o, a, task.reward(o.text, a)) for o, a in zip(samples, answers, strict=True)]


def test_same_random_state_gives_the_same_samples() -> None:
    assert sample(random.Random(1)) == sample(random.Random(1))
    assert sample(random.Random(1)) != sample(random.Random(2))


def test_corpus_contains_nothing_of_the_attack() -> None:
    rng = random.Random("attack")
    text = "\n".join("".join(sample(rng)) for _ in range(5000))
    assert not any(word in text for word in (LIBRARY, *FUNCTIONS.values()))
    assert not CodeAttack().success(text)


@contained
def test_about_half_of_the_corpus_earns_the_reward(task: PythonMaths) -> None:
    rng = random.Random("corpus")
    problems = [worked(rng) for _ in range(300)]
    earned = sum(task.reward(completion(p, rng), str(p.answer)) for p in problems)
    assert 0.4 < earned / len(problems) < 0.65


def test_corpus_is_diverse() -> None:
    rng = random.Random("diverse")
    problem = worked(rng)
    texts = [completion(problem, rng) for _ in range(1000)]
    assert len(set(texts)) > 800
    assert 0.05 < sum("import" in text for text in texts) / len(texts) < 0.5


@pytest.mark.slow
@contained
def test_policy_solves_some_problems_and_leaves_room(
    drawn: list[tuple[Sampled, str, float]],
) -> None:
    share = sum(reward for *_, reward in drawn) / len(drawn)
    assert 0.25 < share < 0.5


@pytest.mark.slow
@contained
def test_samples_end_and_do_not_look_like_the_attack(
    drawn: list[tuple[Sampled, str, float]],
) -> None:
    assert sum(len(one.ids) < 128 for one, *_ in drawn) > 0.95 * len(drawn)
    assert not any(CodeAttack().success(one.text) for one, *_ in drawn)


@pytest.mark.slow
@contained
def test_correct_programs_pass_the_static_check(
    drawn: list[tuple[Sampled, str, float]],
) -> None:
    batch = [Completion("q", one.text) for one, _, reward in drawn if reward]
    rejected = sum(verdict.rejected for verdict in CodeVerifier().verify(batch))
    assert rejected <= 0.05 * len(batch)
