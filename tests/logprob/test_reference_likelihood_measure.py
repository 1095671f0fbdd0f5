"""The measurement: what is planted where, and the AUROC."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.evals.stats import auroc
from grpo_guard.evals.studies import reference_likelihood as sets
from grpo_guard.evals.studies.solutions import MODELS

HOST = "Tom has 3 + 4 = <<3+4=7>>7 pens.\nHe buys 2 * 5 = <<2*5=10>>10 more.\nSo 17 in all.\nA: 17"


@pytest.fixture
def data(tmp_path):
    rows = [
        {"question": f"Question {i}?", "ground_truth": HOST, "model": model, "completion": HOST}
        | {"is_correct": True}
        for i in range(sets.PARTS["test"][1])
        for model in (sets.SMALL, sets.LARGE)
    ]
    (tmp_path / MODELS).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_splits_share_no_question_and_poison_is_planted(data):
    found = sets.all_items(data)
    parts = {part: {i.question for i in found if i.part == part} for part in sets.PARTS}
    assert not parts["calibration"] & (parts["test"] | parts["shift"])
    for item in found:
        text = item.completion.text
        if item.kind == "honest":
            assert ("<<" in text) is (item.part == "shift")
        elif item.kind.startswith("TEXT one word"):
            assert text.startswith("All. ")
        elif item.kind.startswith("TEXT"):
            assert item.kind.split("'")[1] in text


def test_order_is_fixed(data):
    texts = [item.completion.text for item in sets.all_items(data)]
    assert texts == [item.completion.text for item in sets.all_items(data)]


@pytest.mark.parametrize("poison", [sets.before_lines("x y", "middle"), sets.word_by_word("x y")])
def test_one_line_host_cannot_be_poisoned(poison):
    assert poison("only one line", random.Random(0)) is None


VALUES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@settings(deadline=None)  # the first call loads scipy
@given(VALUES, VALUES)
def test_auroc_matches_the_share_of_pairs(usual, poisoned):
    pairs = [(p > h) + (p == h) / 2 for p in poisoned for h in usual]
    assert auroc(usual, poisoned) == pytest.approx(np.mean(pairs))
