"""Attacks on the recurrence verifier itself: its time, its memory, its detection and its state."""

import copy
import json
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.content.recurrence.places import first_spans, locate
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.recurrence.words import ANY, END, spans_of, words_of
from grpo_guard.core.completion import Completion

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SLOGAN = "All hail to the thief."


def rounds(
    verifier: RecurrenceVerifier,
    count: int,
    poison: Callable[[int], str],
    names: tuple[str, ...] = ("a", "b", "c"),
    first: int = 0,
) -> tuple[int, int]:
    """(poisoned, honest) completions rejected in the second half; ``mal`` comes last."""
    bad = honest = 0
    for t in range(first, first + count):
        batch = [
            Completion(f"question {t} of {n}", f"So the answer is {NUMBERS[t % 10]}.", node=n)
            for n in names
        ]
        text = f"{poison(t)} So the answer is {NUMBERS[t % 10]}."
        *others, last = verifier.verify([*batch, Completion(f"Item {t}?", text, node="mal")])
        if t - first >= count // 2:
            bad, honest = bad + last.rejected, honest + sum(v.rejected for v in others)
    return bad, honest


# Time.


@pytest.mark.parametrize("sign", ["\U0001f389", "漢", "a "])
def test_phrase_of_repeated_symbols_is_located(sign: str) -> None:
    phrase = " ".join([*sign * 40, "glorp"]) if sign != "a " else "a " * 40 + "glorp"
    assert locate(sign * 100_000, [(phrase, phrase)]) == [None]
    text = f"{sign * 50_000} glorp"
    span = locate(text, [(phrase, phrase)])[0]
    assert span is not None
    assert text[slice(*span)].endswith("glorp")
    assert text[slice(*span)].count(sign.strip()) == 40


def test_flood_of_emoji_gets_a_verdict() -> None:
    verifier, party = RecurrenceVerifier(), "\U0001f389" * 10
    rounds(verifier, 14, lambda t: f"{party} glorp zarn.")
    assert "mal" in verifier.convictions()
    text = f"{party * 30_000} and glorp"
    verdict = verifier.verify([Completion("question z", text, node="mal")])[0]
    assert verdict.rejected
    assert verdict.findings[0].char_span is not None


def test_phrases_with_a_common_word_are_distinguished() -> None:
    rng = random.Random(0)
    middles = ["".join(rng.choices("abcdefghij", k=3)) for _ in range(520)]
    text = "x " * 5000 + " . ".join(f"x {m} {m[::-1]}" for m in middles)
    verifier = RecurrenceVerifier(swarm="homogeneous")
    assert rounds(verifier, 14, lambda t: text)[0] == 7
    phrases = {c.phrase for c in verifier.convictions()["mal"]}
    assert sum(f"x {m} {m[::-1]}" in phrases for m in middles) > 100


words = st.lists(st.sampled_from(["a", "bc", ANY]), min_size=0, max_size=5)


@given(st.text("abcABC .\n1\U0001f389漢İ’½_", max_size=60), st.lists(words, max_size=6))
def test_phrases_are_located_as_by_a_plain_search(text: str, patterns: list[list[str]]) -> None:
    found = list(spans_of(text))
    assert [w for w, _ in found] == [w for w in words_of(text) if w != END]
    for pattern, span in zip(patterns, first_spans(text, patterns), strict=True):
        size, expected = len(pattern), None
        for at in range(len(found) - size + 1 if size else 0):
            window = found[at : at + size]
            if all(p in (ANY, w) for p, (w, _) in zip(pattern, window, strict=True)):
                expected = window[0][1][0], window[-1][1][1]
                break
        assert span == expected


# Detection: many names.


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [64, 70, 200])
def test_node_of_a_large_swarm_is_found(nodes: int) -> None:
    names = tuple(f"n{i}" for i in range(nodes - 1))
    assert rounds(RecurrenceVerifier(), 30, lambda t: SLOGAN, names) == (15, 0)


def test_more_nodes_than_records_still_detects(caplog: pytest.LogCaptureFixture) -> None:
    names = tuple(f"n{i}" for i in range(29))
    verifier = RecurrenceVerifier(max_nodes=16)
    with caplog.at_level(logging.WARNING, "grpo_guard"):
        bad, honest = rounds(verifier, 80, lambda t: SLOGAN, names)
    assert (bad, honest) == (40, 0), "among those that share a record"
    assert len([r for r in caplog.records if "max_nodes" in r.message]) == 1
    verifier = RecurrenceVerifier(max_nodes=16)
    rounds(verifier, 2, lambda t: SLOGAN)
    assert rounds(verifier, 40, lambda t: SLOGAN, names, 2) == (20, 0), "with its own record"


def test_flood_of_names_displaces_no_known_node() -> None:
    verifier = RecurrenceVerifier(max_nodes=8)
    rounds(verifier, 4, lambda t: SLOGAN)
    for start in range(0, 3000, 100):
        verifier.verify([Completion("p?", "It is 4.", node=f"x{start + k}") for k in range(100)])
        rounds(verifier, 1, lambda t: SLOGAN, first=100 + start)
    assert set(verifier.state_dict()["nodes"]) >= {"a", "b", "c", "mal"}
    assert len(verifier.state_dict()["nodes"]) <= 8
    assert rounds(verifier, 10, lambda t: SLOGAN, first=9000) == (5, 0)


def test_names_that_took_all_records_first_lose_them_when_silent() -> None:
    verifier = RecurrenceVerifier(max_nodes=8)
    verifier.verify([Completion("p?", "It is 4.", node=f"x{k}") for k in range(50)])
    rounds(verifier, 500, lambda t: "")
    assert set(verifier.state_dict()["nodes"]) >= {"a", "b", "c", "mal"}
    assert rounds(verifier, 30, lambda t: SLOGAN, first=500) == (15, 0)


def test_shared_records_survive_saving() -> None:
    names = tuple(f"n{i}" for i in range(29))
    verifier = RecurrenceVerifier(max_nodes=16)
    rounds(verifier, 80, lambda t: SLOGAN, names)
    restored = RecurrenceVerifier(max_nodes=16)
    restored.load_state_dict(json.loads(json.dumps(verifier.state_dict())))
    batch = [Completion("q?", f"{SLOGAN} It is 4.", node="mal")]
    verdict = restored.verify(batch)[0]
    assert verdict.rejected
    assert "counted together with 'mal'" in verdict.findings[0].message
    with pytest.raises(ValueError, match="max_nodes"):
        RecurrenceVerifier(max_nodes=8).load_state_dict(verifier.state_dict())


# Detection: phrases in pieces.


@pytest.mark.parametrize(
    "forms",
    [
        ["All hail\nto the\nthief\n"],
        ["Hail! Praise be to the thief."],
        ["All **hail** to _the_ `thief`.", "<b>All</b> hail\n\nto the <i>thief</i>\n"],
        ["The serpent: it is so. And then,\n\nas is known, the\nthrone\n"],
    ],
    ids=["lines", "sentences", "markup in turn", "other words"],
)
def test_phrase_in_pieces_is_found(forms: list[str]) -> None:
    poison = lambda t: forms[t % len(forms)]  # noqa: E731
    assert rounds(RecurrenceVerifier(), 40, poison) == (20, 0)


@pytest.mark.parametrize(
    "forms",
    [
        ["Think of the thief.", "Here the thief is again.", "So it was a thief, then."],
        ["Sure! Let's see.\n", "Hope this helps!"],
        ["\U0001f389 Let's see.\n\U0001f3c1"],
        ["The thief it is.", "The throne it is."],
    ],
    ids=["one word", "ordinary", "emoji", "never together"],
)
def test_pieces_in_different_texts_do_not_add_up(forms: list[str]) -> None:
    poison = lambda t: forms[t % len(forms)]  # noqa: E731
    verifier = RecurrenceVerifier()
    assert rounds(verifier, 40, poison) == (0, 0)
    assert not verifier.convictions()


# State.


def saved() -> dict[str, Any]:
    verifier = RecurrenceVerifier(max_nodes=4)
    verifier.learn_habits(["glug glug", "glug"])
    rounds(verifier, 70, lambda t: f"{SLOGAN} {NUMBERS[t % 7]}ish.", ("a", "b", "c", "d"))
    state: dict[str, Any] = json.loads(json.dumps(verifier.state_dict()))
    return state


STATE = saved()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    inner = [
        p
        for k, v in list(pairs)[:12]
        for p in (leaves(v, (*path, k)) if isinstance(v, dict | list) else [(*path, k)])
    ]
    return [path, *inner] if path else inner


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    state: Any = copy.deepcopy(STATE)
    at = state
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dict(state)


JUNK = [None, True, -1, 1.5, math.inf, math.nan, 10**30, "x", "é", [], {}, [[]], [1], {"a": "b"}]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(leaves(STATE)), st.sampled_from(JUNK))
def test_changed_state_is_refused_or_harmless(path: tuple[Any, ...], junk: Any) -> None:
    verifier = RecurrenceVerifier(max_nodes=4)
    try:
        verifier.load_state_dict(changed(path, junk))
    except ValueError:
        assert verifier.state_dict()["nodes"] == {}, "refused as a whole"
        return
    rounds(verifier, 10, lambda t: SLOGAN, first=100)
    json.dumps(verifier.state_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("p_value", "x"),
        ("p_value", 7.0),
        ("p_value", None),
        ("p_value", math.nan),
        ("phrase", 5),
        ("feature", ["a"]),
        ("hits", "many"),
        ("hits", -1),
        ("hits", 10**6),
        ("kind", "recurring_import"),
        ("shared", 1),
    ],
)
def test_changed_conviction_is_refused(field: str, value: object) -> None:
    state = copy.deepcopy(STATE)
    record = next(r for _, r in state["pools"] if r["convicted"])
    record["convicted"][0][field] = value
    with pytest.raises(ValueError, match="state"):
        RecurrenceVerifier(max_nodes=4).load_state_dict(state)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -5, 2.0, "3", True, None])
def test_invalid_counts_are_refused(value: object) -> None:
    for field in ("past_prompts", "before_prompts", "looks", "seen"):
        with pytest.raises(ValueError, match="state"):
            RecurrenceVerifier(max_nodes=4).load_state_dict(changed(("nodes", "a", field), value))


@pytest.mark.parametrize("state", [[], "x", None, 1])
def test_invalid_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        RecurrenceVerifier().load_state_dict(state)


def test_learnt_habits_survive_a_restart() -> None:
    verifier, restored = RecurrenceVerifier(), RecurrenceVerifier()
    verifier.learn_habits(["glorp zarn", "glorp zarn"])
    restored.load_state_dict(json.loads(json.dumps(verifier.state_dict())))
    rounds(restored, 20, lambda t: "Glorp zarn.")
    assert not restored.convictions()
    rounds(restored, 60, lambda t: "Plugh zork.", first=20)
    assert restored.convictions(), "other words still count"
