"""`received` always returns a completion, whatever a sender puts into its fields."""

import itertools
import threading
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import Completion
from grpo_guard.adapters import received as module
from grpo_guard.adapters.received import received
from grpo_guard.core.completion import MAX_TOKENS, shown
from grpo_guard.core.verdict import Cause
from tests.helpers.hostile import EVERYTHING, Liar

NAMES = sorted({f.name for f in fields(Completion)} | {"malformed"})
GOOD = {"prompt": "q", "text": "x"}


def no_class():
    """Raises when `isinstance` inspects it; at module level, pytest would trip over it."""

    class NoClass:
        @property
        def __class__(self):
            raise RuntimeError("no")

    return NoClass()


class Turncoat(int):
    """An integer whose value changes with each comparison."""

    def _fail(self, other):
        raise RuntimeError("no")

    __le__ = __lt__ = __ge__ = __gt__ = __eq__ = _fail
    __hash__ = int.__hash__


def nameless():
    """An object whose class refuses to give its name."""

    class Nameless(type):
        @property
        def __name__(cls):
            raise RuntimeError("no")

    return Nameless("n", (), {})()


VALUES = [
    *EVERYTHING, no_class(), [no_class()], Turncoat(3), [Turncoat(3)], nameless(),
    type("\x1b[2J", (), {})(), {"tokens": [[0, 1]], "chars": [[0, 9]]}, {"tokens": Liar()},
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    type("Placeless", (), {"__module__": 3})(),
    type("Endless", (), {"__module__": "torch", "shape": itertools.count()})(),
]  # fmt: skip


def reading(arguments):
    """Call `received`, and fail if it tries too often to build a completion."""
    tries = itertools.count(1)

    def counted(**given):
        assert next(tries) <= len(NAMES) + 1, "it does not terminate"
        return Completion(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Completion", counted)
        return received(**{**GOOD, **arguments})


@pytest.mark.parametrize("name", NAMES)
def test_any_field_may_hold_any_value(name):
    for value in VALUES:
        row = reading({name: value})
        assert type(row.completion) is Completion
        assert row.given is None or row.given.cause is Cause.MALFORMED


@pytest.mark.parametrize("name", ["metadata", "given", "prompt_ids", "sampler_logprobs", "slot"])
def test_unreadable_claims_are_ignored(name):
    row = reading({name: no_class()})
    assert row.given is None
    assert row.completion == Completion("q", "x")


def test_metadata_may_be_none():
    assert reading({"metadata": None}).completion == Completion("q", "x")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(range(len(VALUES)))))
def test_all_fields_may_be_hostile_at_once(chosen):
    row = reading({name: VALUES[i] for name, i in chosen.items()})
    assert type(row.completion) is Completion


@pytest.mark.parametrize("field", ["prompt", "text", "completion_ids"])
def test_unreadable_prompt_text_or_ids_are_malformed(field):
    for value in (no_class(), [no_class()], nameless()):
        row = reading({field: value, "node": "n"})
        assert row.given.cause is Cause.MALFORMED
        assert row.completion.node == "n"


def test_any_malformed_mark_rejects():
    for malformed in (no_class(), 7, "", "wrong", ["x"]):
        assert reading({"malformed": malformed}).given.rejected


def test_endless_ids_are_refused_at_the_bound():
    for ids in (itertools.count(), itertools.repeat(1), range(10**12)):
        found = []
        work = threading.Thread(
            target=lambda ids=ids, found=found: found.append(reading({"completion_ids": ids})),
            daemon=True,
        )
        work.start()
        work.join(60)
        assert found, "it does not terminate"
        assert (
            found[0].given.reason
            == f"completion_ids: expected at most {MAX_TOKENS}, got larger ones"
        )
    assert reading({"sampler_logprobs": itertools.repeat(0.0)}).completion.sampler_logprobs is None


def test_class_name_is_escaped_like_any_other_text():
    assert shown(type("\x1b[2J", (), {})()) == "\\x1b[2J"
    assert shown(nameless()) == "n"
    assert shown(no_class()) == "NoClass"
