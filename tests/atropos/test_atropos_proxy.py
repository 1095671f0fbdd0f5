"""The proxy in front of Atropos's real server, over HTTP."""

import gzip
import json
import threading
import time

import pytest

pytest.importorskip("atroposlib", reason="needs a separate environment")

from atroposlib.api.server import app

from grpo_guard import Guard, Policy
from grpo_guard.adapters.atropos.groups import GroupGuard
from grpo_guard.adapters.atropos.proxy import create_proxy
from grpo_guard.server.limits import Limits
from tests.atropos.atropos_parts import WORDS, get, group, left_out, post, served, tokenizer
from tests.atropos.test_atropos_environment import POISONED, REGISTRATION
from tests.atropos.test_atropos_groups import TOKENIZER, Words


@pytest.fixture
def behind():
    """Start the real server with a registered trainer and return its address."""
    with served(app) as url:
        post(f"{url}/register", json.dumps(REGISTRATION).encode())
        get(f"{url}/reset_data")  # drops an earlier test's state; no run without a trainer
        post(f"{url}/register", json.dumps(REGISTRATION).encode())
        get(f"{url}/batch")  # the trainer has started
        yield url


def proxy(behind, verifier=None, policy=None, **more):
    groups = GroupGuard(
        Guard(verifier or Words(), policy=policy), TOKENIZER, vocabulary=len(WORDS), longest=64
    )
    return served(create_proxy(groups, behind, **more))


def body(given):
    return json.dumps(given).encode()


def batch(behind):
    return json.loads(get(f"{behind}/batch"))["batch"]


def test_trainer_gets_only_accepted_rows(behind):
    with proxy(behind) as url:
        assert post(f"{url}/scored_data", body(POISONED)) == (200, '{"status":"received"}')
    (sent,) = batch(behind)
    assert sent["scores"] == pytest.approx([1.0, 0.0, 2 / 3, 1.0])
    assert left_out(sent, 2)
    assert sent["overrides"][2] == {"set_advantage_to_zero": True}


def test_lists_and_gzip_bodies_are_read(behind):
    with proxy(behind) as url:
        zipped = gzip.compress(body([POISONED, POISONED]))
        headers = {"Content-Encoding": "gzip"}
        status, said = post(f"{url}/scored_data_list", zipped, **headers)
    assert (status, json.loads(said)["groups_processed"]) == (200, 2)
    assert left_out(batch(behind)[0], 2)


def test_only_routes_of_environments_are_forwarded(behind):
    with proxy(behind) as url:
        assert json.loads(get(f"{url}/info"))["batch_size"] == 4
        env = {"max_token_length": 64, "desired_name": "sums", "weight": 1.0, "group_size": 4}
        assert json.loads(post(f"{url}/register-env", body(env))[1])["env_id"] == 0
        for path in ("/reset_data", "/batch", "/latest_example", "/docs"):
            with pytest.raises(OSError, match="404"):
                get(url + path)
        assert post(f"{url}/register", body(REGISTRATION))[0] == 404


def test_senders_are_identified_by_their_tokens(behind):
    verifier = Words()
    with proxy(behind, verifier, tokens={"s3cret": "alice", "0ther": "bob"}) as url:
        claims = POISONED | {"overrides": [{"node": "bob"}] * 4}
        assert post(f"{url}/scored_data", body(claims))[0] == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert post(f"{url}/scored_data", body(claims), **wrong)[0] == 401
        right = {"Authorization": "Bearer s3cret"}
        assert post(f"{url}/scored_data", body(claims), **right)[0] == 200
    assert {c.node for c in verifier.shown} == {"alice"}


def test_node_names_in_rows_are_ignored_without_tokens(behind):
    verifier = Words()
    with proxy(behind, verifier) as url:
        post(f"{url}/scored_data", body(POISONED | {"overrides": [{"node": "bob"}] * 4}))
        page = {"Origin": "http://elsewhere"}
        assert post(f"{url}/scored_data", body(POISONED), **page)[0] == 403
    assert {c.node for c in verifier.shown} == {None}


@pytest.mark.parametrize(
    "given",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b'{"tokens": [], "tokens": []}',
        b'{"tokens": [[1]], "masks": [[1]], "scores": []}',
    ],
)  # fmt: skip
def test_invalid_group_is_refused_and_the_server_keeps_running(behind, given):
    with proxy(behind) as url:
        assert post(f"{url}/scored_data", given)[0] == 422
        assert post(f"{url}/scored_data", body(POISONED))[0] == 200
    assert len(batch(behind)) == 1


def test_list_is_parsed_completely_before_any_group_is_judged(behind):
    verifier = Words()
    with proxy(behind, verifier) as url:
        assert post(f"{url}/scored_data", body([POISONED, POISONED]))[0] == 422
        assert post(f"{url}/scored_data_list", body(POISONED))[0] == 422
        assert post(f"{url}/scored_data_list", body([POISONED, {"tokens": []}]))[0] == 422
    assert verifier.shown == []
    assert batch(behind) is None


def test_decompression_bomb_is_refused(behind):
    with proxy(behind, limits=Limits(body_bytes=1024 * 1024)) as url:
        bomb = gzip.compress(b" " * 50_000_000)
        assert post(f"{url}/scored_data", bomb, **{"Content-Encoding": "gzip"})[0] == 413
        assert post(f"{url}/scored_data", b"x", **{"Content-Encoding": "gzip"})[0] == 422


def test_guard_failure_forwards_nothing(behind):
    with proxy(behind, policy=Policy("drop", "raise")) as url:
        unseen = group("unseen", "one", "two", "three", scores=[1.0, 0.0, 0.0, 1.0])
        assert post(f"{url}/scored_data", body(unseen))[0] == 503
    assert batch(behind) is None


def test_unreachable_server_is_reported():
    with proxy("http://127.0.0.1:9") as url:
        assert post(f"{url}/scored_data", body(POISONED))[0] == 502


def test_late_verdict_is_not_forwarded_twice(behind):
    gone_on = threading.Event()

    class Slow(Words):
        timeout = None

        def verify(self, batch):
            time.sleep(0.6)
            gone_on.set()
            return super().verify(batch)

    with proxy(behind, Slow(), limits=Limits(seconds=0.3)) as url:
        assert post(f"{url}/scored_data", body(POISONED))[0] == 503
        assert gone_on.wait(10)
        time.sleep(0.3)
    assert batch(behind) is None


def test_tokenizer_round_trips_words():
    assert tokenizer().decode([3, 4]) == "one two"
