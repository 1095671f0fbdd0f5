"""The server's self-description, its metrics, and the single form of its refusals."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from grpo_guard import Completion
from grpo_guard.core.verdict import accept
from grpo_guard.server.rewards import load_reward
from tests.server.server_parts import (
    Words,
    client,
    connect,
    listening,
    rewards_of,
    strict,
    verdicts_of,
)

DOCS = Path(__file__).parents[2] / "docs" / "openrlhf.md"


def test_example_of_the_docs_pays_only_right_answers(tmp_path):
    (example,) = re.findall(r"```python\n(# grader\.py.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "grader.py").write_text(example)
    web = client(reward=load_reward(f"{tmp_path / 'grader.py'}:reward_func"))
    assert rewards_of(web, "It is 7.", "It is 8.", "Hail 7")["rewards"] == [1.0, 0.0, 0.0]
    asked = {"query": ["3+4?It is 7."], "prompts": ["3+4?"], "labels": [""]}
    assert strict(web.post("/get_reward", json=asked))["rewards"] == [0.0]
    refused = strict(web.post("/get_reward", json=asked | {"labels": [None]}), 422)
    assert refused == {
        "error": "labels[0]: expected a reference answer, got null", "index": 0, "field": "labels"
    }  # fmt: skip


def test_page_and_description_need_no_token_and_load_nothing():
    web = client(token="s3cret")
    described = strict(web.get("/openapi.json"))
    assert set(described["paths"]) == {
        "/get_reward", "/v1/verify", "/v1/verify/stream", "/health", "/metrics"
    }  # fmt: skip
    schemas = described["components"]["schemas"]
    assert set(schemas["Completion"]["properties"]) == {
        "id", *(f.name for f in fields(Completion))
    }  # fmt: skip
    assert set(schemas["Verdict"]["properties"]) == set(accept("x").to_dict())
    answer = web.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "POST /v1/verify" in answer.text
    assert not re.search(r"<script|src=|//", answer.text)


def test_examples_of_the_description_get_the_described_answers():
    web = client(Words())
    for path in ("/get_reward", "/v1/verify"):
        said = strict(web.get("/openapi.json"))["paths"][path]["post"]
        example = said["requestBody"]["content"]["application/json"]["example"]
        answer = strict(web.post(path, json=example))
        shown = said["responses"]["200"]["content"]["application/json"]
        assert answer == shown.get("example", answer)
        assert "rewards" in answer or answer["verdicts"][0]["outcome"] == "accept"


def counts(web, **options):
    """Rows of /metrics by name, after parsing each line as Prometheus would."""
    answer = web.get("/metrics", **options)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    form = re.compile(r'([a-z_]+)(\{(?:[a-z]+="[^"\\\n]*",?)*\})? ([0-9.e+-]+)')
    rows = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {"".join(filter(None, m.groups()[:2])): float(m[3]) for m in map(form.fullmatch, rows)}


def test_metrics_count_the_answers_given():
    web = client(reward=lambda queries, prompts, labels: [1.0] * len(queries))
    rewards_of(web, "fine", "Hail", "unseen")
    verdicts_of(web, "fine", "fine")
    web.post("/v1/verify", content=b"{")
    web.post('/nowhere{"}', content=b"{")
    found = counts(web)
    assert found['grpo_guard_requests_total{path="/v1/verify",status="200"}'] == 1
    assert found['grpo_guard_requests_total{path="/v1/verify",status="422"}'] == 1
    for outcome in ("accept", "reject", "abstain"):
        name = f'grpo_guard_completions_total{{path="/get_reward",outcome="{outcome}"}}'
        assert found[name] == 1
    assert found['grpo_guard_completions_total{path="/v1/verify",outcome="accept"}'] == 2
    assert found['grpo_guard_request_seconds_bucket{path="/v1/verify",le="+Inf"}'] == 2
    assert found["grpo_guard_requests_in_progress"] == 0
    assert not any("nowhere" in name for name in found)  # a client cannot add rows


def test_metrics_need_the_token():
    web = client(token="s3cret")
    assert strict(web.get("/metrics"), 401) == {"error": "expected Authorization: Bearer TOKEN"}
    assert counts(web, auth=("prometheus", "s3cret")) == {
        "grpo_guard_requests_in_progress": 0.0,
        "grpo_guard_store_waits_total": 0.0,
        "grpo_guard_store_waiting": 0.0,
    }


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "headers"),
    [
        (401, "POST", "/v1/verify", b"", {"authorization": ""}),
        (403, "POST", "/v1/verify", b"", {"origin": "http://page"}),
        (404, "GET", "/nowhere", b"", {}),
        (405, "GET", "/get_reward", b"", {}),
        (413, "POST", "/get_reward", b" " * 2000, {}),
        (415, "POST", "/v1/verify", b"", {"content-encoding": "gzip"}),
        (422, "POST", "/v1/verify", b'{"completions": [{"prompt": 1, "text": ""}]}', {}),
        (500, "POST", "/get_reward", b'{"query": [""], "labels": [1]}', {}),
    ],
)
def test_refusals_have_one_form_for_every_status(status, method, path, body, headers):
    web = client(reward=lambda queries, prompts, labels: 1 / 0, token="t", body_bytes=1000)
    headers = {"authorization": "Bearer t"} | headers
    answer = web.request(method, path, content=body, headers=headers)
    form(strict(answer, status))
    assert answer.headers["content-type"] == "application/json"


def test_invalid_http_is_refused_in_the_same_form():
    with listening() as port, connect(port, b"no http\r\n\r\n") as raw:
        head, _, body = raw.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    form(json.loads(body))


def form(refused):
    assert set(refused) <= {"error", "index", "field"}
    assert isinstance(refused["error"], str)
