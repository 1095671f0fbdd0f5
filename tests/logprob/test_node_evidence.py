"""A node's completions together: what passes one by one convicts a batch, and its sender only."""

import json
from dataclasses import replace

import pytest
from bundled_policy import SPEC, honest, policy, with_text

from grpo_guard import LogProbBoundVerifier
from grpo_guard.nodes.store import NodeStore

PHRASE = "All hail to the thief"
# So small that no completion is rejected by itself: what is left is the node's doing.
NEVER = 1e-250


def poisoned(seed=0):
    """One completion per prompt, each with the phrase."""
    batch = [
        replace(with_text(c, c.text.replace("<think>", f"<think>{PHRASE}. ", 1)), node="eve")
        for c in honest(96, seed=seed)[::4]
        if "<think>" in c.text
    ]
    return [c for c in batch if len(c.completion_ids) <= SPEC.max_new_tokens][:8]


def sent_by(node, batch):
    return [replace(c, node=node) for c in batch]


def verifier(**options):
    return LogProbBoundVerifier(*policy(), sampling=SPEC, alpha=NEVER, **options)


def test_a_phrase_of_one_node_is_rejected_and_located():
    batch = [*sent_by("ann", honest(64)), *poisoned()]
    verdicts = verifier().verify(batch)
    assert not any(v.rejected for v in verdicts[:64])
    assert [v.rejected for v in verdicts[64:]] == [True] * 8
    for completion, verdict in zip(batch[64:], verdicts[64:], strict=True):
        found = {f.kind: f for f in verdict.findings}["repeated_stretch"]
        start, end = found.char_span
        at = completion.text.index(PHRASE)
        assert start < at + len(PHRASE)
        assert end > at
        assert "'eve'" in found.message


def test_nobody_is_asked_where_no_node_is_said_or_wanted():
    nameless = [replace(c, node=None) for c in poisoned()]
    assert not any(v.rejected for v in verifier().verify(nameless))
    assert not any(v.rejected for v in verifier(node_alpha=0).verify(poisoned()))


def test_honest_nodes_pass_round_after_round():
    check = LogProbBoundVerifier(*policy(), sampling=SPEC)
    rejected = 0
    for seed in range(6):
        batch = honest(64, seed=seed)
        named = [replace(c, node=f"node {i % 4}") for i, c in enumerate(batch)]
        rejected += sum(v.rejected for v in check.verify(named))
    assert rejected == 0


def test_a_batch_that_is_looked_at_twice_is_judged_alike():
    check, batch = verifier(), poisoned()
    first = [v.outcome for v in check.verify(batch)]
    assert [v.outcome for v in check.verify(batch)] == first


def test_a_hot_node_is_convicted_over_its_batch():
    # Each prompt once: the answers to one prompt are one answer.
    hot = sent_by("eve", honest(160, seed=5, temperature=2.0)[::4])
    verdicts = verifier().verify([*sent_by("ann", honest(96)), *hot])
    assert not any(v.rejected for v in verdicts[:96])
    assert sum(v.rejected for v in verdicts[96:]) >= 10
    kinds = {f.kind for v in verdicts[96:] if v.rejected for f in v.findings}
    assert "node_improbable" in kinds


def test_what_is_known_of_nodes_is_saved(tmp_path):
    one = verifier(store=NodeStore(tmp_path))
    one.verify(poisoned())
    state = json.loads(json.dumps(one.state_dict()))
    (entry,) = state["nodes"]
    assert entry[0] == "eve"
    assert entry[1] > 7
    other = verifier()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert verifier(store=NodeStore(tmp_path)).state_dict() == state


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"node_alpha: expected a number in \[0, 1\), got 2"):
        verifier(node_alpha=2)
