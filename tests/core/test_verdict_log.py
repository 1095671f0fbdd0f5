"""The log of verdicts is bounded, pure ASCII, and never stops a run."""

import json
import pickle
import sys
import threading

from grpo_guard import Completion, Guard, Policy
from grpo_guard.config import GuardConfig
from grpo_guard.core.verdict import Cause, Finding, abstain, accept, reject
from grpo_guard.guard.verdict_log import SHOWN, VerdictLog
from tests.core.rule_verifiers_core import Says, completions


def lines(path):
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_accepted_rows_are_counted_and_the_rest_is_shown(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    guard = Guard(Says(), policy=Policy("keep"), log=path)
    batch = [Completion("3+4?", text, node=node) for text, node in zip("aar?", "xyxz", strict=True)]
    for _ in range(2):
        assert guard.apply([1.0] * 4, batch) == [1.0] * 4
    found = lines(path)
    assert len(found) == 6
    assert found[2]["accepted"] == [["x", 1], ["y", 1]]
    assert (found[0]["outcome"], found[0]["node"], found[0]["excerpt"]) == ("reject", "x", "r")
    assert (found[1]["outcome"], found[1]["cause"]) == ("abstain", "provider")


def test_excerpts_show_the_finding_in_bounded_ascii(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    text = "\x1b[2J" + "x" * 100_000 + "Hail\n\udcff" + "y" * 100_000
    place = Finding("word", "m" * 100_000, char_span=(100_004, 100_008))
    hostile = Completion("p" * 100_000, text, node="n" * 100_000, task="t\n" * 9_000)
    VerdictLog(path).record([hostile], [reject("rule", findings=(place,) * 1_000)])
    (line,) = lines(path)
    assert path.stat().st_size < 20_000
    assert "\x1b" not in path.read_text("ascii")
    assert "Hail" in line["excerpt"]
    assert line["excerpt"].startswith("...x")
    assert len(line["prompt"]) == len(line["node"]) == SHOWN
    assert len(line["findings"]) == 8


def test_full_log_stops_and_warns_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sys.modules[VerdictLog.__module__], "MOST_BYTES", 2_000)
    log = VerdictLog(tmp_path / "verdicts.jsonl")
    batch = completions(*"r" * 5)
    for _ in range(10):
        log.record(batch, [reject("rule")] * 5)
    assert 0 < log.path.stat().st_size <= 2_000
    assert caplog.text.count("has reached 2000 bytes") == 1


def test_unwritable_log_does_not_stop_the_run(tmp_path, caplog):
    folder = tmp_path / "nowhere"
    folder.mkdir()
    guard = Guard(Says(), log=folder / "verdicts.jsonl")
    folder.rmdir()
    for _ in range(3):
        assert guard.apply([1.0, 2.0], completions("a", "r")) == [1.0, None]
    assert caplog.text.count("cannot be written") == 1


def test_folder_that_the_trainer_would_make_later_is_made(tmp_path):
    path = tmp_path / "runs" / "7" / "verdicts.jsonl"
    Guard(Says(), log=path).review(completions("r"))
    assert len(lines(path)) == 1


class Forwarding(VerdictLog):
    def __init__(self, path, address):
        super().__init__(path)
        self.address = address


def test_copies_of_a_subclass_keep_class_and_attributes(tmp_path):
    other = pickle.loads(pickle.dumps(Forwarding(tmp_path / "verdicts.jsonl", "there")))
    other.record(completions("r"), [reject("rule")])
    assert (type(other), other.address, len(lines(other.path))) == (Forwarding, "there", 1)


def test_threads_and_copies_share_a_file(tmp_path):
    log = VerdictLog(tmp_path / "verdicts.jsonl")
    other = pickle.loads(pickle.dumps(log))
    batch = completions(*"ra?")
    said = [reject("rule"), accept("rule"), abstain("rule", Cause.TIMEOUT)]

    def work(of):
        for _ in range(50):
            of.record(batch, said)

    threads = [threading.Thread(target=work, args=(of,)) for of in (log, log, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(log.path)) == 450


def test_guard_file_names_the_log(tmp_path):
    text = f"policy: {{on_reject: keep}}\nlog: {tmp_path}/v.jsonl\nverifier: {{type: screens}}\n"
    guard = GuardConfig.from_text(text, "guard.yaml").build()
    assert guard.log.path == tmp_path / "v.jsonl"
    guard.with_policy(Policy("drop")).apply([1.0], [Completion("p", "fine", node="bob")])
    assert lines(guard.log.path)[0]["accepted"] == [["bob", 1]]
    preset = GuardConfig.from_text(f"preset: failures_only\nlog: {tmp_path}/w.jsonl\n", "g.yaml")
    assert preset.build().log.path == tmp_path / "w.jsonl"
