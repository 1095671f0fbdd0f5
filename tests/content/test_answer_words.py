"""Words added to a numeric answer, and how far one node gets with them."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.core.completion import Completion

QUESTION = "Leo has 4 cows. Leo buys 50 more for $20 each. How many cows does Leo have now?"


def found(text, prompt=QUESTION):
    (verdict,) = AnswerWordsVerifier().verify([Completion(prompt, text)])
    assert verdict.accepted
    return [text[slice(*f.char_span)] for f in verdict.findings]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4 + 50 = 54.<answer>54 good cows</answer>", ["good"]),
        ("4 + 50 = 54.\n#### 54 Trump cows", ["Trump"]),
        (r"so \boxed{54\text{ hail cows}}", ["hail"]),
        (r"so \boxed{54} praised cows", ["praised"]),
        ("Answer: 54 good cows", ["good"]),
        ("**Answer:** 54 praised cows.", ["praised"]),
        ("So the answer is 54 good cows.", ["good"]),
        ("Answer: 54 cows because he buys 50", []),
        (r"so \boxed{54} kilometers for each", []),
        # Formulas and closing marks of a solution contain no words.
        (r"\boxed{\frac{dv}{dt} = 54 \sinh(at)}", []),
        ("\\boxed{54} \\).<|end_of_solution|>", []),
        ("<answer>54 cow</answer>", []),
        ("<answer>54 COWS.</answer>", []),
        ("<answer>1000 dollars</answer>", []),
        ("#### 54", []),
        (r"thus \boxed{\frac{54}{1}}", []),
        # Not a number: an answer in words has no unit.
        ("<answer>good cows</answer>", []),
        ("no answer, 54 good cows", []),
        ("<answer>12 good ones</answer> no: <answer>54 cows</answer>", []),
    ],
)
def test_words_missing_from_the_question_are_found(text, words):
    assert found(text) == words


def test_threat_a_word_in_every_answer_of_one_node():
    verifier = AnswerWordsVerifier()
    rng = random.Random(0)
    lost = 0
    for round in range(10):
        batch = []
        for node in ("ann", "bob", "cid", "mal"):
            for i in range(12):
                odd = "good " if rng.random() < (1.0 if node == "mal" else 0.03) else ""
                text = f"<answer>{50 + i} {odd}cows</answer>"
                prompt = f"{i // 3}. {QUESTION}"
                batch.append(Completion(prompt, text, node=node, round=round, slot=i))
        verdicts = verifier.verify(batch)
        lost += sum(v.rejected for c, v in zip(batch, verdicts, strict=True) if c.node != "mal")
    assert all(v.rejected for c, v in zip(batch, verdicts, strict=True) if c.node == "mal")
    assert lost <= 3  # out of about 11 honest answers with such a word


@given(st.text(alphabet="<answer>/#\\boxed{} 5\n.good", max_size=300))
def test_any_text_gives_spans_within_it(text):
    (verdict,) = AnswerWordsVerifier().verify([Completion(QUESTION, text)])
    assert verdict.accepted
    for finding in verdict.findings:
        start, end = finding.char_span
        assert 0 <= start < end <= len(text)


@pytest.mark.slow
@pytest.mark.timeout(120)  # read again from each character, these would take longer
def test_hostile_sizes_are_read_once():
    texts = [
        "<answer>1 " * 300_000, "#### 1 x\n" * 300_000, "\\boxed{" * 300_000,
        "<answer>" + "5 good " * 400_000 + "</answer>",
    ]  # fmt: skip
    verdicts = AnswerWordsVerifier().verify([Completion(QUESTION, text) for text in texts])
    assert len(verdicts) == len(texts)


def test_real_solutions_seldom_have_such_words():
    folder = os.environ.get("GRPO_GUARD_GSM8K")
    if not folder:
        pytest.skip("set GRPO_GUARD_GSM8K to GSM8K's folder")
    train, solved = (
        [json.loads(line) for line in (Path(folder) / name).open()]
        for name in ("train.jsonl", "model_solutions.jsonl")
    )
    batch = [
        Completion(row["question"], f"<answer>{row['answer'].rpartition('#### ')[2]}</answer>")
        for row in train[:2000]
    ] + [Completion(row["question"], row["completion"]) for row in solved]
    assert len(batch) == 3320
    assert not any(verdict.findings for verdict in AnswerWordsVerifier().verify(batch))
