"""What a request may cost, and who may send one. Each test is an attack on the server."""

import base64
import gzip
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import anyio
import pytest

from grpo_guard.server.access import is_loopback
from tests.server.server_parts import Words, asking, client, rewards_of, strict, verdicts_of


def test_large_bodies_are_refused_whatever_length_they_declare():
    verifier = Words()
    web = client(verifier, body_bytes=1000)

    def drip():
        for _ in range(200):
            yield b" " * 10

    for body, headers in (
        (b" " * 1001, {}),
        (drip(), {"content-length": "2000"}),
        (drip(), {"content-length": "10"}),  # it need not be true
        (b"{}", {"content-length": "9" * 400}),
    ):
        answer = web.post("/v1/verify", content=body, headers=headers)
        assert "at most 1000 bytes" in strict(answer, 413)["error"]
    assert len(verdicts_of(web, "fine")) == 1
    assert len(verifier.shown) == 1


def test_short_body_cannot_request_unlimited_judgements():
    verifier = Words()
    web = client(verifier, completions=3)
    row = {"prompt": "", "text": ""}
    answer = strict(web.post("/v1/verify", json={"completions": [row] * 4}), 413)
    assert "at most 3" in answer["error"]
    strict(web.post("/get_reward", json={"query": [""] * 4}), 413)
    assert verifier.shown == []
    assert len(verdicts_of(web, *"abc")) == 3


@pytest.mark.slow
def test_late_judgement_abstains_and_earns_nothing():
    verifier = Words()
    with client(verifier, seconds=0.5, running=2) as web:
        verdicts = verdicts_of(web, "wait", "fine")
        assert [(v["index"], v["outcome"], v["cause"]) for v in verdicts] == [
            (0, "abstain", "timeout"),
            (1, "abstain", "timeout"),
        ]
        answer = rewards_of(web, "wait", "fine")
        assert answer["rewards"] == [0.0, 0.0]
        assert answer["extra_logs"]["guard_abstain"] == [1.0, 1.0]
        # Both threads still work: turns belong to them, whichever client was answered meanwhile.
        refused = web.post("/v1/verify", json={"completions": []})
        assert strict(refused, 503) == {"error": "no turn came up in time"}
        assert refused.headers["retry-after"] == "1"
        verifier.go.set()
        assert _soon(lambda: web.post("/v1/verify", json={"completions": []}).status_code == 200)


def test_late_judgement_is_no_gain_if_wrong_answers_get_less():
    verifier = Words()

    def grade(queries, prompts, labels):
        return {"rewards": [-1.0] * len(queries), "scores": [0.0] * len(queries)}

    with client(verifier, grade, seconds=0.5) as web:
        assert rewards_of(web, "wrong")["rewards"] == [-1.0]
        late = rewards_of(web, "wait")
        assert (late["rewards"], late["scores"]) == ([-1.0], [0.0])
        verifier.go.set()


def test_late_answers_log_the_usual_names_or_ask_for_a_retry():
    """OpenRLHF stops if samples log different names; a model may still be loading at first."""

    def grade(queries, prompts, labels):
        return {"rewards": [1.0] * len(queries), "extra_logs": {"length": 3.0}}

    verifier = Words()
    with client(verifier, grade, seconds=0.5, running=4) as web:
        asked = {"query": ["wait"], "prompts": [""], "labels": [""]}
        refused = web.post("/get_reward", json=asked)
        assert "no earlier answer" in strict(refused, 503)["error"]
        assert refused.headers["retry-after"] == "1"
        assert strict(web.post("/get_reward", json={"query": []}))["rewards"] == []
        names = rewards_of(web, "fine")["extra_logs"].keys()
        late = rewards_of(web, "wait")
        assert late["extra_logs"].keys() == names
        assert late["rewards"] == [0.0]
        verifier.go.set()


def test_requests_beyond_the_queue_are_asked_to_retry():
    verifier = Words()
    with client(verifier, running=1, waiting=1) as web, ThreadPoolExecutor(3) as pool:
        asked = {"completions": [{"prompt": "", "text": "wait"}]}
        first = pool.submit(web.post, "/v1/verify", json=asked)
        assert verifier.started.wait(30)
        later = [pool.submit(web.post, "/v1/verify", json=asked) for _ in range(2)]
        refused = next(as_completed(later, 30)).result()  # one may wait, the other may not
        assert strict(refused, 429) == {"error": "too many requests are waiting"}
        assert refused.headers["retry-after"] == "1"
        strict(web.post("/v1/verify/stream", json=asked), 429)
        assert web.get("/health").json() == {"status": "ok"}  # the event loop is free
        verifier.go.set()
        statuses = sorted(future.result(30).status_code for future in (first, *later))
        assert statuses == [200, 200, 429]
        assert len(verdicts_of(web, "fine")) == 1


def _soon(condition):
    for _ in range(300):
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
        ("Basic " + base64.b64encode(b"any:s3cret").decode(), 200),
        ("Basic " + base64.b64encode(b"s3cret").decode(), 401),
        ("Basic \xff", 401),
        ("Bearer s3cre", 401),
        ("Bearer", 401),
        ("s3cret", 401),
        ("Digest s3cret", 401),
        (None, 401),
    ],
)
def test_token_is_required_except_for_health(authorization, status):
    web = client(token="s3cret")
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    for path, body in (("/v1/verify", {"completions": []}), ("/get_reward", {"query": []})):
        answer = web.post(path, json=body, headers=headers)
        assert answer.status_code == status
    assert web.get("/health").status_code == 200


def test_requests_of_web_pages_are_refused():
    verifier = Words()
    for origin in ("https://evil.example", "null", "http://127.0.0.1:8080"):
        answer = client(verifier).post(
            "/v1/verify", content='{"completions": [{"prompt": "", "text": ""}]}',
            headers={"origin": origin, "content-type": "text/plain"},
        )  # fmt: skip
        assert strict(answer, 403) == {"error": "requests from web pages are not answered"}
    assert verifier.shown == []


def test_other_paths_and_methods_are_refused():
    web = client()
    assert strict(web.get("/v1/verify"), 405) == {
        "error": "Method Not Allowed: expected POST; verdicts: POST /v1/verify; "
        "rewards: POST /get_reward; every path: GET /docs"
    }
    refused = web.post("/health")
    assert strict(refused, 405)["error"].startswith("Method Not Allowed: expected GET; verdicts:")
    assert refused.headers["allow"] == "GET, HEAD"
    assert web.get("/get_reward").status_code == 405
    assert web.get("/redoc").status_code == web.post("/docs/x").status_code == 404


@pytest.mark.parametrize("form", ["gzip", "deflate", "br"])
def test_bodies_of_unknown_size_are_refused(form):
    web = client()
    body = gzip.compress(asking("fine"))
    assert "Content-Encoding" in strict(
        web.post("/v1/verify", content=body, headers={"content-encoding": form}), 415
    )["error"]  # fmt: skip
    answer = web.post("/v1/verify", content=iter([asking("fine")]))
    assert "expected a Content-Length" in strict(answer, 411)["error"]


@pytest.mark.parametrize(
    "limits", [{"body_seconds": 0.2}, {"body_patience": 0.2, "body_rate": 1000}]
)
def test_slow_sender_is_refused(limits):
    app = client(running=1, **limits).app
    sent = []

    async def ask():
        async def receive():
            await anyio.sleep(0.05)
            return {"type": "http.request", "body": b" ", "more_body": True}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/verify", "headers": [],
                 "query_string": b""}  # fmt: skip
        await app(scope, receive, send)

    anyio.run(ask)
    assert sent[0]["status"] == 408


def test_loopback_addresses_are_recognised():
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))
