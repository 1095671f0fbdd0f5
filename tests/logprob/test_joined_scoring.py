"""Batches of different senders are scored in one pass and judged separately."""

import pytest

from grpo_guard import LogProbBoundVerifier
from grpo_guard.core.supervise import supervised, supervised_each
from grpo_guard.logprob.tail import TailProbabilityVerifier
from tests.logprob.bundled_policy import SPEC, honest, policy, with_text


class Counted(LogProbBoundVerifier):
    """Counts its passes."""

    def score(self, sequences, profile):
        self.passes = [*getattr(self, "passes", []), len(sequences)]
        return super().score(sequences, profile)


def poisoned(completion):
    text = completion.text.replace("<think>", "<think>All hail to the thief. ", 1)
    return with_text(completion, text)


def test_one_pass_for_all_batches_and_separate_verdicts():
    rows = [c for c in honest(24) if "<think>" in c.text][:12]
    batches = [rows[:5], [poisoned(rows[5]), rows[6]], [], rows[7:]]
    key = b"k"
    joined = Counted(*policy(), sampling=SPEC, key=key)
    each = supervised_each(joined, batches)
    assert joined.passes == [12]
    apart = LogProbBoundVerifier(*policy(), sampling=SPEC, key=key)
    for found, batch in zip(each, batches, strict=True):
        expected = supervised(apart, batch)
        assert [v.outcome for v in found] == [v.outcome for v in expected]
        assert [v.p_value for v in found] == pytest.approx([v.p_value for v in expected], rel=1e-3)
    assert each[1][0].rejected


def test_without_evidence_about_nodes_a_completion_is_judged_alone():
    rows = [c for c in honest(24) if "<think>" in c.text][:4]
    batch = [rows[0], poisoned(rows[1]), *rows[2:]]
    bound = LogProbBoundVerifier(*policy(), sampling=SPEC, key=b"k", node_alpha=0)
    tail = TailProbabilityVerifier(*policy(), sampling=SPEC, require_ids=False)
    for one in (bound, tail):
        assert one.scope == "completion"
        alone = [supervised(one, [completion])[0] for completion in batch]
        assert [v.outcome for v in supervised(one, batch)] == [v.outcome for v in alone]
    assert LogProbBoundVerifier(*policy(), sampling=SPEC).scope == "history"
