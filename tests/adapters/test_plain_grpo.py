"""The plain-torch GRPO loop of the docs, run for real."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_guard import Guard, Policy
from grpo_guard.core.verdict import Cause, abstain
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.policies.bundled import load_bundled

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("plain_grpo", EXAMPLES / "plain_grpo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def group(example):
    """A policy, its tokenizer, a problem, and a group of two own answers and two of a stranger."""
    torch.manual_seed(0)
    model, tokenizer = load_bundled()
    problem = example.TASK.sample(example.random.Random(0))
    batch = example.sample(model, tokenizer, problem, 2) + example.received(tokenizer, problem, 2)
    return model, tokenizer, batch


def gradient(example, model, batch, rewards):
    model.zero_grad()
    example.accumulate(model, batch, rewards)
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(grads) if grads else None


def test_example_keeps_its_own_answers_and_leaves_poison_out(example, capsys):
    tally = example.main(["--steps", "3"])
    assert tally.counts == {("me", "accept"): 18, ("mallory", "reject"): 6}
    out = capsys.readouterr().out
    assert out.count("6 of 8 kept") == 3
    assert out.splitlines()[-1].split() == ["mallory", "0", "6", "0"]


def test_page_shows_the_loop_that_runs():
    page = (EXAMPLES.parent / "plain-python.md").read_text(encoding="utf-8")
    source = {line.strip() for line in (EXAMPLES / "plain_grpo.py").read_text().splitlines()}
    _, _, shown = page.partition("```python\nfor step")
    body = [line.strip() for line in f"for step{shown.partition('```')[0]}".splitlines()]
    assert len(body) > 5
    assert [line for line in body if line not in source] == []


def test_left_out_rows_do_not_affect_the_update(example, group):
    model, _, batch = group
    with_none = gradient(example, model, batch, [1.0, 0.0, None, None])
    without = gradient(example, model, batch[:2], [1.0, 0.0])
    unguarded = gradient(example, model, batch, [1.0, 0.0, 1.0, 1.0])
    torch.testing.assert_close(with_none, without, rtol=0, atol=0)
    assert not torch.allclose(unguarded, without)


def test_gradient_matches_the_clipped_loss_at_ratio_one(example, group):
    model, _, batch = group
    rewards = [1.0, 0.0, 0.5, 0.0]
    ours = gradient(example, model, batch, rewards)

    model.zero_grad()
    r = torch.tensor(rewards)
    advantages = (r - r.mean()) / (r.std() + 1e-4)
    terms, tokens = [], 0
    for completion, advantage in zip(batch, advantages, strict=True):
        new = example.log_probs(model, completion)
        ratio = (new - new.detach()).exp()
        clipped = ratio.clamp(0.8, 1.2) * advantage
        terms.append(torch.minimum(ratio * advantage, clipped).sum())
        tokens += len(completion.completion_ids)
    (-sum(terms) / tokens).backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("rewards", [[None] * 4, [1.0, None, None, None], [1.0] * 4])
def test_group_with_equal_rewards_changes_no_weight(example, group, rewards):
    model, _, batch = group
    found = gradient(example, model, batch, rewards)
    assert found is None or float(found.abs().max()) < 1e-3
    assert found is None or math.isfinite(float(found.sum()))


class Asleep(CompletionVerifier):
    name = "asleep"

    def verify(self, batch):
        return [abstain(self.name, Cause.TIMEOUT) for _ in batch]


def test_apply_is_enough_for_a_training_loop(group):
    """Abstained rows get None, order is kept, and the loop's own list is not modified."""
    _, tokenizer, batch = group
    rewards = [1.0, 2.0, 3.0, 4.0]
    asleep = Guard(Asleep(), tokenizer=tokenizer)
    assert asleep.apply(rewards, batch) == [None] * 4
    assert asleep.with_policy(Policy(on_abstain="pass")).apply(rewards, batch) == rewards
    assert rewards == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="rewards: expected 4, one per completion, got 3"):
        Guard(Asleep()).apply(rewards[:3], batch)
    assert Guard(Asleep()).apply([], []) == []


def test_ids_that_do_not_decode_to_the_text_are_rejected(example, group):
    model, tokenizer, batch = group
    verifier = example.LogProbBoundVerifier(
        model, tokenizer, sampling=example.SAMPLING, require_ids=True
    )
    liar = replace(batch[0], text="All hail to the thief")
    assert [v.rejected for v in verifier.verify([batch[0], liar])] == [False, True]
