"""A local chat server that answers, or fails in every way that servers fail."""

import contextlib
import http.server
import json
import re
import socket
import struct
import threading
import time
from collections import Counter

from grpo_guard import Completion
from grpo_guard.judge.verifier import JudgeVerifier

MODEL = "test-judge"


def chat(content="yes", *, logprobs=None, finish="stop", refusal=None):
    """A chat completion; ``logprobs`` are (token, log-prob) of the first token."""
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content, "refusal": refusal},
        "logprobs": None,
    }
    if logprobs is not None:
        listed = [{"token": t, "logprob": p, "bytes": None} for t, p in logprobs]
        choice["logprobs"] = {"content": [listed[0] | {"top_logprobs": listed}]}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102},
    }


def p_yes(probability):
    """First-token candidates with this probability of yes."""
    import math

    rest = max(1 - probability, 1e-9)
    return [("yes", math.log(max(probability, 1e-9))), ("no", math.log(rest))]


ANSWERS = {
    "good": chat(logprobs=p_yes(0.95)),
    "bad": chat("no", logprobs=p_yes(0.05)),
    "confused": chat("Sure", logprobs=[("Sure", -0.1), ("yes", -3.0)]),
    "refusal": chat("", refusal="I cannot help with that."),
    "filtered": chat("", finish="content_filter"),
    "schema": chat('{"verdict": "pass"}'),
    "truncated": chat('{"own_answer": "4", "evid', finish="length"),
    "nologprobs": chat("yes"),
    "json": chat(
        json.dumps({"own_answer": "4", "evidence": "json", "verdict": "pass", "confidence": 0.9})
    ),
}


# The judge's question that distinguishes an outage from a completion the provider cannot process.
NEUTRAL = "1 + 1 = 2"


def verdict_on_neutral(body):
    """Return an acceptance of the neutral text, in the form that the request asks for."""
    if "response_format" in body:
        said = {"own_answer": "2", "evidence": NEUTRAL, "verdict": "pass", "confidence": 0.9}
        return chat(json.dumps(said))
    return ANSWERS["good"] if body.get("logprobs") else chat("It is right.\nVERDICT: ACCEPT")


class JudgeServer(http.server.ThreadingHTTPServer):
    """Behaves as a keyword in the completion says: ``good``, ``bad``, ``http500``, ``hang``, ...

    ``http429`` and ``http500`` always fail; ``once429`` and ``once500`` only at the first request
    of a completion. ``behaviour`` overrides the word for all, ``decide`` derives it from a text.
    """

    request_queue_size = 1024  # the default of 5 resets connections under load
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = Counter()
        self.bodies = []
        self.keys = set()
        self.behaviour = None
        self.decide = None
        self.delay = 0.0
        self.open = self.most_open = 0  # number of requests answered at the same time
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def requests(self):
        return sum(self.asked.values())

    def handle_error(self, request, client_address):
        pass  # clients that give up are expected


@contextlib.contextmanager
def judge_server():
    server = JudgeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.headers.get("authorization") == "Bearer wrong-key":
            self.send(401, {"error": {"message": "Incorrect API key provided: wrong-key"}})
        else:
            self.send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = body["messages"][1]["content"]
        text = re.search(r"<completion id=\"\w+\">\n(.*)\n</completion", said, re.DOTALL)[1]
        decide = self.server.decide
        word = decide(text) if decide else self.server.behaviour or text.split()[0]
        with self.server.lock:
            self.server.asked[text] += 1
            self.server.bodies.append(body)
            self.server.keys.add(self.headers.get("authorization"))
            nth = self.server.asked[text]
            self.server.open += 1
            self.server.most_open = max(self.server.most_open, self.server.open)
        try:
            time.sleep(self.server.delay)
        finally:
            with self.server.lock:
                self.server.open -= 1
        if word in ANSWERS:
            self.send(200, ANSWERS[word])
        elif text == NEUTRAL and not self.server.behaviour:
            self.send(200, verdict_on_neutral(body))
        elif isinstance(word, float):
            self.send(200, chat(logprobs=p_yes(word)))
        else:
            getattr(self, word)(nth)

    def http429(self, nth):
        self.send(429, {"error": {"message": "slow down"}})

    def after429(self, nth):
        if nth == 1:
            self.send(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.2"})
        else:
            self.send(200, ANSWERS["good"])

    def later429(self, nth):
        self.send(429, {"error": {"message": "slow down"}}, {"Retry-After": "9999"})

    def http500(self, nth):
        self.send(500, {"error": {"message": "oh no"}})

    def once500(self, nth):
        self.http500(nth) if nth == 1 else self.send(200, ANSWERS["good"])

    def http400(self, nth):
        self.send(400, {"error": {"message": "Content Exists Risk", "code": "invalid_request"}})

    def http403(self, nth):
        self.send(403, {"error": {"message": "blocked by the firewall"}})

    def http401(self, nth):
        self.send(401, {"error": {"message": "Incorrect API key provided: secret-key"}})

    def hang(self, nth):
        self.server.stopping.wait(30)

    def reset(self, nth):
        # Linger 0: close() sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def drip(self, nth):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "100000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.stopping.wait(0.05):
                self.wfile.write(b" ")
                self.wfile.flush()

    def notjson(self, nth):
        self.send_bytes(200, b'{"choices": [{"mess', {"content-type": "application/json"})

    def html(self, nth):
        self.send_bytes(200, b"<html>proxy</html>", {"content-type": "text/html"})

    def empty(self, nth):
        self.send(200, ANSWERS["good"] | {"choices": []})

    def toolong(self, nth):
        message = "This model's maximum context length is 4096 tokens, however you requested 9000"
        self.send(400, {"error": {"message": message, "code": "context_length_exceeded"}})

    def send(self, status, data, headers=None):
        self.send_bytes(
            status,
            json.dumps(data).encode(),
            {"content-type": "application/json", **(headers or {})},
        )

    def send_bytes(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def judge(server, limits=None, **options):
    """A judge that asks this server."""
    backend = {"type": "openai", "model": MODEL, "base_url": server.url, "api_key": "secret-key"}
    limits = {"deadline": 30, "request_timeout": 5, **(limits or {})}
    return JudgeVerifier(backend, limits=limits, **options)


def completions(*words):
    """Build one completion per keyword, which tells the server how to answer."""
    return [Completion(f"Question {i}?", f"{word} text {i}") for i, word in enumerate(words)]


if __name__ == "__main__":  # in a separate process, so that it can be killed
    with judge_server() as standing:
        standing.delay = 0.02
        print(standing.url, flush=True)
        threading.Event().wait(60)
