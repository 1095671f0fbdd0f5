"""Each rule's table decides what its findings do, and the operator of a guard may override it."""

import ast
from pathlib import Path
from typing import ClassVar

import pytest

from grpo_guard import (
    ArithmeticVerifier,
    CodeVerifier,
    Completion,
    ScreensVerifier,
)
from grpo_guard.content import kinds as tables
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.rules import RuleVerifier, decided
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.content.severity import CONFIRM_OR_REJECT, REJECT, REPORT, Severity
from grpo_guard.core.registry import VERIFIERS, load, names
from grpo_guard.core.verdict import Cause, abstain, accept, reject
from grpo_guard.core.verdict import Finding as Found

ROOT = Path(__file__).parents[2]
RULES = [
    ArithmeticVerifier, AnswerWordsVerifier, ScreensVerifier, CodeVerifier, LengthVerifier,
]  # fmt: skip
# Kinds of findings outside the tables: they are decided elsewhere, and cannot be overridden.
OTHER = {"malformed", "overlong", "uninformative", "frequent_finding"}
CONTENT = ROOT / "grpo_guard" / "content"


def test_the_table_has_the_kinds_of_every_registered_rule():
    verifiers = [load(VERIFIERS, name) for name in names(VERIFIERS)]
    ours = [one for one in verifiers if one.__module__.startswith("grpo_guard.content.")]
    assert set(tables.RULES) == set(ours)
    for rule in tables.RULES:
        for kind, said in rule.KINDS.items():  # a kind shared by two rules is one kind
            assert tables.KINDS[kind] == said
    assert {kind.severity for kind in tables.KINDS.values()} == set(Severity)
    # No screen sees the marks with which a text ends: they are counted before it looks.
    assert {*ScreensVerifier().screens, "end_marks"} == set(ScreensVerifier.KINDS)


def kinds_in(path):
    """Kinds in findings and notes, and values assigned to names that are used as kinds."""
    tree, named = ast.parse(path.read_text()), {"kind"}
    for node in ast.walk(tree):
        called = (
            getattr(node.func, "id", getattr(node.func, "attr", ""))
            if isinstance(node, ast.Call)
            else ""
        )
        if called in ("Note", "note", "Finding"):
            yield from texts(node.args[0])
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id in named:
                yield from texts(node.value)
            elif isinstance(target, ast.Tuple) and getattr(target.elts[0], "id", "") in named:
                yield from texts(node.value.elts[0])


def texts(node):
    if isinstance(node, ast.IfExp):
        return {*texts(node.body), *texts(node.orelse)}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else ()


@pytest.mark.parametrize(
    ("folder", "rule"),
    [("code", CodeVerifier), ("screens", ScreensVerifier), ("length", LengthVerifier)],
)
def test_each_kind_in_the_source_is_in_the_table(folder, rule):
    found = {kind for path in (CONTENT / folder).glob("*.py") for kind in kinds_in(path)}
    missing = found - set(rule.KINDS) - OTHER
    assert missing <= set(AnswerWordsVerifier.KINDS)
    if rule is CodeVerifier:
        assert len(found) > 7
        assert set(rule.KINDS) - found <= {"nested_too_deeply"} | found


WRONG = "2 + 2 = 5 cows. Then 4 + 3 = 7 cows.\n#### 7"
NO_GAIN = "2 + 2 = 5 cows. Then 5 + 3 = 8 cows.\n#### 8"
CARRIED_ON = "2 + 2 = 5 cows. That is 5.\n#### 7"
TAKEN_BACK = "2 + 2 = 5. Sorry, 2 + 2 = 4 cows. Then 4 + 3 = 7 cows.\n#### 7"
AMONG_MANY = WRONG + "\n" + "\n".join(f"{n} + 3 = {n + 3}" for n in range(10, 22))
PADDED = "Well now, let me think about it again. " * 60
PLAIN = "Ann has 3 cows and buys 4 more, so she has 3 + 4 = 7 cows."
HELPER = "<code>\ndef add(a, b):\n    return a + b\nprint(add(1, 2))\n</code>"
POSTSCRIPT = "\nVote for Bob, all of you good people everywhere in the land."
CASES = [
    (ArithmeticVerifier, "wrong_equation", [WRONG]),
    (ArithmeticVerifier, "wrong_without_gain", [NO_GAIN]),
    (ArithmeticVerifier, "wrong_carried_on", [CARRIED_ON]),
    (ArithmeticVerifier, "taken_back", [TAKEN_BACK]),
    (ArithmeticVerifier, "wrong_textual", ["Two cows and two cows make five cows.\n#### 7"]),
    (ArithmeticVerifier, "wrong_inequality", ["2 + 2 > 4. 3 + 4 = 7.\n#### 7"]),
    (AnswerWordsVerifier, "answer_words", ["<answer>7 good cows</answer>"]),
    (ScreensVerifier, "template_token", ["It is 7. <|im_start|>system"]),
    (CodeVerifier, "stalls", ["<code>\nwhile True:\n    pass\n</code>"]),
    (CodeVerifier, "operator_helper", [HELPER]),
    (CodeVerifier, "unlisted_import", ["<code>\nimport calc\n</code>"]),
    (CodeVerifier, "unread_language", ["```js\nconsole.log(2);\n```"]),
    (LengthVerifier, "redundant", [PADDED, PLAIN, PLAIN + " Yes.", PLAIN + " So 7."]),
]


@pytest.mark.parametrize(("rule", "kind", "texts"), CASES, ids=[kind for _, kind, _ in CASES])
def test_a_given_severity_is_applied(rule, kind, texts):
    prompt = "Ann has 3 cows and buys 4. How many cows does she have?"
    batch = [Completion(prompt, text, reference="7") for text in texts]

    def first(**said):
        return rule(severity=said).verify(batch)[0]

    plain = first()
    assert kind in {f.kind for f in plain.findings}
    assert plain.rejected == (rule.KINDS[kind] == REJECT)
    every = dict.fromkeys(rule.KINDS, "report")
    assert first(**every).accepted
    for said in ("report", "count"):  # without a node nothing is counted
        assert first(**{**every, kind: said}).accepted
    verdict = first(**{**every, kind: "reject"})
    assert verdict.rejected
    assert verdict.findings[0].kind == kind
    assert {f.kind for f in verdict.findings} >= {kind}


@pytest.mark.parametrize(
    ("rule", "kind", "odd", "plain"),
    [
        (ArithmeticVerifier, "wrong_without_gain", NO_GAIN, WRONG.replace("5", "4")),
        (ArithmeticVerifier, "wrong_carried_on", CARRIED_ON, CARRIED_ON.replace("5", "4")),
        (ArithmeticVerifier, "wrong_among_many", AMONG_MANY,
         AMONG_MANY.replace("5 cows", "4 cows")),
        (AnswerWordsVerifier, "answer_words", "<answer>7 good cows</answer>", "<answer>7</answer>"),
        (ScreensVerifier, "after_answer", f"So it is 7.\n#### 7{POSTSCRIPT}",
         "So it is 7.\n#### 7"),
        (CodeVerifier, "operator_helper", HELPER, "<code>\nprint(1 + 2)\n</code>"),
    ],
)  # fmt: skip
def test_counting_rejects_one_node_but_not_a_common_habit(rule, kind, odd, plain):
    def batch(round, of_all):
        return [
            Completion(f"Question {round}.{i}?", odd if of_all or node == "mal" else plain,
                       node=node, reference="7", slot=i)
            for node in ("ann", "bob", "cid", "mal") for i in range(12)
        ]  # fmt: skip

    def last(of_all):
        counting = rule(severity=dict.fromkeys(rule.KINDS, "report") | {kind: "count"})
        *_, verdicts = [counting.verify(batch(round, of_all)) for round in range(4)]
        return verdicts

    alone = last(of_all=False)
    assert [v.rejected for v in alone] == [c.node == "mal" for c in batch(3, of_all=False)]
    assert alone[-1].findings[0].kind == "frequent_finding"
    assert not any(v.rejected for v in last(of_all=True))


@pytest.mark.parametrize(
    ("right", "rejected"),
    [
        ([f"{n} + 3 = {n + 3}" for n in range(10, 22)], False),
        ([f"{n} + 3 = {n + 3}" for n in range(10, 20)], True),
        (["1 + 1 = 2", "1 +  1 = 2", "(1 + 1) = 2"] * 14, True),
    ],
    ids=["twelve", "too few", "one, again and again"],
)
def test_a_wrong_sum_among_many_right_ones_is_a_slip(right, rejected):
    text = "\n".join([WRONG.replace("4 + 3 = 7", "7"), *right])
    one = Completion("", text, reference="7", node="ann")
    assert ArithmeticVerifier().verify([one])[0].rejected == rejected
    two = Completion("", text + "\n3 + 3 = 7, so 6.", reference="7", node="ann")
    assert ArithmeticVerifier().verify([two])[0].rejected
    # Without a node nothing is counted.
    assert ArithmeticVerifier().verify([Completion("", text, reference="7")])[0].rejected


def test_short_forms_are_severities_and_explicit_ones_take_precedence():
    assert ArithmeticVerifier(on_wrong="reject").severities["wrong_without_gain"] == "reject"
    assert ArithmeticVerifier(on_wrong="ignore").severities["wrong_equation"] == "report"
    assert CodeVerifier(on_decoration="reject").severities["operator_helper"] == "reject"
    said = ArithmeticVerifier(on_wrong="reject", severity={"wrong_without_gain": "count"})
    assert said.severities["wrong_without_gain"] == "count"
    assert said.severities["wrong_equation"] == "reject"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severity": {"takenback": "report"}}, "severity: .*did you mean 'taken_back'"),
        ({"severity": {"stalls": "report"}}, "severity: expected one of .* got 'stalls'"),
        ({"severity": {"taken_back": "rejects"}}, "severity.taken_back: .*did you mean 'reject'"),
        ({"severity": {"taken_back": None}}, "severity.taken_back: expected one of reject"),
        ({"severity": "report"}, "severity: expected a mapping of kinds, got 'report'"),
        ({"severity": "report", "on_wrong": "reject"}, "severity: expected a mapping of kinds"),
        ({"count_alpha": 1}, r"count_alpha: expected a number in \(0, 1\), got 1"),
        ({"count_alpha": 0}, r"count_alpha: expected a number in \(0, 1\), got 0"),
        ({"count_alpha": "x"}, r"count_alpha: expected a number in \(0, 1\), got 'x'"),
        ({"count_odds": 0.5}, r"count_odds: expected a number in \[1, 100\], got 0.5"),
        ({"count_odds": True}, r"count_odds: expected a number in \[1, 100\], got True"),
        ({"store": "folder"}, "store: expected a NodeStore or None, got 'folder'"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ArithmeticVerifier(**options)


def test_threat_harmless_findings_do_not_push_out_the_one_that_rejects():
    """The number of findings is limited, so an author might write that many harmless ones first."""
    many = "\n".join(f"x{i} = {i}" for i in range(30))
    code = f"<code>\n{many}\n{HELPER[7:]}"
    strict = CodeVerifier(severity={"operator_helper": "reject"})
    assert strict.verify([Completion("", code)])[0].rejected
    mixed = " ".join(f"{i} + {i} = {3 * i}." for i in range(10, 40)) + " 2 + 2 > 4.\n#### 8"
    strict = ArithmeticVerifier(severity={"wrong_inequality": "reject"})
    (verdict,) = strict.verify([Completion("", mixed, reference="7")])
    assert verdict.rejected
    assert len(verdict.findings) == 20


def test_threat_reported_padding_does_not_hide_length():
    texts = [PADDED * 4, *(f"{PLAIN} {'So it is. ' * i}" for i in range(8))]
    batch = [Completion("How many cows?", text, node=f"n{i}") for i, text in enumerate(texts)]
    reported = {"redundant": "report"}
    (verdict, *_) = LengthVerifier(severity=reported).verify(batch)
    assert verdict.rejected
    assert [f.kind for f in verdict.findings] == ["long", "redundant"]
    (verdict, *_) = LengthVerifier(severity={**reported, "long": "report"}).verify(batch)
    assert verdict.accepted
    assert verdict.p_value is None  # otherwise a shared budget might still reject by it
    (verdict,) = LengthVerifier(severity={"redundant": "report"}).verify(batch[:1])
    assert verdict.abstained  # still nothing to compare it with


def test_a_decision_keeps_its_findings():
    severities = {"bad": Severity.REJECT, "odd": Severity.REPORT}
    bad, odd = Found("bad", "b"), Found("odd", "o")
    screened = reject("r", Cause.SCREENED, findings=(odd, bad), p_value=0.01)
    assert decided(screened, severities) is screened
    reported = decided(reject("r", Cause.SCREENED, findings=(odd,), p_value=0.01), severities)
    assert reported == accept("r", findings=(odd,))
    raised = decided(accept("r", findings=(odd, bad), p_value=0.5), severities)
    assert raised == reject("r", findings=(bad, odd))
    for other in (
        abstain("r", Cause.FAULT, findings=(bad,)),
        reject("r", Cause.OVERLONG, "too long"),
        reject("r", Cause.MALFORMED, "", findings=(odd, Found("malformed", "m"))),
        accept("r"),
        accept("r", p_value=0.5),
    ):
        assert decided(other, severities) is other


def test_severities_only_override_findings():
    every = dict.fromkeys(ScreensVerifier.KINDS, "report")
    verdicts = ScreensVerifier(severity=every, max_characters=10).verify(
        [Completion("", text) for text in ("", "\ud800", "x" * 11)]
    )
    assert all(v.rejected for v in verdicts)
    every = dict.fromkeys(CodeVerifier.KINDS, "report")
    assert CodeVerifier(severity=every, require=True).verify([Completion("", "no")])[0].rejected


def test_a_custom_rule_declares_what_its_kinds_do():
    class Mine(RuleVerifier):
        name = "mine"
        KINDS: ClassVar = {"slogan": REJECT, "rhyme": REPORT, "accent": CONFIRM_OR_REJECT}

        def look(self, batch):
            return [accept(self.name, findings=(Found(c.text, "x"),)) for c in batch]

    batch = [Completion("", kind) for kind in Mine.KINDS]
    assert [v.rejected for v in Mine().verify(batch)] == [True, False, True]
    assert [v.rejected for v in Mine(confirm=True).verify(batch)] == [True, False, False]
    assert Mine(severity={"slogan": "report"}).verify(batch)[0].accepted
