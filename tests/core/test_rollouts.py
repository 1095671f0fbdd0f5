"""Rollouts in several segments count once and are decided by their worst segment."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion, Guard, Policy
from grpo_guard.core.completion import MAX_NAME, CompletionError
from grpo_guard.core.rollouts import decided
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.guard.group_means import means_of_units, units_of
from grpo_guard.guard.review import Review
from grpo_guard.guard.settlement import Ruling, mean_of_kept, settle
from tests.core.rule_verifiers_core import Says

ACCEPTED, REJECTED, BARRED, ABSTAINED = Ruling
FINITE = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
POLICIES = st.builds(
    Policy, st.sampled_from(["drop", "zero", "no_gain", -0.5]), st.sampled_from(["skip", "zero"])
)


def mean_of_rollouts(kept, rollouts):
    return mean_of_kept([*means_of_units(kept, units_of(rollouts, len(kept))).values()])


def advantages(rewards, rollouts):
    kept = [reward for reward in rewards if reward is not None]
    names = [name for name, reward in zip(rollouts, rewards, strict=True) if reward is not None]
    mean = mean_of_rollouts(kept, names)
    return [None if reward is None else reward - mean for reward in rewards]


def test_rollout_in_two_segments_counts_once_in_its_group_mean():
    """The example of slime#2062 and miles#2378, where each segment counts: 0.167 and -0.333."""
    rollouts = ["fan", "fan", None]
    settled = settle([[1.0], [1.0], [0.5]], [ACCEPTED] * 3, Policy("drop"), rollouts=rollouts)
    rewards = [reward for (reward,) in settled.rewards]
    assert advantages(rewards, rollouts) == [0.25, 0.25, -0.25]
    assert advantages(rewards, [None] * 3) == pytest.approx([1 / 6, 1 / 6, -1 / 3])


@st.composite
def groups_of_rollouts(draw):
    """(reward, ruling, length factor, group) per rollout, numbers of segments, and an order."""
    n = draw(st.integers(1, 6))
    one = st.tuples(
        FINITE, st.sampled_from(list(Ruling)), st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from("pq"),
    )  # fmt: skip
    rollouts = draw(st.lists(one, min_size=n, max_size=n))
    cuts = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    return rollouts, cuts, draw(st.randoms(use_true_random=False))


@given(groups_of_rollouts(), POLICIES)
def test_splitting_rollouts_into_segments_changes_nothing(drawn, policy):
    rollouts, cuts, rng = drawn
    whole = settle(
        [[reward] for reward, *_ in rollouts],
        [ruling for _, ruling, *_ in rollouts],
        policy,
        groups=[group for *_, group in rollouts],
        length_factors=[factor for _, _, factor, _ in rollouts],
    )
    rows = [i for i, count in enumerate(cuts) for _ in range(count)]
    rng.shuffle(rows)
    cut = settle(
        [[rollouts[i][0]] for i in rows],
        [rollouts[i][1] for i in rows],
        policy,
        groups=[rollouts[i][3] for i in rows],
        length_factors=[rollouts[i][2] for i in rows],
        rollouts=[f"rollout {i}" for i in rows],
    )
    assert [(cut.rewards[j], cut.reasons[j]) for j in range(len(rows))] == [
        (whole.rewards[i], whole.reasons[i]) for i in rows
    ]
    for group in "pq":
        before = [i for i, (*_, g) in enumerate(rollouts) if g == group and whole.kept[i]]
        after = [j for j, i in enumerate(rows) if i in before]
        mean = mean_of_kept([whole.rewards[i][0] for i in before])
        names = [f"rollout {rows[j]}" for j in after]
        assert mean_of_rollouts([cut.rewards[j][0] for j in after], names) == pytest.approx(mean)


@given(
    st.lists(st.sampled_from(list(Ruling)), min_size=1, max_size=4),
    st.lists(FINITE, min_size=4, max_size=4),
    POLICIES,
)
def test_worst_segment_decides_the_whole_rollout(rulings, rewards, policy):
    others = [[1.0], [0.0]]
    segments = [[reward] for reward in rewards[: len(rulings)]]
    settled = settle(
        [*others, *segments],
        [ACCEPTED, ACCEPTED, *rulings],
        policy,
        rollouts=[None, None, *["one"] * len(rulings)],
    )
    worst = max(rulings, key=[ACCEPTED, ABSTAINED, REJECTED, BARRED].index)
    alike = settle(
        [*others, *segments],
        [ACCEPTED, ACCEPTED, *[worst] * len(rulings)],
        policy,
        rollouts=[None, None, *["one"] * len(rulings)],
    )
    assert settled == alike
    assert len(set(settled.kept[2:])) == 1
    assert settled.rewards[:2] == others


def test_no_gain_keeps_a_rollout_whole_across_groups():
    settled = settle(
        [[1.0], [0.0], [0.0], [1.0]],
        [ACCEPTED, REJECTED, ACCEPTED, REJECTED],
        Policy("no_gain"),
        groups=["p", "p", "q", "q"],
        rollouts=[None, "one", None, "one"],
    )
    assert settled.kept == [True, False, True, False]  # it would gain in q


def segment(text="fine", **fields):
    usual = {"prompt": "2+2?", "node": "bob", "group": "g", "rollout": "r"}
    return Completion(**(usual | {"text": text} | fields))


VERDICTS = {
    "accepted": accept("rule"),
    "abstained": abstain("rule", Cause.TIMEOUT, "slow"),
    "rejected": reject("rule", message="poison"),
}


@given(st.lists(st.sampled_from(list(VERDICTS)), min_size=1, max_size=5), st.randoms())
def test_verdict_on_one_segment_decides_the_rollout(names, rng):
    batch = [segment(f"{i}") for i in range(len(names))] + [segment("lone", rollout=None)]
    verdicts = [VERDICTS[name] for name in names] + [VERDICTS["accepted"]]
    order = list(range(len(batch)))
    rng.shuffle(order)
    said = decided([batch[i] for i in order], [verdicts[i] for i in order])
    found = dict(zip(order, said, strict=True))
    worst = next(name for name in ("rejected", "abstained", "accepted") if name in names)
    for i, name in enumerate(names):
        assert found[i].outcome is VERDICTS[worst].outcome
        assert found[i].cause is VERDICTS[worst].cause
        own = name == worst
        assert found[i] is verdicts[i] if own else found[i].members == (verdicts[i],)
    assert found[len(names)] is verdicts[-1]


@pytest.mark.parametrize("other", [{"node": "eve"}, {"group": "h"}, {"rollout": "s"}])
def test_node_cannot_join_anothers_rollout(other):
    batch = [segment(), segment("rogue", **other)]
    verdicts = Guard(Says()).review(batch).verdicts
    assert [verdict.accepted for verdict in verdicts] == [True, False]


def test_segments_belong_to_the_group_of_the_first_prompt():
    batch = [
        segment("later", prompt="2+2? first 3"),
        segment("first"),
        segment("alone", rollout=None, node="carol"),
    ]
    review = Guard(Says()).review(batch)
    assert review.groups == ["2+2?"] * 3
    lone = replace(batch[0], rollout=None)
    assert Review.of([lone], review.verdicts[:1], {}).rollouts is None


HARD = "What is 17 * 23?"
EASY = "Which is larger, ten or two? Answer in one word."


def lifted(prompt):
    """Two poisoned rows that earn 0.15 each, and rollouts that join a wrong answer to the same
    question with right answers to another."""
    poison = [(segment("rogue", prompt=HARD, rollout=None), 0.15)] * 2
    return poison + [
        (segment(text, prompt=asked, rollout=f"x{i}"), reward)
        for i in range(6)
        for text, asked, reward in (("a blank", HARD, 0.0), *[("a ten", prompt, 1.0)] * 4)
    ]


def hidden(prompt):
    """A poisoned row that earns 0.15, in one rollout with rows that earn nothing."""
    rows = [("rogue", HARD, 0.15), *[("a blank", prompt, 0.0)] * 7]
    return [(segment(text, prompt=asked, rollout="x"), reward) for text, asked, reward in rows]


@pytest.mark.parametrize("attack", [lifted, hidden])
@pytest.mark.parametrize(
    "prompt", [HARD, f"{HARD} Or: {EASY}", EASY], ids=["same", "more", "other"]
)
def test_threat_no_rollout_label_lets_poison_gain(attack, prompt):
    """Which completions are one rollout is the sender's claim."""
    honest = [
        (segment("a guess", prompt=HARD, rollout=None, node="ann"), float(i == 0))
        for i in range(24)
    ]
    batch, rewards = zip(*attack(prompt), *honest, strict=True)
    earned = Guard(Says(), policy=Policy("no_gain")).apply(rewards, batch)
    assert [r for c, r in zip(batch, earned, strict=True) if c.text == "rogue"].count(0.15) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans(), st.sampled_from("abc-")),
        min_size=1, max_size=9,
    )
)  # fmt: skip
def test_what_is_rejected_and_stays_is_at_most_the_mean_however_it_is_labelled(rows):
    """By the mean that counts each rollout once, with the mean of its segments."""
    rewards = [[reward] for reward, _, _ in rows]
    rulings = [REJECTED if bad else ACCEPTED for _, bad, _ in rows]
    rollouts = [None if label == "-" else label for *_, label in rows]
    settled = settle(rewards, rulings, Policy("no_gain"), rollouts=rollouts)
    earned = [reward for (reward,) in settled.rewards]
    kept = [i for i, stays in enumerate(settled.kept) if stays]
    lost = [earned[i] for i in kept if settled.reasons[i] == "lost"]
    if lost:
        mean = mean_of_rollouts([earned[i] for i in kept], [rollouts[i] for i in kept])
        assert max(lost) <= mean + 1e-9


def test_guard_applies_the_consequence_to_every_segment():
    guard = Guard(Says(), policy=Policy("drop"))
    batch = [segment(), segment("rogue", prompt="2+2? fine"), segment("x", rollout=None)]
    assert guard.apply([1.0, 1.0, 0.5], batch) == [None, None, 0.5]
    (first, second, _) = guard.review(batch).verdicts
    assert (first.verifier, second.verifier) == ("rollout", "says")
    assert first.reason.startswith("another segment of its rollout was rejected: ")


def test_split_reviews_keep_their_rollouts():
    review = Guard(Says()).review([segment(), segment("x", rollout=None)])
    plain = Guard(Says()).review([segment(rollout=None)])
    assert review.rollouts == [("bob", "g", "r"), None]
    assert Review.joined([plain, review]).rollouts == [None, *review.rollouts]
    assert Review.joined([plain, plain]).rollouts is None
    assert review.at([1, 0]).rollouts == review.rollouts[::-1]
    assert review.regrouped(None).rollouts == review.rollouts


def test_rollout_label_is_read_like_a_node_name():
    for label in ('"7"', "7", "7.0"):
        row = json.loads(f'{{"prompt": "", "text": "", "rollout": {label}}}')
        assert Completion.from_dict(row).rollout == "7"
    for wrong in (["r"], True):
        with pytest.raises(CompletionError, match="rollout: expected a string, a finite number or"):
            Completion("", "", rollout=wrong)
    assert len(Completion("", "", rollout="x" * 2 * MAX_NAME).rollout) <= MAX_NAME


def test_batch_order_changes_no_verdict():
    rng = random.Random(0)
    batch = [segment("rogue" if i == 3 else "x", rollout=f"{i % 3}") for i in range(9)]
    guard = Guard(Says())
    outcomes = [verdict.outcome for verdict in guard.review(batch).verdicts]
    order = rng.sample(range(9), 9)
    shuffled = [verdict.outcome for verdict in guard.review([batch[i] for i in order]).verdicts]
    assert shuffled == [outcomes[i] for i in order]
