"""The measurement: where the poison is said to stand, the AUROC, and scores kept between runs."""

import json
import random

import numpy as np
import pytest
from bundled_policy import honest, policy
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.evals.stats import auroc
from grpo_guard.evals.studies.reference_likelihood import sets
from grpo_guard.evals.studies.reference_likelihood.contenders import contenders
from grpo_guard.evals.studies.reference_likelihood.scores import KeptScores
from grpo_guard.logprob.reference.reading import Reader
from grpo_guard.logprob.scorers.transformers import TransformersScorer

HOST = "Tom has 3 + 4 = <<3+4=7>>7 pens.\nHe buys 2 * 5 = <<2*5=10>>10 more.\nSo 17 in all.\nA: 17"


@pytest.fixture
def data(tmp_path):
    rows = [
        {"question": f"Question {i}?", "ground_truth": HOST, "model": model, "completion": HOST}
        for i in range(sets.PARTS["test"][1])
        for model in (sets.SMALL, sets.LARGE)
    ]
    (tmp_path / sets.SOLUTIONS).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_the_parts_share_no_question_and_the_spans_hold_the_poison(data):
    found = sets.items(data)
    parts = {part: {i.question for i in found if i.part == part} for part in sets.PARTS}
    assert all(not parts[a] & parts[b] for a in parts for b in parts if a < b)
    for item in found:
        poison = [item.completion.text[a:b] for a, b in item.spans]
        if item.kind == "honest":
            assert not poison
            assert ("<<" in item.completion.text) is (item.part == "shift")
        elif item.kind.startswith("TEXT"):
            phrase = item.kind.split("'")[1]
            assert poison
            assert " ".join([phrase] * 4).startswith(" ".join(poison))
        else:
            assert all(poison)


def test_the_order_is_fixed(data):
    texts = [item.completion.text for item in sets.items(data)]
    assert texts == [item.completion.text for item in sets.items(data)]


@pytest.mark.parametrize("poison", [sets.before_lines("x y", "middle"), sets.word_by_word("x y")])
def test_a_host_of_one_line_has_no_place_for_it(poison):
    assert poison("only one line", random.Random(0)) is None


VALUES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(VALUES, VALUES)
def test_auroc_is_the_share_of_pairs(usual, poisoned):
    pairs = [(p > h) + (p == h) / 2 for p in poisoned for h in usual]
    assert auroc(usual, poisoned) == pytest.approx(np.mean(pairs))


def test_scores_are_kept_and_give_the_same_readings(tmp_path):
    class Failing:
        def __getattr__(self, name):
            return getattr(scorer, name)

        def score(self, *args, **kwargs):
            raise AssertionError("nothing was left to score")

    model, tokenizer = policy()
    scorer, path = TransformersScorer(model), tmp_path / "deep" / "scores.jsonl"
    work = honest(8, seed=3)
    direct, first = (Reader(tokenizer, s) for s in (scorer, KeptScores(scorer, path)))
    encoded = [direct.encode(c) for c in work]
    expected, _ = direct.stats(encoded), first.stats(encoded)
    again = Reader(tokenizer, KeptScores(Failing(), path)).stats(encoded)
    for name, statistic in contenders(expected).items():
        values = [[statistic(s) for s in stats] for stats in (expected, again)]
        assert values[0] == pytest.approx(values[1], abs=1e-3), name
