"""The guard's paths behind Ray Serve."""

import json
import socket
import urllib.error
import urllib.request

import pytest

pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'ray[serve]'")

from ray import serve

from grpo_guard.config import ConfigError
from grpo_guard.server.distributed.serve_app import application

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def asked(port: int, path: str, body: object, token: str) -> tuple[int, dict]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_guard_file_is_served(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "guard.yaml").write_text("preset: different_weights\n")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        options = {"ray_actor_options": {"num_cpus": 0.5}}
        serve.run(application(tmp_path / "guard.yaml", token="secret", **options))
        rows = [{"prompt": "2 + 2?", "text": text} for text in ("It is 4.", "2 + 2 = 5", "\u202e4")]
        status, said = asked(port, "/v1/verify", {"completions": rows}, "secret")
        assert status == 200
        assert [v["outcome"] for v in said["verdicts"]] == ["accept", "reject", "reject"]
        assert asked(port, "/v1/verify", {"completions": rows}, "guessed")[0] == 401
    finally:
        serve.shutdown()


def test_invalid_file_is_refused_before_deployment(tmp_path) -> None:
    (tmp_path / "guard.yaml").write_text("presett: different_weights\n")
    with pytest.raises(ConfigError, match="did you mean 'preset'"):
        application(tmp_path / "guard.yaml")
