"""The signed bytes: one byte sequence per meaning, whatever the fields contain."""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given
from grpo_guard.nodes.identity.envelope import (
    ENVELOPE,
    Envelope,
    EnvelopeError,
    contents,
    fits,
    message,
    prompt_bytes,
    signed,
)
from grpo_guard.nodes.identity.keys import SigningKey

KEY = SigningKey(bytes(range(32)))
OTHER = SigningKey(bytes(32))

TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates included
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
LABELS = st.from_regex(r"[A-Za-z0-9_.-]{1,6}", fullmatch=True)
PARTS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, TEXTS, PARTS), max_size=3
)
COMPLETIONS = st.builds(
    Completion,
    TEXTS | MESSAGES,
    TEXTS,
    prompt_ids=st.none() | st.lists(INTS, max_size=4),
    completion_ids=st.none() | st.lists(INTS, max_size=4),
    sampler_logprobs=st.none() | st.lists(FLOATS, max_size=4),
    node=LABELS,
    round=st.integers(0, 2**63 - 1),
    slot=st.integers(0, 2**63 - 1),
    finish_reason=st.none() | TEXTS,
    task=st.none() | TEXTS,
    reference=st.none() | TEXTS,
)
SIGNED_FIELDS = (
    "prompt", "text", "prompt_ids", "completion_ids", "sampler_logprobs", "node", "round", "slot",
    "finish_reason", "task", "reference", "given",
)  # fmt: skip


def bytes_of(completion: Completion, run: str = "run") -> bytes:
    envelope = Envelope.of(signed(completion, KEY, run=run))
    assert envelope is not None
    return contents(envelope, completion)


def meaning(value: Any) -> Any:
    """Whether two values are identical to the last bit: 0.0 is not -0.0, True is not 1."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, dict):
        return ("mapping", tuple((meaning(k), meaning(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(meaning, value)))
    return (type(value).__name__, value)


@given(COMPLETIONS, COMPLETIONS, LABELS, LABELS)
def test_only_identical_completions_have_the_same_bytes(
    one: Completion, two: Completion, run: str, other_run: str
) -> None:
    same = run == other_run and all(
        meaning(getattr(one, name)) == meaning(getattr(two, name)) for name in SIGNED_FIELDS
    )
    assert (bytes_of(one, run) == bytes_of(two, other_run)) is same


@given(PARTS, PARTS)
def test_only_identical_prompts_have_the_same_bytes(one: Any, two: Any) -> None:
    both = [prompt_bytes([{"role": "user", "content": part}]) for part in (one, two)]
    assert (both[0] == both[1]) is (meaning(one) == meaning(two))


@given(COMPLETIONS, COMPLETIONS, st.sampled_from(SIGNED_FIELDS))
def test_changing_any_field_breaks_the_signature(
    one: Completion, two: Completion, name: str
) -> None:
    sealed = signed(one, KEY, run="run")
    envelope = Envelope.of(sealed)
    assert envelope is not None
    assert fits(envelope, message(envelope, sealed))
    changed = replace(sealed, **{name: getattr(two, name)})
    if name in ("node", "round", "slot"):  # these belong to the envelope itself
        envelope = replace(envelope, **{name: getattr(two, name)})
    same = meaning(getattr(one, name)) == meaning(getattr(two, name))
    assert fits(envelope, message(envelope, changed)) is same


@given(COMPLETIONS)
def test_envelope_round_trips_through_json(completion: Completion) -> None:
    sealed = signed(completion, KEY, run="run")
    fields = {name: getattr(sealed, name) for name in (*SIGNED_FIELDS, "metadata")}
    try:
        line = json.dumps(fields)
    except TypeError:  # bytes in a prompt
        return
    back = Completion.from_dict(json.loads(line))
    envelope = Envelope.of(back)
    assert envelope is not None
    assert fits(envelope, message(envelope, back))


AMBIGUOUS = [
    (Completion("ab", "c"), Completion("a", "bc")),
    (Completion("a", "b", task="c"), Completion("a", "b", finish_reason="c")),
    (Completion("a", ""), Completion("", "a")),
    (Completion("a", "b", completion_ids=(1, 2)), Completion("a", "b", prompt_ids=(1, 2))),
    (Completion("a", "b", completion_ids=(1,)), Completion("a", "b", completion_ids=(1, 0))),
    (Completion("a", "b", completion_ids=()), Completion("a", "b")),
    (Completion("a", "b", reference=""), Completion("a", "b")),
    (Completion("\u00e9", "b"), Completion("e\u0301", "b")),
    (Completion("a", "b "), Completion("a", "b")),
    (Completion("a", "b\n"), Completion("a", "b\r\n")),
    (Completion("a", "\ud800"), Completion("a", "?")),
    (Completion("a", "b", sampler_logprobs=(0.0,)), Completion("a", "b", sampler_logprobs=(-0.0,))),
    (
        Completion("a", "b", sampler_logprobs=(-0.1,)),
        Completion("a", "b", sampler_logprobs=(math.nextafter(-0.1, 0),)),
    ),
    (Completion("a", "b", completion_ids=(0,)), Completion("a", "b", sampler_logprobs=(0.0,))),
    (
        Completion("a", "bcd", given=Given(chars=((0, 1),))),
        Completion("a", "bcd", given=Given(chars=((0, 2),))),
    ),
    (Completion("a", "bcd"), Completion("a", "bcd", given=Given(chars=((0, 1),)))),
    (Completion([], "b"), Completion("", "b")),
    (
        Completion([{"role": "a", "content": "b"}], "c"),
        Completion([{"role": "a", "content": ["b"]}], "c"),
    ),
    (
        Completion([{"role": "a", "content": 1}], "c"),
        Completion([{"role": "a", "content": True}], "c"),
    ),
    (
        Completion([{"role": "a", "content": 1}], "c"),
        Completion([{"role": "a", "content": 1.0}], "c"),
    ),
    (
        Completion([{"role": "a"}, {"role": "b"}], "c"),
        Completion([{"role": "a", "role2": "b"}], "c"),
    ),
]


@pytest.mark.parametrize(("one", "two"), AMBIGUOUS)
def test_ambiguous_envelopes_are_refused(one: Completion, two: Completion) -> None:
    placed = [replace(c, round=0, slot=0) for c in (one, two)]
    assert bytes_of(placed[0]) != bytes_of(placed[1])


def test_signed_bytes_are_stable() -> None:
    """Other releases must sign the same bytes: a change here needs a new domain."""
    completion = Completion(
        "p", "t", completion_ids=(1,), sampler_logprobs=(-0.5,), round=2, slot=3, node="n"
    )
    text = lambda s: b"t" + len(s).to_bytes(8, "big") + s  # noqa: E731
    assert bytes_of(completion) == b"".join(
        (
            text(b"run"),
            (2).to_bytes(8, "big"),
            text(b"n"),
            (3).to_bytes(8, "big"),
            text(KEY.public.encode()),
            text(b"p"),
            text(b"t"),
            b"-",
            b"q" + (1).to_bytes(8, "big") + (1).to_bytes(8, "big"),
            b"d" + (1).to_bytes(8, "big") + bytes.fromhex("bfe0000000000000"),
            b"-",
            b"-",
            b"-",
            b"-",
            b"-",
        )
    )


def test_signed_message_is_a_domain_and_a_digest() -> None:
    completion = Completion("p", "t", round=2, slot=3, node="n")
    envelope = Envelope.of(signed(completion, KEY, run="run"))
    assert envelope is not None
    digest = sha256(contents(envelope, completion)).digest()
    assert message(envelope, completion) == b"grpo-guard completion 1\n" + digest


def test_other_key_or_name_does_not_verify() -> None:
    sealed = signed(Completion("p", "t", round=0, slot=0), KEY, run="run")
    envelope = Envelope.of(sealed)
    assert envelope is not None
    taken = replace(envelope, public_key=OTHER.public)
    assert not fits(taken, message(taken, sealed))


@pytest.mark.parametrize("name", ["round", "slot"])
def test_completion_without_round_or_slot_is_not_signed(name: str) -> None:
    completion = replace(Completion("p", "t", round=0, slot=0), **{name: None})
    with pytest.raises(EnvelopeError, match=f"{name}: expected an integer, got nothing"):
        signed(completion, KEY, run="run")


def test_unserialisable_completion_is_not_signed() -> None:
    image = Completion([{"role": "user", "content": [{"image": object()}]}], "t", round=0, slot=0)
    with pytest.raises(EnvelopeError, match="prompt: expected text, numbers, lists"):
        signed(image, KEY, run="run")


BREAK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no mapping": lambda e: "signed, I swear",
    "empty": lambda e: {},
    "a field less": lambda e: {k: v for k, v in e.items() if k != "slot"},
    "a field more": lambda e: {**e, "admin": True},
    "a round as text": lambda e: {**e, "round": "0"},
    "a round of True": lambda e: {**e, "round": True},
    "a round below 0": lambda e: {**e, "round": -1},
    "a round beyond 64 bits": lambda e: {**e, "round": 2**63},
    "a slot without an end": lambda e: {**e, "slot": 10**5000},
    "a slot of 0.0": lambda e: {**e, "slot": 0.0},
    "a run of a megabyte": lambda e: {**e, "run": "r" * 2**20},
    "a node with an escape": lambda e: {**e, "node": "a\x1b[2J"},
    "a node with a blank": lambda e: {**e, "node": "a b"},
    "no node": lambda e: {**e, "node": ""},
    "a key in capitals": lambda e: {**e, "public_key": e["public_key"].upper()},
    "a key cut short": lambda e: {**e, "public_key": e["public_key"][:-1]},
    "a key with a line behind it": lambda e: {**e, "public_key": e["public_key"] + "\n"},
    "a signature cut short": lambda e: {**e, "signature": e["signature"][:-2]},
    "a signature with blanks": lambda e: {**e, "signature": " " + e["signature"][1:]},
    "a signature of bytes": lambda e: {**e, "signature": bytes(64)},
}


@pytest.mark.parametrize("how", BREAK)
def test_broken_envelope_is_reported(how: str) -> None:
    sealed = signed(Completion("p", "t", round=0, slot=0), KEY, run="run")
    broken = BREAK[how](dict(sealed.metadata[ENVELOPE]))
    with pytest.raises(EnvelopeError):
        Envelope.of(replace(sealed, metadata={ENVELOPE: broken}))
