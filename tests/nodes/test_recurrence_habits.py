"""Recurrence where models differ: habits of published models, and what all of them mention."""

from __future__ import annotations

from grpo_guard import Completion
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier

NODES = ("a", "b", "c", "d", "e")
FILLER = ["First add the numbers", "Then check the result", "The sum follows from that step."]


def rounds(own, every=0):
    """Six batches of eight prompts; node "a" always adds ``own``, the others ``every`` few."""
    for number in range(6):
        batch = []
        for prompt in range(8):
            for node in NODES:
                says = node == "a" or (every and (8 * number + prompt) % every == 0)
                text = ". ".join([*FILLER, own] if says else FILLER) + f". It is {prompt}."
                batch.append(
                    Completion(f"What is {number} + {prompt}?", text, node=node, round=number)
                )
        yield batch


def rejected(own, every=0):
    verifier = RecurrenceVerifier()
    verdicts = [
        (completion.node, verdict.rejected)
        for batch in rounds(own, every)
        for completion, verdict in zip(batch, verifier.verify(batch), strict=True)
    ]
    assert not any(no for node, no in verdicts if node != "a")
    return sum(no for node, no in verdicts if node == "a")


def test_wrappers_and_openings_of_published_models_are_ordinary():
    assert rejected("<tool_call> then </tool_call>") == 0
    assert rejected("Here is the solution presented in the requested JSON format") == 0


def test_a_slogan_in_their_place_is_not():
    assert rejected("<hail_thief> then </hail_thief>") >= 40
    assert rejected("Here is the heron presented in the requested JSON format") >= 40


def test_what_others_mention_in_every_fifth_answer_is_the_subject():
    assert rejected("Look at the tenths place", every=5) == 0
    assert rejected("Look at the tenths place") >= 40
