"""The cache of rulings: what is kept, for which questions, and what is asked again."""

import multiprocessing
import os
import random
import sqlite3

import pytest

from grpo_guard.core.verdict import Finding
from grpo_guard.judge.backends.base import Backend
from grpo_guard.judge.backends.openai import OpenAIBackend
from grpo_guard.judge.cache import RulingCache
from grpo_guard.judge.modes import Ruling
from grpo_guard.judge.verifier import JudgeVerifier
from tests.judge.judge_server import MODEL, completions, judge, judge_server


class Named(Backend):
    def __init__(self, model):
        self.model = model

    async def ask(self, requests, *, timeout):
        raise NotImplementedError


def test_a_second_run_asks_nothing(server, tmp_path):
    path, batch = tmp_path / "judge.sqlite", completions(*["good", "bad"] * 20)
    first = judge(server, cache=path).verify(batch)
    asked = server.requests
    assert asked == 40
    second = judge(server, cache=path).verify(batch)  # another secret, as in another process
    assert server.requests == asked
    assert [v.outcome for v in second] == [v.outcome for v in first]
    assert [v.findings for v in second] == [v.findings for v in first]
    assert {v.usage.cache_hits for v in second} == {1}
    content = path.read_bytes()
    assert b"secret-key" not in content
    assert b"text 3" not in content


@pytest.mark.slow
def test_only_judgements_are_remembered(server, tmp_path):
    path = tmp_path / "judge.sqlite"
    for _ in range(2):
        judge(server, cache=path).verify(completions("confused", "refusal", "http429"))
    assert all(count >= 2 for count in server.asked.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"rubric": "code"}, {"threshold": 0.2}, {"mode": "cot"}, {"datamark": True}, {"window": True}],
)
def test_any_change_of_the_question_asks_again(server, tmp_path, change):
    path = tmp_path / "judge.sqlite"
    judge(server, cache=path).verify(completions("good"))
    if "window" in change:
        change = {"window": {"shown": 10, "limit": 1000}}
    judge(server, cache=path, **change).verify(completions("good"))
    assert server.requests >= 2


def test_another_server_or_other_fields_ask_again(server, tmp_path):
    path = tmp_path / "judge.sqlite"
    with judge_server() as other:
        backends = [
            OpenAIBackend(MODEL, base_url=url, extra_body=extra)
            for url in (server.url, other.url)
            for extra in ({}, {"seed": 1})
        ]
        for backend in [*backends, *backends]:
            JudgeVerifier(backend, cache=path).verify(completions("good"))
        assert (server.requests, other.requests) == (2, 2)


def test_changed_weights_count_as_another_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"1")
    before = Named(str(tmp_path)).identity
    assert Named(str(tmp_path)).identity == before
    (tmp_path / "model.safetensors").write_bytes(b"12")
    assert Named(str(tmp_path)).identity != before
    assert Named("name").identity != Named("other").identity


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        '{"passed": "false", "p_yes": null, "finding": null}',
        '{"passed": 1, "p_yes": null, "finding": null}',
        '{"passed": true, "p_yes": 7, "finding": null}',
        '{"passed": true, "p_yes": null, "finding": {"kind": "k", "message": "m"}}',
        "[" * 100_000,
        b"\xff\x00",
        7,
        None,
    ],
)
def test_corrupted_rows_accept_nothing(server, tmp_path, row):
    path = tmp_path / "judge.sqlite"
    judge(server, cache=path).verify(completions("bad"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rulings SET ruling = ?", (row,))
    assert judge(server, cache=path).verify(completions("bad"))[0].rejected
    assert server.requests == 2


def test_world_writable_cache_is_not_used(server, tmp_path, caplog):
    path = tmp_path / "judge.sqlite"
    judge(server, cache=path).verify(completions("good"))
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o666)
    assert judge(server, cache=path).verify(completions("good"))[0].accepted
    assert server.requests == 2
    assert "writable by you alone" in caplog.text


def plant(path):
    """Change the rulings, as an attacker would, in the log next to the file."""
    with sqlite3.connect(path) as connection:
        (row,) = connection.execute("SELECT ruling FROM rulings").fetchone()
        connection.execute("UPDATE rulings SET ruling = ?", (row.replace("false", "true"),))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["", "-wal", "-shm", "-journal", "folder"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_group_writable_cache_is_not_used(server, tmp_path, caplog, which, mode):
    path = tmp_path / "own" / "judge.sqlite"
    path.parent.mkdir(mode=0o700)
    judge(server, cache=path).verify(completions("bad"))
    plant(path)
    beside = path.parent if which == "folder" else path.with_name(path.name + which)
    beside.touch()
    beside.chmod(beside.stat().st_mode | mode)
    assert judge(server, cache=path).verify(completions("bad"))[0].rejected
    assert server.requests == 2
    assert "writable by you alone" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["", "-wal", "folder"])
def test_cache_of_another_user_is_not_used(server, tmp_path, which):
    path = tmp_path / "own" / "judge.sqlite"
    path.parent.mkdir(mode=0o700)
    judge(server, cache=path).verify(completions("bad"))
    plant(path)
    beside = path.parent if which == "folder" else path.with_name(path.name + which)
    os.chown(beside, 12345, 12345)
    assert judge(server, cache=path).verify(completions("bad"))[0].rejected
    assert server.requests == 2


def test_a_links_target_is_checked(server, tmp_path):
    own, link = tmp_path / "own" / "judge.sqlite", tmp_path / "link.sqlite"
    own.parent.mkdir(mode=0o700)
    link.symlink_to(own)
    for _ in range(2):
        assert judge(server, cache=link).verify(completions("good"))[0].accepted
    assert server.requests == 1
    own.parent.chmod(0o770)
    assert judge(server, cache=link).verify(completions("good"))[0].accepted
    assert server.requests == 2


def test_a_link_in_a_writable_folder_is_not_followed(server, tmp_path, caplog):
    """It could lead to another of our databases, which would get a table and a log."""
    ours, shared = tmp_path / "own" / "ours.sqlite", tmp_path / "shared"
    ours.parent.mkdir(mode=0o700)
    with sqlite3.connect(ours) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    ours.chmod(0o600)
    before = ours.read_bytes()
    shared.mkdir()
    shared.chmod(0o1777)
    for name, target in (("judge.sqlite", ours), ("new.sqlite", ours.with_name("new"))):
        (shared / name).symlink_to(target)
        verdict = judge(server, cache=shared / name).verify(completions("good"))[0]
        assert verdict.accepted
    assert ours.read_bytes() == before
    assert [path.name for path in ours.parent.iterdir()] == ["ours.sqlite"]
    assert "writable by you alone" in caplog.text


def test_corrupted_files_raise_nothing_and_accept_nothing(tmp_path):
    path = tmp_path / "judge.sqlite"
    keys = [str(i) for i in range(100)]
    ruling = Ruling(False, p_yes=0.1, finding=Finding("judge", "é", (1, 2)))
    RulingCache(path).put(dict.fromkeys(keys, ruling))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good = path.read_bytes()
    for seed in range(200):
        rng = random.Random(seed)
        data = bytearray(good if seed % 3 else good[: rng.randrange(1, len(good))])
        for _ in range(rng.choice([1, 5, 50, 500])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        changed = tmp_path / f"{seed}.sqlite"
        changed.write_bytes(data)
        changed.chmod(0o600)
        cache = RulingCache(changed)
        assert all(found == ruling for found in cache.get(keys).values())
        cache.put({"new": ruling})


def test_other_errors_cost_requests_and_no_verdict(server, tmp_path, caplog):
    path = tmp_path / "judge.sqlite"
    judge(server, cache=path).verify(completions("good"))
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE rulings RENAME TO others")
        connection.execute("CREATE VIEW rulings AS SELECT key, load_extension(key) FROM others")
    for where in (path, "a\0b", tmp_path, tmp_path / "none" / "judge.sqlite"):
        assert judge(server, cache=where).verify(completions("good"))[0].accepted
    assert server.requests == 5


def test_a_ruling_does_not_apply_to_another_completion(server, tmp_path):
    path = tmp_path / "judge.sqlite"
    judge(server, cache=path).verify(completions("good", "bad"))
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT key, ruling FROM rulings").fetchall()
        for (key, _), (_, ruling) in zip(rows, reversed(rows), strict=True):
            connection.execute("UPDATE rulings SET ruling = ? WHERE key = ?", (ruling, key))
    first, second = judge(server, cache=path).verify(completions("good", "bad"))
    assert first.accepted
    assert second.rejected


def test_the_oldest_rulings_are_deleted(tmp_path):
    path = tmp_path / "judge.sqlite"
    for i in range(40):
        RulingCache(path, most=100).put({f"{i}.{k}": Ruling(True) for k in range(10)})
    cache = RulingCache(path, most=100)
    assert len(cache.get([f"{i}.{k}" for i in range(30, 40) for k in range(10)])) == 100
    assert not cache.get([f"{i}.{k}" for i in range(30) for k in range(10)])
    again = {f"39.{k}": Ruling(False) for k in range(10)}
    for _ in range(20):
        cache.put(again)
    assert cache.get(list(again)) == again
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM rulings").fetchone()[0] <= 100


def test_several_processes_share_a_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    path = str(tmp_path / "c.sqlite")
    writers = [context.Process(target=_write, args=(path, start)) for start in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    cache = RulingCache(path)
    assert len(cache.get([str(i) for i in range(300)])) == 300


def test_fork_keeps_its_rulings_when_its_parent_closes_the_file(tmp_path):
    # The parent is the last to close the file that SQLite knows of, if the fork inherits it open.
    context = multiprocessing.get_context("fork")
    cache = RulingCache(tmp_path / "c.sqlite")
    cache.put({"parent": Ruling(True, p_yes=0.5)})
    begun, closed = context.Event(), context.Event()

    def write():
        cache.put({"before": Ruling(True, p_yes=0.5)})
        begun.set()
        closed.wait(60)
        cache.put({"after": Ruling(True, p_yes=0.5)})

    fork = context.Process(target=write)
    fork.start()
    assert begun.wait(60)
    cache.get(["parent"])
    cache.close_file()
    closed.set()
    fork.join(60)
    kept = {"parent", "before", "after"}
    assert RulingCache(tmp_path / "c.sqlite").get(list(kept)).keys() == kept


def _write(path, start):
    cache = RulingCache(path)
    for i in range(start, start + 100):
        cache.put({str(i): Ruling(True, p_yes=0.5)})


def test_broken_cache_costs_requests_and_no_verdict(server, tmp_path, caplog):
    path = tmp_path / "judge.sqlite"
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    verifier = judge(server, cache=path)
    for _ in range(2):
        assert verifier.verify(completions("good"))[0].accepted
    assert server.requests == 2
    assert caplog.text.count("continuing without it") == 1


def test_rows_of_another_version_are_ignored(server, tmp_path):
    path = tmp_path / "judge.sqlite"
    judge(server, cache=path).verify(completions("good"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rulings SET ruling = '{}'")
    assert judge(server, cache=path).verify(completions("good"))[0].accepted
    assert server.requests == 2
