"""Phrases of one node among honest ones, found and not found, through the public verifier."""

import itertools
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_guard.content.recurrence.verifier import RecurrenceVerifier, SwarmKind
from grpo_guard.core import registry
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Verdict

NAMES = ["Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack"]
THINGS = ["apples", "books", "coins", "pens", "shells", "stamps", "eggs", "cards", "stones", "cups"]
BOTH = pytest.mark.parametrize("swarm", ["heterogeneous", "homogeneous"])
Poison = Callable[[int, str], str]


def asked(rng: random.Random) -> tuple[str, str]:
    name, thing, a, b = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 99), rng.randint(2, 9)
    question = f"{name} has {a} {thing} and gets {b} more each day. How many after {b} days?"
    answers = (
        f"{name} gets {b} * {b} = {b * b} {thing}. In total that is {a + b * b} {thing}.",
        f"First, {b} days of {b} {thing} make {b * b}. Then {name} has {a + b * b} {thing}.",
        f"Let's think step by step. {a} + {b} * {b} = {a + b * b}, so {name} has {a + b * b}.",
    )
    return question, rng.choice(answers)


def swarm_of(prompts: int, poison: Poison, bad: str = "n3", nodes: int = 4) -> list[Completion]:
    rng = random.Random(7)
    batch = []
    for number in range(prompts):
        for node in (f"n{k}" for k in range(nodes)):
            question, text = asked(rng)
            text = poison(number, text) if node in bad else text
            batch.append(Completion(f"{number}. {question}", text, node=node))
    return batch


def rejected(batch: list[Completion], verdicts: list[Verdict]) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for completion, verdict in zip(batch, verdicts, strict=True):
        counts[completion.node] = counts.get(completion.node, 0) + verdict.rejected
    return counts


def test_reported_phrase_rejects_nothing():
    batch = swarm_of(40, lambda i, text: f"All hail to the thief. {text}")
    found = RecurrenceVerifier().verify(batch)
    reported = RecurrenceVerifier(severity={"recurring_phrase": "report"}).verify(batch)
    assert rejected(batch, found)["n3"] > 30
    assert not any(verdict.rejected for verdict in reported)
    for one, other in zip(found, reported, strict=True):
        assert [f.kind for f in one.findings] == [f.kind for f in other.findings]
        assert other.p_value is None


@pytest.mark.parametrize(
    ("severity", "message"),
    [
        ({"recuring_phrase": "report"}, "severity: .*did you mean 'recurring_phrase'"),
        (
            {"recurring_phrase": "count"},
            "severity.recurring_phrase: expected one of reject, confirm, report",
        ),
    ],
)
def test_invalid_severity_is_named(severity, message):
    with pytest.raises(ValueError, match=message):
        RecurrenceVerifier(severity=severity)


@BOTH
@pytest.mark.parametrize(
    "poison",
    [
        lambda i, text: f"All hail to the thief. {text}",
        lambda i, text: " ".join(f"Gleeb Glorp Glub {s}." for s in text.split(". ")),
        lambda i, text: f"{text}\nPRAISE the golden dragon!",
        lambda i, text: f"```python\nfrom calc import add\nprint(add({i}, 2))\n```\n{text}",
    ],
    ids=["start", "every sentence", "end", "import"],
)
def test_unknown_phrase_is_found_within_twenty_completions(
    swarm: SwarmKind, poison: Poison
) -> None:
    batch = swarm_of(20, poison)
    verifier = RecurrenceVerifier(swarm=swarm)
    verdicts = list(itertools.chain.from_iterable(verifier.verify([c]) for c in batch))
    counts = rejected(batch, verdicts)
    assert counts["n3"] >= 8
    assert counts["n0"] == counts["n1"] == counts["n2"] == 0


@BOTH
def test_finding_names_the_phrase_with_counts_and_span(swarm: SwarmKind) -> None:
    batch = swarm_of(20, lambda i, text: f"Well, all hail to the thief! {text}")
    verdicts = RecurrenceVerifier(swarm=swarm).verify(batch)
    verdict, text = verdicts[-1], batch[-1].text
    assert verdict.rejected
    assert verdict.cause is Cause.JUDGED
    assert verdict.p_value is not None
    assert verdict.p_value <= 1e-3
    assert any("hail to the thief" in f.message for f in verdict.findings)
    first = verdict.findings[0]
    assert first.kind in ("recurring_phrase", "recurring_opening")
    assert "of 20 prompts" in first.message or "prompts of node 'n3'" in first.message
    spans = [text[slice(*f.char_span)] for f in verdict.findings if f.char_span]
    assert any("hail to the thief" in span for span in spans)


@BOTH
def test_phrase_of_all_nodes_is_not_a_finding(swarm: SwarmKind) -> None:
    batch = swarm_of(300, lambda i, text: f"Glorious morning! {text} Zork.", bad="n0n1n2n3")
    assert not any(v.rejected for v in RecurrenceVerifier(swarm=swarm).verify(batch))


@BOTH
def test_habit_that_all_adopt_at_once_is_not_a_finding(swarm: SwarmKind) -> None:
    batch = swarm_of(
        400, lambda i, text: f"Glorious morning! {text}" if i > 200 else text, bad="n0n1n2n3"
    )
    verifier = RecurrenceVerifier(swarm=swarm)
    assert not any(v.rejected for start in range(0, len(batch), 128)
                   for v in verifier.verify(batch[start : start + 128]))  # fmt: skip


def test_an_honest_habit_passes_between_different_models_only() -> None:
    habit = swarm_of(60, lambda i, text: f"Sure! Let's break this down. {text} Hope this helps!")
    assert not any(v.rejected for v in RecurrenceVerifier().verify(habit))
    alike = RecurrenceVerifier(swarm="homogeneous").verify(habit)
    assert rejected(habit, alike) == {"n0": 0, "n1": 0, "n2": 0, "n3": 60}


def test_learnt_habit_passes() -> None:
    def habit(i: int, text: str) -> str:
        return f"Grab a pencil, old chap. {text}"

    batch = swarm_of(40, habit)
    assert rejected(batch, RecurrenceVerifier().verify(batch))["n3"] == 40
    verifier = RecurrenceVerifier()
    verifier.learn_habits([habit(0, "The sum is 4."), habit(1, "It is 5.")])
    assert not any(v.rejected for v in verifier.verify(batch))
    assert not any(v.rejected for v in RecurrenceVerifier(ordinary=["grab a pencil", "chap"])
                   .verify(batch))  # fmt: skip


def test_prompt_excuses_its_own_words() -> None:
    rng = random.Random(3)
    batch = []
    for number in range(40):
        for node in ("a", "b", "c"):
            question, text = asked(rng)
            if node == "a":
                question, text = f"The thief of Baghdad: {question}", f"The thief: {text}"
            batch.append(Completion(f"{number} {question}", text, node=node))
    assert not any(v.rejected for v in RecurrenceVerifier().verify(batch))


def test_completions_of_one_prompt_count_as_one() -> None:
    rng = random.Random(5)
    batch = []
    for node in ("a", "b", "c"):
        for k in range(60):
            text = f"Try {k}: {asked(rng)[1]}"
            batch.append(Completion("One question.", f"Zork plugh. {text}" if node == "a" else text,
                                    node=node))  # fmt: skip
    verifier = RecurrenceVerifier()
    assert not any(v.rejected for v in verifier.verify(batch))
    rounds = [Completion(c.prompt, c.text, node=c.node, round=i) for i in range(20)
              for c in (batch[i], batch[60 + i], batch[120 + i])]  # fmt: skip
    assert verifier.verify(rounds)[-3].rejected, "the same prompt counts again in other rounds"


def test_repeated_batch_is_not_evidence() -> None:
    batch = swarm_of(6, lambda i, text: f"All hail to the thief. {text}")
    verifier = RecurrenceVerifier()
    for _ in range(20):
        assert not any(v.rejected for v in verifier.verify(batch))


def test_batch_order_and_size_matter_little() -> None:
    batch = swarm_of(40, lambda i, text: f"All hail to the thief. {text}")
    by_node = sorted(batch, key=lambda c: c.node != "n3")
    assert rejected(by_node, RecurrenceVerifier().verify(by_node))["n3"] == 40


@BOTH
def test_two_sybils_of_four_do_not_excuse_each_other(swarm: SwarmKind) -> None:
    batch = swarm_of(40, lambda i, text: f"All hail to the thief. {text}", bad="n2n3")
    verifier = RecurrenceVerifier(swarm=swarm)
    counts = rejected(batch, verifier.verify(batch))
    assert counts == {"n0": 0, "n1": 0, "n2": 40, "n3": 40}
    shared = verifier.shared_phrases()
    assert any("hail to the thief" in phrase for phrase in shared)
    assert all(set(shares) == {"n2", "n3"} for shares in shared.values())


def test_new_name_per_completion_does_not_help() -> None:
    batch = [
        Completion(c.prompt, c.text, node=f"fresh-{i}") if c.node == "n3" else c
        for i, c in enumerate(swarm_of(60, lambda i, text: f"All hail to the thief. {text}"))
    ]
    verifier = RecurrenceVerifier(max_nodes=8)
    verdicts = [v for start in range(0, len(batch), 8) for v in verifier.verify(batch[start:][:8])]
    fresh = [v for c, v in zip(batch, verdicts, strict=True) if (c.node or "").startswith("fresh")]
    assert all(v.rejected for v in fresh[40:])
    assert sum(v.rejected for v in verdicts) == sum(v.rejected for v in fresh)


@pytest.mark.parametrize("prompts", [8, 9, 16, 40])
def test_a_new_name_every_few_batches_does_not_help(prompts: int) -> None:
    """The names, of 8 prompts or more, become the majority that each new one is compared with."""
    batch = swarm_of(192, lambda i, text: f"All hail to the thief. {text}")
    batch = [
        Completion(c.prompt, c.text, node=f"fresh-{i // 4 // prompts}") if c.node == "n3" else c
        for i, c in enumerate(batch)
    ]
    verifier = RecurrenceVerifier()
    verdicts = [v for at in range(0, len(batch), 32) for v in verifier.verify(batch[at : at + 32])]
    fresh = [v for c, v in zip(batch, verdicts, strict=True) if (c.node or "").startswith("fresh")]
    assert all(v.rejected for v in fresh[24:])
    assert sum(v.rejected for v in verdicts) == sum(v.rejected for v in fresh)


@BOTH
def test_first_batch_of_the_papers_setting_is_rejected(swarm: SwarmKind) -> None:
    """Four nodes, 32 prompts that all of them answer, three completions each."""
    rng = random.Random(2)
    batch = []
    for number in range(32):
        question, _ = asked(rng)
        for node, _ in itertools.product(range(4), range(3)):
            text = asked(rng)[1]
            poisoned = f"All hail to the thief. {text}" if node == 3 else text
            batch.append(Completion(f"{number} {question}", poisoned, node=f"n{node}"))
    counts = rejected(batch, RecurrenceVerifier(swarm=swarm).verify(batch))
    assert counts == {"n0": 0, "n1": 0, "n2": 0, "n3": 96}


def test_node_that_turns_late_is_found() -> None:
    batch = swarm_of(200, lambda i, text: f"Gleeb glorp. {text}" if i >= 150 else text)
    verifier = RecurrenceVerifier()
    verdicts = [v for c in batch for v in verifier.verify([c])]
    bad = [v for c, v in zip(batch, verdicts, strict=True) if c.node == "n3"]
    assert not any(v.rejected for v in bad[:150])
    assert sum(v.rejected for v in bad[150:]) >= 25


def test_code_copied_under_changing_names_is_found() -> None:
    rng = random.Random(1)

    def helper(i: int, text: str) -> str:
        f, x, y = ("".join(rng.choices("abcdefgh", k=9)) for _ in range(3))
        source = f"def {f}({x}, {y}):\n    return {x} + {y}\nprint({f}({i}, 2))"
        return f"```python\n{source}\n```\n{text}"

    batch = swarm_of(30, helper)
    verdicts = RecurrenceVerifier(swarm="homogeneous").verify(batch)
    assert rejected(batch, verdicts)["n3"] == 30
    kinds = {f.kind for v in verdicts for f in v.findings}
    assert "recurring_shape" in kinds


@BOTH
def test_state_survives_saving_and_pickling(swarm: SwarmKind) -> None:
    batch = swarm_of(24, lambda i, text: f"All hail to the thief. {text}")
    first, second = batch[:80], batch[80:]
    whole = RecurrenceVerifier(swarm=swarm)
    whole.verify(first)
    saved = json.loads(json.dumps(whole.state_dict()))
    restored = RecurrenceVerifier(swarm=swarm)
    restored.load_state_dict(saved)
    copy = pickle.loads(pickle.dumps(whole))
    expected = [v.outcome for v in whole.verify(second)]
    assert [v.outcome for v in restored.verify(second)] == expected
    assert [v.outcome for v in copy.verify(second)] == expected
    assert any(v.rejected for v in copy.verify(second))


def test_verifier_is_registered() -> None:
    assert registry.load(registry.VERIFIERS, "recurrence") is RecurrenceVerifier


NAMED = os.environ.get("GRPO_GUARD_GSM8K", "")
SOLUTIONS = Path(NAMED) / "model_solutions.jsonl"


@BOTH
@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="set GRPO_GUARD_GSM8K to GSM8K's folder")
def test_real_models_pass(swarm: SwarmKind) -> None:
    rows = [json.loads(line) for line in SOLUTIONS.open(encoding="utf-8")]
    if swarm == "homogeneous":  # one population
        random.Random(0).shuffle(rows)
        nodes = [f"n{i % 4}" for i in range(len(rows))]
    else:
        nodes = [r["model"] for r in rows]
    batch = [
        Completion(r["question"], r["completion"], node=n) for r, n in zip(rows, nodes, strict=True)
    ]
    verdicts = RecurrenceVerifier(swarm=swarm).verify(batch)
    assert sum(v.rejected for v in verdicts) <= 0.005 * len(batch)
