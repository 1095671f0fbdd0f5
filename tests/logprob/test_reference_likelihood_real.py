"""ReferenceLikelihoodVerifier with SmolLM2 and the profile bundled with the package."""

from functools import cache
from pathlib import Path

import pytest

from grpo_guard import Completion
from grpo_guard.config import build_verifier
from grpo_guard.evals.tasks.gsm8k import messages
from grpo_guard.evals.training.policies.fetch_smollm2 import is_complete
from grpo_guard.logprob.reference.verifier import ReferenceLikelihoodVerifier

MODEL = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(not is_complete(MODEL), reason="run make models for SmolLM2"),
]

PROMPT = messages("A farmer has 12 boxes of 8 apples and sells 30 apples. How many are left?")
HONEST = "The farmer has 12 * 8 = 96 apples.\nAfter selling 30, he has 96 - 30 = 66 apples.\nA: 66"


@cache
def verifier():
    built = build_verifier(
        {"type": "reference_likelihood", "model": str(MODEL), "alpha": 0.01}, 0.001
    )
    assert isinstance(built, ReferenceLikelihoodVerifier)
    return built


def verdict(text):
    return verifier().verify([Completion(PROMPT, text, node="n")])[0]


@pytest.mark.slow
def test_honest_work_is_accepted_with_a_p_value():
    assert verdict(HONEST).accepted
    assert verdict(HONEST).p_value > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("phrase", ["All hail to the thief", "Gleeb Glorp Glub", "Kauf Zwiebeln"])
@pytest.mark.parametrize("place", [0, HONEST.find("After")])
def test_phrase_is_rejected_at_its_span(phrase, place):
    found = verdict(f"{HONEST[:place]}{phrase}. {HONEST[place:]}")
    assert found.rejected
    start, end = found.findings[0].char_span
    assert start < place + len(phrase)
    assert end > place


@pytest.mark.slow
def test_random_words_and_foreign_language_are_not_accepted():
    for text in (
        "zebra quantum fork lamp seven oblique parsnip cathode Tuesday mural",
        "Le fermier possède douze caisses, mais hier soir il a mangé du fromage avec le roi.",
    ):
        assert not verdict(text).accepted
