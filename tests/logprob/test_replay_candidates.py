"""Inputs of the margins: each row's likeliest tokens, its seed and its positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.scores import LogitScores
from grpo_guard.logprob.kernels.tiled import row_stats
from grpo_guard.logprob.replay.candidates import MOST_CANDIDATES, Candidates, candidates_for
from grpo_guard.logprob.replay.margins import (
    Replay,
    rows_of,
)
from tests.logprob.replay_rows import logits_of, replay_of, spec_of

# Candidates.


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    widths=st.lists(st.sampled_from([1, 7, 31, 32, 33, 64, 96, 500, 1024]), min_size=1, max_size=6),
    most=st.sampled_from([1, 2, 21, 128]),
    whole=st.booleans(),
    closed=st.sampled_from([0.0, 0.9]),
)
def test_candidates_are_the_largest_of_the_row_for_any_tiling(seed, widths, most, whole, closed):
    z = logits_of(seed, 5, sum(widths), 3.0)
    if whole:  # ties between tiles and blocks, and with the lowest candidate
        z = z.round()
    shut = torch.rand(z.shape, generator=torch.Generator().manual_seed(seed)) < closed
    z = z.masked_fill(shut, -torch.inf)
    candidates, start = Candidates(5, most, z.device), 0
    for width in widths:
        candidates(z[:, start : start + width], start)
        start += width
    kept = min(most, start)
    assert torch.equal(candidates.values[:, :kept], z.topk(kept, -1).values)
    assert (candidates.values[:, kept:] == -torch.inf).all()
    for row, values, tokens in zip(z, candidates.values, candidates.tokens, strict=True):
        found = tokens[values > -torch.inf]
        assert len(found.unique()) == len(found)
        assert torch.equal(row[found], values[values > -torch.inf])


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), vocab=st.integers(2, 3000), tile=st.sampled_from([1, 100, 1024]))
def test_candidates_are_gathered_during_the_scoring_pass(seed, vocab, tile):
    z = logits_of(seed, 3, vocab, 3.0)
    candidates = Candidates(3, 50, z.device)
    row_stats(LogitScores(z, 1.0), torch.tensor([0, 1, 0]), observer=candidates, tile=tile)
    most = min(50, vocab)
    assert torch.equal(candidates.values[:, :most], z.topk(most, -1).values)


def test_enough_candidates_are_kept_to_show_the_support_edge():
    assert candidates_for(spec_of(top_k=20)) == 21
    assert candidates_for(spec_of(top_k=5000)) == MOST_CANDIDATES
    assert candidates_for(spec_of(top_p=0.9)) == MOST_CANDIDATES


# Seeds and positions.


def test_tokens_have_their_sequence_seed_and_family_position():
    sequences = [Encoded((1, 2, 3), (4, 5), False, 2**64 - 1), Encoded((1,), (6, 7, 8), False, 9)]
    ours = rows_of(Replay(), sequences, torch.device("cpu"))
    assert ours.seeds.tolist() == [-1, -1, 9, 9, 9]
    assert ours.positions.tolist() == [0, 1, 0, 1, 2]
    vllm = rows_of(Replay(family="vllm"), sequences, torch.device("cpu"))
    assert vllm.positions.tolist() == [2, 3, 0, 1, 2]


def test_subsets_of_rows_keep_their_seeds_and_positions():
    replay = replay_of(5)
    some = replay.rows(torch.tensor([4, 1]))
    assert some.seeds.tolist() == replay.seeds[[4, 1]].tolist()
    assert some.positions.tolist() == [4, 1]


def test_sequence_without_a_seed_is_not_replayed():
    with pytest.raises(ValueError, match="expected a seed in each, got one without"):
        rows_of(Replay(), [Encoded((1,), (2,), False)], torch.device("cpu"))
