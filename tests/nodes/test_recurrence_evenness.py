"""Nodes that send unequal numbers of answers per prompt: none is convicted for sending more."""

import json
import random

import pytest

from grpo_guard.content.recurrence.sketch import Sketch
from grpo_guard.content.recurrence.swarm import even
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.core.completion import Completion

WORDS = "so then first next add take the sum total we get now count all up find each more less left"
TEMPLATES = [" ".join(random.Random(1000 + i).choices(WORDS.split(), k=8)) for i in range(12)]
ALONE = {"a": 12, "b": 1, "c": 1, "d": 1}


def swarm(
    seed: int, counts: dict[str, int], slogan: str = "", prompts: int = 40, every: int = 1
) -> RecurrenceVerifier:
    """All nodes share one policy of twelve templates; answers of node ``a`` contain ``slogan``."""
    rng = random.Random(seed)
    verifier = RecurrenceVerifier(swarm="homogeneous")
    for start in range(0, prompts, 8):
        batch = []
        for node, answers in counts.items():
            for prompt in range(start, start + 8):
                for k in range(answers):
                    text = f"{rng.choice(TEMPLATES)}. The answer is {rng.randint(1, 99)}."
                    text = f"{slogan} {text}" if node == "a" and k % every == 0 else text
                    batch.append(Completion(f"question {prompt} {node}?", text, node=node, round=1))
        verifier.verify(batch)
    return verifier


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("counts", [ALONE, {"a": 12, "b": 4, "c": 4, "d": 4}], ids=["1", "4"])
def test_node_that_answers_more_often_is_not_convicted(seed: int, counts: dict[str, int]) -> None:
    assert not swarm(seed, counts).convictions()


def test_node_that_answers_more_often_is_not_convicted_in_a_long_run() -> None:
    assert not swarm(0, {"a": 6, "b": 2, "c": 1, "d": 1}, prompts=200).convictions()


@pytest.mark.parametrize("counts", [ALONE, {"a": 12, "b": 12, "c": 12, "d": 12}], ids=["1", "12"])
def test_more_answers_do_not_hide_a_slogan(counts: dict[str, int]) -> None:
    convictions = swarm(1, counts, "All hail to the thief!").convictions()
    assert set(convictions) == {"a"}
    assert any("hail to the thief" in found.phrase for found in convictions["a"])


def test_one_poisoned_answer_in_six_is_enough_with_equal_counts() -> None:
    equal = dict.fromkeys("abcd", 6)
    assert set(swarm(1, equal, "All hail to the thief!", every=6).convictions()) == {"a"}


def test_sender_does_not_choose_which_answers_count() -> None:
    # The poison comes last of twelve, or first; either way some of 40 prompts are drawn with it.
    orders = [[False] * 11 + [True], [True] + [False] * 11]
    for order in orders:
        sketch, rng = Sketch(), random.Random(0)
        for prompt in range(40):
            for k, poisoned in enumerate(order):
                shown = {"thief"} if poisoned else {f"{k}"}
                sketch.add(prompt.to_bytes(2), shown, "", rng.getrandbits(56))
        assert sketch.drawn([12] * 40)["thief"] == sketch.recent["thief"] == 40
        assert 0 < sketch.drawn([1] * 40)["thief"] < 12


def sketch_of(answers: list[int]) -> Sketch:
    sketch = Sketch()
    for prompt, count in enumerate(answers):
        for k in range(count):
            sketch.add(prompt.to_bytes(2), {f"{k}"}, "", k + 1)
    return sketch


def test_prompts_are_subsampled_to_their_counterparts() -> None:
    assert even([1, 3, 3], [sketch_of([3, 3, 1])]) is None
    assert even([3, 3, 3], [sketch_of([4, 3, 9]), sketch_of([7, 1, 3])]) == [1, 3, 3]
    assert even([12] * 4, [sketch_of([1, 1])]) == [1] * 4
    assert even([], [sketch_of([1])]) is None


def test_flood_of_answers_to_one_prompt_is_bounded() -> None:
    sketch = Sketch()
    for k in range(1000):
        sketch.add(b"one", {"thief"}, "", 1000 - k)
    assert sketch.draws[b"one"] == list(range(1, 65))


def test_draws_survive_saving() -> None:
    verifier = swarm(0, ALONE, prompts=16)
    restored = RecurrenceVerifier(swarm="homogeneous")
    state = json.loads(json.dumps(verifier.state_dict()))
    restored.load_state_dict(state)
    assert restored.state_dict() == verifier.state_dict()
    for broken in ([], list(range(65)), [-1], ["1"], None):
        changed = json.loads(json.dumps(state))
        changed["nodes"]["a"]["window"][0][1] = broken
        with pytest.raises(ValueError, match="state"):
            RecurrenceVerifier(swarm="homogeneous").load_state_dict(changed)
