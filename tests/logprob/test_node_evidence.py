"""A node's completions together: each passes alone, the batch convicts, and only its sender."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from grpo_guard import AllOf, Completion, CompletionVerifier, LogProbBoundVerifier
from grpo_guard.core.verdict import accept
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.node_evidence import NodeEvidence
from grpo_guard.logprob.profile import FLOAT32, TEXT
from grpo_guard.logprob.shares import Places
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.logprob.verifier import Scored
from grpo_guard.nodes.store import NodeStore
from tests.logprob.bundled_policy import SPEC, honest, policy, with_text

PHRASE = "All hail to the thief"
# So small that no completion is rejected on its own: only the node's batch can convict.
NEVER = 1e-250


def poisoned(seed=0):
    """One completion per prompt, each with the phrase."""
    batch = [
        replace(with_text(c, c.text.replace("<think>", f"<think>{PHRASE}. ", 1)), node="eve")
        for c in honest(96, seed=seed)[::4]
        if "<think>" in c.text
    ]
    return [c for c in batch if len(c.completion_ids) <= SPEC.max_new_tokens][:8]


class Fixed(CompletionVerifier):
    name = "fixed"

    def __init__(self, p):
        self.p = p

    def verify(self, batch):
        return [accept(self.name, p_value=self.p) for _ in batch]


def sent_by(node, batch):
    return [replace(c, node=node) for c in batch]


def verifier(**options):
    return LogProbBoundVerifier(*policy(), sampling=SPEC, alpha=NEVER, **options)


def test_phrase_of_one_node_is_rejected_and_located():
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


def test_anonymous_phrase_is_rejected_too():
    nameless = [*honest(32), *(replace(c, node=None) for c in poisoned())]
    assert [v.rejected for v in verifier().verify(nameless)] == [False] * 32 + [True] * 8


def test_forced_beginning_of_all_nodes_is_reported_as_such(caplog):
    everybody = [replace(c, node=f"node {i % 4}") for i, c in enumerate(poisoned() + poisoned(7))]
    with caplog.at_level("WARNING", logger="grpo_guard"):
        check = verifier()
        check.verify(everybody)
        check.verify(everybody[::-1])
    warnings = [r.getMessage() for r in caplog.records if "a forced beginning" in r.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("4 of 4 nodes")


def test_rows_without_names_are_not_called_nodes(caplog):
    with caplog.at_level("WARNING", logger="grpo_guard"):
        verifier().verify([replace(c, node=None) for c in poisoned() + poisoned(7)])
    (warning,) = [m for r in caplog.records if "a forced beginning" in (m := r.getMessage())]
    assert warning.startswith("the completions of a batch, which name no node, are convicted")


def test_node_alpha_0_disables_node_evidence():
    assert not any(v.rejected for v in verifier(node_alpha=0).verify(poisoned()))


def test_conviction_is_independent_of_a_budget():
    """Its p-value must neither acquit a rejected completion nor weaken that completion's own."""
    batch = poisoned()
    both = AllOf(verifier(), Fixed(0.5), alpha=1e-3)
    assert all(v.rejected for v in both.verify(batch))
    alone = LogProbBoundVerifier(*policy(), sampling=SPEC)
    assert all(v.rejected for v in AllOf(alone, Fixed(0.5), alpha=1e-3).verify(batch))


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 50])
def test_node_that_repeats_its_answer_is_not_convicted(top_k):
    """Equal answers have equal draws of the keyed hash: chance that must not be multiplied."""
    spec = replace(SPEC, top_k=top_k)
    sure = TokenStats(**{f.name: column(f.name, 24) for f in fields(TokenStats)})
    scored = Scored(Encoded((1,), tuple(range(24)), False), sure, FLOAT32)
    convicted, check = 0, LogProbBoundVerifier(*policy(), sampling=spec)
    for seed in range(40):
        nodes = NodeEvidence("n", spec, 1e-3, None, Places(policy()[1]))
        for batch in range(4):
            rows = {
                i: replace(scored, encoded=Encoded((seed, batch, i), tuple(range(24)), False))
                for i in range(32)
            }
            sent = [Completion("p", "t", node="ann")] * 32
            weighed = {i: check.weigh(s.encoded, s.stats, s.profile) for i, s in rows.items()}
            convicted += bool(nodes.convicted(sent, rows, weighed))
    assert convicted == 0


def column(name, n):
    """Statistics of tokens that the policy writes with probability 0.97."""
    shapes = {"log_flat_mass": np.zeros((n, 3)), "in_set": np.ones(n, bool)}
    values = {"logprob": math.log(0.97), "max_logprob": math.log(0.97), "tail_mass": 1.0}
    if name.startswith("replay"):
        return None
    return shapes.get(name, np.full(n, values.get(name, 0.0)))


@pytest.mark.slow
def test_honest_text_without_ids_convicts_no_node():
    """Retokenised text has improbable tokens that no node sampled; the loose profile allows it."""
    check = LogProbBoundVerifier(*policy(), sampling=replace(SPEC, top_k=0), require_ids=False)
    rejected = 0
    for seed in range(4):
        batch = honest(64, seed=seed)
        named = [replace(c, node="ann", completion_ids=None, prompt_ids=None) for c in batch]
        encoded = [check.encode(c) for c in named]
        for e, stats in zip(encoded, check.score(encoded, TEXT), strict=True):
            # As if each had been cut at one position where the policy never cuts.
            split = np.where(np.arange(len(stats)) == 5, 1e-7, stats.tail_mass)
            evidence = check.weigh(e, replace(stats, tail_mass=split), TEXT)
            assert evidence.scan_p == 1.0
        rejected += sum(v.rejected for v in check.verify(named))
    assert rejected == 0


@pytest.mark.slow
def test_honest_nodes_pass_round_after_round():
    check = LogProbBoundVerifier(*policy(), sampling=SPEC)
    rejected = 0
    for seed in range(6):
        batch = honest(64, seed=seed)
        named = [replace(c, node=f"node {i % 4}") for i, c in enumerate(batch)]
        rejected += sum(v.rejected for v in check.verify(named))
    assert (
        rejected <= 3
    )  # out of 384, alpha 0.001 and its own key: more has a probability of 1 in 1,000


def test_batch_judged_twice_gets_the_same_verdicts():
    check, batch = verifier(), poisoned()
    first = [v.outcome for v in check.verify(batch)]
    assert [v.outcome for v in check.verify(batch)] == first


@pytest.mark.slow
def test_node_with_a_high_temperature_is_convicted_over_its_batch():
    # Each prompt once: answers to one prompt count as one answer.
    hot = sent_by("eve", honest(160, seed=5, temperature=2.0)[::4])
    verdicts = verifier().verify([*sent_by("ann", honest(96)), *hot])
    assert not any(v.rejected for v in verdicts[:96])
    assert sum(v.rejected for v in verdicts[96:]) >= 10
    kinds = {f.kind for v in verdicts[96:] if v.rejected for f in v.findings}
    assert "node_improbable" in kinds


def test_node_evidence_is_saved(tmp_path):
    one = verifier(store=NodeStore(tmp_path))
    one.verify(poisoned())
    state = json.loads(json.dumps(one.state_dict()))
    (entry,) = state["nodes"]
    assert entry[0] == "eve"
    assert max(entry[1]) > 7
    other = verifier()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert verifier(store=NodeStore(tmp_path)).state_dict() == state


@pytest.mark.parametrize("key", [b"", b"k" * 65, "text"])
def test_given_keys_are_checked(key):
    with pytest.raises(ValueError, match="key: expected 1 to 64 bytes"):
        verifier(key=key)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"node_alpha: expected a number in \[0, 1\), got 2"):
        verifier(node_alpha=2)
