"""How the client of a vLLM server handles a server that misbehaves."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.vllm import EngineUnavailableError, VLLMScorer
from tests.logprob.fake_top_list import positions_of

SPEC = SamplingSpec("vllm", 1.0, 5, 1.0)


def answer(prompt, vocab=60, length=8):
    logits = np.random.default_rng(len(prompt)).normal(size=(len(prompt), vocab))
    lists = positions_of(logits, prompt, length)
    raw = [None] + [
        {str(i): {"logprob": value, "rank": rank} for i, (value, rank) in p.items()}
        for p in lists[1:]
    ]
    choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": raw}
    return {"id": "x", "object": "text_completion", "created": 0, "model": "m",
            "choices": [choice | {"prompt_token_ids": prompt}]}  # fmt: skip


@contextmanager
def http_server(respond):
    """``respond(body, n)`` gives (status, JSON) for the n-th request, and headers if it likes."""
    seen = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.append((body, dict(self.headers)))
                n = len(seen)
            status, reply, *headers = respond(body, n)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            try:
                self.send_response(status)
                for header in headers:
                    self.send_header(*header)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the client is gone

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
    finally:
        server.shutdown()
        server.server_close()


def client(url, **options):
    options = {"vocab_size": 60, "n_logprobs": 8, "attempts": 2, "timeout": 20, **options}
    return VLLMScorer.server(url, "m", **options)


SEQUENCES = [Encoded((1, 2), (3, 4, 5)[:n], False) for n in (1, 2, 3)]


def test_request_contains_ids_and_no_other_secrets(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-else")
    with http_server(lambda body, n: (200, answer(body["prompt"]))) as (url, seen):
        stats = client(url).score(SEQUENCES, SPEC)
    assert [len(s) for s in stats] == [1, 2, 3]
    assert all(s.finite for s in stats)
    for body, headers in seen:
        assert all(isinstance(i, int) for i in body["prompt"])
        assert body["prompt_logprobs"] == 8
        assert body["max_tokens"] == 1
        assert "somebody-else" not in str(headers)


def test_neither_openai_nor_vllm_is_loaded_before_it_is_used():
    code = (
        "import sys, grpo_guard.logprob.scorers.vllm as v;"
        "scorer = v.VLLMScorer.server('http://localhost/v1', 'm', vocab_size=50);"
        "print(scorer.vocab_size, {'openai', 'vllm', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("50 set()\n", "", 0)


def test_scores_also_inside_a_running_event_loop():
    async def inside(url):
        return client(url).score(SEQUENCES, SPEC)

    with http_server(lambda body, n: (200, answer(body["prompt"]))) as (url, _):
        assert len(asyncio.run(inside(url))) == 3


def test_transient_errors_are_retried():
    def respond(body, n):
        return (503, {}) if n == 1 else (200, answer(body["prompt"]))

    with http_server(respond) as (url, seen):
        assert len(client(url).score(SEQUENCES, SPEC)) == 3
    assert len(seen) == 4


def test_server_does_not_decide_how_long_the_client_sleeps():
    def respond(body, n):
        return (503, {}, ("Retry-After", "50"), ("x-should-retry", "true"))

    begun = time.monotonic()
    with http_server(respond) as (url, seen), pytest.raises(EngineUnavailableError) as caught:
        client(url, attempts=3).score(SEQUENCES[:1], SPEC)
    assert caught.value.cause is Cause.PROVIDER
    assert len(seen) == 3
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("status", "cause", "requests"),
    [
        (429, Cause.RATE_LIMITED, 2),
        (500, Cause.PROVIDER, 2),
        (504, Cause.TIMEOUT, 2),
        (401, Cause.PROVIDER, 1),
        (404, Cause.PROVIDER, 1),
    ],
)
def test_engine_failures_have_a_cause(status, cause, requests):
    with (
        http_server(lambda body, n: (status, {"error": {"message": "no"}})) as (url, seen),
        pytest.raises(EngineUnavailableError) as caught,
    ):
        client(url, concurrency=1).score(SEQUENCES[:1], SPEC)
    assert caught.value.cause is cause
    assert caught.value.engine_wide is (cause is Cause.RATE_LIMITED)
    assert len(seen) == requests


def test_missing_server():
    with http_server(lambda body, n: (500, {})) as (url, _):
        pass
    with pytest.raises(EngineUnavailableError, match="no connection") as caught:
        client(url).score(SEQUENCES, SPEC)
    assert caught.value.cause is Cause.PROVIDER


def test_sleeping_server_is_cut_off_in_time():
    given_up = threading.Event()

    def respond(body, n):
        given_up.wait(60)  # answers only after the client has given up
        return 200, answer(body["prompt"])

    with http_server(respond) as (url, _):
        try:
            with pytest.raises(EngineUnavailableError) as caught:
                client(url, timeout=0.5, attempts=5).score(SEQUENCES, SPEC)
        finally:
            given_up.set()
    assert caught.value.cause is Cause.TIMEOUT
    assert caught.value.engine_wide


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["sleeps", "504"])
def test_sequence_that_hangs_the_server_abstains_alone(hangs):
    """Otherwise one crafted completion would make all others abstain."""
    gate = threading.Event()

    def respond(body, n):
        if body["prompt"] == [1, 2, 3]:
            if hangs == "504":
                return 504, {}
            gate.wait(20)
        return 200, answer(body["prompt"])

    with http_server(respond) as (url, _):
        with pytest.raises(EngineUnavailableError) as caught:
            client(url, timeout=2.0, attempts=1).score(SEQUENCES, SPEC)
        gate.set()
    assert caught.value.cause is Cause.TIMEOUT
    assert not caught.value.engine_wide


@pytest.mark.slow
def test_server_that_refuses_until_the_deadline_is_not_a_timeout():
    with (
        http_server(lambda body, n: (429, {})) as (url, _),
        pytest.raises(EngineUnavailableError) as caught,
    ):
        client(url, timeout=1.5, attempts=1000).score(SEQUENCES[:1], SPEC)
    assert caught.value.cause is Cause.RATE_LIMITED


def test_sequence_refused_by_the_server():
    with (
        http_server(lambda body, n: (400, {"error": {"message": "too long"}})) as (url, seen),
        pytest.raises(ValueError, match="too long"),
    ):
        client(url).score(SEQUENCES[:1], SPEC)
    assert len(seen) == 1


def mangled(change):
    def respond(body, n):
        reply = answer(body["prompt"])
        return 200, change(reply) or reply

    return respond


@pytest.mark.parametrize(
    "change",
    [
        lambda r: b"<html>",
        lambda r: {"choices": []},
        lambda r: r["choices"][0].pop("prompt_logprobs") and None,
        lambda r: r["choices"][0]["prompt_logprobs"].pop() and None,
        lambda r: r["choices"][0].update(prompt_token_ids=[9, 9, 9]),
        lambda r: r["choices"][0]["prompt_logprobs"].__setitem__(2, {"3": {"logprob": -1}}),
        lambda r: r["choices"][0]["prompt_logprobs"].__setitem__(2, None),
    ],
)
def test_answer_of_the_wrong_shape(change):
    with (
        http_server(mangled(change)) as (url, _),
        pytest.raises(EngineUnavailableError) as caught,
    ):
        client(url).score(SEQUENCES[:1], SPEC)
    assert caught.value.cause is Cause.PROVIDER


def test_json_has_no_infinity():
    def change(reply):
        entry = reply["choices"][0]["prompt_logprobs"][2]["3"]
        reply["choices"][0]["prompt_logprobs"][2] |= {"3": entry | {"logprob": -9999.0}}

    with http_server(mangled(change)) as (url, _):
        (stats,) = client(url).score(SEQUENCES[:1], SPEC)
    assert stats.logprob[0] == -np.inf


def test_requests_in_flight_are_bounded():
    now = most = 0
    lock = threading.Lock()

    def respond(body, n):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return 200, answer(body["prompt"])

    with http_server(respond) as (url, _):
        client(url, concurrency=3).score(SEQUENCES * 5, SPEC)
    assert most == 3
