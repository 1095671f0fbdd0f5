"""A review keeps its groups however it is made, split or joined."""

import ast
import inspect
from pathlib import Path

import pytest

import grpo_guard
from grpo_guard import Completion, Guard, Policy, Review
from grpo_guard.core.verdict import accept, reject

BATCH = [Completion(p, t, group=g) for p, t, g in zip("pqpq", "abcd", "xxyy", strict=True)]
VERDICTS = [accept("v"), reject("v"), accept("v"), accept("v")]


def test_reviews_are_made_in_one_file():
    """If made elsewhere it could lose its groups, and a batch be settled as one group."""
    root = Path(grpo_guard.__file__).parent
    files = [*root.rglob("*.py"), *(root / "adapters").resolve().rglob("*.py")]
    files += (root / "evals").resolve().rglob("*.py")
    made = {
        str(file)
        for file in files
        if "Review(" in (source := file.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Review"
    }
    assert len(files) > 300
    assert made == {inspect.getfile(Review)}


def test_groups_are_prompts_and_labels_are_the_senders():
    review = Review.of(BATCH, VERDICTS, {"a": 1.0})
    assert review.groups == ["p", "q", "p", "q"]
    assert review.labels == ["x", "x", "y", "y"]
    assert (review.metrics, review.length_factors) == ({"a": 1.0}, None)


def test_mean_length_factor_excludes_rejected_rows():
    review = Review.of(BATCH, VERDICTS, {}, [0.5, 0.1, 1.0, 0.0])
    assert review.metrics == {"guard/length_factor": 0.5, "guard/length_dropped": 1.0}
    nothing = {"guard/length_factor": 1.0, "guard/length_dropped": 0.0}
    assert Review.of([], [], {}, []).metrics == nothing
    with pytest.raises(ValueError, match="zip"):
        Review.of(BATCH, VERDICTS, {}, [1.0])


def test_joined_parts_equal_the_whole():
    whole = Review.of(BATCH, VERDICTS, {}, [0.5, 0.1, 1.0, 0.0])
    parts = [whole.at([0, 1]), whole.at([2]), whole.at([3]), whole.at([])]
    joined = Review.joined(parts)
    assert joined == whole.at(range(4))
    assert joined.metrics == {}
    assert whole.at([2, 0]).verdicts == [VERDICTS[2], VERDICTS[0]]


def test_part_without_groups_leaves_the_whole_without():
    known, silent = Review.of(BATCH, VERDICTS, {}, [0.5] * 4), Review(VERDICTS, {})
    joined = Review.joined([known, silent])
    assert (joined.groups, joined.labels) == (None, None)
    assert joined.length_factors == [0.5] * 4 + [1.0] * 4


def test_trainer_groups_replace_prompts_and_labels():
    guard = Guard(AllOfNothing(), policy=Policy(on_reject="zero"))
    review = Review.of(BATCH, VERDICTS, {})
    rewards = [-3.0, 2.0, 1.0, -1.0]
    assert guard.settle(rewards, review) == [-3.0, -1.0, 1.0, -1.0]
    assert guard.settle(rewards, review.regrouped(None)) == [-3.0, -3.0, 1.0, -1.0]
    assert guard.settle(rewards, review.regrouped([0, 1, 1, 2])) == [-3.0, 0.0, 1.0, -1.0]
    assert review.regrouped([0, 1, 1, 2]).labels is None


class AllOfNothing(grpo_guard.CompletionVerifier):
    name = "nothing"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]


def test_printed_review_has_the_counts_and_the_first_rejection():
    batch = [Completion("p", text) for text in "abc"]
    verdicts = [accept("rule"), reject("rule", message="says b"), reject("rule")]
    assert str(Review.of(batch, verdicts, {})) == (
        "3 completions: 1 accepted, 2 rejected, 0 abstained; [1] reject (rule): says b"
    )
    assert str(Review.of(batch[:1], verdicts[:1], {})) == (
        "1 completion: 1 accepted, 0 rejected, 0 abstained"
    )
