"""``grpo-guard serve``: a real server on 127.0.0.1, and settings with which it refuses to start."""

import contextlib
import http.client
import json
import logging
import re
import resource
import signal
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.core.quoting import log_handler
from grpo_guard.server.run import server_of

GUARD = "policy: {on_abstain: zero}\nverifier: {type: screens}\n"
REWARD = """
from dataclasses import dataclass

@dataclass
class Grade:
    value: float

def grade(queries, prompts, labels):
    return {"rewards": [Grade(2.0).value if "7" in q else 0.5 for q in queries]}

wrong = 3
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "guard.yaml").write_text(GUARD)
    (tmp_path / "grader.py").write_text(REWARD)
    return tmp_path


def run(files, *options, config="guard.yaml"):
    command = ["serve", "-c", str(files / config), "--port", "0", *options]
    return CliRunner().invoke(app, command)


@pytest.mark.slow
def test_real_server_answers_openrlhf_and_stops_on_request(files, monkeypatch):
    monkeypatch.setenv("GRPO_GUARD_TOKEN", "s3cret")
    command = [sys.executable, "-m", "grpo_guard", "serve", "-c", "guard.yaml", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--reward", "grader.py:grade"], cwd=files, stderr=subprocess.PIPE, text=True
    )
    try:
        port = _port(server)
        asked = {"query": ["3+4?It is 7."], "prompts": ["3+4?"], "labels": ["7"]}
        headers = {"Authorization": "Bearer s3cret", "Content-Type": "application/json"}
        web = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        web.request("POST", "/get_reward", json.dumps(asked), headers)
        answer = json.load(web.getresponse())
        assert (answer["rewards"], answer["scores"]) == ([2.0], [2.0])
        assert answer["extra_logs"]["guard_accept"] == [1.0]
        web.request("POST", "/v1/verify", b"{", headers)
        assert web.getresponse().status == 422
        web.close()
        # Clients that send everything before reading get the reply, not a broken connection.
        web.request("POST", "/v1/verify", b" " * 20_000_000, headers)
        assert web.getresponse().status == 413
        web.close()
        # An unauthorised client is refused before its body is read, or even sent.
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            raw.sendall(
                b"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"
            )
            assert b" 401 " in raw.recv(4096)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
        said = server.stderr.read()
        assert "Traceback" not in said
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", line) for line in said.splitlines())
        assert "INFO uvicorn: Finished server process" in said
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


@pytest.mark.slow
def test_connections_may_exceed_the_usual_file_limit(files):
    """OpenRLHF opens a connection per completion in a rollout, all at once."""

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))

    command = [sys.executable, "-m", "grpo_guard", "serve", "-c", "guard.yaml", "--port", "0"]
    server = subprocess.Popen(
        command, cwd=files, stderr=subprocess.PIPE, text=True, preexec_fn=few_files
    )
    with contextlib.ExitStack() as stack:
        stack.callback(server.stderr.close)
        stack.callback(server.wait)
        stack.callback(server.kill)
        port = _port(server)
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        web = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        web.request("GET", "/health")
        assert web.getresponse().status == 200
        web.close()


def test_log_lines_of_guard_and_server_begin_with_the_time():
    server_of(lambda: None, "127.0.0.1", 0)  # sets up uvicorn's logging
    record = logging.makeLogRecord(
        {"name": "grpo_guard", "levelname": "WARNING", "msg": "ann: \x1b[2J", "created": 86_400.5}
    )
    for handler, name in (
        (log_handler(), "grpo_guard"),
        (logging.getLogger("uvicorn").handlers[0], "uvicorn"),
    ):
        line = handler.format(record)
        assert re.fullmatch(rf"1970-01-0[12]T\d\d:\d\d:\d\d[+-]\d{{4}} WARNING {name}: (.*)", line)
        assert line.endswith(r": ann: \x1b[2J")


def _port(server):
    for line in server.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError("the server ended")


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ("grader.py", "expected FILE.py:NAME or pkg.module:NAME"),
        ("nowhere.py:grade", "cannot be loaded"),
        ("no.such.package:grade", "cannot be loaded: ModuleNotFoundError"),
        ("grader.py:nothing", "expected it to define nothing"),
        ("grader.py:wrong", "expected a function"),
        ("asyncio:run", None),
    ],
)
def test_invalid_reward_function_exits_2(files, monkeypatch, reward, complaint):
    monkeypatch.chdir(files)
    if complaint is None:
        from grpo_guard.server.rewards import load_reward

        assert callable(load_reward(reward))
        return
    result = run(files, "--reward", reward)
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr


def test_invalid_guard_and_empty_token_exit_2(files, monkeypatch):
    (files / "bad.yaml").write_text("verifier: {type: nonsense}")
    assert run(files, config="bad.yaml").exit_code == 2
    result = run(files, "--timeout", "nan")
    assert result.exit_code == 2
    assert "--timeout" in result.stderr
    monkeypatch.setenv("GRPO_GUARD_TOKEN", " ")
    result = run(files)
    assert result.exit_code == 2
    assert "expected a token, got an empty one" in result.stderr


def test_public_address_without_a_token_warns(files, monkeypatch):
    monkeypatch.setattr("grpo_guard.server.run.listen", lambda app, host, port: True)
    (files / "skip.yaml").write_text("{policy: {on_abstain: skip}, verifier: {type: screens}}")
    assert "anyone there may send requests" in run(files, "--host", "0.0.0.0").stderr
    said = run(files).stderr
    assert "warning" not in said
    assert "POST /v1/verify" in said
    assert '"" in answer is true' in run(files, "--reward", str(files / "grader.py:grade")).stderr
    assert "does not support on_abstain: skip" in run(files, config="skip.yaml").stderr
    monkeypatch.setenv("GRPO_GUARD_TOKEN", "s3cret")
    assert "warning" not in run(files, "--host", "0.0.0.0").stderr


def test_identity_without_a_token_warns_on_any_address(files, monkeypatch):
    monkeypatch.setattr("grpo_guard.server.run.listen", lambda app, host, port: True)
    text = "{verifier: {type: screens}, identity: {pin: true, run: r}}"
    (files / "named.yaml").write_text(text)
    assert "refused as replayed" in run(files, config="named.yaml").stderr
    monkeypatch.setenv("GRPO_GUARD_TOKEN", "s3cret")
    assert "warning" not in run(files, config="named.yaml").stderr


def test_missing_extra_names_the_install_command(files, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "starlette" else find(name)
    )
    result = run(files)
    assert result.exit_code == 2
    assert "serve needs starlette: pip install 'grpo-guard[server]'" in result.stderr


def test_address_in_use_exits_1(files):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run(files, "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "--port N takes another" in result.output


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--host", "0.0.0.0")])
@pytest.mark.parametrize("config", ["verifer: {type: screens}\n", None])
def test_error_in_the_guard_file_comes_alone(files, options, config):
    if config is not None:
        (files / "bad.yaml").write_text(config)
    result = run(files, *options, config="bad.yaml")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith(f"{files / 'bad.yaml'}: ")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_paths_are_named_at_the_start(files, workers, monkeypatch):
    from grpo_guard.server import run as running

    for name in ("listen", "listen_in_workers"):
        monkeypatch.setattr(running, name, lambda *_: True)
    result = run(files, "--host", "0.0.0.0", "--workers", workers)
    assert result.exit_code == 0, result.output
    assert "verdicts: POST /v1/verify; rewards: POST /get_reward" in result.stderr
    assert "warning: 0.0.0.0 can be reached from other machines" in result.stderr
