"""Padding, and the longest of many samples, against honest groups, through the public verifier."""

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_guard import EvidenceLedger, Guard, Policy
from grpo_guard.content.length.compare import compared, groups_of
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.core import registry
from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Cause, Verdict
from grpo_guard.nodes.lengths import NodeMemory
from grpo_guard.nodes.standing import State

QUESTION = (
    "A baker fills 7 trays with 12 rolls each, sells 50 rolls in the morning and gives 9 rolls to "
    "a school. How many rolls does the baker have left in the evening?"
)
STEPS = (
    "The baker fills 7 trays, so there are 7 * 12 = 84 rolls at first.",
    "In the morning 50 rolls are sold, which leaves 84 - 50 = 34 rolls.",
    "The school is given 9 rolls, and 34 - 9 = 25 rolls remain with the baker.",
    "That makes 25 rolls in the evening.",
    "We start with the trays: each tray holds 12 rolls and 7 trays hold 84 rolls.",
    "Selling 50 of the 84 rolls means that 34 rolls stay.",
)
MORE_STEPS = (
    "After baking, 12 + 12 + 12 + 12 + 12 + 12 + 12 = 84 rolls confirms the 84 rolls of the trays.",
    "Morning sales of 50 rolls cover 4 trays and 2 rolls, because 4 * 12 + 2 = 50 rolls.",
    "For the evening the baker keeps 7 - 4 = 3 trays less 2 rolls, or 36 - 2 = 34 rolls.",
    "Giving 9 rolls from these trays to the school makes 36 - 2 - 9 = 25 rolls.",
)
TALK = (
    "Let me think carefully about everything here.",
    "Being thorough is always a virtue in life.",
    "Curious minds never stop wondering about puzzles.",
    "Patience rewards whoever keeps calm and careful.",
    "Great things come from small and humble beginnings.",
    "Nobody should hurry when thinking deeply.",
)
FOREIGN = (
    "Maria paints 14 fences for 3 neighbours and earns 42 dollars.",
    "The train covers 60 miles in 2 hours, hence 30 miles per hour.",
    "Tom reads 20 pages of his novel daily, 140 pages weekly.",
    "Lucy saves 5 coins monthly and owns 60 coins eventually.",
    "There were 18 geese beside the pond and 6 flew south.",
)


def honest(rng: random.Random) -> str:
    return " ".join([*rng.sample(STEPS[:3], 3), *rng.sample(STEPS[3:], rng.choice((0, 1, 1)))])


def group_of(texts: list[str], *, nodes: int = 4, **fields: object) -> list[Completion]:
    return [
        Completion(QUESTION, f"{text}\n#### 25", node=f"n{i * nodes // len(texts)}", **fields)  # type: ignore[arg-type]
        for i, text in enumerate(texts)
    ]


def group(*bad: str, seed: int = 0) -> list[Completion]:
    rng = random.Random(seed)
    return group_of([*(honest(rng) for _ in range(8 - len(bad))), *bad])


def stretch(text: str, filler: tuple[str, ...], times: float, seed: int = 0) -> str:
    rng, out = random.Random(seed), text
    while len(out) < times * len(text):
        out += " " + rng.choice(filler)
    return out


def kinds(verdict: Verdict) -> set[str]:
    return {finding.kind for finding in verdict.findings}


BASE = " ".join(STEPS[:3])
PADDED = {
    # The same steps again and again.
    "repeated": stretch(BASE, STEPS[:3], 3),
    # The question copied into the answer.
    "restated": stretch(BASE, (QUESTION,), 3),
    # Fluent talk about nothing.
    "talk": stretch(BASE, TALK, 3),
    # Fluent sentences from other problems.
    "foreign": stretch(BASE, FOREIGN, 3),
}


@pytest.mark.parametrize("name", ["repeated", "restated"])
def test_padding_is_rejected_and_its_group_is_not(name: str) -> None:
    verdicts = LengthVerifier().verify(group(PADDED[name], PADDED[name]))
    assert [v.rejected for v in verdicts] == [False] * 6 + [True] * 2
    assert kinds(verdicts[-1]) <= {"long", "redundant"}
    assert not any(v.abstained for v in verdicts)


@pytest.mark.parametrize("name", PADDED)
def test_padding_earns_next_to_nothing(name: str) -> None:
    factors = LengthScaling(tolerance=0.5).factors(group(PADDED[name], PADDED[name]))
    assert max(factors[6:]) < 0.02
    assert min(factors[:6]) > 0.5


@pytest.mark.parametrize("name", ["repeated", "restated"])
def test_redundancy_needs_no_peers(name: str) -> None:
    # A whole group of padding: there is no honest text to compare it with.
    text = stretch(BASE, STEPS[:3] if name == "repeated" else (QUESTION,), 5)
    verdicts = LengthVerifier().verify(group_of([text] * 4, nodes=1))
    assert all(kinds(v) == {"redundant"} for v in verdicts)
    (alone,) = LengthVerifier().verify(group_of([text]))
    assert alone.rejected
    (finding,) = alone.findings
    start, end = finding.char_span or (0, 0)
    assert len(re.findall(r"\w+", text[start:end])) > 20


def test_honest_groups_pass() -> None:
    batch = []
    for seed in range(100):
        rng = random.Random(seed)
        batch += [
            Completion(f"{QUESTION} ({seed})", f"{honest(rng)}\n#### 25", node=f"n{i // 2}")
            for i in range(8)
        ]
    verdicts = LengthVerifier().verify(batch)
    assert sum(v.rejected for v in verdicts) <= 1
    assert all(v.p_value is not None for v in verdicts if v.accepted)


def test_verifier_abstains_without_two_other_nodes_to_compare() -> None:
    alone, *_ = LengthVerifier().verify(group_of([BASE]))
    assert (alone.abstained, alone.cause) == (True, Cause.UNINFORMATIVE)
    # Long, but all about the question: with few peers it gets the benefit of the doubt.
    thorough = " ".join((*STEPS, *MORE_STEPS))
    for verdict in LengthVerifier().verify(group_of([BASE, thorough])):
        assert (verdict.accepted, verdict.p_value) == (True, None)
    *_, long = LengthVerifier().verify(group_of([BASE, BASE, thorough], nodes=3))
    assert long.accepted
    assert 1e-3 <= long.p_value < 0.05
    # For repetition, one peer is enough.
    assert LengthVerifier().verify(group_of([BASE, PADDED["repeated"]]))[-1].rejected


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3])
def test_small_groups_never_abstain(nodes: int) -> None:
    for words in range(1, 4000, 37):
        text = " ".join(f"{BASE.split()[i % 7]}{i}" for i in range(words))
        batch = group_of([BASE] * (nodes - 1) + [text], nodes=nodes)
        assert not any(v.abstained for v in LengthVerifier().verify(batch))


def test_long_right_work_in_groups_of_three_does_not_stop_a_run() -> None:
    thorough = " ".join((*STEPS, *MORE_STEPS))
    guard = Guard(LengthVerifier(), policy=Policy(max_abstain_rate=0.0, abstain_window=1))
    for _ in range(20):  # with a policy under which one abstention raises
        assert guard.apply([1.0] * 3, group_of([BASE, BASE, thorough], nodes=3)) == [1.0] * 3


def test_a_group_label_of_its_own_does_not_hide_padding() -> None:
    # The padded completions claim a group of their own, in which nothing is shorter.
    labelled = group_of([honest(random.Random(i)) for i in range(6)], group="a")
    for size in (2, 4):
        own = group_of([stretch(BASE, FOREIGN, 6)] * size, nodes=1, group="mine")
        verdicts = LengthVerifier().verify([*labelled, *own])
        assert [v.rejected for v in verdicts] == [False] * 6 + [True] * size


def test_a_node_does_not_affect_its_own_reference() -> None:
    # Half of the group is one node's padding, as the paper's theory advises.
    texts = [honest(random.Random(i)) for i in range(4)] + [stretch(BASE, FOREIGN, 6)] * 4
    verdicts = LengthVerifier().verify(group_of(texts, nodes=2))
    assert [v.rejected for v in verdicts] == [False] * 4 + [True] * 4


def test_sender_ids_do_not_change_the_length() -> None:
    with_ids = group_of([honest(random.Random(i)) for i in range(7)], completion_ids=range(40))
    for ids in (None, range(3), range(4000)):
        one = group_of([honest(random.Random(9))], nodes=1, completion_ids=ids)
        assert all(v.accepted for v in LengthVerifier().verify([*with_ids, *one]))
        long = group_of([stretch(BASE, FOREIGN, 6)], nodes=1, completion_ids=ids)
        assert LengthVerifier().verify([*with_ids, *long])[-1].rejected


def test_neither_few_ids_nor_given_spans_make_a_long_text_short() -> None:
    texts = [honest(random.Random(i)) for i in range(7)]
    group = [replace(one, completion_ids=range(len(one.text) // 4)) for one in group_of(texts)]
    long = f"{BASE} {'And so on, and so on. ' * 200}"
    ids = range(len(long) // 4)
    told = Given(((1, len(ids) - 1),), ((0, 1),), known=True)
    for said in ({"completion_ids": ids}, {"completion_ids": (1, 2, 3)},
                 {"completion_ids": ids, "given": told}):  # fmt: skip
        (bad,) = group_of([long], nodes=1)
        factors = LengthScaling(tolerance=0.5).factors([*group, replace(bad, node="bad", **said)])
        assert factors[:7] == [1.0] * 7
        assert factors[7] < 0.1


def test_right_answers_are_compared_with_right_answers() -> None:
    # Wrong answers ramble; a right one as long as they are is long for a right one.
    wrong = [f"{stretch(BASE, TALK, 2.2, i)}\n#### 7" for i in range(4)]
    right = [f"{honest(random.Random(i))}\n#### 25" for i in range(4)]
    texts = [*wrong, *right, f"{stretch(BASE, TALK, 6)}\n#### 25"]
    batch = [Completion(QUESTION, t, node=f"n{i}", reference="25") for i, t in enumerate(texts)]
    verdicts = LengthVerifier().verify(batch)
    assert [v.rejected for v in verdicts] == [False] * 8 + [True]
    rewarded = [
        Completion(QUESTION, t, node=f"n{i}", metadata={"reward": float(i >= 4)})
        for i, t in enumerate(texts)
    ]
    verdicts = LengthVerifier(reward_key="reward").verify(rewarded)
    assert [v.rejected for v in verdicts] == [False] * 8 + [True]


def test_long_but_not_blatant_is_accepted_and_scaled() -> None:
    batch = group(stretch(BASE, STEPS[3:], 1.5))
    assert LengthVerifier().verify(batch)[-1].findings == ()
    assert 0 < LengthScaling(tolerance=0.5).factors(batch)[-1] < 1
    assert LengthScaling().factors(batch) == [1.0] * 8


def test_a_node_that_always_sends_its_longest_is_convicted() -> None:
    # Best of eighty: each completion is an honest sample.
    memory = NodeMemory()
    verifier = LengthVerifier(memory=memory)
    rng = random.Random(0)
    for round_number in range(40):
        texts = [BASE + " so" * rng.randint(0, 12) for _ in range(6)]
        longest = [max((BASE + " so" * rng.randint(0, 12) for _ in range(80)), key=len)] * 2
        batch = [
            Completion(f"{QUESTION} {round_number}", text, node=f"n{i // 2}")
            for i, text in enumerate([*texts, *longest])
        ]
        verdicts = verifier.verify(batch)
    assert set(memory.convicted()) == {"n3"}
    assert {kind for v in verdicts[6:] for kind in kinds(v)} == {"long_node"}
    assert not any(v.rejected for v in verdicts[:6])
    assert all(v.accepted for v in LengthVerifier().verify(batch))
    assert isinstance(LengthVerifier(memory=True).memory, NodeMemory)
    assert LengthVerifier(memory=False).memory is None


def test_options_are_checked_and_verifier_is_registered() -> None:
    assert registry.load(registry.VERIFIERS, "length") is LengthVerifier
    for options in ({"alpha": 0}, {"min_peers": 0}, {"min_peers": True}):
        with pytest.raises(ValueError, match=f"LengthVerifier.{next(iter(options))}: expected"):
            LengthVerifier(**options)  # type: ignore[arg-type]


Rounds = Iterator[list[Completion]]


def attacked(sent: str, claim: str | None, right: tuple[str, ...], count: int = 8) -> Rounds:
    """Twenty rounds of a prompt, with three honest nodes that write long answers, and an attacker.

    Args:
        sent: The attacker's text, sent ``count`` times.
        claim: The reference that it sends along; the true one is 25.
        right: Honest nodes whose answers are right.
        count: Number of the attacker's completions.
    """
    rng = random.Random(0)
    for number in range(20):
        prompt = f"{QUESTION} ({number})"
        batch = [
            Completion(
                prompt, f"{honest(rng)}\n#### {25 if node in right else rng.choice((23, 24, 26))}",
                reference="25", node=node,
            )
            for node in ("ann", "bob", "cid")
            for _ in range(4)
        ]  # fmt: skip
        batch += [Completion(prompt, sent, reference=claim, node="mal") for _ in range(count)]
        yield batch


ONE_NODE = {
    "right answers in a word": ("#### 25", "25", ("ann",)),
    "a reference of its own": ("#### 99", "99", ("ann",)),
    "wrong answers in a word": ("#### 99", "25", ("ann",)),
    "a reference of its own, where all are right": ("#### 99", "99", ("ann", "bob", "cid")),
    "no reference": ("#### 25", None, ("ann",)),
}


@pytest.mark.parametrize("name", ONE_NODE)
def test_threat_one_nodes_short_answers_do_not_make_others_long(name: str) -> None:
    scalings = LengthScaling(), LengthScaling(tolerance=2.0)
    for batch in attacked(*ONE_NODE[name]):
        kept = [v.accepted for v in LengthVerifier(memory=True).verify(batch)[:12]]
        assert kept == [True] * 12
        for scaling in scalings:
            assert min(scaling.factors(batch)[:4]) > 0.5


@pytest.mark.parametrize("name", ONE_NODE)
def test_threat_no_honest_node_is_excluded_for_its_length(name: str, tmp_path: Path) -> None:
    ledger = EvidenceLedger(tmp_path / "ledger.sqlite")
    guard = Guard(LengthVerifier(memory=True), ledger=ledger, policy=Policy(on_long="scale"))
    for batch in attacked(*ONE_NODE[name]):
        assert guard.apply([1.0] * len(batch), batch)[:4] == [1.0] * 4
    assert all(ledger.state(node) is not State.HARD for node in ("ann", "bob", "cid"))


def test_comparison_needs_two_other_nodes_that_agree() -> None:
    long, short = stretch(BASE, FOREIGN, 6), "#### 25"
    texts = [long] * 2 + [short] * 6
    for node in ("b", None):  # anonymous senders might all be one node
        alone = [replace(c, node="a" if i < 2 else node) for i, c in enumerate(group_of(texts))]
        assert all(v.p_value is None for v in LengthVerifier().verify(alone) if v.accepted)
        assert LengthScaling(tolerance=0.0).factors(alone) == [1.0] * 8
    for nodes, other, measured in (("abbbbbbc", long, False), ("abbbbccc", short, True)):
        batch = [
            replace(c, node=node)
            for c, node in zip(group_of([long, *[short] * 6, other]), nodes, strict=True)
        ]
        assert ("long" in kinds(LengthVerifier().verify(batch)[0])) is measured
        assert (LengthScaling(tolerance=1.0).factors(batch)[0] < 1) is measured


def test_threat_copies_do_not_narrow_the_spread() -> None:
    # Honest answers of very different lengths, and an attacker with identical answers.
    rng = random.Random(0)
    batch = [
        Completion(f"Q{p}", "word " * round(rng.lognormvariate(3.5, 0.45)), node=f"n{i % 3}")
        for p in range(40)
        for i in range(6)
    ]
    copies = [Completion(f"Q{p}", "word " * 33, node="mal") for p in range(200) for _ in range(8)]
    (_, (attacked, *_)) = next(compared(groups_of([*batch, *copies]), 3))
    (_, (free, *_)) = next(compared(groups_of(batch), 3))
    assert attacked is not None
    assert free is not None
    assert attacked.spread >= 0.9 * free.spread > 0.3


def test_an_unprintable_prompt_gets_verdicts_and_factors() -> None:
    nested: object = "x"
    for _ in range(60):
        nested = [nested]
    prompt = [{"role": "user", "content": nested}]
    batch = [Completion(prompt, "4", node=f"n{i}") for i in range(4)]
    assert len(LengthVerifier().verify(batch)) == 4
    assert LengthScaling().factors(batch) == [1.0] * 4
