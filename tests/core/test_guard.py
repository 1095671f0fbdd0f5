import asyncio
import math
import pickle
from dataclasses import replace

import pytest

from grpo_guard import AbstainError, AllOf, Completion, Guard, Policy
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.core.ensemble import only
from grpo_guard.core.verdict import Cause, Usage, abstain, reject
from tests.core.rule_verifiers_core import Says, completions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), [1.0, None, None]),
        (Policy(on_reject="zero"), [1.0, 0.0, None]),
        (Policy(on_reject=("no_gain", "zero")), [1.0, None, None]),
        (Policy(on_reject="drop"), [1.0, None, None]),
        (Policy(on_reject=-0.5), [1.0, -0.5, None]),
        (Policy(on_reject=-1), [1.0, -1.0, None]),
        (Policy("zero", "zero"), [1.0, 0.0, 0.0]),
        (Policy("zero", "pass"), [1.0, 0.0, 3.0]),
    ],
)
def test_policies_change_rewards(policy, expected):
    guard = Guard(Says(), policy=policy)
    assert guard.apply([1.0, 2.0, 3.0], completions("a", "r", "?")) == expected


def test_raise_policy_raises():
    guard = Guard(Says(), policy=Policy("zero", "raise"))
    assert guard.apply([1.0, 2.0], completions("a", "r")) == [1.0, 0.0]
    with pytest.raises(AbstainError, match=r"says abstained \(provider\): no answer"):
        guard.apply([1.0, 2.0], completions("a", "?"))


def test_accepted_rewards_and_none_are_unchanged():
    nan = float("nan")
    rewards = Guard(Says(), policy=Policy("zero")).apply(
        [nan, None, None, nan], completions("a", "a", "r", "r")
    )
    assert rewards[0] is nan
    assert rewards[1:] == [None, None, 0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_vetoed_infinite_reward_becomes_finite(bad):
    assert Guard(Says(), policy=Policy("zero")).apply(
        [1.0, bad, 0.5], completions("a", "r", "a")
    ) == [1.0, 0.0, 0.5]


def test_each_completion_needs_a_reward():
    with pytest.raises(ValueError, match="rewards: expected 2, one per completion, got 1"):
        Guard(Says()).apply([1.0], completions("a", "r"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("on_reject", "discard"),
        ("on_reject", math.nan),
        ("on_reject", math.inf),
        ("on_reject", True),
        ("on_abstain", "drop"),
        ("max_abstain_rate", 1.5),
        ("max_abstain_rate", math.nan),
        ("abstain_window", 0),
        ("on_long", "cut"),
        ("abstain_window", 2.0),
    ],
)
def test_invalid_policies_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"Policy\.{field}: expected .*, got "):
        Policy(**{field: value})


def test_too_many_abstentions_stop_the_run_once_the_window_is_full():
    guard = Guard(Says(), policy=Policy(max_abstain_rate=0.25, abstain_window=3))
    for _ in range(2):
        guard.review(completions("a", "?"))  # half abstained in fewer than three batches
    said = (
        r"the guard abstained on 3 of 6 completions that it did not reject in the last 3 batches; "
        r"Policy\(max_abstain_rate=0.25\) allows no more than 25%. First failure: says: .+\. In "
        r"the last batch: says: the provider failed \(1 completion\)\. What to do: fix what the "
        "message names"
    )
    with pytest.raises(AbstainError, match=said):
        guard.review(completions("a", "?"))


def test_window_slides_and_its_limit_is_inclusive():
    guard = Guard(Says(), policy=Policy(max_abstain_rate=0.5, abstain_window=2))
    guard.review(completions("?", "?"))
    guard.review(completions("a", "a"))  # 2 of 4 is not more than half
    guard.review(completions("a", "?"))  # the first batch has left the window
    with pytest.raises(AbstainError):
        guard.review(completions("?", "?"))


def test_empty_batches_are_not_counted():
    guard = Guard(Says(), policy=Policy(max_abstain_rate=0.0, abstain_window=1))
    review = guard.review([])
    assert (review.verdicts, review.metrics) == ([], {})
    with pytest.raises(AbstainError):
        guard.review(completions("?"))


def test_given_verdicts_skip_the_verifier_and_count():
    class Recording(Says):
        def verify(self, batch):
            asked.append([c.text for c in batch])
            return super().verify(batch)

    asked, book = [], Notebook()
    guard = Guard(Recording(), policy=Policy(on_reject="drop"), ledger=book)
    batch, bad = completions("a", "a", "r"), reject("mine", Cause.MALFORMED, "no text")
    review = guard.review(batch, [None, bad, None])
    assert asked == [["a", "r"]]
    assert [v.outcome.value for v in review.verdicts] == ["accept", "reject", "reject"]
    assert review.verdicts[1] is bad
    assert book.entries == [(["a", "a", "r"], ["accept", "reject", "reject"])]
    assert review.metrics["guard/reject_rate"] == pytest.approx(2 / 3)
    assert guard.apply([1.0, 1.0, 1.0], batch, [None, bad, None]) == [1.0, None, None]
    assert asyncio.run(guard.areview(batch, [bad] * 3)).verdicts == [bad] * 3
    assert asked == [["a", "r"]] * 2


def test_given_abstentions_count_against_the_window():
    unread = abstain("mine", Cause.UNSUPPORTED, "several turns")
    guard = Guard(Says(), policy=Policy(max_abstain_rate=0.25, abstain_window=1))
    with pytest.raises(AbstainError, match="First failure: mine: several turns"):
        guard.review(completions("a", "a"), [None, unread])


def test_given_rejections_do_not_affect_length_scaling():
    guard = Guard(Says(), policy=Policy(on_long="scale"))
    batch = [Completion("p", "a" + " word" * n) for n in (20, 20, 20, 20)]
    review = guard.review(batch, [reject("mine")] * 3 + [None])
    assert review.length_factors == [1.0] * 4


def test_given_needs_one_verdict_or_none_per_completion():
    with pytest.raises(ValueError, match="given: expected 2, one per completion, got 1"):
        Guard(Says()).review(completions("a", "a"), [None])
    with pytest.raises(TypeError, match="given: expected a Verdict or None, got 'reject'"):
        Guard(Says()).review(completions("a"), ["reject"])


def test_metrics_are_rates_over_the_batch():
    verifier = AllOf(Says("first", at=0), Says("second", at=1))
    metrics = Guard(verifier).review(completions("aa", "ra", "rr", "a?")).metrics
    assert metrics.pop("guard/seconds") >= 0
    assert metrics.pop("guard/wait_seconds") > 0
    assert metrics == {
        "guard/accept_rate": 0.25,
        "guard/reject_rate": 0.5,
        "guard/abstain_rate": 0.25,
        "guard/abstain_rate/provider": 0.25,
        "guard/reject_rate/first": 0.5,
        "guard/reject_rate/second": 0.25,
        "guard/not_applicable_rate/first": 0.0,
        "guard/not_applicable_rate/second": 0.0,
    }


def test_rates_of_zero_are_reported():
    metrics = Guard(Says()).review(completions("a")).metrics
    assert metrics["guard/reject_rate"] == metrics["guard/reject_rate/says"] == 0.0


class Notebook:
    """A ledger that keeps its calls."""

    def __init__(self):
        self.entries = []

    def record(self, batch, verdicts):
        self.entries.append(([c.text for c in batch], [v.outcome.value for v in verdicts]))


def test_ledger_records_every_batch_once_in_order():
    ledger = Notebook()
    guard = Guard(Says(), ledger=ledger)
    guard.review(completions("a", "r"))
    guard.apply([1.0], completions("?"))
    assert ledger.entries == [(["a", "r"], ["accept", "reject"]), (["?"], ["abstain"])]


def test_ledger_records_the_batch_that_stops_the_run():
    ledger = Notebook()
    guard = Guard(Says(), policy=Policy(max_abstain_rate=0, abstain_window=1), ledger=ledger)
    with pytest.raises(AbstainError):
        guard.review(completions("?"))
    assert len(ledger.entries) == 1


def test_areview_matches_review():
    review = asyncio.run(Guard(Says()).areview(completions("a", "r")))
    assert [v.outcome.value for v in review.verdicts] == ["accept", "reject"]


def test_guard_can_be_pickled():
    guard = Guard(Says(), policy=Policy(on_reject="drop", abstain_window=1, max_abstain_rate=0))
    copy = pickle.loads(pickle.dumps(guard))
    assert copy.apply([1.0, 1.0], completions("a", "r")) == [1.0, None]
    with pytest.raises(AbstainError):
        copy.review(completions("?"))


def test_guard_needs_a_verifier():
    with pytest.raises(TypeError, match=r"Guard\.verifier: expected a CompletionVerifier, got"):
        Guard(lambda batch: [])


def test_zero_never_raises_a_penalty():
    guard = Guard(Says(), policy=Policy("zero", "zero"))
    assert guard.apply([-1.0, -1.0, -1.0, 2.0], completions("a", "r", "?", "r")) == [
        -1.0,
        -1.0,
        -1.0,
        -1.0,  # 0 would be worth more than an honest wrong answer
    ]


def long_and_short(*words):
    return [Completion("Q", "word " * n, node=f"n{i % 4}") for i, n in enumerate(words)]


def test_length_is_scaled_if_the_policy_says_so():
    batch = long_and_short(40, 41, 42, 40, 39, 41, 40, 160)
    accepts = Guard(
        only(Says(), when=lambda c: True),
        policy=Policy(on_long="scale"),
        length_scaling=LengthScaling(tolerance=0.5),
    )
    rewards = accepts.apply([1.0] * 6 + [-1.0, 1.0], batch)
    assert rewards[0] == 1.0
    assert rewards[6] == -1.0  # a penalty does not shrink with length
    assert rewards[7] is None  # its factor is 0: left out, so that it is not unlearnt
    assert accepts.with_policy(Policy("zero", on_long="scale")).apply([1.0] * 8, batch)[7] == 0
    assert Guard(Says()).apply([1.0] * 8, batch) == [1.0] * 8
    review = accepts.review(batch)
    assert review.length_factors[7] < 0.1
    assert review.metrics["guard/length_factor"] == pytest.approx(7 / 8)
    assert review.metrics["guard/length_dropped"] == 1
    assert "guard/length_factor" not in Guard(Says()).review(batch).metrics


def test_rejected_short_answers_do_not_make_others_long():
    honest = long_and_short(40, 41, 42, 40, 39, 41)
    refuse = [Completion("Q", "r " * 3, node=f"m{i}") for i in range(12)]
    scaling = LengthScaling(tolerance=0.5)
    guard = Guard(Says(), policy=Policy("zero", on_long="scale"), length_scaling=scaling)
    alone = guard.apply([1.0] * 6, honest)
    assert guard.apply([1.0] * 18, honest + refuse) == alone + [0.0] * 12


def test_scaling_can_be_tuned_and_keeps_none_and_nan():
    batch = long_and_short(40, 41, 42, 40, 39, 160, 160, 160)
    gentle = Guard(
        Says(), policy=Policy(on_long="scale"), length_scaling=LengthScaling(strength=0.0)
    )
    rewards = gentle.apply([None, math.nan, *[1.0] * 6], batch)
    assert rewards[0] is None
    assert math.isnan(rewards[1])
    assert rewards[2:] == [1.0] * 6


def test_metrics_include_usage():
    class Asks(Says):
        def verify(self, batch):
            usd = None if self.name == "free" else 0.5
            usages = [
                Usage(requests=i % 2, cache_hits=1 - i % 2, tokens_in=10, usd=usd, latency=float(i))
                for i in range(len(batch))
            ]
            return [replace(v, usage=u) for v, u in zip(super().verify(batch), usages, strict=True)]

    found = Guard(AllOf(Asks("paid"), Asks("free"))).review(completions(*"aaaa")).metrics
    assert found["guard/paid/requests"] == found["guard/paid/cache_hits"] == 2
    assert found["guard/paid/tokens"] == 40
    assert found["guard/paid/usd"] == 1.0
    assert (found["guard/paid/latency_p50"], found["guard/paid/latency_p95"]) == (1.0, 1.0)
    assert "guard/free/usd" not in found  # unknown is different from 0


def test_abstain_error_names_the_member():
    stack = AllOf(Says("quiet", at=0), Says("loud", at=1))
    guard = Guard(stack, policy=Policy(max_abstain_rate=0.1, abstain_window=1))
    with pytest.raises(AbstainError, match=r"loud: the provider failed \(2 comp"):
        guard.review(completions("a?", "a?"))


@pytest.mark.parametrize(
    ("texts", "rewards", "expected"),
    [
        ("r", [1.0], [None]),
        ("rr", [1.0, 1.0], [None, None]),
        ("ar", [1.0, 1.0], [1.0, 1.0]),
        ("aar", [1.0, 0.0, 0.5], [1.0, 0.0, 0.5]),
        ("aar", [1.0, 0.0, 1.0], [1.0, 0.0, None]),
        ("?r", [1.0, 0.0], [None, None]),
    ],
)
def test_no_gain_removes_a_group_in_which_nothing_is_accepted(texts, rewards, expected):
    guard = Guard(Says(), policy=Policy(on_reject="no_gain"))
    assert guard.apply(rewards, completions(*texts)) == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lgo", "x", "guard: expected one of .*got 'lgo'; did you mean 'log'?"),
        ("polciy", Policy(), "got 'polciy'; did you mean 'policy'?"),
        ("policy", "drop", r"expected a Policy, got 'drop'; write Policy\(on_reject='drop'\)"),
        ("policy", None, "guard.policy: expected a Policy, got None"),
        ("verifier", "screens", "guard.verifier: expected a CompletionVerifier, got 'screens'"),
        ("ledger", "run.sqlite", r"Guard.ledger: expected None or EvidenceLedger\(PATH\), got"),
        ("failures", 3, "Guard.failures: expected None or GraderFailures"),
    ],
)
def test_wrong_attribute_is_refused_when_it_is_set(name, value, said):
    made = Guard(Says())
    with pytest.raises((AttributeError, TypeError), match=said):
        setattr(made, name, value)
    assert made.policy == Policy()


def test_a_subclass_of_guard_may_have_attributes_of_its_own():
    class Counting(Guard):
        pass

    made = Counting(Says())
    made.count = 3
    assert made.count == 3
