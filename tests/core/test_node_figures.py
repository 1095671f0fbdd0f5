"""Metrics per node: senders choose node names, and a tracker keeps each name forever."""

from grpo_guard import Completion, Guard
from grpo_guard.guard.metrics import MOST_NODES
from tests.core.rule_verifiers_core import Says


def sent(*rows):
    """Build completions from (node, text)."""
    return [Completion("q", text, node=node) for node, text in rows]


def figures(guard, *rows):
    found = guard.review(sent(*rows)).metrics
    return {name[11:]: n for name, n in found.items() if name.startswith("guard/node/")}


def names(found):
    return {name.rsplit("/", 1)[0] for name in found}


def test_completions_are_counted_by_node_and_outcome():
    guard = Guard(Says())
    found = figures(guard, ("ann", "a"), ("ann", "a"), ("eve", "r"), ("eve", "?"), (None, "r"))
    assert found == {
        "ann/accept": 2, "ann/reject": 0, "ann/abstain": 0,
        "eve/accept": 0, "eve/reject": 1, "eve/abstain": 1,
    }  # fmt: skip
    # A node that sends nothing is logged with 0: trainers average over the steps that log a name.
    assert figures(guard, ("ann", "a"))["eve/reject"] == 0
    assert figures(Guard(Says()), (None, "a")) == {}


def test_a_name_that_trackers_do_not_take_is_logged_once_with_its_figures(caplog):
    guard = Guard(Says())
    for _ in range(2):
        found = names(figures(guard, ("李雷", "a"), ("ann", "a")))
    (digest,) = [name for name in found if name != "ann"]
    assert [r.getMessage() for r in caplog.records if "logged as" in r.getMessage()] == [
        f"node '李雷' is logged as guard/node/{digest}"
    ]


def test_invented_names_share_one_metric_and_displace_no_honest_node():
    guard = Guard(Says())
    honest = [("ann", "a"), ("ann", "a"), ("bob", "a"), ("bob", "a")]
    found = figures(guard, *[(f"x{i}", "r") for i in range(500)], *honest)
    assert len(names(found)) == MOST_NODES + 1
    assert found["ann/accept"] == found["bob/accept"] == 2
    assert found["others/reject"] == 500 - (MOST_NODES - 2)
    later = figures(guard, *[(f"y{i}", "r") for i in range(500)])
    assert names(later) == names(found)
    assert figures(guard, ("ann", "a"))["others/reject"] == 0


def test_names_are_valid_for_trackers_and_never_collide():
    odd = ["a/b", "a b", "a_b", "others", "é\n\x1b[31m", "x" * 300, "\ud800", "", "a_b.0"]
    found = figures(Guard(Says()), *[(name, "a") for name in odd])
    assert len(names(found)) == len(odd)
    for name in names(found):
        assert len(name) <= 60
        assert name.isascii()
        assert name.replace(".", "").replace("_", "").replace("-", "").isalnum() or name == "a_b"
    assert "a_b" in names(found)
    assert "others" not in names(found)
