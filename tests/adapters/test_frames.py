"""Stack depth between a trainer's call of a reward function and the first verifier."""

import inspect
import sys
import threading

import pytest

from grpo_guard import AllOf, Cascade, CompletionVerifier, Guard
from grpo_guard.core.verdict import accept
from tests.helpers.rule_verifiers import NoWord


class Looking(CompletionVerifier):
    """Records the grpo_guard functions between the trainer's call and this verifier."""

    name = "looking"

    def __init__(self):
        self.caller = threading.get_ident()
        self.passed = []

    def verify(self, batch):
        frames = [info.frame for info in inspect.stack()[1:]]
        if threading.get_ident() != self.caller:
            frame = sys._current_frames()[self.caller]  # the caller waits for this thread
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
        self.passed = [
            (frame.f_globals["__name__"], frame.f_code.co_qualname)
            for frame in frames
            if frame.f_globals["__name__"].startswith("grpo_guard.")
            and frame.f_code.co_name != "<listcomp>"  # none since Python 3.12
        ]
        return [accept(self.name)] * len(batch)


def ones(completions, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.parametrize("stack", [lambda v: v, lambda v: AllOf(v, NoWord())])
def test_trl_call_reaches_the_guard_in_three_frames(stack):
    verifier = Looking()
    Guard(stack(verifier))(ones)(prompts=["p"], completions=["a"], completion_ids=[[1]])
    before = verifier.passed[verifier.passed.index((Guard.__module__, "Guard.review")) + 1 :]
    assert len(before) <= 3, before


@pytest.mark.parametrize(
    ("stack", "most"),
    [
        (lambda v: v, 8),
        # Two frames for the ensemble, since a single batch takes the path of several that are
        # judged together, and two for supervising its member.
        (lambda v: AllOf(v, NoWord()), 12),
        (lambda v: Cascade(v, NoWord()), 12),
    ],
)
def test_trl_call_reaches_a_verifier_in_few_frames(stack, most):
    verifier = Looking()
    Guard(stack(verifier))(ones)(prompts=["p"], completions=["a"], completion_ids=[[1]])
    assert len(verifier.passed) <= most, verifier.passed
