"""What a provider refuses: one text rejects, everything abstains."""

import threading

import pytest

from grpo_guard import Cause, Outcome
from grpo_guard.judge.modes import LogitMode
from tests.judge import judge_server as judge_server_module
from tests.judge.judge_server import NEUTRAL, completions, judge


@pytest.mark.slow
@pytest.mark.parametrize("word", ["http400", "http403"])
def test_only_the_completion_that_the_provider_refuses_is_rejected(server, word):
    words = ["good", word, "bad", "good"] * 10
    verdicts = judge(server, limits={"concurrency": 2}).verify(completions(*words))
    for word, verdict in zip(words, verdicts, strict=True):
        assert verdict.outcome is (Outcome.ACCEPT if word == "good" else Outcome.REJECT)
    assert {verdicts[i].cause for i in range(1, 40, 4)} == {Cause.REFUSED}
    assert server.requests - server.asked[NEUTRAL] == 40
    assert 0 < server.asked[NEUTRAL] <= 11


def test_an_outage_that_looks_like_a_refusal_rejects_no_honest_work(server):
    # A firewall that begins to refuse everything, right after it refused a single text.
    verifier = judge(server, limits={"concurrency": 1})
    assert verifier.verify(completions("http403"))[0].cause is Cause.REFUSED
    server.behaviour = "http403"
    assert {v.outcome for v in verifier.verify(completions(*["good"] * 5))} == {Outcome.ABSTAIN}
    server.behaviour = None
    assert verifier.verify(completions("good"))[0].accepted


def test_an_unexplained_refusal_abstains_alone(server, monkeypatch):
    def refuses(handler, nth):
        server.behaviour = "http500"  # for the neutral question
        handler.send(400, {"error": {"message": "no"}})
        threading.Timer(0.5, lambda: setattr(server, "behaviour", None)).start()

    monkeypatch.setattr(judge_server_module._Handler, "refuses", refuses, raising=False)
    refused, good = judge(server, limits={"concurrency": 1}).verify(completions("refuses", "good"))
    assert refused.cause is Cause.PROVIDER
    assert good.accepted


def test_a_mode_that_cannot_read_an_answer_fails_only_there(server):
    class Odd(LogitMode):
        def read(self, reply, text):
            return super().read(reply, text) if "0" in text else 1 / 0

    verdicts = judge(server, mode=Odd()).verify(completions("good", "good"))
    assert [v.cause for v in verdicts] == [Cause.JUDGED, Cause.FAULT]
    assert server.requests == 2


def test_a_provider_that_refuses_everything_is_a_setup_error(server):
    server.behaviour = "http400"
    verdicts = judge(server, limits={"concurrency": 2}).verify(completions(*["good"] * 50))
    assert {(v.outcome, v.cause) for v in verdicts} == {(Outcome.ABSTAIN, Cause.PROVIDER)}
    assert "choose another mode" in verdicts[0].reason
    assert server.requests < 8
