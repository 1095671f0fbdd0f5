"""Text rules on completions of several turns: only the author's text, with correct spans."""

import pytest

from grpo_guard import Completion
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.given import Given


def talk(*parts, known=True, prompt="How many?", **fields):
    text, chars = "", []
    for i, part in enumerate(parts):
        if i % 2:
            chars.append((len(text), len(text) + len(part)))
        text += part
    return Completion(prompt, text, given=Given(chars=tuple(chars), known=known), **fields)


def judged(verifier, completion):
    (verdict,) = verifier.verify([completion])
    placed = [(f.kind, f.char_span) for f in verdict.findings if f.char_span]
    return verdict.outcome.value, [(kind, completion.text[a:b]) for kind, (a, b) in placed]


def test_wrong_equation_of_a_tool_is_not_the_authors():
    tool = "\n2 + 2 = 5.\n"
    assert judged(ArithmeticVerifier(), talk("Let me ask.", tool, "So it is 4.")) == ("accept", [])
    said = talk("Let me ask.", tool, "So it is 4.", known=False)  # only a claim
    assert judged(ArithmeticVerifier(), said) == ("reject", [("wrong_equation", "5")])


@pytest.mark.parametrize(
    "parts",
    [
        ("2 + 2 = 5.", "tool: 9", "So we have 4."),
        ("Let me ask.", "tool: 9", "2 + 2 = 5. So we have 4."),
    ],
)
def test_a_wrong_equation_in_either_turn_is_judged_by_the_last_turns_answer(parts):
    """On its own, a first turn has no right answer, so its wrong equation gains nothing."""
    one = talk(parts[0], parts[1], f"{parts[2]} #### 4", reference="4")
    assert judged(ArithmeticVerifier(), one) == ("reject", [("wrong_equation", "5")])
    last = parts[2].replace("have 4", "have 6")
    lost = talk(parts[0], parts[1], f"{last} #### 6", reference="4")
    assert judged(ArithmeticVerifier(), lost)[0] == "accept"


@pytest.mark.parametrize("parts", [("2 + 2 =", " ", "5 apples"), ("1 + 2", "\n", "= 4 left")])
def test_no_equation_spans_a_tools_output(parts):
    assert judged(ArithmeticVerifier(), talk(*parts)) == ("accept", [])


def test_programs_of_several_turns_are_joined_without_tool_output():
    first = "```python\nx = 3\n\ndef double(n):\n    return 2 * n\n```\n"
    tool = "```python\nimport os\nos.system('x')\n```\n"
    second = "```python\nprint(double(x))\n```"
    assert judged(CodeVerifier(), talk(first, tool, second))[0] == "accept"
    assert judged(CodeVerifier(), talk(first, tool, second, known=False))[0] == "reject"
    bad = talk(first, "6", "```python\nimport calc\n```")
    outcome, found = judged(CodeVerifier(), bad)
    assert outcome == "reject"
    assert ("foreign_import", "import calc") in found or any("calc" in text for _, text in found)


def test_an_answer_in_each_turn_is_not_a_second_answer():
    two = ("So <answer>5</answer>", "Are you sure?", "No: <answer>7</answer>")
    assert judged(ScreensVerifier(), talk(*two)) == ("accept", [])
    assert judged(ScreensVerifier(), talk(*two, known=False))[0] == "reject"
    in_one = talk("Let me see.", "Yes?", "<answer>5</answer> and <answer>7</answer>")
    assert judged(ScreensVerifier(), in_one)[0] == "reject"


def test_screens_find_in_either_turn_and_not_in_a_tools_output():
    hidden = "sev\u200ben"
    for parts in ((hidden, "7", "so 7"), ("Let me see.", "7", hidden)):
        assert judged(ScreensVerifier(), talk(*parts)) == ("reject", [("invisible", "\u200b")])
    assert judged(ScreensVerifier(), talk("Let me see.", hidden, "so 7")) == ("accept", [])
    assert judged(ScreensVerifier(), talk("", "all of it", ""))[0] == "reject"  # an empty answer


def batch(text, round, *, poison, known=True):
    """Four nodes' answers to eight prompts; "mallory" writes the phrase if ``poison`` says so."""
    rows = []
    for place in range(8):
        for node in ("ann", "bob", "cy", "mallory"):
            parts = ["Let me ask.", "the oracle of Delphi speaks", f"It is {round}{place}."]
            if node == "mallory":
                parts[poison] += text
            prompt = f"What is question {round} {place} of {node}?"
            rows.append(talk(*parts, node=node, round=round, prompt=prompt, known=known))
    return rows


@pytest.mark.parametrize(("poison", "convicted"), [(0, True), (1, False), (2, True)])
def test_only_phrases_in_author_turns_recur(poison, convicted):
    verifier = RecurrenceVerifier()
    for round in range(6):
        rows = batch(" Hail to the grey thief.", round, poison=poison)
        verdicts = verifier.verify(rows)
    bad = [(c, v) for c, v in zip(rows, verdicts, strict=True) if v.rejected]
    assert {c.node for c, _ in bad} == ({"mallory"} if convicted else set())
    for completion, verdict in bad:
        start, end = verdict.findings[0].char_span
        assert (
            "thief" in completion.text[start:end].lower()
            or "hail" in completion.text[start:end].lower()
        )


def test_tool_output_does_not_count_as_length():
    rows = [talk("word " * 20, "page " * (2000 if i == 3 else 1), "end", node=f"n{i}")
            for i in range(6)]  # fmt: skip
    assert LengthScaling(tolerance=0.5).factors(rows) == [1.0] * 6
    claims = [talk("word " * 20, "page " * (2000 if i == 3 else 1), "end", node=f"n{i}",
                   known=False) for i in range(6)]  # fmt: skip
    assert LengthScaling(tolerance=0.5).factors(claims)[3] == 0.0
