"""The real math-verify, which limits its own time with signal alarms, under
`presets.failures_only`.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

math_verify = pytest.importorskip("math_verify", reason="needs math-verify")

from grpo_guard import presets  # noqa: E402
from grpo_guard.adapters.slime import SlimeAdapter  # noqa: E402
from grpo_guard.guard.graders import FAILED, GraderFailures  # noqa: E402

# Pairs that math-verify compares with its alarms on, and whether they are equal.
PAIRS = [
    (r"$\frac{1}{2}$", r"$0.5$", 1.0),
    (r"$\frac{1}{2}$", r"\boxed{\frac{2}{4}}", 1.0),
    (r"$(x+1)^2$", r"$x^2+2x+1$", 1.0),
    (r"$\{1,2,3\}$", r"$\{3,2,1\}$", 1.0),
    (r"$7$", r"$8$", 0.0),
    (r"$\sqrt{2}$", r"I do not know.", 0.0),
]


def right(gold, answer):
    return float(math_verify.verify(math_verify.parse(gold), math_verify.parse(answer)))


def graded(count):
    """Grade all answers from 16 threads, none of which is the main thread."""
    failures = GraderFailures(timeout=60)
    pairs = [PAIRS[i % len(PAIRS)] for i in range(count)]
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(failures.ask, "right", right, *pair[:2]) for pair in pairs]
        return [answer.result() for answer in asked], [pair[2] for pair in pairs]


def test_grades_off_the_main_thread():
    found, expected = graded(60)
    assert found == expected


@pytest.mark.slow
def test_grades_a_thousand_out_of_a_thousand():
    """The figure in docs/failures.md."""
    found, expected = graded(1000)
    assert found == expected


def test_fails_in_a_plain_thread():
    """Why worker processes are needed. If a later release passes, they no longer are."""
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(GraderFailures().ask, "right", right, *PAIRS[0][:2])
        assert asked.result() is FAILED


def test_grader_timeout_is_a_wrong_answer_and_guard_timeout_is_a_failure():
    """math-verify returns False when its alarm fires, unless it is asked to raise."""

    def slow(gold, raises=False):
        from math_verify import grader

        def never(*args, **kwargs):
            time.sleep(300)

        grader.sympy_expr_eq, kept = never, grader.sympy_expr_eq
        try:
            parsed = math_verify.parse(gold)[:1]  # the message does not quote the text
            return float(
                math_verify.verify(parsed, parsed, timeout_seconds=1, raise_on_error=raises)
            )
        finally:
            grader.sympy_expr_eq = kept

    failures = GraderFailures(timeout=60)
    assert failures.ask("slow", slow, "$x+1$") == 0.0
    assert failures.ask("slow", slow, "$x+1$", raises=True) is FAILED
    assert GraderFailures().ask("slow", slow, "$x+1$", raises=True) is FAILED
    assert GraderFailures(timeout=0.5).ask("slow", slow, "$x+1$") is FAILED


@pytest.mark.slow
def test_per_completion_adapters_grade_in_any_thread():
    def rm(args, sample):
        return right(sample.label, sample.response)

    guarded = SlimeAdapter(leave_out=True).wrap(rm, presets.failures_only(timeout=60))
    from tests.slime.test_slime_contract import Sample, arguments

    samples = [Sample(response=answer, label=gold) for gold, answer, _ in PAIRS]
    args = arguments()
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda sample: guarded(args, sample), samples))
    assert found == [reward for _, _, reward in PAIRS]
