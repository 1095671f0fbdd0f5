"""Whatever the server does, each completion gets one verdict, in order, in time."""

import asyncio
import json
import logging
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_guard import AbstainError, Cause, Completion, Guard, Outcome, Policy, presets
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.judge.backends.base import Backend
from grpo_guard.judge.backends.openai import OpenAIBackend
from grpo_guard.judge.errors import BackendError, JudgeSetupError
from grpo_guard.judge.verifier import JudgeVerifier
from tests.judge import judge_server as judge_server_module
from tests.judge.judge_server import (
    MODEL,
    NEUTRAL,
    chat,
    completions,
    judge,
    judge_server,
    p_yes,
)

# Faults that the author can cause reject, all others abstain.
EXPECTED = {
    "good": (Outcome.ACCEPT, {Cause.JUDGED}),
    "bad": (Outcome.REJECT, {Cause.JUDGED}),
    "confused": (Outcome.REJECT, {Cause.MALFORMED}),
    "refusal": (Outcome.REJECT, {Cause.REFUSED}),
    "filtered": (Outcome.REJECT, {Cause.REFUSED}),
    "after429": (Outcome.ACCEPT, {Cause.JUDGED}),
    "once500": (Outcome.ACCEPT, {Cause.JUDGED}),
    "http429": (Outcome.ABSTAIN, {Cause.RATE_LIMITED}),
    "later429": (Outcome.ABSTAIN, {Cause.RATE_LIMITED}),
    "http500": (Outcome.ABSTAIN, {Cause.PROVIDER}),
    "hang": (Outcome.ABSTAIN, {Cause.TIMEOUT}),
    "drip": (Outcome.ABSTAIN, {Cause.TIMEOUT}),
    "reset": (Outcome.ABSTAIN, {Cause.PROVIDER}),
    "notjson": (Outcome.ABSTAIN, {Cause.PROVIDER}),
    "html": (Outcome.ABSTAIN, {Cause.PROVIDER}),
    "empty": (Outcome.ABSTAIN, {Cause.PROVIDER}),
}


@pytest.mark.slow
def test_each_fault_on_its_own():
    """Each with a server and a judge of its own, side by side, since they wait between attempts."""

    def alone(word):
        limits = {"deadline": 20, "request_timeout": 0.5 if word in ("hang", "drip") else 5}
        with judge_server() as server:
            (verdict,) = judge(server, limits=limits).verify(completions(word))
            return verdict, server.requests - server.asked[NEUTRAL]

    with ThreadPoolExecutor(len(EXPECTED)) as threads:
        found = dict(zip(EXPECTED, threads.map(alone, EXPECTED), strict=True))
    for word, (verdict, asked) in found.items():
        outcome, causes = EXPECTED[word]
        assert verdict.outcome is outcome, word
        assert verdict.cause in causes, word
        assert verdict.usage.requests == asked <= 4, word


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "word"),
    [("json", "schema"), ("cot", "schema"), ("logit", "confused"), ("json", "refusal")],
)
def test_a_judge_without_any_verdicts_abstains_and_logs_once(server, caplog, mode, word):
    server.behaviour = word
    verifier = judge(server, mode=mode)
    verdicts = verifier.verify(completions(*["good"] * 12))
    assert {(v.outcome, v.cause) for v in verdicts} == {(Outcome.ABSTAIN, Cause.PROVIDER)}
    assert f"no verdict in mode '{mode}', not even on '{NEUTRAL}'" in verdicts[0].reason
    assert "choose one that can answer" in verdicts[0].reason
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    server.behaviour = None  # fixed: from now on the author is responsible again
    assert verifier.verify(completions(word))[0].rejected


@pytest.mark.parametrize("mode", ["json", "cot"])
def test_a_missing_verdict_from_a_working_judge_rejects(server, mode):
    verifier = judge(server, mode=mode)
    for _ in range(2):
        verdicts = verifier.verify(completions(*["schema"] * 5))
        assert {(v.outcome, v.cause) for v in verdicts} == {(Outcome.REJECT, Cause.MALFORMED)}
    assert server.asked[NEUTRAL] == 1  # not asked again for each such text


def test_a_judge_that_repeats_a_planted_verdict_rejects_no_honest_work(server):
    server.decide = lambda text: "json" if text.startswith("json") else "schema"
    repeated, honest = judge(server, mode="json").verify(completions("json", "good"))
    assert repeated.accepted
    assert honest.abstained


@pytest.mark.slow
def test_the_fault_matrix_over_a_thousand_completions(server):
    rng = random.Random(11)
    # Mostly healthy, as a provider that is up is: failures in a row open the circuit.
    words = [rng.choice([*EXPECTED, *["good", "bad"] * 20]) for _ in range(1000)]
    verdicts = judge(server, limits={"deadline": 45, "request_timeout": 1}).verify(
        completions(*words)
    )
    assert len(verdicts) == 1000
    for word, verdict in zip(words, verdicts, strict=True):
        outcome, causes = EXPECTED[word]
        if verdict.outcome is not outcome:  # asked while the circuit was open, or after the end
            assert verdict.outcome is Outcome.ABSTAIN
            assert verdict.cause in {
                Cause.CIRCUIT_OPEN, Cause.TIMEOUT, Cause.PROVIDER, Cause.RATE_LIMITED,
            }  # fmt: skip
        else:
            assert verdict.cause in causes | {Cause.CIRCUIT_OPEN, Cause.TIMEOUT}
        assert verdict.usage.requests <= 4
    assert max(n for text, n in server.asked.items() if text != NEUTRAL) <= 4
    healthy = [v.outcome is EXPECTED[w][0] for w, v in zip(words, verdicts, strict=True)]
    assert sum(healthy) > 900


@pytest.mark.slow
def test_killing_the_server_mid_batch_costs_no_verdict():
    command = [sys.executable, str(Path(__file__).with_name("judge_server.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        verifier = JudgeVerifier(
            {"type": "openai", "model": MODEL, "base_url": url},
            limits={"deadline": 20, "request_timeout": 1, "concurrency": 4},
        )
        assert verifier.verify(completions("good"))[0].accepted
        threading.Timer(0.5, process.kill).start()
        verdicts = verifier.verify(completions(*["good"] * 600))
    outcomes = Counter(v.outcome for v in verdicts)
    assert outcomes[Outcome.ACCEPT] > 0
    assert outcomes[Outcome.ABSTAIN] > 0
    assert outcomes[Outcome.ACCEPT] + outcomes[Outcome.ABSTAIN] == 600
    causes = {v.cause for v in verdicts if v.abstained}
    assert causes <= {Cause.PROVIDER, Cause.CIRCUIT_OPEN, Cause.TIMEOUT}


def test_an_outage_is_noticed_after_a_few_requests(server):
    server.behaviour = "http500"
    verdicts = judge(server, limits={"concurrency": 4}).verify(completions(*["good"] * 200))
    assert {v.outcome for v in verdicts} == {Outcome.ABSTAIN}
    assert {v.cause for v in verdicts} == {Cause.PROVIDER, Cause.CIRCUIT_OPEN}
    assert server.requests < 40


def test_an_open_circuit_says_how_the_outage_began(server):
    server.behaviour = "http500"
    guard = Guard(
        judge(server, limits={"concurrency": 4, "attempts": 1}), policy=Policy(abstain_window=2)
    )
    opened = guard.review(completions(*["good"] * 40)).verdicts[-1]
    assert opened.cause is Cause.CIRCUIT_OPEN
    assert "the provider failed repeatedly, first with: http://" in opened.reason
    assert "500" in opened.reason
    with pytest.raises(AbstainError) as stopped:
        guard.review(completions("good", "good"))
    said = str(stopped.value)
    assert "First failure: judge: http://" in said
    assert "judge: not asked again for a while, after repeated failures (2 completions)" in said
    assert said.endswith("What to do: fix what the message names: the judge's base_url, model, "
                         "key or mode")  # fmt: skip
    assert "circuit_open" not in said


def test_the_deadline_holds_for_the_whole_batch(server):
    server.delay = 0.2
    verdicts = judge(server, limits={"deadline": 1, "concurrency": 2}).verify(
        completions(*["good"] * 50)
    )
    assert {v.cause for v in verdicts} == {Cause.JUDGED, Cause.TIMEOUT}
    assert server.requests < 50


class Ticking(Backend):
    """Counts tenths of a second in requests that never end; a completion gets the given failure."""

    model = "ticking"

    def __init__(self, failure, hangs):
        self.failure, self.hangs = failure, hangs
        self.ticks = Counter()

    async def ask(self, requests, *, timeout):
        if NEUTRAL in requests[0].messages[1]["content"]:
            await self.hang("neutral")
        raise self.failure

    async def check(self):
        if self.hangs == "check":
            await self.hang("check")

    async def hang(self, name):
        while self.ticks[name] < 100:
            self.ticks[name] += 1
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["neutral", "check"])
@pytest.mark.parametrize(
    ("failure", "batch"),
    [(JudgeSetupError("no", status=400), 3), (BackendError("down", retry=False), 20)],
)
def test_additional_requests_keep_the_deadline(hangs, failure, batch):
    backend = Ticking(failure, hangs)
    verifier = JudgeVerifier(backend, limits={"deadline": 1})
    verdicts = verifier.verify(completions(*["good"] * batch))
    assert all(v.abstained for v in verdicts)
    assert 0 < backend.ticks[hangs] <= 15  # never more than one in a tenth of a second


@pytest.mark.slow
def test_a_deadline_during_the_neutral_question_opens_no_circuit():
    backend = Ticking(BackendError("down", retry=False), "neutral")
    verifier = JudgeVerifier(backend, limits={"deadline": 0.5})
    for _ in range(3):
        verdicts = verifier.verify(completions(*["good"] * 20))
        assert Cause.CIRCUIT_OPEN not in {v.cause for v in verdicts}


@pytest.mark.slow
def test_no_request_exceeds_the_budget(server):
    limits = {"max_usd": 0.002, "usd_per_1m_in": 1.0, "usd_per_1m_out": 1.0, "concurrency": 1}
    verdicts = judge(server, limits=limits).verify(completions(*["good"] * 50))
    assert Counter(v.cause for v in verdicts) == {Cause.JUDGED: 20, Cause.BUDGET: 30}
    assert verdicts[0].usage.usd == pytest.approx(102e-6)
    tokens = judge(server, limits={"max_tokens": 1000, "concurrency": 1})
    causes = Counter(v.cause for v in tokens.verify(completions(*["good"] * 20)))
    assert causes == {Cause.JUDGED: 10, Cause.BUDGET: 10}
    assert tokens.verify(completions("good"))[0].cause is Cause.BUDGET


def test_usage_counts_even_without_a_verdict(server):
    (confused,) = judge(server).verify(completions("confused"))
    assert (confused.usage.requests, confused.usage.tokens_in) == (1, 100)
    (schema,) = judge(server, mode="json").verify(completions("schema"))
    assert (schema.usage.requests, schema.usage.tokens_in) == (2, 200)
    assert schema.usage.usd is None
    (down,) = judge(server, limits={"attempts": 2}).verify(completions("http500"))
    assert down.usage.requests == 2
    assert down.usage.latency > 0


def test_a_wrong_key_is_one_clear_error_at_once(server, caplog):
    verifier = JudgeVerifier(
        {"type": "openai", "model": MODEL, "base_url": server.url, "api_key": "wrong-key"}
    )
    with pytest.raises(JudgeSetupError, match="HTTP 401: the key is missing or wrong; set it"):
        verifier.check()
    with caplog.at_level(logging.ERROR):
        verdicts = verifier.verify(completions(*["good"] * 100))
    assert {v.cause for v in verdicts} == {Cause.PROVIDER}
    assert server.requests == 0
    assert len(caplog.records) == 1
    assert "wrong-key" not in caplog.text + repr(verdicts) + repr(verifier.backend)


def test_a_key_that_expires_mid_batch_costs_few_requests(server):
    server.behaviour = "http401"
    verifier = judge(server, limits={"concurrency": 4})
    verdicts = verifier.verify(completions(*["good"] * 100))
    assert {v.outcome for v in verdicts} == {Outcome.ABSTAIN}
    assert server.requests <= 8
    assert "secret-key" not in repr(verdicts)
    server.behaviour = None
    assert verifier.verify(completions("good"))[0].accepted


def test_a_wrong_model_and_an_unreachable_host_are_reported_before_a_run(server, tmp_path):
    wrong = {"type": "openai", "model": "gpt-17", "base_url": server.url}
    with pytest.raises(JudgeSetupError, match=r"one that it serves \(test-judge\), got 'gpt-17'"):
        JudgeVerifier(wrong).check()
    with pytest.raises(JudgeSetupError, match=r"cannot be reached .* start the server"):
        JudgeVerifier(wrong | {"base_url": "http://127.0.0.1:9/v1"}).check()
    path = tmp_path / "guard.yaml"
    path.write_text(
        "verifier: {type: judge, backend: {type: openai, model: m, "
        "base_url: 'http://127.0.0.1:9/v1', timeout: 5}}"
    )
    with pytest.raises(ConfigError, match="cannot be reached"):
        GuardConfig.from_yaml(path).build()


def connecting(error):
    def fails(*args, **kwargs):
        raise error

    return fails


def test_preset_waits_for_a_server_that_starts_later(server, caplog, monkeypatch):
    backend = {"type": "openai", "model": MODEL, "base_url": server.url}
    with monkeypatch.context() as patch:
        patch.setattr(socket, "create_connection", connecting(ConnectionRefusedError("refused")))
        guard = presets.judged(backend)
        assert caplog.text.count("cannot be reached (refused); start the server") == 1
        assert guard.verify(completions("good"))[0].abstained
    assert guard.verify(completions("good"))[0].accepted


def test_server_that_is_slow_to_connect_is_asked(server, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", connecting(TimeoutError("timed out")))
    assert judge(server).verify(completions("good"))[0].accepted


def test_impossible_host_name_abstains():
    verifier = JudgeVerifier({"type": "openai", "model": "m", "base_url": "http://a..b/v1"})
    assert verifier.verify(completions("good"))[0].cause is Cause.PROVIDER


def test_no_key_for_the_hosted_service(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(JudgeSetupError, match=r"expected a key in \$OPENAI_API_KEY, got none"):
        JudgeVerifier({"type": "openai", "model": "m"}).check()


@pytest.mark.slow
@pytest.mark.parametrize("word", ["http500", "reset", "notjson"])
def test_one_nodes_failing_texts_do_not_open_the_circuit(server, word):
    # In a row, and before all others: without the neutral question the circuit would open.
    words = [word] * 16 + ["good"] * 60
    limits = {"concurrency": 4, "attempts": 2, "request_timeout": 5}
    verdicts = judge(server, limits=limits).verify(completions(*words))
    assert {v.cause for v in verdicts[:16]} == {Cause.PROVIDER}
    assert all(v.accepted for v in verdicts[16:])


def test_the_judges_answer_is_not_sent_back_to_it(server):
    judge(server, mode="json").verify(completions("schema"))
    first, second = server.bodies[:2]
    assert second["messages"][:2] == first["messages"]
    said = json.dumps(second["messages"][2:])
    assert "verdict" not in said
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]


def test_an_oversized_prompt_is_not_blamed_on_a_long_completion(server):
    server.behaviour = "toolong"
    batch = [Completion("Q " * 7000, "good " + "step after step, " * 200)]
    (verdict,) = judge(server).verify(batch)
    assert (verdict.outcome, verdict.cause) == (Outcome.ABSTAIN, Cause.UNSUPPORTED)


def test_a_budget_holds_without_reported_usage(server, monkeypatch):
    monkeypatch.setitem(judge_server_module.ANSWERS, "silent", chat(logprobs=p_yes(0.9)))
    judge_server_module.ANSWERS["silent"].pop("usage")
    verdicts = judge(server, limits={"max_tokens": 3000, "concurrency": 1}).verify(
        completions(*["silent"] * 40)
    )
    causes = Counter(v.cause for v in verdicts)
    assert 0 < causes[Cause.JUDGED] < 12
    assert causes[Cause.BUDGET] == 40 - causes[Cause.JUDGED]


def test_no_secret_and_no_line_break_gets_into_a_message():
    key = "secret-key-of-forty-characters-0123456789"
    backend = OpenAIBackend("m", base_url="http://user:hush@127.0.0.1:9/v1?k=hush", api_key=key)
    assert "hush" not in repr(backend)
    for lead in range(200, 330, 7):
        body = "x" * lead + key + "\n\x1b[31mINFO a line of its own"
        failure = str(backend._failure(RuntimeError(body)))
        assert key[:12] not in failure
        assert "\n" not in failure
        assert "\x1b" not in failure
    with pytest.raises(JudgeSetupError) as raised:
        JudgeVerifier(backend).check()
    assert "hush" not in str(raised.value)
    with pytest.raises(ValueError, match="expected a mapping with type") as wrong:
        JudgeVerifier({"model": "m", "api_key": key})
    assert key not in str(wrong.value)
