"""Hostile replies from a server, and the client's error messages.

No key leaks, no redirect is followed, no reply is read without a limit, and impossible numbers are
not used.
"""

import base64
import contextlib
import gzip
import html
import json
import math
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo_guard import Cause
from grpo_guard.core.redaction import hidden
from grpo_guard.judge.backends import openai as backend_module
from grpo_guard.judge.backends.openai import OpenAIBackend
from grpo_guard.judge.errors import JudgeSetupError
from grpo_guard.judge.verifier import JudgeVerifier
from tests.judge.judge_server import MODEL, chat, completions, p_yes

KEY = "sk-live/A+1\"b'c\\d-0123456789abcdefXYZ"
GOOD = json.dumps(chat(logprobs=p_yes(0.95))).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


class Hostile(ThreadingHTTPServer):
    """Replies with the given ``get`` and ``post``: status, headers, body. Records requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = _Handler.whole
        self.get = self.post = lambda body: (200, {}, MODELS if body is None else GOOD)
        self.seen = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request, client_address):
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.answer(self, self.server.get(None))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append({name.lower(): value for name, value in self.headers.items()})
        self.server.answer(self, self.server.post(body))

    def whole(self, reply):
        status, headers, body = reply
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hostile():
    servers = [Hostile(), Hostile()]
    threads = [threading.Thread(target=s.serve_forever, args=(0.02,)) for s in servers]
    for thread in threads:
        thread.start()
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()
    for thread in threads:
        thread.join()


def judge(url, key=KEY, **options):
    backend = OpenAIBackend(MODEL, base_url=url, api_key=key)
    limits = {"deadline": 10, "request_timeout": 3, "attempts": 1}
    return JudgeVerifier(backend, limits=limits, **options)


def quotations():
    yield KEY
    yield KEY[:20]
    yield f"{KEY}\n"
    yield repr(KEY)
    yield repr(KEY.encode())
    yield json.dumps(KEY)
    yield json.dumps(json.dumps(KEY))
    yield "".join(rf"\u{ord(c):04x}" for c in KEY)
    yield "".join(rf"\x{ord(c):02x}" for c in KEY)
    yield "".join(f"&#{ord(c)};" for c in KEY)
    yield "".join(f"%{c:02x}" for c in KEY.encode())
    yield urllib.parse.quote(KEY, safe="")
    yield KEY.encode().hex()
    for before in ("", "u:", "user:", "Bearer "):
        yield base64.b64encode(f"{before}{KEY} and more".encode()).decode()
        yield base64.urlsafe_b64encode(f"{before}{KEY}".encode()).decode()
    yield KEY[:9] + "\r\n " + KEY[9:]
    yield KEY.upper()


PARTS = [KEY[i : i + 8].lower() for i in range(len(KEY) - 7)]


def tells(text):
    """Whether eight characters of the key can be read in a text, in any encoding."""
    readings = [text, urllib.parse.unquote(text), html.unescape(text), "".join(text.split())]
    readings.append(text.encode("ascii", "ignore").decode("unicode_escape", "ignore"))
    for word in text.replace("'", " ").replace('"', " ").split():
        for skipped in range(4):
            padded = word.rstrip("=")[skipped:]
            padded = padded[: len(padded) // 4 * 4]
            for alphabet in (b"+/", b"-_"):
                try:
                    decoded = base64.b64decode(padded, alphabet, validate=True)
                except ValueError:
                    continue
                readings.append(decoded.decode("latin-1"))
    return any(part in reading.lower() for reading in readings for part in PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("quotation", list(quotations()))
def test_a_key_that_a_server_quotes_does_not_leak(hostile, quotation, caplog, capsys):
    server, _ = hostile
    assert not tells(hidden(f"Wrong key: {quotation}.", [KEY]))
    body = json.dumps({"error": {"message": f"no {quotation} here", "code": quotation}}).encode()
    for status in (400, 401, 429, 500):
        server.post = lambda _, status=status: (status, {}, body)
        verifier = judge(server.url)
        (verdict,) = verifier.verify(completions("good"))
        assert verdict.abstained
        assert not tells(json.dumps(verdict.to_dict()))
    listed = json.dumps({"object": "list", "data": [{"id": f"x {quotation}"}]}).encode()
    server.get = lambda _: (200, {}, listed)
    with pytest.raises(JudgeSetupError) as raised:
        judge(server.url).check()
    assert not tells(str(raised.value))
    assert not tells(caplog.text)
    assert not tells("".join(capsys.readouterr()))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\t", " \n", "\v", "\x1f"])
def test_a_key_from_a_file_ends_in_a_line_break(hostile, end, monkeypatch):
    server, _ = hostile
    monkeypatch.setenv("SOME_KEY", f"sk-plain{end}")
    for backend in (
        OpenAIBackend(MODEL, base_url=server.url, api_key=f"{end}sk-plain{end}"),
        OpenAIBackend(MODEL, base_url=server.url, api_key_env="SOME_KEY"),
    ):
        assert JudgeVerifier(backend).verify(completions("good"))[0].accepted
    assert {headers["authorization"] for headers in server.seen} == {"Bearer sk-plain"}


@pytest.mark.parametrize("inside", ["\n", "\t", "\x00", "\x7f", " ", "é", "\ufeff", "\u200b"])
def test_a_key_that_no_header_can_hold_is_refused_unquoted(hostile, inside, monkeypatch, caplog):
    server, _ = hostile
    key = f"sk-secret-one{inside}and-secret-two"
    with pytest.raises(ValueError, match="visible ASCII") as refused:
        OpenAIBackend(MODEL, base_url=server.url, api_key=key)
    said = str(refused.value)
    if inside != "\x00":
        monkeypatch.setenv("SOME_KEY", key)
        backend = OpenAIBackend(MODEL, base_url=server.url, api_key_env="SOME_KEY")
        (verdict,) = JudgeVerifier(backend).verify(completions("good"))
        assert verdict.abstained
        said += json.dumps(verdict.to_dict()) + caplog.text
    assert "secret" not in said


def test_a_key_removed_from_the_environment_is_hidden(hostile, monkeypatch):
    server, _ = hostile
    monkeypatch.setenv("SOME_KEY", KEY)
    body = json.dumps({"error": KEY}).encode()
    server.post = lambda _: (500, {}, body)
    backend = OpenAIBackend(MODEL, base_url=server.url, api_key_env="SOME_KEY")
    JudgeVerifier(backend).check()
    monkeypatch.setenv("SOME_KEY", "another")
    (verdict,) = JudgeVerifier(backend, limits={"attempts": 1}).verify(completions("good"))
    assert verdict.abstained
    assert not tells(json.dumps(verdict.to_dict()))


def test_an_unsendable_request_is_not_quoted(hostile, monkeypatch, caplog):
    server, _ = hostile
    monkeypatch.setenv("OPENAI_ORG_ID", "org-hush-hush\n")
    (verdict,) = judge(server.url).verify(completions("good"))
    assert verdict.abstained
    assert "hush" not in json.dumps(verdict.to_dict()) + caplog.text
    assert "cannot be sent" in caplog.text


@pytest.mark.parametrize(
    "url",
    ["sk-hush@host/v1", "http://[hush/v1", "http://host hush/v1", "ftp://hush", "http://h:hush/v1",
     "http://h/\nhush", "http://h/\x1b[31mhush", 7],
)  # fmt: skip
def test_an_invalid_address_is_refused_unquoted(url):
    with pytest.raises(ValueError, match="expected http") as refused:
        OpenAIBackend(MODEL, base_url=url)
    assert "hush" not in str(refused.value)


def test_secrets_in_an_address_or_extra_fields_do_not_leak(hostile, caplog):
    server, _ = hostile
    caplog.set_level("INFO")  # the level at which the HTTP client logs each address
    host = server.url.removeprefix("http://").removesuffix("/v1")
    secrets = ["hush-user", "hush-password", "hush-of-the-path-0123456789", "hush-of-the-body"]
    body = json.dumps({"error": " ".join(secrets)}).encode()
    server.get = server.post = lambda _: (400, {}, body)
    backend = OpenAIBackend(
        MODEL,
        base_url=f"http://{secrets[0]}:{secrets[1]}@{host}/{secrets[2]}/v1",
        extra_body={"metadata": {"upstream_api_key": secrets[3]}},
    )
    (verdict,) = JudgeVerifier(backend).verify(completions("good"))
    assert verdict.abstained
    assert "hush" not in json.dumps(verdict.to_dict()) + caplog.text + repr(backend)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(hostile, status):
    server, other = hostile
    away = {"Location": other.url + "/chat/completions"}
    other.get = other.post
    server.post = lambda _: (status, away, b"")
    (verdict,) = judge(server.url).verify(completions("good"))
    assert verdict.abstained
    assert f"HTTP {status}: the server redirects" in verdict.findings[0].message
    assert other.seen == []
    server.get = lambda _: (status, {"Location": other.url + "/models"}, b"")
    with pytest.raises(JudgeSetupError, match="give the final address as base_url"):
        judge(server.url).check()


def test_a_redirect_of_a_single_completion_is_a_refusal(hostile):
    server, _ = hostile

    def post(body):
        return (302, {"Location": "/blocked"}, b"") if b"bad" in body else (200, {}, GOOD)

    server.post = post
    bad, good = judge(server.url).verify(completions("bad", "good"))
    assert bad.rejected
    assert bad.cause is Cause.REFUSED
    assert good.accepted


def bombs():
    zeros = gzip.compress(b" " * 2**25, 9)
    return {
        "gzip": (200, {"content-encoding": "gzip"}, zeros),
        "x-gzip": (200, {"content-encoding": "X-GZIP"}, zeros),
        "unknown coding": (200, {"content-encoding": "zstd"}, b"x"),
        "gzip twice": (200, {"content-encoding": "gzip, gzip"}, gzip.compress(zeros)),
        "gzip of an error": (500, {"content-encoding": "gzip"}, zeros),
        "long": (200, {}, b" " * (backend_module.LARGEST_REPLY + 1)),
        "long error": (500, {}, b"x" * (backend_module.LARGEST_REPLY + 1)),
        "deep": (200, {}, b"[" * 1_000_000),
        "header": (200, {"X-Long": "x" * 1_000_000}, GOOD),
    }


@pytest.mark.slow
@pytest.mark.parametrize("bomb", bombs())
def test_replies_are_read_up_to_a_limit(hostile, bomb):
    server, _ = hostile
    reply = bombs()[bomb]
    server.post = lambda _: reply
    (verdict,) = judge(server.url).verify(completions("good"))
    assert verdict.abstained
    assert verdict.cause is Cause.PROVIDER
    assert len(verdict.findings[0].message) <= 500
    server.get = lambda _: reply
    with contextlib.suppress(JudgeSetupError):
        judge(server.url).check()
    assert all(headers["accept-encoding"] == "identity" for headers in server.seen)


IMPOSSIBLE = {
    "raw logits": [("yes", 9.1), ("no", 21.7)],
    "one above 0": [("yes", 0.01), ("no", -9.0)],
    "more than 1 together": [("yes", math.log(0.9)), ("no", math.log(0.9))],
    "more than 1 over spellings": [(s, math.log(0.3)) for s in ("yes", " yes", "Yes", "YES")],
    "more than 1 with others": [("yes", math.log(0.9)), ("Sure", math.log(0.9))],
    "infinite": [("yes", math.inf), ("no", -1.0)],
    "no number": [("yes", -0.1), ("no", math.nan)],
    "no number, then one": [("yes", math.nan), ("yes", -0.01), ("no", -6.0)],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_log_probabilities_are_no_verdict(hostile, case):
    server, _ = hostile
    reply = json.dumps(chat(logprobs=IMPOSSIBLE[case])).encode()
    server.post = lambda _: (200, {}, reply)
    verifier = judge(server.url)
    (verdict,) = verifier.verify(completions("good"))
    assert verdict.abstained
    assert "impossible log-probabilities" in verdict.findings[0].message
    assert verifier.p_yes(completions("good")) == [None]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["logit", "json", "cot"])
@pytest.mark.parametrize("content", [7, True, ["yes"], {"a": "yes"}])
def test_an_answer_without_text_is_the_providers_failure(hostile, mode, content):
    server, _ = hostile
    reply = json.dumps(chat(content, logprobs=p_yes(0.95))).encode()
    server.post = lambda _: (200, {}, reply)
    (verdict,) = judge(server.url, mode=mode).verify(completions("good"))
    assert (verdict.abstained, verdict.cause) == (True, Cause.PROVIDER)


@pytest.mark.parametrize("tokens", [10**400, -(10**400), -1])
def test_impossible_counts_do_not_affect_later_answers(hostile, tokens):
    server, _ = hostile
    absurd = {"usage": {"prompt_tokens": tokens, "completion_tokens": tokens}}
    replies = [GOOD, json.dumps(json.loads(GOOD) | absurd).encode()]
    server.post = lambda _: (200, {}, replies.pop() if len(replies) > 1 else GOOD)
    prices = {"usd_per_1m_in": 1, "usd_per_1m_out": 1, "max_usd": 1}
    verifier = JudgeVerifier(OpenAIBackend(MODEL, base_url=server.url, api_key=KEY), limits=prices)
    for _ in range(2):
        assert verifier.verify(completions("good"))[0].accepted


@pytest.mark.parametrize("year", ["99999", "9" * 30])
def test_an_impossible_date_is_ignored(hostile, year):
    server, _ = hostile
    server.post = lambda _: (429, {"Retry-After": f"Fri, 31 Dec {year} 23:59:59 GMT"}, b"{}")
    (verdict,) = judge(server.url).verify(completions("good"))
    assert (verdict.abstained, verdict.cause) == (True, Cause.RATE_LIMITED)


def test_a_dripping_list_of_models_is_not_waited_for(hostile):
    """A guard is built from a file only after its server was asked for its models."""
    server, _ = hostile
    enough = threading.Event()

    def drip(handler, reply):
        handler.send_response(200)
        handler.send_header("content-length", "100000")
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not enough.wait(0.05):
                handler.wfile.write(b" ")

    server.answer = drip
    backend = OpenAIBackend(MODEL, base_url=server.url, api_key=KEY, timeout=0.5)
    checked = threading.Thread(target=JudgeVerifier(backend).check, daemon=True)
    checked.start()
    checked.join(20)
    enough.set()
    assert not checked.is_alive()


def test_rounded_and_sentinel_log_probabilities_are_accepted(hostile):
    server, _ = hostile
    reply = json.dumps(chat(logprobs=[("yes", 1e-7), ("no", -9999.0), ("a", -math.inf)])).encode()
    server.post = lambda _: (200, {}, reply)
    assert judge(server.url).verify(completions("good"))[0].accepted


def test_a_made_up_field_is_not_quoted(hostile):
    server, _ = hostile
    reply = json.dumps(chat(json.dumps({"own_answer": "4", f"\x1b[31m{KEY}": 1}))).encode()
    server.post = lambda _: (200, {}, reply)
    (verdict,) = judge(server.url, mode="json").verify(completions("good"))
    assert verdict.abstained  # the neutral question gets the same answer
    assert not tells(json.dumps(verdict.to_dict()))
