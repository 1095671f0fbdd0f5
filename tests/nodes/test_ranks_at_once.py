"""Four ranks start at once: each file that they share takes what all of them write."""

import json
import logging
import multiprocessing
import pickle

import pytest

from grpo_guard import Completion, presets
from grpo_guard.core.verdict import accept, reject
from grpo_guard.guard.state_owner import FILE as WRITTEN_BY
from grpo_guard.guard.verdict_log import VerdictLog
from grpo_guard.judge.cache import RulingCache
from grpo_guard.judge.modes import Ruling
from grpo_guard.nodes.e_process_memory import EProcessMemory
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import SigningKey
from grpo_guard.nodes.identity.ring import KeyRing
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.store import FILE, NodeStore

RANKS = 4
NODES = ("ann", "bob", "cid", "dan")


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def at_once(work, times):
    """Call ``work(rank, time)`` in four processes, each time in all of them at once; return the
    answers of each time, by rank. A warning or an exception takes the place of an answer."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(RANKS), context.SimpleQueue()

    def run(rank):
        warnings = Warnings()
        logging.getLogger("grpo_guard").addHandler(warnings)
        for time in range(times):
            barrier.wait(timeout=60)
            try:
                found = work(rank, time)
            except Exception as error:
                found = repr(error)
            answers.put((time, rank, warnings.said or found))

    ranks = [context.Process(target=run, args=(rank,), daemon=True) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    found = [{} for _ in range(times)]
    for _ in range(RANKS * times):
        time, rank, answer = answers.get()
        found[time][rank] = answer
    for rank in ranks:
        rank.join(timeout=60)
    return [[of[rank] for rank in range(RANKS)] for of in found]


def test_ledger_and_judge_cache(tmp_path):
    # SQLite refuses a switch to its write-ahead log at once while another process makes it: half
    # of such starts left a rank with a ledger that counted as locked for its first ten seconds.
    def create(rank, time):
        ledger = EvidenceLedger(tmp_path / f"{time}")
        cache = RulingCache(tmp_path / f"{time}.judge")
        cache.put({str(rank): Ruling(True, p_yes=0.5)})
        return ledger.degraded

    assert at_once(create, 20) == [[None] * RANKS] * 20
    for time in range(20):
        assert len(RulingCache(tmp_path / f"{time}.judge").get([*map(str, range(RANKS))])) == RANKS


def test_copies_of_a_ledger_are_readable(tmp_path):
    # The last process to close the file removes SQLite's log, and the next one makes it again;
    # meanwhile SQLite refuses the others, for which a guard would abstain.
    ledger = EvidenceLedger(tmp_path / "run.sqlite")
    copy = pickle.dumps(ledger)
    ledger.close()

    def read(rank, time):
        for _ in range(10):
            own = pickle.loads(copy)
            own.state("ann")
            own.close()

    assert at_once(read, 8) == [[None] * RANKS] * 8


def test_memory_without_a_ledger(tmp_path):
    def write(rank, time):
        memory = EProcessMemory(store=NodeStore(tmp_path / f"{time}"))
        memory.add({NODES[rank]: (rank, [1.0])})
        return NODES[rank] in memory.log_e_values()

    assert at_once(write, 6) == [[True] * RANKS] * 6

    def read(rank, time):
        stores = [NodeStore(tmp_path / f"{time}") for _ in range(10)]
        return {len(EProcessMemory(store=store).log_e_values()) for store in stores}

    assert at_once(read, 6) == [[{RANKS}] * RANKS] * 6


def test_pinned_keys(tmp_path):
    pytest.importorskip("cryptography")
    keys = [SigningKey.new() for _ in range(RANKS)]

    def claim(rank, time):
        """Sign under a name that every rank's node claims, and under a name of its own."""
        identity = Identity(KeyRing(pin=True), run="run", store=NodeStore(tmp_path / f"{time}"))
        sent = [
            signed(Completion("?", "!", node=node, round=0, slot=0), key, run="run")
            for node, key in (("ann", keys[rank]), (f"own-{rank}", SigningKey.new()))
        ]
        return [verdict is None for verdict in identity.admit(sent).given]

    for shared in at_once(claim, 10):
        assert sum(first for first, _ in shared) == 1, "one key gets the name"
        assert all(own for _, own in shared)


def test_verdict_log(tmp_path):
    count = 200

    def record(rank, time):
        # A batch of a hundred kilobytes, more than the size of Python's buffer.
        batch = [Completion("?", f"{i} " * 100, node=NODES[rank]) for i in range(count)]
        verdicts = [reject("rule", message="m" * 200)] * (count - 1) + [accept("rule")]
        VerdictLog(tmp_path / f"{time}.jsonl").record(batch, verdicts)

    assert at_once(record, 5) == [[None] * RANKS] * 5
    for time in range(5):
        lines = [*map(json.loads, (tmp_path / f"{time}.jsonl").read_text().splitlines())]
        rejected = [line["node"] for line in lines if line.get("outcome") == "reject"]
        assert sorted(rejected) == sorted(NODES * (count - 1))
        assert len(lines) == RANKS * count


@pytest.mark.slow
def test_state_folder_of_a_guard(tmp_path):
    def guard(rank, time):
        made = presets.different_weights(state=tmp_path / f"{time}")
        made.idle.mute()
        # Each rank has the answers of all nodes to a prompt of its own.
        batch = [Completion(f"What is {rank}?", f"{rank}.", node=node, round=0) for node in NODES]
        return [verdict.outcome.value for verdict in made.verify(batch)]

    assert at_once(guard, 2) == [[["accept"] * RANKS] * RANKS] * 2
    for time in range(2):
        standings = EvidenceLedger(tmp_path / f"{time}" / FILE).standings()
        assert {s.node: s.judged for s in standings} == dict.fromkeys(NODES, RANKS)
        assert json.loads((tmp_path / f"{time}" / WRITTEN_BY).read_text())["verifiers"]
