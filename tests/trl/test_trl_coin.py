"""Completions sampled with a shared seed through TRL: the example's run, and its columns."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from trl import GRPOConfig

from grpo_guard.adapters.trl.reward import rows_from
from grpo_guard.evals.policies.bundled import load_bundled
from tests.trl.tiny_trl import (
    CapturingTrainer,  # sets what keeps TRL quiet and offline, before it is imported
)
from tests.trl.trl_calls import call

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trl_seed_replay.py"
OWED = 4  # completions of each node for two prompts


def completions_from(*given, **more):
    return [row.completion for row in rows_from(*given, **more)]


@pytest.fixture
def example(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("trl_seed_replay", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)  # TRL writes there
    return module


class Outputs(CapturingTrainer):
    """Records what TRL makes of each round."""

    made = ()

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        Outputs.made = (*Outputs.made, output)
        return output


@pytest.mark.slow
def test_example_accepts_honest_nodes_and_rejects_the_one_that_chose(example, capsys):
    example.main(["--steps", "2"])

    header, *rows = capsys.readouterr().out.splitlines()[-4:]
    assert header.split() == ["node", "accepted", "rejected", "undecided", "empty", "slots"]
    assert [row.split() for row in rows] == [
        ["alice", "8", "0", "0", "0"],
        ["bob", "7", "0", "0", "1"],
        ["mallory", "0", "8", "0", "8"],
    ]


@pytest.mark.slow
def test_batches_for_several_steps_are_verified_before_the_first(example, monkeypatch):
    monkeypatch.setattr(example, "GRPOTrainer", Outputs)
    monkeypatch.setattr(Outputs, "made", ())
    model, tokenizer = load_bundled()
    before = model.lm_head.weight.detach().clone()

    # Each batch has four prompts, is split over two steps and used twice: rounds 0 and 4.
    reuse = {"steps_per_generation": 2, "num_iterations": 2, "learning_rate": 1e-3}
    monkeypatch.setattr(example, "GRPOConfig", lambda **given: GRPOConfig(**given | reuse))
    tally = example.train(model, tokenizer, 5)

    assert len(Outputs.made) == 2
    assert not torch.equal(before, model.lm_head.weight)
    # Honest work rejected in the second round would mean that stale weights were scored.
    assert tally.counts["alice"] == {"accept": 4 * OWED}
    assert tally.counts["bob"] == {"accept": 4 * OWED - 1, "empty": 1}
    assert tally.counts["mallory"] == {"reject": 4 * OWED, "empty": 4 * OWED}
    for output in Outputs.made:
        mask = output["completion_mask"].bool()
        # TRL's own log-probs of the batch, against those that the rollout function returned.
        torch.testing.assert_close(
            output["sampling_per_token_logps"][mask],
            output["old_per_token_logps"][mask],
            atol=1e-4,
            rtol=0,
        )
        assert (output["advantages"].view(-1, 6)[:, 4:] == 0).all()  # mallory's


@pytest.mark.parametrize("sent", [(), (10**9,), (-1,), (5,) * 65, (5.0,), ("five",)])
def test_completions_that_would_crash_the_trainer_count_as_never_sent(example, sent):
    assert not example.bearable(load_bundled()[0], sent)


@pytest.mark.slow
def test_lost_or_invalid_completion_leaves_its_slot_empty(example, monkeypatch):
    monkeypatch.setattr(
        example, "exchange", lambda model, tok, round, turns: dict.fromkeys(turns, (10**9,))
    )
    tally = example.train(*load_bundled(), 1)

    assert tally.counts["alice"] == {"accept": OWED}
    assert tally.counts["bob"] == tally.counts["mallory"] == {"empty": OWED}


def test_slot_and_round_columns_override_the_adapters_count():
    batch = completions_from(call(step=7, slot=[1, 0, 1], round=[3, 4, 5]))

    assert [c.slot for c in batch] == [1, 0, 1]
    assert [c.round for c in batch] == [3, 4, 5]
    assert [c.slot for c in completions_from(call(step=7, round=[3, 4, 5]))] == [0, 1, 2]
    assert {c.round for c in completions_from(call(step=7, slot=[1, 0, 1]))} == {7}


@pytest.mark.parametrize(
    "claimed",
    [None, "0", 0.5, True, 10**5000, -(2**63) - 1],
    ids=["none", "text", "float", "bool", "unprintable", "too small"],
)
def test_missing_slots_are_not_invented(claimed):
    batch = completions_from(call(step=7, slot=[claimed, 2, np.int64(1)], round=[0, claimed, 0]))

    assert [c.slot for c in batch] == [None, 2, 1]
    assert [c.round for c in batch] == [0, None, 0]
    assert type(batch[2].slot) is int
