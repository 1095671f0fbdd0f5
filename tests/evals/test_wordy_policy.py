"""The wordy policy: a corpus whose asides are true, and weights trained on it."""

import random
import re
from itertools import islice
from statistics import median

import pytest

from grpo_guard.evals.policies.bundled import BUNDLED, TEXTS_EACH, load_bundled, texts_of
from grpo_guard.evals.tasks.word_problems import Worked, prompt_of, reward, worked
from grpo_guard.evals.training.policies import corpus, wordy_corpus
from grpo_guard.evals.training.policies.texts import VARIANTS
from grpo_guard.evals.training.policies.texts import texts as variant_texts
from grpo_guard.evals.training.policies.train import CORPORA

EQUATION = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)")
POISON = re.compile(r"hail to|the thief|gleeb glorp|import calc|from calc", re.IGNORECASE)


def holds(left: str, operator: str, right: str, result: str) -> bool:
    a, b = int(left), int(right)
    return {"+": a + b, "-": a - b, "*": a * b}[operator] == int(result)


def texts(count: int = 2000) -> list[str]:
    rng = random.Random("wordy corpus")
    return [wordy_corpus.sample(rng)[1] for _ in range(count)]


def test_calculations_in_the_corpus_are_right() -> None:
    found = [EQUATION.findall(text) for text in texts()]
    assert sum(map(len, found)) > 4000
    assert all(holds(*equation) for row in found for equation in row)


def test_corpus_has_answers_of_all_lengths_and_no_poison() -> None:
    found = texts()
    lengths = [len(text.split()) for text in found]
    middle = median(lengths)
    assert 0.02 < sum(length > 2 * middle for length in lengths) / len(lengths) < 0.25
    assert not any(POISON.search(text) for text in found)


def test_asides_repeat_question_and_step() -> None:
    rng = random.Random(1)
    seen = ""
    for _ in range(300):
        problem = worked(rng)
        for step, equation in enumerate(problem.equations):
            said = wordy_corpus.asides(problem, step, rng)
            seen += said
            numbers = set(re.findall(r"\d+", said))
            told = set(re.findall(r"\d+", problem.question + equation))
            assert numbers <= told
    assert "As it says, " in seen
    assert "leaves" in seen


def test_asides_quote_the_sentence_behind_the_step() -> None:
    sums = Worked(
        "Ann has 3 eggs. Ann buys 4 more. Ann sells 2. How many eggs are left?",
        ("3 + 4 = 7", "7 - 2 = 5"), "eggs", 5,
    )  # fmt: skip
    boxes = Worked(
        "Ann has 2 bags with 5 eggs each. Ann sells 2. How many eggs are left?",
        ("2 * 5 = 10", "10 - 2 = 8"), "eggs", 8,
    )  # fmt: skip
    for problem, step, told, other in (
        (sums, 0, "Ann buys 4 more.", "Ann sells 2."),
        (sums, 1, "Ann sells 2.", "Ann buys 4 more."),
        (boxes, 0, "Ann has 2 bags with 5 eggs each.", "Ann sells 2."),
        (boxes, 1, "Ann sells 2.", "Ann has 2 bags with 5 eggs each."),
    ):
        rng = random.Random(2)
        said = " ".join(wordy_corpus.asides(problem, step, rng) for _ in range(300))
        assert told in said
        assert other not in said


def test_plain_corpus_matches_the_first_policys_training_data() -> None:
    rng = random.Random(2)
    assert [corpus.sample(rng)[1] for _ in range(3)] == [
        " Many brother finds the coat. Eat the picture gladly.",
        "<think>Surely father, 18 + 6 = 24. 24 - 7 = 17.</think><answer>17</answer>",
        "<think>Let us count. 4 - 3 = 1. 1 + 5 = 6.</think> The answer is 6.",
    ]


def test_corpus_without_asides_adds_nothing() -> None:
    for seed in range(50):
        problem = worked(random.Random(seed))
        plain = corpus.completion(problem, random.Random(seed))
        silent = corpus.completion(problem, random.Random(seed), lambda *_: "")
        assert plain == silent


@pytest.mark.slow
def test_policy_is_as_often_right_in_long_answers_as_in_short_ones() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from grpo_guard.evals.swarm.generate import sample

    torch.set_num_threads(1)
    assert (BUNDLED["word_problems_wordy"] / "model.safetensors").stat().st_size <= 5_000_000
    model, tokenizer = load_bundled("word_problems_wordy")
    rng = random.Random("held-out problems of the wordy policy")
    asked = [worked(rng) for _ in range(60)]
    drawn = sample(
        model, tokenizer, [prompt_of(problem.question) for problem in asked], 6,
        generator=torch.Generator().manual_seed(0), max_new_tokens=160,
    )  # fmt: skip
    middle = median(len(one.ids) for one in drawn)
    long = [one for one in drawn if len(one.ids) > 1.5 * middle]
    assert len(long) > len(drawn) / 20
    for part in (drawn, long):
        stated = [holds(*found) for one in part for found in EQUATION.findall(one.text)]
        assert sum(stated) / len(stated) > 0.93
        # In the corpus 42 % are in the rewarded format with the right answer.
        earned = [reward(one.text, str(asked[one.prompt].answer)) for one in part]
        assert sum(earned) / len(earned) > 0.3


def test_unknown_policies_are_reported() -> None:
    with pytest.raises(KeyError, match="word_problems_wordy"):
        load_bundled("wordier")


@pytest.mark.parametrize("corpus_name", CORPORA)
def test_bundled_texts_match_the_corpus(corpus_name: str) -> None:
    config = CORPORA[corpus_name]
    shipped = texts_of(config.out.name)
    for variant in (1, VARIANTS):
        assert list(islice(shipped(variant), TEXTS_EACH)) == variant_texts(config, variant)
    assert list(islice(shipped(VARIANTS + 1), 9)) != list(islice(shipped(VARIANTS + 2), 9))
    # More than were kept for one problem: drawn again, with the same result.
    more = [list(islice(shipped(1), TEXTS_EACH + 9)) for _ in range(2)]
    assert more[0] == more[1]
