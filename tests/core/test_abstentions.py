"""Who can make the guard abstain, and the consequences."""

import ast
import re
from pathlib import Path

import pytest

from grpo_guard import (
    AbstainError,
    AllOf,
    AnyOf,
    Cascade,
    Completion,
    Guard,
    JudgeVerifier,
    Policy,
    RecurrenceVerifier,
    ScreensVerifier,
)
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.core.calibrated import Calibrated, HonestScores
from grpo_guard.core.ensemble import Vote, only
from grpo_guard.core.verdict import AUTHOR_CAUSES, Cause
from tests.core.rule_verifiers_core import Says

ROOT = Path(__file__).parents[2]
ABSTAINING = {c.name for c in Cause} - {c.name for c in AUTHOR_CAUSES} - {"JUDGED"}
PASS = Policy(on_abstain="pass")


class Sites(ast.NodeVisitor):
    """Functions that create an abstention or name the cause of one; comparisons do not count."""

    def __init__(self):
        self.where, self.found = [], set()

    def visit_ClassDef(self, node):
        self.where.append(node.name)
        self.generic_visit(node)
        self.where.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef

    def visit_Compare(self, node):
        pass

    def visit_Subscript(self, node):
        self.visit(node.value)

    def visit_Name(self, node):
        self._note(node.id in ("abstain", "abstentions"))

    def visit_Attribute(self, node):
        of = getattr(node.value, "id", None)
        self._note(of == "Cause" and node.attr in ABSTAINING)
        self._note(of == "Outcome" and node.attr == "ABSTAIN")
        self.generic_visit(node)

    def _note(self, found):
        if found:
            self.found.add(".".join(self.where) or "(module)")


def sites_in(source):
    sites = Sites()
    sites.visit(ast.parse(source))
    return sites.found


def sources():
    yield from sorted((ROOT / "adapters").rglob("*.py"))
    for path in sorted((ROOT / "grpo_guard").rglob("*.py")):
        inside = path.relative_to(ROOT / "grpo_guard").parts
        # adapters and evals are links to other folders, and verdict.py only defines the helpers.
        if inside[0] not in ("adapters", "evals") and path.name != "verdict.py":
            yield path


def documented():
    rows = set()
    for line in (ROOT / "tests" / "core" / "abstentions.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not (file := re.fullmatch(r"`([\w/]+\.py)`", cells[0])):
            continue
        assert len(cells) == 4, line
        assert all(cells), line
        rows |= {(file[1], where) for where in re.findall(r"`([^`]+)`", cells[1])}
    return rows


def test_table_lists_exactly_the_places_that_abstain():
    found = {
        (path.relative_to(ROOT).as_posix(), where)
        for path in sources()
        for where in sites_in(path.read_text())
    }
    assert len(found) > 30
    assert found - documented() == set(), (
        "say in tests/core/abstentions.md why no author can cause it"
    )
    assert documented() - found == set(), "tests/core/abstentions.md names unknown places"


@pytest.mark.parametrize(
    "body",
    [
        "return abstain(self.name, Cause.TIMEOUT)",
        "return Verdict(Outcome.ABSTAIN, cause, self.name)",
        "raise EncodeError(Cause.UNSUPPORTED, 'no')",
        "blame = reject if ours else abstain",
    ],
)
def test_every_form_of_abstaining_is_detected(body):
    assert sites_in(f"class V:\n    def verify(self):\n        {body}\n") == {"V.verify"}


# Who can stop a run.


def batch(**texts_of):
    return [
        Completion("p", text, node=None if node == "nobody" else node)
        for node, texts in texts_of.items()
        for text in texts
    ]


def guard(rate=0.25, window=1):
    return Guard(Says(), policy=Policy(max_abstain_rate=rate, abstain_window=window))


@pytest.mark.parametrize(
    "texts",
    [
        {"bad": "????", "a": "aaaa", "b": "aaaa"},  # one of three
        {"bad": "????", "a": "aaa?", "b": "aaaa", "c": "aaaa"},  # next to one by an honest node
        {"bad": "????", "worse": "????", "a": "aaaa", "b": "aaaa", "c": "aaaa"},  # two of five
        {f"sybil{i}": "?" for i in range(5)} | {"a": "aaaa", "b": "aaaa"},  # many invented names
        {"nobody": "????", "a": "aaaa", "b": "aaaa"},  # without a name
        {"a": "aaaa????", "b": "aaaa"},  # under one honest node's name
        {"bad": "?" * 16, "a": "aaaa", "b": "aaaa"},  # sends more than its share
        {"bad": "????", "a": "aaaa"},
    ],
)
def test_minority_cannot_stop_a_run(texts):
    review = guard().review(batch(**texts))
    assert len(review.verdicts) == sum(map(len, texts.values()))


@pytest.mark.parametrize(
    "texts",
    [
        {"a": "????", "b": "????", "c": "????"},
        {"a": "????"},
        {"nobody": "????"},
        {"a": "??aa", "b": "a??a", "c": "aa??"},  # half of every node's completions
        {"a": "????", "b": "????", "bad": "aaaa"},  # an attacker whom the outage spares
        {"a": "????", "bad": "rrrr"},  # a rejected node does not hide an outage
        {"a": "????", "bad": "rrr?"},  # nor does one that is nearly always rejected
        {"nobody": "????rrrrrrrrrrrr"},
        {"nobody": "aa?", "a": "???", "b": "???"},
    ],
)
def test_outage_stops_the_run(texts):
    with pytest.raises(AbstainError, match="says: the provider failed"):
        guard().review(batch(**texts))


def test_rate_is_taken_over_the_window_and_the_message_says_so():
    counting = guard(window=2)
    counting.review(batch(a="????", b="a???", c="a???"))
    with pytest.raises(AbstainError, match=r"on 10 of 16 .* last 2 batches, .* worst of 3 nodes;"):
        counting.review(batch(a="????", b="a??a", c="aa??"))


def test_plain_rate_counts_without_nodes():
    plain = [Completion("p", text) for text in "aaa?"]
    guard().review(plain)
    with pytest.raises(AbstainError, match=r"on 1 of 4 completions .* in the last batch; Policy"):
        guard(rate=0.2).review(plain)


# Who is paid for an abstention.


class Fragile(Says):
    author_can_abstain = "fragile breaks on a '?'; mend it"


def judge():
    return JudgeVerifier({"type": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"})


HONEST = HonestScores(10, 0, 0, ())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: v,
        lambda v: ~v,
        lambda v: Says() & v,
        lambda v: AnyOf(Says(), v),
        lambda v: Vote(Says(), Says(), v),
        lambda v: Cascade(Says(), AllOf(v)),
        lambda v: only(v, task="code") & Says(),
        lambda v: Calibrated(v, HONEST),
    ],
)
def test_pass_is_refused_if_an_author_can_make_a_member_abstain(wrap):
    with pytest.raises(ValueError, match=r"on_abstain: 'pass'.*fragile breaks on a '\?'; mend it"):
        Guard(wrap(Fragile()), policy=PASS)
    Guard(wrap(Says()), policy=PASS)
    for other in ("skip", "zero", "raise"):
        Guard(wrap(Fragile()), policy=Policy(on_abstain=other))


def test_sender_of_a_whole_group_leaves_length_nothing_to_compare():
    batch = [Completion("3+4?", text, node="a") for text in ("so 7 " * 9, "<|im_start|>system")]
    stack = Cascade(ScreensVerifier(), LengthVerifier())
    assert Guard(stack, policy=Policy("zero", "zero")).apply([1.0, 1.0], batch) == [0.0, 0.0]
    with pytest.raises(ValueError, match="length has nothing to compare with"):
        Guard(stack, policy=PASS)


def test_pass_is_refused_with_a_judge():
    with pytest.raises(ValueError, match="judge abstains if its model fails on a text"):
        Guard(judge() & ScreensVerifier(), policy=PASS)


@pytest.mark.parametrize(
    "verifier",
    [
        only(Says(), task="math"),
        AllOf(only(Says(), task="math"), only(Says(), task="code")),
        ~only(Says(), task="math"),
        RecurrenceVerifier(),
        Vote(only(Says(), node="a"), RecurrenceVerifier()),
    ],
)
def test_pass_is_refused_if_completions_may_go_unverified(verifier):
    with pytest.raises(ValueError, match="add a verifier that judges them all"):
        Guard(verifier, policy=PASS)
    Guard(verifier & Says(), policy=PASS)


def test_pass_is_refused_in_a_file_too(tmp_path):
    path = tmp_path / "guard.yaml"
    path.write_text("policy: {on_abstain: pass}\nverifier: {type: recurrence}\n")
    with pytest.raises(ConfigError, match=r"policy: .*recurrence skips completions"):
        GuardConfig.from_yaml(path).build()


def test_refused_policy_cannot_be_passed_in_later():
    """An attack on the operator's own loop: settle() and with_policy() once took any policy."""
    guard, passing = Guard(LengthVerifier()), Policy(on_abstain="pass")
    review = guard.review([Completion("p", "t")])
    for use in (
        lambda: guard.settle([1.0], review, policy=passing),
        lambda: guard.with_policy(passing),
    ):
        with pytest.raises(ValueError, match="'pass' would pay"):
            use()
