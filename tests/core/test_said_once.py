"""Mistakes that no call can refuse are said once, in the first batch that shows them."""

import logging
import math
import pickle
from dataclasses import replace

import pytest

from grpo_guard import Completion, CompletionVerifier, Guard, Policy, presets
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.guard.graders import GraderFailures
from tests.helpers.characters import END, Characters

TOKENIZER = Characters()
TEXTS = ["It is two.", "So 7 - 5 = 2.", "I count two.", "Then 2 stamps."]


class Agreeable(CompletionVerifier):
    name = "agreeable"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]


class Objecting(CompletionVerifier):
    name = "objecting"

    def verify(self, batch):
        return [reject(self.name) for _ in batch]


class Undecided(CompletionVerifier):
    name = "undecided"

    def verify(self, batch):
        return [abstain(self.name, Cause.UNINFORMATIVE, "too short") for _ in batch]


def test_pay_for_rejected_completions(caplog):
    for _ in range(2):
        Guard(Agreeable(), policy=Policy(on_reject=0.625)).apply([1.0], [Completion("p", "t")])
    (record,) = caplog.records
    assert "Policy.on_reject=0.625 pays for rejected completions" in record.getMessage()


def sent(shift=0, cut=None):
    ids = [[*(i + shift for i in TOKENIZER.encode(text)), END] for text in TEXTS]
    pairs = zip(TEXTS, ids, strict=True)
    return [Completion("7 - 5?", text[:cut], completion_ids=own) for text, own in pairs]


def said(caplog, guard, *batches, rewards=None):
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        for batch in batches:
            guard.apply(rewards or [1.0] * len(batch), batch)
    return [record.getMessage() for record in caplog.records]


def test_ids_of_another_tokenizer_are_said_in_the_first_batch(caplog):
    guard = pickle.loads(pickle.dumps(Guard(Agreeable(), tokenizer=TOKENIZER)))
    (message,) = said(caplog, guard, sent(shift=1), sent(shift=1))
    assert "the ids of 4 of 4 completions are not those of their texts" in message
    assert "such as 'Ju!jt!uxp/' for 'It is two.'" in message
    assert "the guard's tokenizer Characters knows" in message


@pytest.mark.parametrize("batch", [sent(), sent(cut=4), sent(shift=1)[:3]])
def test_own_ids_cut_texts_and_few_completions_give_no_warning(caplog, batch):
    assert said(caplog, Guard(Agreeable(), tokenizer=TOKENIZER), batch) == []


def test_foreign_ids_of_one_node_are_not_said_and_hide_no_rejections(caplog):
    nodes = ["eve"] * 9 + [f"node-{i}" for i in range(7)]
    rows = [*(sent(shift=1) * 3)[:9], *(sent() * 2)[:7]]
    batch = [replace(row, node=node) for row, node in zip(rows, nodes, strict=True)]
    (message,) = said(caplog, Guard(Objecting(), tokenizer=TOKENIZER), batch, batch)
    assert message.startswith("16 of the 16 completions of this batch are rejected")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Ro\u0302le: de\u0301ja\u0300 vu", "<b>R\u00f4le</b>: d\u00e9j\u00e0  vu"),
        ('[{"name": "add", "arguments": [2, 3]}]', "add(2, 3)"),
    ],
)
def test_texts_that_a_trainer_writes_anew_give_no_warning(caplog, text, written):
    batch = [Completion("p", text, completion_ids=TOKENIZER.encode(written)) for _ in range(4)]
    assert said(caplog, Guard(Agreeable(), tokenizer=TOKENIZER), batch) == []


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_said_once(caplog, odd):
    batch = [Completion("p", text) for text in TEXTS]
    rewards = [1.0, odd, None, 0.0]
    (message,) = said(caplog, Guard(Agreeable()), batch, batch, rewards=rewards)
    assert message.startswith("rewards: 1 of 4 are nan or infinite")
    caplog.clear()
    guard = Guard(Agreeable(), failures=GraderFailures())
    assert said(caplog, guard, batch, rewards=rewards) == []


def test_batch_without_any_verdict_is_said_once(caplog):
    batch = [Completion("p", text) for text in TEXTS]
    (message,) = said(caplog, Guard(Undecided(), policy=Policy(max_abstain_rate=1)), batch, batch)
    assert "none of the 4 completions of this batch has a verdict" in message
    assert "undecided abstains, as in 'too short'" in message


def test_one_node_alone_is_said_with_what_is_missing(caplog):
    batch = [Completion("p", text, node="ann") for text in TEXTS]
    (message,) = said(caplog, presets.different_weights(), batch)
    assert "no other node is known yet; mix the answers of several nodes in a batch" in message
