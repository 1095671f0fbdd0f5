"""Large requests whose answer is a stream, and the log of rejections."""

import json
import socket
import struct
import subprocess
import sys
import time

import pytest

from grpo_guard import Completion
from grpo_guard.core.verdict import reject
from grpo_guard.server.audit import Audit
from grpo_guard.server.stream import PART_CHARACTERS, parts
from tests.server.server_parts import Words, client, connect, head, listening, status, strict

STREAM = "/v1/verify/stream"


def rows(*texts, per_prompt=4):
    return [{"prompt": f"{i // per_prompt}?", "text": text} for i, text in enumerate(texts)]


def lines(answer):
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_stream_has_a_line_per_completion_beyond_the_usual_limit():
    texts = ["Hail" if i % 7 == 0 else "fine \ud800" for i in range(1500)]
    verifier = Words()
    with client(verifier) as web:
        body = json.dumps({"completions": rows(*texts)})
        found = lines(web.post(STREAM, content=body))
        strict(web.post("/v1/verify", content=body), 413)
    assert [v["index"] for v in found] == list(range(1500))
    assert [v["outcome"] == "reject" for v in found] == [text == "Hail" for text in texts]
    assert [c.text for c in verifier.shown] == texts


def test_lines_repeat_the_ids_that_were_sent():
    known = [f"row {i}" if i % 3 == 0 else i for i in range(600)]
    asked = [row | {"id": name} for row, name in zip(rows(*["fine"] * 600), known, strict=True)]
    with client() as web:
        found = lines(web.post(STREAM, json={"completions": asked}))
    assert [(line["index"], line["id"]) for line in found] == list(enumerate(known))


def test_parts_are_bounded_and_never_split_a_group():
    groups = [Completion(f"{i // 6}?", "x") for i in range(60)]
    found = list(parts(groups, 8))
    assert [c for part in found for c in part] == groups
    assert [len(part) for part in found] == [12] * 5
    assert list(parts([], 8)) == []


def test_parts_never_split_a_rollout():
    segments = [Completion(f"{i}?", "x", rollout=f"{i // 6}") for i in range(60)]
    assert [len(part) for part in parts(segments, 8)] == [12] * 5


def test_hanging_or_failing_part_abstains_and_the_rest_is_answered():
    class Ledger:
        def record(self, batch, verdicts):
            if any("full" in c.text for c in batch):
                raise OSError("disk full")

    verifier = Words()
    texts = [*["fine"] * 256, *["wait"] * 256, *["full"] * 256, *["fine"] * 256]
    with client(verifier, ledger=Ledger(), seconds=0.5) as web:
        found = lines(web.post(STREAM, json={"completions": rows(*texts)}))
        verifier.go.set()
    causes = [found[i]["cause"] for i in (0, 256, 512, 768)]
    assert causes == ["judged", "timeout", "fault", "judged"]
    assert len(found) == 1024


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 422), (b" " * 5_000_000, 413), (b'{"completions": 3}', 422)]
)
def test_stream_is_refused_like_any_request(body, status):
    with client() as web:
        assert set(strict(web.post(STREAM, content=body), status)) <= {"error", "index", "field"}


@pytest.mark.slow
def test_unread_stream_is_dropped_and_its_memory_freed():
    class Long(Words):
        def _verdict(self, text):
            return reject(self.name, message="x" * 1500)

    verifier = Long()
    body = json.dumps({"completions": rows(*["fine"] * 16_000)}).encode()
    limits = {"body_patience": 0.3, "body_rate": 10**9, "body_bytes": len(body)}
    with listening(verifier, **limits) as port:
        slow = []
        for _ in range(20):  # more than there is room for
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect(("127.0.0.1", port))
            raw.sendall(head(len(body), STREAM))
            raw.setblocking(False)
            slow.append((raw, memoryview(body)))
        end = time.monotonic() + 60
        while any(left for _, left in slow) and time.monotonic() < end:
            for i, (raw, left) in enumerate(slow):
                try:
                    slow[i] = raw, left[raw.send(left[:65536]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    slow[i] = raw, left[:0]
            time.sleep(0.001)
        asked = json.dumps({"completions": rows("fine")}).encode()
        with connect(port, head(len(asked)), asked) as raw:
            assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
        for raw, _ in slow:
            raw.close()


def test_disconnecting_stops_the_work():
    verifier = Words()
    with listening(verifier) as port:
        body = json.dumps({"completions": rows(*["wait"] * 1000)}).encode()
        raw = connect(port, head(len(body), STREAM), body)
        assert verifier.started.wait(30)
        raw.close()
        time.sleep(0.3)
        verifier.go.set()
        time.sleep(0.5)
    assert len(verifier.shown) <= 512


def logged(folder):
    return [json.loads(x) for x in (folder / "rejections.jsonl").read_text("ascii").splitlines()]


def test_rejection_log_lines_are_bounded_ascii_with_a_digest(tmp_path):
    audit = Audit(tmp_path / "log")
    evil = "Hail\n\x1b[2J\u2028\ud800" + "x" * 10_000
    with client(audit=audit) as web:
        sent = [*rows("fine", evil, per_prompt=1), {"prompt": "", "text": "Hail", "node": "bob\n"}]
        answer = web.post("/v1/verify", content=json.dumps({"completions": sent}))
        web.post("/get_reward", json={"query": ["Hail"], "prompts": [""]})
        web.post(STREAM, json={"completions": rows(*["fine"] * 300, "Hail")})
    found = logged(tmp_path / "log")
    assert [line["index"] for line in found] == [1, 2, 0, 300]
    first, second = found[:2]
    assert first["request"] == answer.headers["x-request-id"] == second["request"]
    assert (first["beginning"], first["characters"]) == (evil[:200], len(evil))
    assert len(first["sha256"]) == 64
    assert (second["node"], second["verifier"], second["cause"]) == ("bob\n", "words", "judged")


def test_log_is_bounded_and_a_full_disk_changes_no_verdict(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("grpo_guard.server.audit.FILE_BYTES", 10_000)
    monkeypatch.setattr("grpo_guard.server.audit.FILES", 2)
    audit = Audit(tmp_path)
    with client(audit=audit) as web:
        for _ in range(50):
            web.post("/v1/verify", json={"completions": rows(*["Hail"] * 20)})
        files = list(tmp_path.iterdir())
        assert len(files) == 3
        assert all(file.stat().st_size <= 10_000 for file in files)
        audit._handler.stream.close()
        audit._handler.stream = open("/dev/full", "w")  # noqa: SIM115
        for _ in range(3):
            answer = web.post("/v1/verify", json={"completions": rows("Hail")})
            assert answer.json()["verdicts"][0]["outcome"] == "reject"
    assert caplog.text.count("rejections are missing") == 1


CLAIMS = """
import sys
from pathlib import Path
from grpo_guard.server.audit import own_name
print(own_name(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_workers_write_separate_log_files_that_restarts_reuse(tmp_path):
    def workers():
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", CLAIMS, str(tmp_path)]
        started = [subprocess.Popen(command, **piped) for _ in range(2)]
        names = {worker.stdout.readline().strip() for worker in started}
        for worker in started:
            worker.kill()
            worker.communicate()
        return names

    assert workers() == workers() == {"rejections-1.jsonl", "rejections-2.jsonl"}


def test_failed_reward_function_is_not_logged_as_a_rejection(tmp_path):
    def broken(queries, prompts, labels):
        raise RuntimeError("no")

    with client(reward=broken, audit=Audit(tmp_path)) as web:
        asked = {"query": ["Hail", "fine"], "prompts": ["", ""], "labels": ["7", "7"]}
        assert web.post("/get_reward", json=asked).status_code == 500
    assert logged(tmp_path) == []


def test_abandoned_work_is_not_logged(tmp_path):
    verifier, audit = Words(), Audit(tmp_path)
    with client(verifier, audit=audit, seconds=0.3) as web:
        (found,) = strict(web.post("/v1/verify", json={"completions": rows("wait Hail")}))[
            "verdicts"
        ]
        assert found["cause"] == "timeout"
        verifier.go.set()
        time.sleep(0.3)
    assert logged(tmp_path) == []


def in_progress(port):
    with connect(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as raw:
        said = raw.makefile("rb").read().decode()
    return int(said.split("\ngrpo_guard_requests_in_progress ")[1].split()[0])


def until(true):
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")


def settles(what):
    """Value once it stops changing: the cost of unread streams is bounded."""
    before, same = -1, 0
    for _ in range(300):
        same = same + 1 if (now := what()) == before else 0
        before = now
        if same >= 10:
            return now
        time.sleep(0.05)
    raise AssertionError("it goes on for streams that nobody reads")


class Long(Words):
    """Has a long message for each text."""

    def _verdict(self, text):
        return reject(self.name, message="x" * 1000) if text == "Hail" else super()._verdict(text)


def unread(port, count, body, buffer=4096):
    """Streams that are requested and never read."""
    opened = []
    for _ in range(count):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        raw.connect(("127.0.0.1", port))
        raw.sendall(head(len(body), STREAM) + body)
        opened.append(raw)
    return opened


@pytest.mark.slow
def test_unread_streams_are_not_judged_and_small_requests_are(caplog):
    caplog.set_level("INFO")
    verifier = Long()
    body = json.dumps({"completions": rows(*["Hail"] * 8000)}).encode()
    with listening(verifier, client_streams=6) as port:
        opened = unread(port, 6, body)
        judged = settles(lambda: len(verifier.shown))
        # A part in transit and what the kernel buffers, for each; not the 48,000.
        assert 6 * 256 <= judged <= 6 * 3 * 256
        asked = json.dumps({"completions": rows("fine")}).encode()
        for _ in range(20):
            assert status(connect(port, head(len(asked)), asked)) == 200
        assert len(verifier.shown) == judged + 20
        assert in_progress(port) == 6
        for raw in opened:
            raw.close()
        until(lambda: in_progress(port) == 0)
    worse = [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
    assert not [r for r in worse if "first rejection" not in r.getMessage()]
    assert caplog.text.count("the client left: its stream ends early") == 6


def test_reader_gets_its_full_stream_among_unread_ones():
    verifier = Long()
    body = json.dumps({"completions": rows(*["Hail"] * 3000)}).encode()
    with listening(verifier) as port:
        opened = unread(port, 4, body)
        with connect(port, head(len(body), STREAM, "Connection: close\r\n"), body) as raw:
            said = raw.makefile("rb").read()
        assert said.endswith(b"0\r\n\r\n")
        assert said.count(b'"index"') == 3000
        for raw in opened:
            raw.close()


def test_streams_are_bounded_and_slow_readers_are_dropped(monkeypatch):
    monkeypatch.setattr("grpo_guard.server.intake.FETCH_SECONDS", 0.05)
    body = json.dumps({"completions": rows(*["Hail"] * 8000)}).encode()
    small = json.dumps({"completions": rows("fine")}).encode()
    for limits in ({"client_streams": 3}, {"streams": 3}):
        with listening(Long(), **limits) as port:
            monkeypatch.setattr("grpo_guard.server.readers.SLOW_SECONDS", 1000.0)
            opened = unread(port, 3, body)
            settles(lambda port=port: in_progress(port))
            assert status(connect(port, head(len(small), STREAM), small)) == 429
            assert status(connect(port, head(len(small)), small)) == 200
            monkeypatch.setattr("grpo_guard.server.readers.SLOW_SECONDS", 0.0)
            assert status(connect(port, head(len(small), STREAM), small)) == 200
            until(lambda port=port: in_progress(port) == 2)  # the slowest was closed
            for raw in opened:
                raw.close()


def test_disconnect_at_any_stage_logs_one_line_and_no_error(caplog):
    caplog.set_level("INFO")
    verifier = Words()
    small = json.dumps({"completions": rows("fine")}).encode()
    large = json.dumps({"completions": rows(*["Hail"] * 8000)}).encode()
    waits = json.dumps({"completions": rows("wait")}).encode()
    streamed = head(len(large), STREAM) + large
    with listening(verifier, running=1) as port:
        sent = [
            b"POST /v1", head(1000), head(9000) + b" " * 5000, head(len(small)) + small,
            head(10**9) + b" " * 9000, streamed[:-1], streamed,
            head(len(waits)) + waits, head(len(small)) + small, head(len(waits), STREAM) + waits,
        ]  # fmt: skip
        for reset in (False, True):
            for part in sent:
                raw = connect(port, part)
                time.sleep(0.05)
                if reset:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raw.close()
        verifier.go.set()
        until(lambda: in_progress(port) == 0)
        assert status(connect(port, head(len(small)), small)) == 200
    assert not [r for r in caplog.records if r.exc_info or r.levelname in ("WARNING", "ERROR")]
    lines_ = [r for r in caplog.records if "the client left" in r.getMessage()]
    assert 0 < len(lines_) <= 2 * len(sent)
    assert "Traceback" not in caplog.text


def test_dropped_reader_leaves_no_error_and_no_memory(caplog):
    caplog.set_level("INFO")
    body = json.dumps({"completions": rows(*["Hail"] * 8000)}).encode()
    with listening(Long(), body_patience=0.2, body_rate=10**9) as port:
        opened = unread(port, 2, body)
        until(lambda: in_progress(port) == 0)
        for raw in opened:
            raw.close()
    assert caplog.text.count("the client did not read: its stream ends early") == 2
    worse = [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
    assert not [r for r in worse if "first rejection" not in r.getMessage()]


def test_parts_are_bounded_in_characters_too():
    apart = [Completion(f"{i}?", "x" * 9000) for i in range(40)]
    found = list(parts(apart))
    assert [c for part in found for c in part] == apart
    assert {len(part) for part in found[:-1]} == {PART_CHARACTERS // 9000 + 1}


def test_client_at_its_stream_limit_is_refused_before_its_body_is_read(monkeypatch):
    monkeypatch.setattr("grpo_guard.server.desk.DISCARD_SECONDS", 0.05)
    body = json.dumps({"completions": rows(*["Hail"] * 8000)}).encode()
    small = json.dumps({"completions": rows("fine")}).encode()
    with listening(Long(), client_streams=3) as port:
        opened = unread(port, 3, body)
        settles(lambda: in_progress(port))
        # Only the headers of these bodies have arrived when they are refused.
        assert [refusal(port, head(10**6, STREAM)) for _ in range(3)] == [429] * 3
        assert status(connect(port, head(len(small)), small)) == 200
        for raw in opened:
            raw.close()


def refusal(port, sent):
    """Status of a reply that comes before anything else is sent."""
    with connect(port, sent) as raw:
        return int(raw.recv(4096).split()[1])


def test_streams_with_bodies_in_transit_count_for_the_client(monkeypatch):
    monkeypatch.setattr("grpo_guard.server.desk.DISCARD_SECONDS", 0.05)
    small = json.dumps({"completions": rows("fine")}).encode()
    with listening(Long(), client_streams=3) as port:
        coming = [connect(port, head(len(small), STREAM), small[:-1]) for _ in range(3)]
        settles(lambda: in_progress(port))
        assert refusal(port, head(len(small), STREAM)) == 429
        for raw in coming:
            raw.sendall(small[-1:])
        assert [status(raw) for raw in coming] == [200] * 3
        settles(lambda: in_progress(port))
        assert status(connect(port, head(len(small), STREAM), small)) == 200
