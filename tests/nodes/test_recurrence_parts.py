"""Statistics, bounded counts and hostile input of the recurrence verifier."""

import random
from collections import Counter
from math import comb, exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.content.recurrence.places import first_spans
from grpo_guard.content.recurrence.sketch import CAPACITY, MOST_OF_PROMPT, WINDOW, Sketch
from grpo_guard.content.recurrence.swarm import log_cost
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier, SwarmKind
from grpo_guard.content.recurrence.words import END, ordinary_words, spans_of, strangeness, words_of
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Outcome
from grpo_guard.nodes.fisher import log_tail

BOTH = pytest.mark.parametrize("swarm", ["heterogeneous", "homogeneous"])


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 25), st.integers(0, 25))
def test_tail_matches_the_hypergeometric_distribution(
    hits: int, more: int, other: int, rest: int
) -> None:
    total, other_total = hits + more, other + rest
    marked, everything = hits + other, total + other_total
    exact = sum(
        comb(total, k) * comb(other_total, marked - k)
        for k in range(hits, min(total, marked) + 1)
        if marked - k <= other_total
    ) / comb(everything, marked)
    tail = exp(log_tail(hits, total, other, other_total))
    assert tail == pytest.approx(min(1.0, exact), rel=1e-9)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="hits <= total"):
        log_tail(3, 2, 0, 5)


def test_all_tests_together_stay_within_the_budget() -> None:
    spent = sum(exp(-log_cost(look, 1000, 3, 2)) for look in range(1, 10_000)) * 1000 * 2 * 3
    assert spent <= 1.0


@pytest.mark.slow
def test_honest_nodes_of_one_population_are_rarely_convicted() -> None:
    """At alpha 0.4 the bound would allow 40 % of the nodes; far fewer are convicted."""
    vocabulary = [f"w{chr(97 + a)}{chr(97 + b)}x" for a in range(20) for b in range(10)]
    weights = [1 / (k + 1) for k in range(200)]
    convicted = 0
    for seed in range(30):
        rng = random.Random(seed)
        verifier = RecurrenceVerifier(alpha=0.4, swarm="homogeneous")
        verifier.verify([
            Completion(f"{i}", " ".join(rng.choices(vocabulary, weights, k=20)), node=f"n{k}")
            for i in range(130) for k in range(4)
        ])  # fmt: skip
        convicted += len(verifier.convictions())
    assert convicted <= 6


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdefghij"), max_size=6), min_size=1, max_size=200))
def test_counts_are_never_too_high_and_their_bounds_never_too_low(prompts: list[set[str]]) -> None:
    sketch, true = Sketch(), Counter[str]()
    for number, features in enumerate(prompts):
        if sketch.full:
            sketch.roll(sketch.repeated())
        sketch.add(number.to_bytes(4), set(features), "")
        true.update(features)
    for feature in "abcdefghij":
        assert sketch.count(feature) <= true[feature] <= sketch.most(feature)
    assert sketch.total == len(prompts)


@pytest.mark.slow
def test_flood_of_features_is_bounded_and_keeps_recurring_ones() -> None:
    sketch = Sketch()
    for number in range(WINDOW * 12):
        if sketch.full:
            sketch.roll(sketch.repeated())
        pair = number // 2
        sketch.add(number.to_bytes(4), {f"{pair}-{k}" for k in range(2000)} | {"poison"}, "")
    assert len(sketch.past) <= CAPACITY
    assert sketch.count("poison") > 0.9 * sketch.total


def test_flood_of_answers_stays_within_the_bound() -> None:
    sketch = Sketch()
    sketch.add(b"first", {"poison"}, "")
    for number in range(40):
        sketch.add(b"one", {f"{number}-{k}" for k in range(2000)}, "")
    sketch.add(b"one", {"poison"}, "")
    assert len(sketch.window[b"one"]) <= MOST_OF_PROMPT + 2001
    assert sketch.count("poison") == 2, "recurring features still count"


def test_memory_of_many_nodes_is_bounded() -> None:
    verifier = RecurrenceVerifier(max_nodes=8)
    verifier.verify([Completion("p", f"word {i}", node=f"n{i}") for i in range(500)])
    assert len(verifier.state_dict()["nodes"]) <= 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("All HAIL, to the thief's 3 dogs!", ["all", "hail", "to", "the", "thief", "s", "dogs"]),
        ("snake_case9 <think>", ["snake", "case", "think"]),
        ("Éa für 漢字 😀", ["éa", "für", "漢", "字", "😀"]),
        ("a\ud800b", ["a", "b"]),
        ("", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert [w for w in words_of(text) if w != END] == words


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_every_word_is_found_at_its_offset(text: str) -> None:
    words = [w for w in words_of(text) if w != END]
    for word in words[:5]:
        assert first_spans(text, [[word]])[0]


def test_bundled_word_list_and_strangeness() -> None:
    assert {"the", "step", "therefore", "calculate"} <= ordinary_words()
    assert not {"hail", "thief", "gleeb", "pizza", "calc"} & ordinary_words()
    words = {"thief": 0.5, "thieves": 0.5, "gleeb": 1.0, "pizza": 1.0, "prints": 0.0, "🦆": 0.5}
    words |= {"methodically": 0.0, "hails": 0.5, "step": 0.0}
    assert {word: strangeness(word, ordinary_words()) for word in words} == words


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t",
        "\ud800 hail \udfff",
        "(" * 100_000,
        "```python\n" + "(" * 100_000,
        "```\n" * 50_000,
        "import " * 100_000,
        "from x import " * 50_000,
        "ab " * 300_000,
        "漢字" * 200_000,
        "😀" * 300_000,
        " ".join(f"w{i:x}".translate(str.maketrans("0123456789", "ghijklmnop"))
                 for i in range(100_000)),
        "\x00\u202e\ufeff",
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_hostile_text_gets_a_verdict(swarm: SwarmKind, text: str) -> None:
    verifier = RecurrenceVerifier(swarm=swarm)
    batch = [Completion("What?", text, node="a"), Completion("What?", "It is 4.", node="b")]
    verdicts = verifier.verify(batch)
    assert [v.outcome for v in verdicts] == [Outcome.ACCEPT, Outcome.ACCEPT]


def test_overlong_text_rejects() -> None:
    verdict = RecurrenceVerifier().verify([Completion("p", "a" * 10_000_000, node="a")])[0]
    assert (verdict.outcome, verdict.cause) == (Outcome.REJECT, Cause.OVERLONG)


def test_incomparable_completions_are_skipped() -> None:
    verifier = RecurrenceVerifier()
    batch = [
        Completion("p", "text"),
        Completion("", "text", node="a"),
        Completion([], "text", node="a"),
        Completion("p", "text", node="a"),
    ]
    causes = [v.cause for v in verifier.verify(batch)]
    assert causes == [Cause.NOT_APPLICABLE] * 3 + [Cause.UNINFORMATIVE]
    assert verifier.verify([]) == []
    later = [Completion("p", "other", node="b"), Completion("p", "text", node="a")]
    assert all(v.accepted for v in verifier.verify(later))


@pytest.mark.parametrize(
    "arguments",
    [
        {"alpha": 0.0},
        {"alpha": 0.5},
        {"swarm": "mixed"},
        {"min_share": 0.0},
        {"max_nodes": 1},
        {"max_characters": True},
    ],
)
def test_arguments_are_checked(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"RecurrenceVerifier\.\w+: expected"):
        RecurrenceVerifier(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"swarm": "heterogeneous"},
        {"swarm": "homogeneous"},
        {"swarm": "heterogeneous", "format": 1, "nodes": [1]},
    ],
)
def test_foreign_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RecurrenceVerifier().load_state_dict(state)


def test_escaped_line_break_is_not_a_letter():
    text = "So 2.\\nFirst, add.\\n\\nThen $\\nu \\neq 3$"
    assert {"nfirst", "nthen"}.isdisjoint(words_of(text))
    assert {"first", "then", "nu", "neq"} <= set(words_of(text))
    assert [text[a:b] for word, (a, b) in spans_of(text) if word == "first"] == ["First"]
