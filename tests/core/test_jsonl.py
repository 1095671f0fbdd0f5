"""JSON from untrusted senders is bounded before parsing, and its error messages are printable."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.core.completion import Completion, CompletionError, shown
from grpo_guard.core.jsonl import MAX_DEPTH, InputError, parse_object, read_completions

MIB = 1024 * 1024
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
PIECES = [b'"', b"\\", b"[", b"]", b"{", b"}", b",", b":", b'"a":', b'\\"', b"\\\\", b"1", b" "]


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON), st.booleans())
@settings(max_examples=200, deadline=None)
def test_input_within_bounds_is_read_as_json(data, plain):
    assert parse_object(json.dumps(data, ensure_ascii=plain).encode(), MIB) == data


@given(st.lists(st.sampled_from(PIECES)))
@settings(max_examples=500, deadline=None)
def test_anything_but_an_object_is_refused(pieces):
    text = b"".join(pieces)
    with contextlib.suppress(InputError):
        assert parse_object(text, MIB) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    ["[[[[{,:" * 30_000, '\\"[,' * 30_000, "\\" * 99_999, '"' * 99_999],
    ids=lambda text: text[:3],
)
def test_author_text_cannot_get_a_request_refused(text):
    """Brackets within a string are not lists."""
    for plain in (True, False):
        body = json.dumps({"text": text}, ensure_ascii=plain).encode()
        assert parse_object(body, 4 * MIB) == {"text": text}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a":[' + b"[]," * 9_999 + b"[]]}", "at most 6400 values"),
        (b'{"a":[' + b"1," * 9_999 + b"1]}", "at most 6400 values"),
        (b'{"a":[' + b'"",' * 9_999 + b'""]}', "at most 6400 values"),
        (b'{"a":"\\\\","b":[' + b"[]," * 9_999 + b"[]]}", "at most 6400 values"),
        (b'{"a":"\\"","b":[' + b"{}," * 9_999 + b"{}]}", "at most 6400 values"),
        (b'{"a":"' + b"x" * 102_400 + b'"}', "at most 102400 bytes"),
        (b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested too deeply"),
        (b'{"a":1,"b":{"c":1,"c":1}}', "each name once in an object, got 'c' twice"),
        (b'{"\\u001b[2J":1,"\x1b[2J":1}', "invalid JSON"),
        (b'{"\\u001b[2J":1,"\\u001B[2J":1}', r"got '\x1b[2J' twice"),
    ],
)
def test_expensive_input_is_not_parsed(text, problem):
    with pytest.raises(InputError) as found:
        parse_object(text, 102_400)
    assert problem in str(found.value)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\ud800\n" * 999


@pytest.mark.parametrize(
    "row",
    [
        {HOSTILE: 1},
        {"round": HOSTILE},
        {"prompt": [{HOSTILE: HOSTILE}]},
        {"prompt_ids": [HOSTILE]},
        {"metadata": [HOSTILE]},
        {"group": [[HOSTILE]]},
        {"slot": [1] * 99_999},
    ],
)
def test_messages_quote_input_escaped_and_shortened(tmp_path, row):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"prompt": "", "text": ""} | row))
    with pytest.raises(InputError) as found:
        read_completions(path)
    message = str(found.value).removeprefix(str(path))
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), [10**5000], {"a": HOSTILE}, b"\x1b", 2.5],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_shown(value):
    assert shown(value).isprintable()
    with pytest.raises(CompletionError):
        Completion("", value)


def test_named_rows_are_read_as_by_verify(tmp_path):
    path = tmp_path / "honest.jsonl"
    path.write_text('{"id": "row-7", "prompt": "p", "text": "t"}\n')
    assert [c.text for c in read_completions(path)] == ["t"]
    path.write_text('{"id": [7], "prompt": "p", "text": "t"}\n')
    with pytest.raises(InputError, match=r"honest.jsonl:1: id: expected an integer or at most"):
        read_completions(path)
