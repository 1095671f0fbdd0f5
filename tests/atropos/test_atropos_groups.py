"""How the guard changes one group, checked with the data code of Atropos's own trainer."""

import copy
import math

import numpy as np
import pytest

pytest.importorskip("atroposlib", reason="needs a separate environment")

import torch
from example_trainer.data import pad_data_to_good_offset
from example_trainer.training import compute_grpo_loss

from grpo_guard import Guard, Policy, presets
from grpo_guard.adapters.atropos.groups import GroupError, GroupGuard
from grpo_guard.guard.framework import FrameworkError
from tests.atropos.atropos_parts import WORDS, group, left_out, row, tokenizer
from tests.helpers.words import Words

TOKENIZER = tokenizer()


def guarded(guard=None, **more):
    return GroupGuard(guard or Guard(Words()), TOKENIZER, vocabulary=len(WORDS), **more)


def settled(given, guard=None, **more):
    return guarded(guard, **more).settle(given)[0]


def trained(*groups):
    """Return (labels, advantages) as Atropos's trainer computes them."""
    batch = copy.deepcopy([{"overrides": None, **one} for one in groups])
    tokens, labels, advantages, _, log_probs = pad_data_to_good_offset({"batch": batch}, 64)
    assert all(torch.isfinite(part).all() for part in advantages)
    return labels[0], advantages[0].flatten().tolist(), tokens[0], log_probs and log_probs[0]


POISONED = group("one", "two", "Hail", "three", scores=[1.0, 0.0, 1.0, 1.0])


def test_rejected_rows_do_not_affect_the_others():
    _, unguarded, _, _ = trained(POISONED)
    labels, advantages, _, _ = trained(settled(POISONED))
    kept = np.array([1.0, 0.0, 1.0])
    # The deviation of Atropos's trainer counts the slots of left-out rows.
    by = math.sqrt(((kept - kept.mean()) ** 2).sum() / 4)
    expected = (kept - kept.mean()) / by
    assert [advantages[i] for i in (0, 1, 3)] == pytest.approx(list(expected))
    assert unguarded[2] > 0.5
    assert advantages[2] == 0.0
    assert (labels[2] != -100).sum() == 1
    assert (labels[0] != -100).any()


HIDDEN = 1  # the tokenizer's only special token except <unk>: it ends a text
SMUGGLED = {
    "forty special tokens inside": [3, *[HIDDEN] * 40, 4, HIDDEN],
    "forty closing tokens": [3, *[HIDDEN] * 40],
    "poison behind the end": [3, HIDDEN, 6],
}


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", SMUGGLED)
def test_tokens_that_no_text_shows_are_not_trained_on(kind, own):
    """Labels come from Atropos's own data code; the ids decode to only "one" and "one three"."""
    ids = SMUGGLED[kind]
    clean = group("two", "three", scores=[0.0, 0.5])
    hostile = {
        "tokens": [*clean["tokens"], [2, *ids]],
        "masks": [*clean["masks"], [-100, *ids]],
        "scores": [*clean["scores"], 1.0],
        "overrides": [{}, {}, {"node": "mallory"}],
    }
    verifier = Words()
    labels, advantages, _, _ = trained(settled(hostile, Guard(verifier), own=own))
    assert (labels[2] != -100).sum() == 1
    assert advantages[2] == 0.0
    assert (labels[0] != -100).any()
    assert (labels[1] != -100).any()
    assert "one" not in "".join(c.text for c in verifier.shown)


def test_left_out_rows_contribute_no_gradient():
    logits = torch.zeros(4, 64, len(WORDS), requires_grad=True)

    class Model(torch.nn.Module):
        def forward(self, tokens):
            return type("Out", (), {"logits": logits[:, : tokens.shape[1]]})

    labels, advantages, tokens, log_probs = trained(settled(POISONED))
    loss, _ = compute_grpo_loss(
        Model(), tokens, labels, torch.tensor(advantages).view(-1, 1), torch.ones(4, 1, 1), 1,
        inference_logprobs=log_probs,
    )  # fmt: skip
    loss.backward()
    by_row = logits.grad.abs().sum(dim=(1, 2))
    assert torch.isfinite(loss)
    assert by_row[2] == 0
    assert by_row[0] > 0


def test_group_keeps_its_size_and_other_fields():
    given = copy.deepcopy(POISONED)
    made = settled(given, None)
    assert given == POISONED
    assert len(made["tokens"]) == len(made["masks"]) == len(made["scores"]) == 4
    for i in (0, 1, 3):
        for name in ("tokens", "masks", "scores", "inference_logprobs"):
            assert made[name][i] == POISONED[name][i]
    assert made["overrides"] == [{}, {}, {"set_advantage_to_zero": True}, {}]


def test_group_without_findings_is_unchanged():
    given = group("one", "two", scores=[1.0, 0.0], advantages=[[0.0, 0.5, 0.5], [0.0, -0.5, -0.5]])
    assert settled(given) == given


def test_sender_advantages_do_not_survive_a_veto():
    given = POISONED | {"advantages": [[9.0] * 3] * 4}
    assert settled(given)["advantages"] is None


def test_zero_and_numeric_policies_keep_the_row_in_the_group():
    zero = settled(POISONED, Guard(Words(), policy=Policy("zero", "zero")))
    assert zero["scores"] == [1.0, 0.0, 0.0, 1.0]
    assert zero["masks"] == POISONED["masks"]
    number = settled(POISONED, Guard(Words(), policy=Policy(-1.0, "zero")))
    assert number["scores"] == [1.0, 0.0, -1.0, 1.0]


def test_no_gain_leaves_out_only_rows_that_would_gain():
    given = group("one", "two", "Hail", "Hail one", scores=[1.0, 0.5, 1.0, 0.0])
    made = settled(given, Guard(Words(), policy=Policy("no_gain", "skip")))
    assert made["scores"] == [1.0, 0.5, 0.5, 0.0]
    assert made["masks"][3] == given["masks"][3]


def test_group_without_remaining_rows_is_not_trained_on():
    made = settled(group("Hail", "Hail one", scores=[1.0, 0.5]))
    labels, advantages, _, _ = trained(made)
    assert ((labels != -100).sum(dim=1) == 1).all()
    assert advantages == [0.0, 0.0]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, None, "1", True, 10**400])
def test_non_numeric_score_does_not_spoil_the_baseline(score):
    made = settled(group("one", "two", "three", scores=[1.0, 0.0, score]), presets.failures_only())
    assert made["scores"] == [1.0, 0.0, 0.5]
    assert left_out(made, 2)


def hostile(**changed):
    """A group whose third row has different fields."""
    given = group("one", "two", "three", scores=[1.0, 0.0, 1.0], overrides=[{}, {}, {}])
    for name, value in changed.items():
        given[name][2] = value
    return given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("masks", [-100, 6, 1]),  # learns "Hail" in place of "three"
        ("masks", [-100, 5]),
        ("masks", None),
        ("tokens", [2, 99, 1]),
        ("tokens", [2, -1, 1]),
        ("tokens", [2, 5.5, 1]),
        ("tokens", [2, True, 1]),
        ("tokens", []),
        ("tokens", "two"),
        ("tokens", [2] * 99),
        ("inference_logprobs", [1.0, math.nan, -0.5]),
        ("inference_logprobs", [1.0, -1000.0, -0.5]),
        ("inference_logprobs", [1.0, "x", -0.5]),
        ("overrides", {"temperature": math.nan}),
        ("overrides", {"temperature": "hot"}),
        ("overrides", {"temperature": 0}),
    ],
)
def test_fields_that_would_crash_the_trainer_are_neutralised(field, value):
    guard = guarded(Guard(Words(), policy=Policy("zero", "zero")), longest=64)
    made, review = guard.settle(hostile(**{field: value}))
    assert review.verdicts[2].rejected
    labels, advantages, tokens, log_probs = trained(made)
    assert (labels[2] != -100).sum() == 1
    assert advantages[2] == 0.0
    assert int(tokens.max()) < len(WORDS)
    assert torch.isfinite(log_probs).all()
    assert made["scores"] == [1.0, 0.0, 0.5]


def test_node_mask_does_not_split_text_but_own_turns_are_read_apart():
    """A node could split a line with its mask; a special token between two turns splits them."""
    verifier = Words()
    ids = [2, 3, 8, 9, 6, 1]  # asked, "one", a tool's "tool go", "Hail", end
    given = {
        "tokens": [ids, [2, 4, 1]],
        "masks": [[-100, 3, -100, -100, 6, 1], [-100, 4, 1]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, -0.5, 1.0, 1.0, -0.25, -0.1], [1.0, -0.5, -0.5]],
        "overrides": [{"node": "mallory"}, {"node": "alice", "finish_reason": "length"}],
    }
    made = settled(given, Guard(verifier))
    assert left_out(made, 0)
    whole, other = verifier.shown
    assert whole.text == "onetool goHail"
    assert (whole.prompt, whole.prompt_ids) == ("3+4?", (2,))
    assert whole.completion_ids == (3, 8, 9, 6, 1)
    assert whole.given.tokens == ((1, 3),)
    assert whole.context == whole.given
    assert whole.verified_spans is None
    assert whole.sampler_logprobs == (-0.5, 1.0, 1.0, -0.25, -0.1)
    assert [c.node for c in verifier.shown] == ["mallory", "alice"]
    assert other.finish_reason == "length"
    verifier = Words()
    settled(given | {"overrides": [{}, {}]}, Guard(verifier))
    assert [c.text for c in verifier.shown] == ["one", "Hail", "two"]
    assert verifier.shown[1].prompt == "3+4? one tool go"
    verifier, ids = Words(), [2, 3, 1, 8, 9, 6, 1]
    masks = [-100, 3, 1, -100, -100, 6, 1]
    given = {"tokens": [ids] * 2, "masks": [masks] * 2, "scores": [1.0, 0.0]}
    settled(given, Guard(verifier), own=False)
    assert [c.text for c in verifier.shown[:2]] == ["one", "tool goHail"]  # with its line


def test_truncated_rollouts_are_left_out_of_the_baseline():
    given = group("one", "two", "three", scores=[1.0, 0.0, 0.0],
                  overrides=[{}, {}, {"finish_reason": "length"}])  # fmt: skip
    assert settled(given, presets.failures_only())["scores"] == [1.0, 0.0, 0.5]
    assert settled(given, presets.failures_only(truncated=False))["scores"] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "given",
    [
        None, [], {}, {"tokens": [[1]], "masks": [[1]]},
        {"tokens": [[1]], "masks": [[1]], "scores": []},
        {"tokens": [], "masks": [], "scores": []},
        {"tokens": {"0": [1]}, "masks": [[1]], "scores": [1.0]},
        group("one", scores=[1.0], generation_params={"temperature": "x"}),
        group("one", scores=[1.0], group_overrides={"temperature": -1}),
        group("one", scores=[1.0], advantages=[[math.nan]]),
        group("one", scores=[1.0], ref_logprobs=["x"]),
    ],
)  # fmt: skip
def test_invalid_group_error_names_the_field(given):
    with pytest.raises(GroupError, match="expected"):
        settled(given)


def test_length_policy_is_refused():
    with pytest.raises(FrameworkError, match="turn by turn"):
        guarded(Guard(Words(), policy=Policy(on_long="scale")))


def test_alternating_mask_is_not_a_conversation():
    ids, masks = row(" ".join(["one"] * 1500))
    masks = [m if i % 2 else -100 for i, m in enumerate(masks)]
    given = {"tokens": [ids, [2, 4, 1]], "masks": [masks, [-100, 4, 1]], "scores": [1.0, 0.0]}
    verifier = Words()
    assert left_out(settled(given, Guard(verifier)), 0)
    assert len(verifier.shown) == 1
