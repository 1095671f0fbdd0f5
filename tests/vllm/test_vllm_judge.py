"""The judge against a real vLLM server and the offline engine, on this machine's CPU."""

import asyncio
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest

from grpo_guard import Cause, Completion
from grpo_guard.judge.backends.base import Request
from grpo_guard.judge.backends.openai import OpenAIBackend
from grpo_guard.judge.backends.vllm import VLLMBackend
from grpo_guard.judge.errors import JudgeSetupError
from grpo_guard.judge.verifier import JudgeVerifier
from tests.helpers.vllm_server import vllm_server
from tests.vllm import in_process  # noqa: F401  # before vllm is imported

MODEL = Path("models/SmolLM2-135M-Instruct")
pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs the environment of `make vllm`"),
    pytest.mark.skipif(not MODEL.is_dir(), reason="needs the weights that `make models` fetches"),
]
LENGTH = 2048
SMALL = (
    "name: small\nversion: 1\n\n[system]\nYou check sums. {verdict}\n[user]\n{prompt}\n{completion}"
)


@pytest.fixture(scope="module")
def server():
    options = {"max_model_len": LENGTH, "max_logprobs": 20, "max_num_seqs": 64}
    with vllm_server(Path(sys.executable), MODEL, **options) as (url, key):
        yield url, key


@pytest.fixture(scope="module")
def rubric(tmp_path_factory):
    path = tmp_path_factory.mktemp("rubric") / "small.txt"
    path.write_text(SMALL)
    return path


def backend(server, **options):
    url, key = server
    return OpenAIBackend("policy", base_url=url, api_key=key, timeout=120, **options)


def batch(n, words=30):
    return [
        Completion(f"What is {i} + {i}?", f"{i} + {i} = {2 * i}. " + "So it is. " * (words // 3))
        for i in range(n)
    ]


def was_read(verdict):
    """Whether the model's answer arrived and was read; so small a model's verdict does not matter.

    If it gives no verdict on a neutral question either, that is the reason, and not the completion.
    """
    if verdict.cause is Cause.PROVIDER:
        return "no verdict in mode" in verdict.reason
    return verdict.cause in (Cause.JUDGED, Cause.MALFORMED)


def test_logit_mode_end_to_end(server):
    verdicts = JudgeVerifier(backend(server), threshold=0.01).verify(batch(6))
    assert all(map(was_read, verdicts))
    assert all(v.usage.requests == 1 and v.usage.tokens_in > 100 for v in verdicts)


def test_json_mode_end_to_end(server, rubric):
    verdicts = JudgeVerifier(backend(server), mode="json", rubric=rubric).verify(batch(3))
    assert all(map(was_read, verdicts))
    assert all(1 <= v.usage.requests <= 2 for v in verdicts)


def test_server_grammar_enforces_the_schema(server):
    from grpo_guard.judge.modes import JsonMode

    mode = JsonMode(max_tokens=400)
    ask = Request(
        ({"role": "user", "content": "Is 2 + 2 = 4? " + mode.instructions},),
        max_tokens=400,
        json_schema=mode.json_schema,
    )
    (reply,) = asyncio.run(backend(server).ask([ask], timeout=120))
    if reply.finish_reason == "stop":
        assert list(json.loads(reply.text)) == ["own_answer", "evidence", "verdict", "confidence"]


def test_prompt_beyond_the_server_context_is_shortened(server):
    long = Completion("What is 2 + 2?", "It is 4, since 2 and 2 make 4. " * 500)
    (verdict,) = JudgeVerifier(backend(server), screens=None).verify([long])
    assert was_read(verdict)
    assert verdict.usage.requests > 1
    assert verdict.abstained or verdict.findings[-1].kind == "not_all_shown"


def test_wrong_model_and_wrong_key_against_the_real_server(server):
    url, key = server
    with pytest.raises(JudgeSetupError, match="one that it serves"):
        JudgeVerifier(OpenAIBackend("other", base_url=url, api_key=key)).check()
    with pytest.raises(JudgeSetupError, match="HTTP 401"):
        JudgeVerifier(OpenAIBackend("policy", base_url=url, api_key="wrong")).check()


@pytest.fixture(scope="module")
def engine():
    options = {"dtype": "float32", "max_model_len": LENGTH, "enforce_eager": True}
    return VLLMBackend(str(MODEL), engine=options | {"max_num_seqs": 8})


def test_engine_agrees_with_the_server(engine, server):
    ask = Request(
        (
            {"role": "system", "content": "Answer with one word: yes or no."},
            {"role": "user", "content": "Is 2 + 2 = 4?"},
        ),
        max_tokens=1,
        top_logprobs=20,
    )
    (mine,) = asyncio.run(engine.ask([ask], timeout=120))
    (theirs,) = asyncio.run(backend(server).ask([ask], timeout=120))
    mine, theirs = dict(mine.first_token), dict(theirs.first_token)
    shared = set(mine) & set(theirs)
    assert len(shared) >= 15
    assert max(abs(mine[t] - theirs[t]) for t in shared) < 1e-2


def test_engine_judges_and_a_long_completion_affects_no_other(engine, rubric):
    rows = [*batch(3), Completion("Q", "word " * 3000)]
    verdicts = JudgeVerifier(engine, rubric=rubric, screens=None).verify(rows)
    assert all(map(was_read, verdicts))  # its head and tail for the last one
    json_mode = JudgeVerifier(engine, rubric=rubric, mode="json").verify(batch(2))
    assert all(map(was_read, json_mode))


def test_missing_models_are_reported():
    with pytest.raises(JudgeSetupError, match="expected a model that loads"):
        JudgeVerifier(VLLMBackend("/no/such/model")).check()


async def _bare(url, key, requests, concurrency):
    """The results of a plain client, without any of our handling, on the same server."""
    client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=3, timeout=300)
    slots = asyncio.Semaphore(concurrency)

    async def one(messages):
        async with slots:
            await client.chat.completions.create(
                model="policy", messages=messages, max_tokens=1, temperature=0,
                logprobs=True, top_logprobs=20,
            )  # fmt: skip

    started = time.perf_counter()
    await asyncio.gather(*(one(m) for m in requests))
    await client.close()
    return len(requests) / (time.perf_counter() - started)


@pytest.mark.slow
def test_throughput_next_to_a_bare_client_is_reported(server, rubric, record_property):
    """Both ask the same kind of questions, in turns; the figure is printed, not asserted."""
    url, key = server
    n, ours, bare = 96, [], []
    verifier = JudgeVerifier(backend(server), rubric=rubric)
    verifier.verify(batch(8))  # connections are made
    for turn in range(3):
        rows = [Completion(f"{turn} {c.prompt}", c.text) for c in batch(n)]
        chats = [
            list(verifier._brief().messages(c, turn.to_bytes(4), verifier.window)) for c in rows
        ]
        bare.append(asyncio.run(_bare(url, key, chats, 64)))
        started = time.perf_counter()
        assert len(verifier.verify(rows)) == n
        ours.append(n / (time.perf_counter() - started))
    ratio = sorted(a / b for a, b in zip(ours, bare, strict=True))
    print(f"\njudge / bare client, concurrency 64, {n} requests a turn: {ratio}; {ours} {bare}")
    record_property("ratios", ratio)
