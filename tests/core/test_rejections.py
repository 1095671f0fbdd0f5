"""A batch of which most is rejected says so once: it is seldom an attack."""

import logging

import pytest

from grpo_guard import Completion, CompletionVerifier, Guard
from grpo_guard.core.verdict import accept, reject


class Shouting(CompletionVerifier):
    name = "shouting"

    def verify(self, batch):
        return [
            reject(self.name, message=f"{c.text.count('!')} marks \x1b[2J")
            if "!" in c.text
            else accept(self.name)
            for c in batch
        ]


def batch(loud, calm, node=lambda i: None):
    texts = ["Hail!"] * loud + ["Fine."] * calm
    return [Completion("Say something.", text, node=node(i)) for i, text in enumerate(texts)]


def warnings(caplog, *batches):
    guard = Guard(Shouting())
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        for one in batches:
            guard.review(one)
    return [r.getMessage() for r in caplog.records if "are rejected" in r.message]


def test_most_of_a_batch_rejected_warns_once_with_the_commonest_reason(caplog):
    found = warnings(caplog, batch(5, 3), batch(8, 0))
    assert found == [
        "5 of the 8 completions of this batch are rejected, most often by shouting, as in "
        r"'1 marks \x1b[2J'. If they are honest, see 'Everything is rejected' in "
        "docs/troubleshooting.md. This warning comes once"
    ]


@pytest.mark.parametrize(
    "given",
    [
        batch(4, 4),
        batch(7, 0),
        batch(6, 2, lambda i: "mallory" if i < 6 else "ann"),  # one node of two sent all of it
    ],
)
def test_half_of_a_batch_few_completions_and_one_node_of_several_give_no_warning(caplog, given):
    assert warnings(caplog, given) == []


def test_several_nodes_rejected_give_the_warning(caplog):
    assert len(warnings(caplog, batch(6, 2, lambda i: f"node-{i % 4}"))) == 1
