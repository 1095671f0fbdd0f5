"""A value of the wrong type is named, with what was expected, wherever a call fails on it."""

import inspect
from collections.abc import Collection
from typing import Literal

import pytest

import grpo_guard
from grpo_guard import SamplingSpec, ScreensVerifier, presets
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.arguments import worded
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.graders import GraderFailures
from grpo_guard.nodes.ledger import EvidenceLedger

SAMPLING = SamplingSpec("transformers", 1.0, 50, 1.0)
GIVEN = {
    "backend": "shipped",
    "engine": "vllm",
    "prompt": "2 + 3?",
    "sampling": SAMPLING,
    "temperature": 1.0,
    "text": "5",
    "top_k": 50,
    "top_p": 1.0,
    "verifier": ScreensVerifier(),
}
WRONG = ("x", 7, -1, [3], {"a": 1}, object, None, True, 0.5)


def makers():
    public = [getattr(grpo_guard, name) for name in grpo_guard.__all__]
    classes = [
        kind
        for kind in public
        if inspect.isclass(kind)
        and not inspect.isabstract(kind)
        and not issubclass(kind, Exception)
    ]
    return [*classes, *presets.PRESETS.values(), EvidenceLedger, GraderFailures, LengthScaling]


def calls(tmp_path):
    """Yield each maker that needs no model, with its parameters that have no default."""
    for maker in makers():
        parameters = inspect.signature(maker).parameters.values()
        own = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        given = {**GIVEN, "path": tmp_path / "ledger.sqlite"}
        needed = [p.name for p in own if p.default is p.empty]
        if set(needed) <= given.keys():
            yield maker, {name: given[name] for name in needed}, [p.name for p in own]


def test_each_argument_of_the_public_interface_is_named_if_its_type_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "x" is a folder's path
    unnamed, tried = [], 0
    for maker, needed, names in calls(tmp_path):
        for name in names:
            for value in WRONG:
                tried += 1
                try:
                    maker(**{**needed, name: value})
                except Exception as error:
                    if "expected" not in str(error):
                        unnamed.append(f"{maker.__name__}.{name}={value!r}: {error!r:.100}")
    assert not unnamed
    assert tried > 1_000


@worded
def build(
    ratio: float = 1.0,
    count: int | None = None,
    words: Collection[str] = (),
    mode: Literal["fast", "exact"] = "fast",
    other: "NotImported | None" = None,  # type: ignore[name-defined]  # noqa: F821
) -> float:
    assert not isinstance(other, str)
    return ratio + (count or 0) + len([*words]) + {"fast": 0.0, "exact": 1.0}[mode]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ratio": "2"}, "build.ratio: expected a number, got '2'"),
        ({"count": "2"}, "build.count: expected an integer or None, got '2'"),
        ({"count": [2]}, "build.count: expected an integer or None, got list"),
        ({"words": 7}, "build.words: expected a list, got 7"),
        ({"mode": []}, "build.mode: expected 'fast' or 'exact', got list"),
    ],
)
def test_the_message_says_what_was_expected(wrong, message):
    with pytest.raises(TypeError) as caught:
        build(**wrong)
    assert str(caught.value) == message
    assert caught.value.__cause__ is not None  # where it failed


def test_an_error_that_no_type_explains_is_left_alone():
    @worded
    def broken(ratio: float) -> float:
        return None + ratio  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        broken(2.0)
    assert build(True, 2, {"a", "b"}) == 5.0  # what works is not refused


def test_your_own_verifier_is_explained_too():
    class Long(CompletionVerifier):
        def __init__(self, most: int) -> None:
            self.most = most + 1

        def verify(self, batch):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"Long\.most: expected an integer, got '80'"):
        Long("80")


def test_a_class_beside_is_named_by_its_place():
    with pytest.raises(TypeError, match=r"different_weights\.beside\[0\]: .*write ScreensVerifier"):
        presets.different_weights(beside=[ScreensVerifier])


@pytest.mark.parametrize(
    ("model", "tokenizer", "sampling", "message"),
    [
        (object(), object(), SAMPLING, "tokenizer: expected the policy's tokenizer, got object"),
        (object(), "gpt2", SAMPLING, "got 'gpt2'; write AutoTokenizer.from_pretrained"),
        (object(), None, {"engine": "vllm"}, r"got dict; write SamplingSpec\(\*\*"),
    ],
)
def test_what_a_log_prob_guard_needs_is_named(model, tokenizer, sampling, message):
    with pytest.raises(TypeError, match=message):
        presets.same_weights(model, tokenizer, sampling)
