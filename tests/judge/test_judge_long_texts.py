"""Completions that are too long for the judge: shortened, or rejected as overlong."""

from grpo_guard import Cause, Completion, Outcome
from tests.judge.judge_server import judge


def test_a_text_too_long_for_the_context_is_shortened(server):
    server.behaviour = "toolong"
    long = Completion("Q", "good " + "step after step, " * 1000)
    (verdict,) = judge(server).verify([long])
    assert (verdict.outcome, verdict.cause) == (Outcome.REJECT, Cause.OVERLONG)
    assert verdict.usage.requests == 4
    sizes = [len(body["messages"][1]["content"]) for body in server.bodies]
    assert sizes == sorted(sizes, reverse=True)
    # A prompt that does not fit is not the author's doing.
    (short,) = judge(server).verify([Completion("Q " * 5000, "good")])
    assert (short.outcome, short.cause) == (Outcome.ABSTAIN, Cause.UNSUPPORTED)


def test_a_completion_that_could_be_cut_further_does_not_abstain(server):
    server.behaviour = "toolong"
    long = Completion("Q " * 3000, "good " + "step after step, " * 900)
    for attempts in (2, 4, 8):
        (verdict,) = judge(server, limits={"attempts": attempts}).verify([long])
        # After all attempts, not even the shortest excerpt fitted together with this prompt.
        expected = Cause.OVERLONG if attempts < 6 else Cause.UNSUPPORTED
        assert verdict.cause is expected


def test_head_and_tail_of_a_long_completion_are_judged_with_a_note(server):
    text = "good head " + "x " * 3000 + "the tail"
    (verdict,) = judge(server, window={"shown": 1000, "limit": 100_000}).verify(
        [Completion("Q", text)]
    )
    assert verdict.accepted
    assert verdict.findings[-1].kind == "not_all_shown"
    sent = server.bodies[0]["messages"][1]["content"]
    assert "good head" in sent
    assert "the tail" in sent
    assert "characters left out" in sent
    (overlong,) = judge(server, window={"shown": 1000, "limit": 5000}).verify(
        [Completion("Q", text)]
    )
    assert (overlong.outcome, overlong.cause) == (Outcome.REJECT, Cause.OVERLONG)
    assert server.requests == 1
