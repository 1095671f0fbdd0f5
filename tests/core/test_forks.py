"""A forked child works, whatever its parent's threads were doing at the time of the fork."""

import copy
import multiprocessing
import os
import pickle
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from grpo_guard import Completion, CompletionVerifier, EvidenceLedger, Guard, presets
from grpo_guard.core.cached_property import cached_property
from grpo_guard.core.forks import Lock
from grpo_guard.core.verdict import accept
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.store import NodeStore

FORK = multiprocessing.get_context("fork")


def in_child(function, *arguments):
    """Return what ``function`` returns in a forked child; None if it does not return in time."""
    answers = FORK.Queue()
    child = FORK.Process(target=lambda: answers.put(function(*arguments)))
    child.start()
    child.join(30)
    if child.exitcode is None:
        child.kill()
        child.join()
        return None
    return answers.get(timeout=5)


@contextmanager
def in_thread(held):
    """Hold a context manager in another thread."""
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with held:
            entered.set()
            leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert entered.wait(10)
        try:
            yield
        finally:
            leave.set()


def test_a_lock_is_free_in_a_child_and_in_copies():
    lock = Lock()

    def acquired(lock):
        with lock, lock:  # it can be acquired again by the thread that holds it
            return True

    with in_thread(lock):
        assert in_child(acquired, lock)
        assert acquired(pickle.loads(pickle.dumps(lock)))
        assert acquired(copy.deepcopy(lock))
    assert acquired(lock)


def test_a_child_may_leave_a_lock_that_the_forking_thread_held():
    lock, (came, went) = Lock(), os.pipe()
    with lock:
        child = os.fork()
    if child == 0:
        with lock:
            os.write(went, b"left")
            os._exit(0)
    os.waitpid(child, 0)
    os.close(went)
    with os.fdopen(came) as said:
        assert said.read() == "left"


class Read:
    """A text whose reading takes as long as ``gate`` is closed."""

    def __init__(self, gate=None):
        self.gate = gate
        self.started = threading.Event()
        self.times = 0

    @cached_property
    def words(self):
        """The words."""
        self.times += 1
        self.started.set()
        if self.gate is not None:
            self.gate.wait(60)
        return ["a"]


def test_a_slow_text_holds_up_no_other():
    gate = threading.Event()
    slow, quick = Read(gate), Read()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: slow.words)
        assert slow.started.wait(10)
        try:
            assert pool.submit(lambda: quick.words).result(10) == ["a"]
            assert in_child(lambda: Read().words) == ["a"]
        finally:
            gate.set()
        assert waiting.result() == ["a"]
    assert quick.words is quick.words
    assert quick.times == 1
    assert Read.words.__doc__ == "The words."


class Accepts(CompletionVerifier):
    name = "accepts"

    def verify(self, batch):
        return [accept(self.name)] * len(batch)


def completions(node, count=2):
    return [Completion(f"Q{i}", f"It is {i}.", node=node) for i in range(count)]


def test_a_child_records_what_it_judges_itself_and_nothing_twice(tmp_path):
    ledger = EvidenceLedger(tmp_path / "ledger.sqlite")
    guard = Guard(Accepts(), ledger=ledger)
    ledger.record(completions("a"), [accept("accepts")] * 2, round=0)

    def judged():
        verdicts = guard.verify(completions("b", 3))
        ledger.close()
        return [v.accepted for v in verdicts]

    with in_thread(ledger._lock):  # as while another thread records a batch
        assert in_child(judged) == [True] * 3
    counts = {s.node: s.judged for s in EvidenceLedger(ledger.path).standings()}
    assert counts == {"a": 2, "b": 3}


def test_what_a_child_records_is_kept_when_its_parent_closes_the_file(tmp_path):
    ledger = EvidenceLedger(tmp_path / "ledger.sqlite")
    ledger.record(completions("a"), [accept("accepts")] * 2, round=0)
    closed, recorded = FORK.Event(), FORK.Event()

    def record():
        ledger.record(completions("b"), [accept("accepts")] * 2, round=0)
        recorded.set()
        assert closed.wait(30)
        ledger.record(completions("c"), [accept("accepts")] * 2, round=0)
        ledger.close()

    child = FORK.Process(target=record)
    child.start()
    assert recorded.wait(30)
    ledger.close()  # the last connection that is known to SQLite removes the log
    closed.set()
    child.join(30)
    counts = {s.node: s.judged for s in EvidenceLedger(ledger.path).standings()}
    assert counts == {"a": 2, "b": 2, "c": 2}


def test_a_parent_goes_on_recording_after_a_fork(tmp_path):
    ledger = EvidenceLedger(tmp_path / "ledger.sqlite")
    for node in "abc":
        ledger.record(completions(node), [accept("accepts")] * 2, round=0)
        assert in_child(lambda: len(ledger.standings())) == len(ledger.standings())
    assert {s.node: s.judged for s in ledger.standings()} == {"a": 2, "b": 2, "c": 2}


class Names(Memory):
    """Remembers the names it was given."""

    def __init__(self, store):
        super().__init__(store, "names")
        self.names = []

    def _state(self):
        return {"names": self.names}

    def _take_up(self, state):
        self.names = list(state["names"])

    def add(self, name):
        self.change(lambda: self.names.append(name))


def test_a_child_does_not_repeat_its_parents_unwritten_changes(tmp_path):
    store = NodeStore(tmp_path / "nodes")
    memory = Names(store)
    memory.add("a")
    with closing(sqlite3.connect(memory.store_path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        memory.add("b")  # waits in memory, since the file is locked
    in_child(memory.add, "c")
    memory.add("d")
    assert sorted(memory.names) == ["a", "b", "c", "d"]
    assert Names(NodeStore(tmp_path / "nodes")).state_dict() == {"names": memory.names}


def test_a_child_can_write_a_memory_that_was_being_written_at_the_fork(tmp_path):
    memory, stop = Names(NodeStore(tmp_path / "nodes")), threading.Event()

    def keep_busy():
        while not stop.is_set():
            memory.add("parent")

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(keep_busy)
        try:
            for i in range(10):
                in_child(memory.add, f"child {i}")
        finally:
            stop.set()
        busy.result()
    names = Names(NodeStore(tmp_path / "nodes")).state_dict()["names"]
    assert [n for n in names if n != "parent"] == [f"child {i}" for i in range(10)]


def test_a_guard_in_use_can_be_forked():
    guard = presets.different_weights(workers=0)
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            guard.verify(completions("a", 20))

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(keep_busy)
        try:
            found = [in_child(lambda: len(guard.verify(completions("b")))) for _ in range(5)]
        finally:
            stop.set()
        busy.result()
    assert found == [2] * 5
