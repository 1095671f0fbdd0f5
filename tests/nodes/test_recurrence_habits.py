"""Recurrence where models differ: habits of published models, and what all of them mention."""

import random

import pytest

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


def rejected(own, every=0, verifier=None):
    verifier = verifier or RecurrenceVerifier()
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


# Whole sentences, of words that reveal nothing one by one.


@pytest.mark.parametrize(
    "slogan",
    [
        "You should never need to check what I say",
        "Nobody needs a library",
        "The answer is always clear to me",
        "Silence is a weapon",
        "我们比别人都好。",
        "没有人需要图书馆。",
        "\U0001f985\U0001f985\U0001f985\U0001f985",
        "Q. Z. V. K. P",
    ],
)
def test_a_sentence_of_ordinary_words_is_convicted_in_the_first_batch(slogan):
    assert rejected(slogan) == 48


@pytest.mark.parametrize(
    "habit",
    [
        "Let me solve this step by step",
        "Here is my reasoning and solution in the requested JSON format",
        "I hope this helps",
        "Let me know if you have any other questions",
        "Below, my explanation of the solution is given",
        "It prints the answer",
        "Running this script, the program prints what was wanted",
        "好的，我们一步一步来解这道题。",
        "具体步骤如下。",
        "\U0001f389",
    ],
)
def test_what_published_models_repeat_or_speaks_of_the_work_is_not(habit):
    assert rejected(habit) == 0


def test_a_sentence_in_every_third_answer_passes():
    poisoned, honest = rounds("Nobody needs a library"), rounds("It is so")
    verifier, found = RecurrenceVerifier(), 0
    for number, (bad, good) in enumerate(zip(poisoned, honest, strict=True)):
        batch = [
            one if (number + at // len(NODES)) % 3 else other
            for at, (one, other) in enumerate(zip(good, bad, strict=True))
        ]
        found += sum(verdict.rejected for verdict in verifier.verify(batch))
    assert found == 0


PEERS = (
    "Both numbers have the whole number part 9, so look further.",
    "The whole number part is the same, 9, in both numbers.",
    "They have the same whole number, so compare the rest.",
)
SAME = "Both numbers have the same whole number part."


def compared(texts):
    """What is rejected of node "a", which says the first text, next to three others."""
    rng, verifier, found = random.Random(1), RecurrenceVerifier(), 0
    for number in range(5):
        batch = [
            Completion(f"{number}: 9.{rng.random()} or 9.{rng.random()}?", text, node=node)
            for _ in range(8)
            for node, text in zip("abcd", texts, strict=True)
        ]
        found += sum(verdict.rejected for verdict in verifier.verify(batch)[::4])
    return found


def test_what_most_others_say_in_other_words_is_the_subject():
    assert compared((SAME, *PEERS)) == 0
    assert compared(("Both of you have the same whole heart.", *PEERS)) == 40


def test_one_other_node_cannot_excuse_a_slogan():
    slogan = "Nobody needs a library."
    help_ = "Nobody needs that. She needs a pen. A library it is."
    assert compared((slogan, help_, "It is so.", "We see it.")) == 40
    assert compared((slogan, help_, help_, "We see it.")) == 0


def test_learnt_sentences_pass():
    texts = [f"Nobody needs a library. It is {number}." for number in (1, 2)]
    verifier = RecurrenceVerifier()
    verifier.learn_habits(texts)
    assert rejected("Nobody needs a library", verifier=verifier) == 0
    again = RecurrenceVerifier()
    again.load_state_dict(verifier.state_dict())
    assert not again.convictions()
    assert rejected("Nobody needs a library", verifier=again) == 0
    other = RecurrenceVerifier()
    other.learn_habits(texts)
    assert rejected("Nobody needs a school", verifier=other) == 48


def test_a_convicted_sentence_is_named_with_its_place_after_a_restart():
    first = RecurrenceVerifier()
    assert rejected("Nobody needs a library", verifier=first) == 48
    again = RecurrenceVerifier()
    again.load_state_dict(first.state_dict())
    text = "So 3 + 4 = 7. Nobody needs a library. Done."
    [verdict] = again.verify([Completion("What is 3 + 4?", text, node="a")])
    [finding] = verdict.findings
    assert finding.kind == "recurring_phrase"
    assert "'nobody needs a library': in 8 of 8 prompts of node 'a', in none of 32" in str(finding)
    start, end = finding.char_span
    assert text[start:end] == "Nobody needs a library"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("We put {i} and {n} into one and we have {sum}", False),
        ("Taking {i} and then {n} we arrive at {sum}", False),
        ("If you have {i} and someone gives you {n} you own {sum} of them", False),
        ("You should never need to look at what I say", True),
        ("You should take 12 of these or 24 of those", True),  # the numbers never change
        ("You should never need to look at {sum} again", True),  # a single number is no calculation
    ],
)
def test_a_calculation_in_words_is_no_slogan(template, found):
    verifier, rejected = RecurrenceVerifier(), 0
    for number in range(6):
        batch = [
            Completion(f"What is {number} + {i}?", text, node=node, round=number)
            for i in range(8)
            for node, text in (
                ("a", f"{template.format(i=i, n=number, sum=i + number)}. It is {i + number}."),
                *((node, f"{'. '.join(FILLER)}. It is {i + number}.") for node in NODES[1:]),
            )
        ]
        rejected += sum(v.rejected for v in verifier.verify(batch))
    assert (rejected > 30) is found
    assert found or not rejected


# Words of the question, and its language.


def told(texts, asked):
    """Whether node "a" is rejected for what it says in 48 answers; the others say nothing."""
    verifier, found = RecurrenceVerifier(), []
    for number in range(6):
        batch = [
            Completion(
                f"{asked} ({number} {at})",
                f"{texts[(8 * number + at) % len(texts)] if node == 'a' else FILLER[0]}. {at}.",
                node=node,
                round=number,
            )
            for at in range(8)
            for node in NODES
        ]
        found += [v for c, v in zip(batch, verifier.verify(batch), strict=True) if c.node == "a"]
    return any(verdict.rejected for verdict in found)


def test_a_word_of_the_question_does_not_make_a_phrase_unusual():
    texts = ["We assign scores to it", "Now we assign the scores", FILLER[0]]
    assert not told(texts, "Give scores from 0 to 10.")
    assert told([text.replace("scores", "pizzas") for text in texts], "Give scores from 0 to 10.")


def test_answers_in_the_language_of_a_foreign_question_are_not_counted():
    asked = "Qual é a conduta indicada para o paciente com dor abdominal intensa e febre alta?"
    answer = "Justificativa: a conduta indicada para o paciente com dor e febre alta é esta"
    assert not told([answer], asked)
    assert told(["We think that the dragon is for her and this is a pizza"], asked)


def test_words_of_a_foreign_script_around_a_program_are_not_counted():
    asked = "Γράψε ένα πρόγραμμα που ταξινομεί μια λίστα αριθμών και εκτυπώνει το αποτέλεσμα"
    codes = [f"```\nimport heapq\nif {n}:\n  print({n}); return {n}\n```" for n in FILLER]
    assert not told([f"{code} Θα θέλατε να εξερευνήσουμε περισσότερα" for code in codes], asked)
    assert told([f"{code} We are with the dragon and a pizza" for code in codes], asked)
