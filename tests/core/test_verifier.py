import re

import pytest

from grpo_guard import AllOf, AnyOf, Cause, Completion, CompletionVerifier, Guard, Outcome
from grpo_guard.core.ensemble import only
from grpo_guard.core.verdict import reject
from tests.core.rule_verifiers_core import Says, completions


def outcomes(verifier, *texts):
    return [v.outcome.value for v in verifier.verify(completions(*texts))]


def test_operators_build_the_named_combinators():
    a, b = Says("a"), Says("b", at=1)
    assert type(a & b) is AllOf
    assert type(a | b) is AnyOf
    assert (a & b).name == "all(a, b)"
    assert (a | ~b).name == "any(a, not(b))"
    assert repr(a & b) == "<AllOf all(a, b)>"
    for operate in (lambda: a & "b", lambda: a | None):
        with pytest.raises(TypeError, match=r"(AllOf|AnyOf): expected a Compl"):
            operate()


def test_not_inverts_accept_and_reject_only():
    assert outcomes(~Says(), "a", "r", "?", "m") == ["reject", "accept", "abstain", "reject"]
    malformed = (~Says()).verify(completions("m"))[0]
    assert malformed.cause is Cause.MALFORMED
    assert outcomes(~~Says(), "a", "r", "?", "m") == ["accept", "reject", "abstain", "reject"]


def test_not_has_no_p_value():
    (verdict,) = (~Says(p_value=0.01)).verify(completions("r"))
    assert verdict.p_value is None
    assert verdict.members[0].p_value == 0.01
    assert verdict.verifier == "not(says)"


def test_only_passes_matching_completions_in_order():
    member = Says()
    batch = [
        Completion("p", "r", task="code"),
        Completion("p", "r", task="math"),
        Completion("p", "a", task="code"),
    ]
    verdicts = only(member, task="code").verify(batch)
    assert [v.outcome for v in verdicts] == [Outcome.REJECT, Outcome.ABSTAIN, Outcome.ACCEPT]
    assert verdicts[1].cause is Cause.NOT_APPLICABLE
    assert member.batches == [["r", "a"]]


def test_only_requires_all_its_conditions():
    batch = [
        Completion("p", "r", task=task, node=node) for task in ("code", "math") for node in "xy"
    ]
    chosen = only(Says(), task="code", node="y", when=lambda c: c.text == "r").verify(batch)
    assert [v.rejected for v in chosen] == [False, True, False, False]
    with pytest.raises(ValueError, match="expected task=, node= or when="):
        only(Says())


def test_verify_is_abstract():
    with pytest.raises(TypeError, match="verify"):
        CompletionVerifier()


def test_class_without_a_name_is_named_after_itself():
    class LongWords(CompletionVerifier):
        def verify(self, batch):
            return [reject(self.name) for _ in batch]

    class LongerWords(LongWords):
        pass

    class Named(LongWords):
        name = "own"

    class StillNamed(Named):
        pass

    names = [kind().name for kind in (LongWords, LongerWords, Named, StillNamed)]
    assert names == ["long_words", "longer_words", "own", "own"]
    assert (
        "guard/reject_rate/long_words"
        in Guard(LongWords() & Named()).review([Completion("p", "t")]).metrics
    )


@pytest.mark.parametrize(("name", "got"), [(None, "None"), ("", "''"), (7, "7")])
def test_name_that_is_not_a_text_is_refused(name, got):
    class Wrong(CompletionVerifier):
        def verify(self, batch):
            return []

    Wrong.name = name
    said = f'Wrong.name: expected a text for verdicts and metrics, got {got}; write name = "long_'
    with pytest.raises(TypeError, match=re.escape(said)):
        Guard(Wrong())
