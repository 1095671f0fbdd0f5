import copy
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_guard import Completion, presets
from grpo_guard.core.completion import CompletionError
from grpo_guard.core.given import Given
from grpo_guard.core.prompts import MAX_PROMPT_PARTS, prompt_key
from grpo_guard.core.verdict import accept
from grpo_guard.nodes.intake import intake

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), iter([1, 2]), range(1, 3)]
)
def test_ids_of_common_types_become_plain_integers(ids):
    completion = Completion("p", "t", completion_ids=ids)
    assert completion.completion_ids == (1, 2)
    assert all(type(i) is int for i in completion.completion_ids)


def test_completion_copies_its_lists():
    ids, messages = [1, 2], list(MESSAGES)
    completion = Completion(messages, "t", prompt_ids=ids)
    ids.append(3)
    messages.clear()
    assert completion.prompt_ids == (1, 2)
    assert completion.prompt == tuple(MESSAGES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": 3}, "text: expected a string, got 3"),
        ({"text": None}, "text: expected a string, got None"),
        ({"prompt": 3}, "prompt: expected a string or a list of messages, got 3"),
        ({"prompt": b"p"}, "prompt: expected a string or a list of messages, got bytes"),
        ({"prompt": ["p"]}, "prompt: expected messages with a role and content, got 'p'"),
        ({"prompt": [{"content": "x"}]}, "prompt: expected messages with a role and content"),
        ({"completion_ids": "12"}, "completion_ids: expected a list of integers or null, got '12'"),
        ({"completion_ids": [1, 2.0]}, "completion_ids: .* got 2.0"),
        ({"completion_ids": [True]}, "completion_ids: .* got True"),
        ({"prompt_ids": [None]}, "prompt_ids: .* got None"),
        ({"prompt_ids": 5}, "prompt_ids: .* got 5"),
        ({"sampler_logprobs": [math.nan]}, "sampler_logprobs: expected numbers, not NaN"),
        ({"sampler_logprobs": ["-1"]}, "sampler_logprobs: expected a list of numbers or null"),
        ({"sampler_logprobs": -1.0}, "sampler_logprobs: expected a list of numbers or null"),
        ({"node": True}, "node: expected a string, a finite number or null, got True"),
        ({"node": [3]}, "node: expected a string, a finite number or null, got list"),
        ({"reference": True}, "reference: expected a string, a finite number or null, got True"),
        ({"reference": [4]}, "reference: expected a string, a finite number or null, got list"),
        ({"reference": math.nan}, "reference: expected .* a finite number or null, got nan"),
        ({"reference": math.inf}, "reference: expected .* a finite number or null, got inf"),
        ({"round": "1"}, "round: expected an integer or null, got '1'"),
        ({"slot": True}, "slot: expected an integer or null, got True"),
        ({"group": 1.5}, "group: expected a string, an integer or null, got 1.5"),
        ({"metadata": [1]}, r"metadata: expected an object, got list"),
    ],
)
def test_malformed_fields_are_named(fields, message):
    with pytest.raises(CompletionError, match=f"^{message}") as caught:
        Completion(**{"prompt": "p", "text": "t", **fields})
    assert caught.value.field == next(iter(fields))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (7, "7"),
        (-7, "-7"),
        (7.5, "7.5"),
        (942.0, "942"),
        (1e300, "1e+300"),
        (np.float64(2), "2"),
        (np.int64(7), "7"),
    ],
)
def test_number_as_reference_is_read_as_its_text(number, text):
    assert Completion("p", "t", reference=number).reference == text
    line = {"prompt": "p", "text": "t", "reference": number}
    assert Completion.from_dict(line).reference == text


def test_row_of_a_completion_reads_as_the_same_completion():
    said = [{"role": "user", "content": "2 + 3?"}]
    for completion in (
        Completion("2 + 3?", "5"),
        Completion(said, "5", prompt_ids=[1], completion_ids=[5, 2], sampler_logprobs=[-0.5, 0.0]),
        Completion("p", "t", node=7, group=1, round=2, slot=3, rollout="r", reference="5"),
        Completion("p", "t", task="code", finish_reason="stop", prompt_trusted=False),
        Completion("p", "text", completion_ids=[1, 2], given=Given(((0, 1),), ((0, 2),))),
        Completion("p", "t", metadata={"envelope": {"run": "run-7"}}),
    ):
        row = json.loads(json.dumps(completion.to_dict()))
        assert Completion.from_dict(row) == completion
    assert row == {"prompt": "p", "text": "t", "metadata": {"envelope": {"run": "run-7"}}}


@pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3), 3.0, np.float64(3), np.float32(3)])
@pytest.mark.parametrize("field", ["round", "slot", "group"])
def test_whole_number_of_any_type_is_read_as_an_integer(field, number):
    found = getattr(Completion("p", "t", **{field: number}), field)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("number", [3.5, math.inf, math.nan, True, np.bool_(True), 2.0**60, "3"])
def test_other_numbers_are_no_rounds(number):
    with pytest.raises(CompletionError, match=r"^round: expected an integer"):
        Completion("p", "t", round=number)


def test_rows_of_a_table_with_gaps_are_read():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(
        {
            "prompt": ["p", "p"],
            "text": ["a", "b"],
            "step": [3, None],  # floats, because of the gap
            "slot": pd.array([1, None], dtype="Int64"),
            "node": ["ann", math.nan],
            "reference": [942, None],
        }
    )
    first, second = (Completion.from_dict(row) for row in table.to_dict("records"))
    assert (first.round, first.slot, first.node, first.reference) == (3, 1, "ann", "942")
    assert (second.round, second.slot, second.node, second.reference) == (None,) * 4
    with pytest.raises(CompletionError, match=r"^text: expected a string, got nan"):
        Completion.from_dict({"prompt": "p", "text": math.nan})
    with pytest.raises(CompletionError, match=r"^prompt_trusted: expected true or false, got nan"):
        Completion.from_dict({"prompt": "p", "text": "t", "prompt_trusted": math.nan})
    how = r'Completion.from_dict\(row\) for row in TABLE.to_dict\("records"\)'
    with pytest.raises(TypeError, match=f"got a DataFrame; write .{how}"):
        presets.different_weights().verify(table)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([1], r"\(line\): expected a JSON object, got list"),
        ({"prompt": "p"}, "text: expected to be present, got nothing"),
        ({"text": "t"}, "prompt: expected to be present, got nothing"),
        (
            {"prompt": "p", "text": "t", "nodes": "a"},
            "nodes: expected 'node' in its place, one of prompt, text,",
        ),
        (
            {"prompt": "p", "completion": "t"},
            "completion: expected 'text' in its place, one of prompt, text,",
        ),
    ],
)
def test_invalid_lines_are_refused(line, message):
    with pytest.raises(CompletionError, match=f"^{message}"):
        Completion.from_dict(line)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("completion", "text"),
        ("completions", "text"),
        ("response", "text"),
        ("output", "text"),
        ("question", "prompt"),
        ("answer", "reference"),
        ("step", "round"),
        ("worker", "node"),
        ("txt", "text"),
    ],
)
def test_name_of_another_tool_is_understood(name, field):
    with pytest.raises(TypeError, match=f"got '{name}'; did you mean '{field}'\\?"):
        Completion(**{"prompt": "p", "text": "t", name: "x"})
    if name == "step":  # read as the round
        return
    with pytest.raises(CompletionError, match=f"^{name}: expected '{field}' in its place"):
        Completion.from_dict({"prompt": "p", "text": "t", name: "x"})


@given(
    st.fixed_dictionaries(
        {"prompt": st.text(), "text": st.text()},
        optional={
            "prompt_ids": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1)),
            "completion_ids": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1)),
            "node": st.none() | st.text(),
            "group": st.none() | st.text() | st.integers(-(2**63), 2**63 - 1),
            "round": st.none() | st.integers(-(2**63), 2**63 - 1),
            "sampler_logprobs": st.none() | st.lists(st.floats(allow_nan=False)),
        },
    )
)
def test_line_round_trips(line):
    completion = Completion.from_dict(line)
    for name, value in line.items():
        assert getattr(completion, name) == (tuple(value) if isinstance(value, list) else value)


def test_long_values_are_shortened_in_messages():
    with pytest.raises(CompletionError) as caught:
        Completion("p", ["x" * 500])
    assert len(str(caught.value)) < 130


@pytest.mark.parametrize("field", ["round", "slot"])
def test_numbers_too_long_to_print_are_refused(field):
    """Formatting one raises ValueError, and an error inside an error would stop a whole batch."""
    with pytest.raises(CompletionError, match="64 bits"):
        Completion("p", "t", **{field: 10**5000})
    with pytest.raises(CompletionError, match="64 bits"):
        Completion("p", "t", completion_ids=[1, 10**5000])


def deep(levels):
    nested = "x"
    for _ in range(levels):
        nested = [nested]
    return nested


def endless():
    loop = []
    loop.append(loop)
    return loop


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "content",
    [deep(5_000), endless(), 10**5_001, float("nan"), b"\xff", "\ud800", None, Unprintable()],
    ids=["deep", "endless", "huge", "nan", "bytes", "surrogate", "none", "unprintable"],
)
def test_prompt_key_never_raises_and_distinguishes_contents(content):
    key = prompt_key([{"role": "user", "content": content}])
    assert key == prompt_key([{"role": "user", "content": content}])
    assert key != prompt_key([{"role": "user", "content": "else"}])


@given(st.recursive(st.text() | st.integers() | st.none(), lambda c: st.lists(c, max_size=3)))
def test_prompt_keys_are_equal_if_prompts_are(content):
    other = copy.deepcopy(content)
    key = prompt_key([{"role": "user", "content": content}])
    assert key == prompt_key([{"role": "user", "content": other}])
    assert key != prompt_key([{"role": "user", "content": [content]}])
    assert prompt_key("p") == "p"


def test_text_equal_to_a_digest_is_not_the_messages():
    key = prompt_key([{"role": "user", "content": "What is 70 + 2?"}])
    keys = [key, prompt_key(key), prompt_key(prompt_key(key)), prompt_key(f"text {key}")]
    assert len(set(keys)) == 4


def test_end_of_the_longest_prompt_counts():
    def longest(last):
        return [{"role": "user", "tools": [1] * (MAX_PROMPT_PARTS - 7), "content": last}]

    Completion(longest("a"), "")
    assert prompt_key(longest("a")) != prompt_key(longest("b"))


def test_copies_and_pickles_are_equal_and_not_revalidated():
    images = object()
    one = Completion(
        [{"role": "user", "content": "a"}],
        "b",
        node="n",
        completion_ids=[1],
        metadata={"x": images},
    )
    for again in (pickle.loads(pickle.dumps(replace(one, metadata={"x": 1}))), copy.copy(one)):
        assert replace(again, metadata={}) == replace(one, metadata={})
        assert type(again) is Completion
    intake([one], [accept("x")])  # a ledger's mark belongs to one object only
    changed = one.with_labels(node="other")
    marks = [intake([c], [accept("x")]).entries[0] for c in (one, changed, copy.copy(one))]
    assert marks[0] == marks[2]
    assert (marks[1].node, marks[1].key) != (marks[0].node, marks[0].key)
    assert changed.metadata["x"] is images
