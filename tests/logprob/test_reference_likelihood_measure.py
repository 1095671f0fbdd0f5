"""The measurement: where it locates the poison, and the AUROC."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.evals.stats import auroc
from grpo_guard.evals.studies.reference_likelihood import sets
from grpo_guard.evals.studies.reference_likelihood.contenders import windowed
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


def test_splits_share_no_question_and_spans_contain_the_poison(data):
    found = sets.all_items(data)
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


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20), st.integers(1, 25))
def test_windows_are_means(values, width):
    found = windowed(np.array(values), width)
    used = min(width, len(values))
    expected = [np.mean(values[i : i + used]) for i in range(len(values) - used + 1)]
    assert found == pytest.approx(expected, abs=1e-9)
