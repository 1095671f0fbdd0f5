"""A verifier's scope is the one that its verdicts show."""

import importlib
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo_guard
from grpo_guard import (
    AllOf,
    Cascade,
    Completion,
    CompletionVerifier,
    JudgeVerifier,
    LogProbBoundVerifier,
    ScreensVerifier,
)
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier, FalseSumsVerifier
from grpo_guard.content.cut_off import CutOffVerifier
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.rules import RuleVerifier
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.content.severity import REJECT
from grpo_guard.core.ensemble import Vote, only
from grpo_guard.core.given import Given
from grpo_guard.core.scope import SCOPES, widest
from grpo_guard.core.supervise import supervised, supervised_each
from grpo_guard.core.verdict import accept, reject
from grpo_guard.core.verifier import Composed
from grpo_guard.guard.environment import EnvironmentVerifier
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.logprob.tail import TailProbabilityVerifier
from tests.conformance.conformance_cases import Zeros

DECLARED = {
    "grpo_guard.content.arithmetic.verifier:FalseSumsVerifier": ("completion", True),
    "grpo_guard.content.arithmetic.verifier:ArithmeticVerifier": ("completion", True),
    "grpo_guard.content.code.verifier:CodeVerifier": ("completion", True),
    "grpo_guard.content.cut_off:CutOffVerifier": ("completion", True),
    "grpo_guard.content.extras.language:LanguageVerifier": ("completion", True),
    "grpo_guard.content.extras.pii:PiiVerifier": ("completion", True),
    "grpo_guard.content.extras.rule:LibraryRule": ("completion", True),
    "grpo_guard.content.extras.secrets:SecretsVerifier": ("completion", True),
    "grpo_guard.content.extras.toxicity:ToxicityVerifier": ("completion", True),
    "grpo_guard.content.length.verifier:LengthVerifier": ("batch", False),
    "grpo_guard.content.recurrence.verifier:RecurrenceVerifier": ("history", True),
    "grpo_guard.content.rules:RuleVerifier": ("batch", False),
    "grpo_guard.content.screens.answer_words:AnswerWordsVerifier": ("completion", True),
    "grpo_guard.content.screens.verifier:ScreensVerifier": ("completion", True),
    "grpo_guard.guard.environment:EnvironmentVerifier": ("completion", True),
    "grpo_guard.guard.spot_checks:SpotCheck": ("history", False),
    "grpo_guard.judge.verifier:JudgeVerifier": ("completion", False),
    "grpo_guard.logprob.bounds:LogProbBoundVerifier": ("completion", True),
    "grpo_guard.logprob.form:FormVerifier": ("batch", False),
    "grpo_guard.logprob.reader.verifier:ReaderVerifier": ("history", False),
    "grpo_guard.logprob.reference.verifier:ReferenceLikelihoodVerifier": ("batch", False),
    "grpo_guard.logprob.replay.verifier:SeedReplayVerifier": ("history", False),
    "grpo_guard.logprob.tail:TailProbabilityVerifier": ("completion", True),
    "grpo_guard.logprob.verifier:LogProbVerifier": ("completion", True),
    "grpo_guard.nodes.exclusion_verifier:ExclusionVerifier": ("history", True),
    "grpo_guard.server.client.verifier:RemoteVerifier": ("history", False),
}
"""Scope and ``shares_calls`` of every class that is not composed; objects that count findings or
remember nodes say "history"."""
COMPOSED = {
    "AllOf", "AnyOf", "ByRow", "Calibrated", "Cascade", "Composed", "Ensemble", "Not", "Only",
    "RayVerifier", "Vote",
}  # fmt: skip


def classes():
    """Every verifier's class in the library, as ``module:Class``."""
    root = Path(grpo_guard.__file__).parent
    bases = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        for kind, of in re.findall(r"^class (\w+)\(([^)]*)\):", path.read_text(), re.MULTILINE):
            bases[f"{'.'.join(parts)}:{kind}"] = re.findall(r"\w+", of)
    known, before = {"CompletionVerifier"}, None
    while before != known:
        before = set(known)
        known |= {name.partition(":")[2] for name, of in bases.items() if known & {*of}}
    return {name for name in bases if name.partition(":")[2] in known - {"CompletionVerifier"}}


def test_every_class_is_in_the_table():
    assert {n for n in classes() if n.partition(":")[2] not in COMPOSED} == {*DECLARED}


@pytest.mark.parametrize("name", DECLARED)
def test_class_declares_its_scope(name):
    module, _, kind = name.partition(":")
    cls = getattr(importlib.import_module(module), kind)
    scope, shares = DECLARED[name]
    said = cls.shares_calls  # a property, if nothing else is declared
    assert cls.scope == scope
    assert (scope == "completion" if isinstance(said, property) else said) is shares


def again(prompt, turns):
    return "42"


NOT_COUNTED = dict.fromkeys(AnswerWordsVerifier().counting, "reject")
ALONE = {
    "answer words": lambda: AnswerWordsVerifier(severity=NOT_COUNTED),
    "cut off": lambda: CutOffVerifier(truncated=True),
    "environment": lambda: EnvironmentVerifier(again),
    "false sums": FalseSumsVerifier,
    "judge": Zeros,
    "screens": ScreensVerifier,
    "together": lambda: ~(ScreensVerifier() | FalseSumsVerifier()),
    "vote": lambda: Vote(ScreensVerifier(), only(ALONE["answer words"](), node="ann")),
}
COMPLETIONS = st.lists(
    st.builds(
        lambda prompt, text, node, cut: Completion(
            prompt,
            text,
            node=node,
            reference="7",
            finish_reason="length" if cut else "stop",
            given=Given(chars=((0, min(2, len(text))),)) if text else None,
        ),
        st.sampled_from(["3 + 4?", "Again: 3 + 4?"]),
        st.sampled_from(
            ["3 + 4 = 7. #### 7", "3 + 4 = 9, so 9.", "42 <|im_start|>system", "42", "", "a\u202eb"]
        ),
        st.sampled_from([None, "ann", "bob"]),
        st.booleans(),
    ),
    max_size=5,
)


def bare(verdict):
    return replace(verdict, seconds=0.0, usage=None, members=tuple(map(bare, verdict.members)))


@pytest.mark.parametrize("name", ALONE)
@settings(max_examples=25, deadline=None)
@given(batch=COMPLETIONS)
def test_verdict_of_scope_completion_is_the_same_alone(name, batch):
    one = ALONE[name]()
    assert one.scope == "completion"
    together = [bare(verdict) for verdict in supervised(one, batch)]
    assert together == [bare(supervised(one, [completion])[0]) for completion in batch]


def test_length_compares_a_batch_and_with_memory_remembers():
    words = " ".join(f"word{i}" for i in range(900))
    batch = [Completion("q", words[: 9000 if i == 0 else 60], node=f"n{i}") for i in range(6)]
    one = LengthVerifier()
    assert one.scope == "batch"
    assert supervised(one, batch)[0].outcome != supervised(one, batch[:1])[0].outcome
    assert LengthVerifier(memory=True).scope == "history"


def test_recurrence_remembers_earlier_calls():
    def asked(i, node):
        text = f"There are {i} apples{', says zanzibar' if node == 'mallory' else ''}."
        return Completion(f"How many apples has Tom on day {i}?", text, node=node)

    batch = [asked(i, node) for i in range(40) for node in ("ann", "bob", "mallory")]
    one = RecurrenceVerifier()
    assert one.scope == "history"
    supervised(one, batch[:-1])
    last = batch[-1:]
    assert supervised(one, last)[0].rejected
    assert not supervised(RecurrenceVerifier(), last)[0].rejected


class Rule(RuleVerifier):
    """Its findings count or reject."""

    name = "rule"
    KINDS: ClassVar = {"invisible": REJECT}
    scope = "completion"

    def look(self, batch):
        return [accept(self.name) for _ in batch]


def test_rule_that_counts_has_the_scope_history_but_reads_each_completion_alone():
    counts = Rule(severity={"invisible": "count"})
    assert (counts.scope, counts.reading.scope, counts.shares_calls) == (
        "history", "completion", True,
    )  # fmt: skip
    copied = counts.reader()
    assert (copied.scope, copied.reading.scope) == ("completion", "completion")
    assert Rule(severity={"invisible": "reject"}).scope == "completion"
    assert ArithmeticVerifier().scope == "history"


def test_scope_of_a_combination_is_its_widest_members():
    rules, length, counts = ScreensVerifier(), LengthVerifier(), RecurrenceVerifier()
    assert (rules & FalseSumsVerifier()).scope == "completion"
    assert (rules | ~length).scope == "batch"
    assert Cascade(rules, length, only(counts, node="ann")).scope == "history"
    assert [one.shares_calls for one in (rules & counts, rules & length)] == [True, False]
    assert SpotCheck(rules).scope == "history"
    assert [widest(SCOPES), widest(["batch", "completion"]), widest([])] == [
        "history", "batch", "completion",
    ]  # fmt: skip


class Counted(CompletionVerifier):
    """Rejects every text but the first of a call, and counts its calls."""

    name = "counted"

    def __init__(self):
        self.calls = []

    def verify(self, batch):
        self.calls.append(len(batch))
        return [(reject if i else accept)(self.name) for i in range(len(batch))]


class EachAlone(Counted):
    scope = "completion"

    def verify(self, batch):
        self.calls.append(len(batch))
        return [(reject if c.text == "no" else accept)(self.name) for c in batch]


@pytest.mark.parametrize(("kind", "calls"), [(Counted, [2, 0, 1]), (EachAlone, [3])])
def test_default_of_verify_each_gives_the_verdicts_of_verify(kind, calls):
    batches = [[Completion("q", "no"), Completion("q", "yes")], [], [Completion("q", "no")]]
    one = kind()
    each = one.verify_each(batches)
    assert one.calls == calls
    assert each == [kind().verify(batch) for batch in batches]


def test_default_of_verify_each_refuses_a_wrong_count():
    class Short(EachAlone):
        def verify(self, batch):
            return super().verify(batch)[1:]

    with pytest.raises(ValueError, match=r"counted\.verify: expected 2 verdicts, got 1"):
        Short().verify_each([[Completion("q", "a")], [Completion("q", "b")]])


def declaring(base=EachAlone, **attributes):
    return type("Mine", (base,), attributes)


@pytest.mark.parametrize(
    ("old", "now", "value"),
    [
        ({"judges_alone": True}, "scope", "completion"),
        ({"judges_alone": False}, "scope", "batch"),
        ({"looks_alone": True}, "scope", "completion"),
        ({"joins": False}, "shares_calls", False),
        ({"joins": True}, "shares_calls", True),
    ],
)
def test_old_names_work_and_name_the_new_one(old, now, value):
    ((name, said),) = old.items()
    message = f"Mine: {name} = {said} is now {now} = {value!r}; see docs/migration.md"
    with pytest.warns(DeprecationWarning, match=re.escape(message)) as caught:
        kind = declaring(Counted, **old)
    assert caught[0].filename == __file__
    assert getattr(kind(), now) == value


def test_class_for_both_releases_gets_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind = declaring(judges_alone=True, scope="batch", joins=False, shares_calls=True)
    assert (kind().scope, kind().shares_calls) == ("batch", True)


@pytest.mark.parametrize(
    "old",
    [
        {"compares": None},
        {"compares": property(lambda self: "lengths")},
        {"judges_alone": property(lambda self: True)},
        {"joins": property(lambda self: False)},
    ],
)
def test_what_cannot_be_translated_names_the_new_attribute(old):
    (name,) = old
    now = "shares_calls = True or False" if name == "joins" else 'scope = "completion", "batch"'
    with pytest.raises(TypeError, match=rf"Mine\.{name} was replaced: say {now}.*migration\.md"):
        declaring(**old)


def test_mixin_with_an_old_name_is_translated():
    class Alone:
        judges_alone = True

    with pytest.warns(DeprecationWarning, match="judges_alone = True is now scope"):
        kind = type("Mine", (Alone, Counted), {})
    assert kind().scope == "completion"


@pytest.mark.parametrize("name", ["judges_alone", "looks_alone", "compares", "joins"])
def test_reading_or_setting_an_old_name_names_the_new_one(name):
    one = EachAlone()
    with pytest.raises(AttributeError, match=rf"EachAlone\.{name} was replaced: say s"):
        getattr(one, name)
    with pytest.raises(AttributeError, match=rf"EachAlone\.{name} was replaced: say s"):
        setattr(one, name, True)


def test_unknown_scope_is_refused():
    with pytest.raises(TypeError, match=r"Mine: expected scope = .*, got 'alone'"):
        declaring(scope="alone")


def test_old_name_in_a_combination_is_not_passed_over():
    with pytest.warns(DeprecationWarning, match="is now scope = 'batch'"):
        kind = declaring(AllOf, judges_alone=False)
    assert kind(ScreensVerifier()).scope == "batch"


class Lonely(Composed):
    """A verifier of one's own that is composed of others, compares, and says no scope."""

    name = "lonely"

    def verify(self, batch):
        return [(reject if len(batch) == 1 else accept)(self.name) for _ in batch]


def test_composed_verifier_may_compare_whatever_its_members_do():
    """Two senders' batches joined into one call of `verify` would hide that one came alone."""
    verifier, one = Lonely(ScreensVerifier()), Completion("p", "fine")
    assert verifier.scope == "batch"
    found = supervised_each(verifier, [[one], [one, one]])
    assert [[v.rejected for v in own] for own in found] == [[True], [False, False]]


@pytest.mark.parametrize("kind", [JudgeVerifier, TailProbabilityVerifier, LogProbBoundVerifier])
def test_what_divides_a_batch_itself_gets_long_texts_in_one_call(kind):
    """A judge's deadline is that of a batch: three calls could take it three times."""
    assert kind.most_characters is None

    class Whole(Lonely):
        scope, timeout, most_characters = "completion", 60.0, None

    long = [Completion("p", "a" * 3_000_000)] * 3
    assert not any(v.rejected for v in supervised(Whole(), long))

    class Split(Whole):
        most_characters = 4_000_000

    assert all(v.rejected for v in supervised(Split(), long))
