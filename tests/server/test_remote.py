"""`RemoteVerifier` against a real server, and against servers that return anything."""

import asyncio
import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo_guard import Completion, Guard, Policy
from grpo_guard.core.options import options_of
from grpo_guard.core.verdict import Cause
from grpo_guard.judge.errors import BackendError
from grpo_guard.server.client.answer import AnswerError, verdicts_in
from grpo_guard.server.client.verifier import RemoteVerifier
from tests.server.server_parts import Words, listening


def row(index, **fields):
    plain = {"index": index, "outcome": "accept", "cause": "judged", "p_value": None}
    return plain | {"findings": [], "verifier": "x", "seconds": 0.1, "members": []} | fields


class Answers(BaseHTTPRequestHandler):
    """Returns the server's ``replies`` in turn; the last one repeatedly."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked = json.loads(body or b'{"completions": []}')
        self.server.asked.append(asked["completions"])
        self.server.heads.append(self.headers)
        replies = self.server.replies
        status, body, headers = (replies.pop(0) if len(replies) > 1 else replies[0])(asked)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *args):
        pass


@contextmanager
def answering(*replies):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.replies, server.asked, server.heads = list(replies), [], []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def say(status, content=b"", **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda asked: (status, body, headers)


def right(asked):
    rows = [row(i) for i in range(len(asked["completions"]))]
    return 200, json.dumps({"verdicts": rows}).encode(), {}


def batch(*texts, **fields):
    return [Completion("3+4?", text, **fields) for text in texts]


def one(url, *texts, **options):
    return RemoteVerifier(url, **{"attempts": 1, "deadline": 20, **options}).verify(batch(*texts))


def test_remote_verdicts_match_local_ones_in_any_number_of_requests():
    words = Words()
    with listening(words) as port:
        remote = RemoteVerifier(f"http://127.0.0.1:{port}", most=7)
        remote.check()
        texts = ["Hail" if i % 3 == 0 else "\ud800\x00fine" for i in range(50)]
        sent = [Completion(f"{i % 5}?", text, node="alice") for i, text in enumerate(texts)]
        found = remote.verify(sent)
        again = asyncio.run(remote.averify(sent[:2]))
    assert [v.rejected for v in found] == [text == "Hail" for text in texts]
    assert [v.rejected for v in again] == [True, False]
    assert {v.verifier for v in found} == {"remote"}
    assert found[0].members[0].verifier == "words"
    assert {c.node for c in words.shown} == {"alice"}
    assert remote.verify([]) == []


def test_answers_to_one_prompt_are_sent_in_one_request():
    with answering(right) as (server, url):
        sent = [Completion(f"{i % 4}?", "x") for i in range(12)]
        RemoteVerifier(url, most=6).verify(sent)
    together = [{c["prompt"] for c in asked} for asked in server.asked]
    assert sorted(map(len, together)) == [2, 2]
    assert not together[0] & together[1]


def test_memory_exhausting_reply_is_not_parsed():
    body = b'{"verdicts": [' + b"[]," * 100_000 + b"[]]}"
    with pytest.raises(AnswerError, match="values"):
        verdicts_in(body, batch("a"), "remote", most=len(body), took=1.0)


GOOD = {"verdicts": [row(0), row(1)]}
DEEP = row(0)
for _ in range(40):
    DEEP = row(0, members=[DEEP])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"verdicts": [1' + b"0" * 5000 + b"]}",
        [],
        {"verdicts": None},
        {"verdicts": [row(0)]},
        {"verdicts": [row(0)] * 3},
        {"verdicts": [row(1), row(0)]},
        {"verdicts": [row(0), row(True)]},
        {"verdicts": [row(0), "accept"]},
        {"verdicts": [row(0), row(1, outcome="pass")]},
        {"verdicts": [row(0), row(1, cause="malformed")]},  # which accepts nothing
        {"verdicts": [row(0), row(1, p_value=2)]},
        {"verdicts": [row(0), row(1, p_value="0")]},
        {"verdicts": [row(0), row(1, p_value=10**400)]},
        {"verdicts": [row(0), row(1, seconds=float("nan"))]},
        {"verdicts": [row(0), row(1, verifier=None)]},
        {"verdicts": [row(0), row(1, findings=[{"kind": "a"}])]},
        {
            "verdicts": [
                row(0),
                row(1, findings=[{"kind": "a", "message": "", "char_span": [0, 9]}]),
            ]
        },
        {
            "verdicts": [
                row(0),
                row(1, findings=[{"kind": "a", "message": "", "char_span": [2, 1]}]),
            ]
        },
        {"verdicts": [row(0), row(1, findings=[1] * 2000)]},
        {"verdicts": [row(0), DEEP | {"index": 1}]},
        {"verdicts": [row(0), {"index": 1}]},
    ],
)
def test_invalid_answer_gives_no_verdict(answer):
    with answering(say(200, answer)) as (_, url):
        found = one(url, "abc", "abc")
    assert [(v.outcome, v.cause) for v in found] == [("abstain", Cause.PROVIDER)] * 2
    assert all(len(v.reason) < 400 and v.reason.isprintable() for v in found)


def test_huge_and_compressed_answers_are_not_read_fully():
    big = say(200, b" " * 4_000_000 + json.dumps(GOOD).encode())
    packed = say(200, GOOD, **{"Content-Encoding": "gzip"})
    for reply, complaint in ((big, "exceeds"), (packed, "compressed")):
        with answering(reply) as (_, url):
            found = one(url, "a", "b")
        assert complaint in found[0].reason
        assert [v.cause for v in found] == [Cause.PROVIDER] * 2


def test_redirects_are_not_followed():
    with answering(right) as (other, elsewhere):
        there = say(307, b"", Location=f"{elsewhere}/v1/verify")
        with answering(there) as (_, url):
            assert one(url, "a")[0].cause is Cause.PROVIDER
    assert other.asked == []


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_refusals_are_retried(status):
    with answering(say(status, b"{}", **{"Retry-After": "1"}), right) as (server, url):
        (found,) = one(url, "a", attempts=3)
    assert found.accepted
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "cause"),
    [(401, Cause.PROVIDER), (404, Cause.PROVIDER), (422, Cause.UNSUPPORTED), (413, Cause.PROVIDER)],
)
def test_permanent_refusal_abstains_without_a_retry(status, cause):
    with answering(say(status, {"error": "no"})) as (server, url):
        (found,) = one(url, "a", attempts=5)
    assert found.cause is cause
    assert str(status) in found.reason
    assert len(server.asked) == 1


def test_only_the_refused_completion_of_a_request_abstains():
    def picky(asked):
        bad = any("bad" in c["text"] for c in asked["completions"])
        return say(422, {"error": "no"})(asked) if bad else right(asked)

    with answering(picky) as (_, url):
        found = one(url, *["good"] * 5, "bad", *["good"] * 6)
    assert [v.accepted for v in found] == [i != 5 for i in range(12)]


def test_text_too_large_for_any_request_rejects():
    with answering(right) as (server, url):
        found = one(url, "x" * 20_000, "fine", max_body_mb=0.01)
    assert (found[0].rejected, found[0].cause, found[1].accepted) == (True, Cause.OVERLONG, True)
    assert [len(asked) for asked in server.asked] == [1]


@pytest.mark.parametrize("large", ["prompt", "prompt_ids", "reference"])
def test_oversized_prompt_rejects_nothing(large):
    asked = {"prompt": "3+4?"} | {large: range(9000) if large == "prompt_ids" else "x" * 20_000}
    with answering(right) as (_, url):
        sent = [Completion(text=text, **asked) for text in ("fine", "x" * 20_000)]
        found = RemoteVerifier(url, max_body_mb=0.01).verify(sent)
    assert [v.cause for v in found] == [Cause.UNSUPPORTED] * 2
    assert "max_body_mb" in found[0].reason


def test_retried_request_keeps_its_id():
    with answering(say(503), say(500), right) as (server, url):
        assert one(url, "a", "b", most=1, concurrency=1, attempts=3)[0].accepted
    names = [head["idempotency-key"] for head in server.heads]
    assert names[0] == names[1] == names[2] != names[3]


def test_silent_server_times_out_at_the_deadline():
    go = threading.Event()

    def silent(asked):
        go.wait(30)
        return right(asked)

    with answering(silent) as (_, url):
        found = one(url, "a", deadline=0.3, attempts=9)
        go.set()
    assert [v.cause for v in found] == [Cause.TIMEOUT]


def test_token_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret-s3cret")
    echo = {"error": "who is s3cret-s3cret?"}
    with answering(say(401, echo)) as (server, url):
        (found,) = one(url, "a", token_env="MY_TOKEN")
        with pytest.raises(BackendError) as raised:
            RemoteVerifier(url, token_env="MY_TOKEN").check()
    assert server.heads[0]["authorization"] == "Bearer s3cret-s3cret"
    assert "s3cret" not in found.reason + str(raised.value)
    assert "token" in found.reason


def test_unsendable_completion_abstains_alone():
    with answering(right) as (_, url):
        sent = [*batch("a", metadata={"x": object()}), *batch("b")]
        found = RemoteVerifier(url).verify(sent)
    assert [v.cause for v in found] == [Cause.UNSUPPORTED, Cause.JUDGED]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"url": "ftp://x"}, r"remote\.url: expected http.* got 'ftp://x'"),
        ({"url": "http://user:pass@x/v1/verify"}, "without a path"),
        ({"url": "http://x", "most": 0}, r"remote\.most: expected a number > 0, got 0"),
    ],
)
def test_invalid_options_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint) as raised:
        RemoteVerifier(**options)
    assert "pass" not in str(raised.value)


def test_guard_that_passes_abstentions_refuses_it():
    remote = RemoteVerifier("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="unknown here"):
        Guard(remote, policy=Policy(on_abstain="pass"))
    said = (
        options_of("remote", RemoteVerifier).read({"url": "http://x"}, "remote").explicit_values()
    )
    assert RemoteVerifier(**said).url == "http://x"


def test_guard_file_with_an_unreachable_server_fails_before_the_run(tmp_path):
    from grpo_guard.config import ConfigError, GuardConfig

    file = tmp_path / "guard.yaml"
    with listening() as port:
        file.write_text(
            "policy: {on_abstain: zero}\nverifier: {all: [{type: screens}, "
            f'{{type: "grpo_guard.server.client.verifier:RemoteVerifier", url: "http://127.0.0.1:{port}"}}]}}\n'
        )
        guard = GuardConfig.from_yaml(file).build()
        assert [v.rejected for v in guard.judge(batch("fine", "Hail"))[1]] == [False, True]
        assert not guard.verifier.shares_calls
    refused = f"no answer from 127.0.0.1:{port}: ConnectError: .*; start it with grpo-guard serve"
    with pytest.raises(ConfigError, match=refused):
        GuardConfig.from_yaml(file).build()


@pytest.mark.parametrize("seconds", [1e300, 10**300, 3.0, -1.0, 0.0])
def test_verdict_time_is_at_most_the_answer_time(seconds):
    lying = row(0, seconds=seconds, members=[row(0, seconds=seconds)])
    body = json.dumps({"verdicts": [lying]}).encode()
    (verdict,) = verdicts_in(body, [Completion("a", "b")], "remote", most=10_000, took=0.5)
    (said,) = verdict.members
    for seconds_taken in (verdict.seconds, said.seconds, said.members[0].seconds):
        assert 0.0 <= seconds_taken <= 0.5
