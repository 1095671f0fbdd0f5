"""Scores from actors: the same verdicts, prompts kept together, oversized parts split."""

import random
import sys
import types
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ray", reason="needs ray: pip install 'grpo-guard[ray]'")

from grpo_guard import Completion, LogProbBoundVerifier, SamplingSpec, presets
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.scorers.base import OutOfMemoryError
from grpo_guard.server.distributed.cluster import ClusterError
from grpo_guard.server.distributed.scorer import RayScorer, ScoringWorker, _parts

SPEC = SamplingSpec(engine="transformers", temperature=1.0, top_k=50, top_p=1.0)
PROMPT = "Q: Zoe has {} plums. Zoe finds 9 more. How many plums does Zoe have now?\nA:"


def loading():
    """Defined inside a function, so that it reaches the actors by value."""

    def load():
        from grpo_guard.evals.policies.bundled import load_bundled
        from grpo_guard.logprob.scorers.transformers import TransformersScorer

        return TransformersScorer(load_bundled()[0])

    return load


def only_here():
    """Belongs to a module that exists only in this process."""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 90)), max_size=80), st.integers(1, 5))
def test_parts_hold_each_sequence_once_and_keep_small_groups_whole(rows, workers) -> None:
    sequences = [Encoded((k,) * 4, (1,) * n, from_text=False) for k, n in rows]
    parts = _parts(sequences, workers)
    assert sorted(i for part in parts for i in part) == list(range(len(sequences)))
    sizes = [len(s.prompt_ids) + len(s.completion_ids) for s in sequences]
    share = max(1, sum(sizes) // workers)
    of_prompt, seen = defaultdict(int), defaultdict(set)
    for number, part in enumerate(parts):
        for i in part:
            of_prompt[sequences[i].prompt_ids] += sizes[i]
            seen[sequences[i].prompt_ids].add(number)
    assert all(len(seen[k]) == 1 for k, size in of_prompt.items() if size <= share)


class Narrow:
    """A scorer that takes a limited number of sequences at once, and never one of five tokens."""

    vocab_size, window = 10, None

    def __init__(self) -> None:
        self.calls = 0

    def identity(self):
        return {"engine": "narrow"}

    def score(self, sequences, spec, *, mass_margin=0.0):
        self.calls += 1
        if len(sequences) > 2 or any(len(s.completion_ids) == 5 for s in sequences):
            raise OutOfMemoryError("narrow")
        return [len(s.completion_ids) for s in sequences]


def test_worker_halves_a_part_that_does_not_fit() -> None:
    worker = ScoringWorker(Narrow)
    assert worker.start().identity == {"engine": "narrow"}
    said = worker.read([Encoded((1,), (1,) * n, from_text=False) for n in range(1, 9)], SPEC, 0.0)
    assert [type(s).__name__ for s in said] == ["int"] * 4 + ["OutOfMemoryError"] + ["int"] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_guard_with_remote_scores_gives_the_local_verdicts(tmp_path) -> None:
    _, tokenizer = load_bundled()
    rng = random.Random(0)
    texts = ["<think>{0} + 9 = {1} plums.</think><answer>{1} plums</answer>", "qz qz qz {0} {1}"]
    rows = [
        Completion(
            PROMPT.format(n), texts[rng.random() < 0.2].format(n, n + 9), node=f"n{i}", round=0
        )
        for n in range(2, 20)
        for i in range(4)
    ]
    options = {"key": b"the same"}
    here = presets.same_weights(None, tokenizer, SPEC, scorer=loading()(), **options)
    scorer = RayScorer(loading(), workers=2)
    try:
        there = presets.same_weights(None, tokenizer, SPEC, scorer=scorer, **options)
        ours, theirs = (guard.judge(rows)[1] for guard in (here, there))
    finally:
        scorer.close()
    assert [(v.outcome, v.cause) for v in theirs] == [(v.outcome, v.cause) for v in ours]
    assert {v.outcome for v in ours} == {"accept", "reject"}
    for mine, other in zip(ours, theirs, strict=True):
        assert other.p_value == (mine.p_value and pytest.approx(mine.p_value, rel=1e-3))
    lost = LogProbBoundVerifier(tokenizer=tokenizer, sampling=SPEC, scorer=scorer)  # it is closed
    said = lost.verify([replace(row, node=None) for row in rows[:3]])
    assert [v.cause for v in said] == ["out_of_memory"] * 3


def counting():
    def make():
        class Counts:
            vocab_size, window = 10, None

            def identity(self):
                return {"engine": "counts"}

            def score(self, sequences, spec, *, mass_margin=0.0):
                return [len(s.completion_ids) for s in sequences]

        return Counts()

    return make


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_cost_of_a_node_is_attributed_to_it(monkeypatch) -> None:
    _, tokenizer = load_bundled()
    encoder = LogProbBoundVerifier(tokenizer=tokenizer, sampling=SPEC, scorer=loading()())
    rows = [Completion(PROMPT.format(3), "12 plums", node=node) for node in ("a", "b", None)]
    sequences = [encoder.encode(row) for row in rows]
    assert sequences[0] == sequences[1] == sequences[2]  # the node does not affect the score
    scorer, tickets = RayScorer(counting(), workers=1), []
    send = scorer._pool.submit
    monkeypatch.setattr(
        scorer._pool, "submit", lambda t, parts: (tickets.append(t), send(t, parts))
    )
    try:
        assert len(set(scorer.score(sequences, SPEC))) == 1
    finally:
        scorer.close()
    assert tickets[0].authors == ["a", "b", None]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_unimportable_module_is_named(monkeypatch) -> None:
    module = types.ModuleType("in_this_process")
    module.only_here = only_here
    monkeypatch.setitem(sys.modules, "in_this_process", module)
    monkeypatch.setattr(only_here, "__module__", "in_this_process")
    with pytest.raises(
        ClusterError, match=r"ModuleNotFoundError: No module named 'in_this_process'"
    ):
        RayScorer(only_here, workers=1)
