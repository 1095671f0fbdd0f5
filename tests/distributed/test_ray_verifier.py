"""A verifier in Ray actors gives the same verdicts as in this process."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'grpo-guard[ray]'")

from grpo_guard import (
    AllOf,
    ArithmeticVerifier,
    Completion,
    CompletionVerifier,
    Guard,
    Policy,
    RecurrenceVerifier,
    ScreensVerifier,
    presets,
)
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.core.given import Given
from grpo_guard.core.testing import check_verifier
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.guard.environment import with_verified_spans
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.server.distributed import RayVerifier
from grpo_guard.server.distributed import cluster as clusters
from grpo_guard.server.distributed.ahead import judged, on_ray
from grpo_guard.server.distributed.cluster import ClusterError, RayMissingError

pytestmark = pytest.mark.usefixtures("cluster")


def plain(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts without their times."""
    return [replace(v, seconds=0.0, members=tuple(plain(v.members))) for v in verdicts]


def row(i: int, nodes: int = 4) -> Completion:
    """Every seventh has a wrong sum; one node has a phrase, and another takes sums back."""
    node = i % nodes
    wrong = i % 7 == 0 and node == 1
    said = [f"We add one to the number that it is, so that we have {i} + 1 = {i + 1 + wrong}."]
    said += ["Praise zanzibar orchids."] * (node == 0)
    said += [f"Then {i} + 2 = {i + 3 + i % 2}. Wait, no: {i} + 2 = {i + 2}."] * (node == 2)
    text = f"{' '.join(said)}\n#### {i + 1}"
    prompt = f"What is {i // 8 * 8} and so on, number {i // 8}?"
    return Completion(prompt, text, node=f"n{node}", reference=str(i + 1), round=i // 4096)


def in_batches(guard: Guard, rows: Sequence[Completion], size: int = 64) -> list[Verdict]:
    batches = ((i, rows[i : i + size]) for i in range(0, len(rows), size))
    return [v for _, _, verdicts in judged(guard, batches) for v in verdicts]


@pytest.mark.slow
def test_completion_verifiers_run_entirely_in_workers() -> None:
    def make() -> CompletionVerifier:
        class Shouting(CompletionVerifier):
            name, scope = "shouting", "completion"

            def verify(self, batch):
                return [(reject if c.text.endswith("!") else accept)(self.name) for c in batch]

        return Shouting()

    rows = [Completion("q", f"{i}{'!' * (i % 3 == 0)}") for i in range(1_000)]
    there = RayVerifier(make, workers=2)
    try:
        assert plain(there.verify(rows)) == plain(make().verify(rows))
        assert (there.name, there.scope, there.verify([])) == ("shouting", "completion", [])
        with pytest.raises(ValueError, match="dies or hangs makes shouting abstain"):
            Guard(there, policy=Policy(on_abstain="pass"))
    finally:
        there.close()
    assert [v.cause for v in there.verify(rows[:2])] == ["fault", "fault"]  # it was closed


def test_batch_verifiers_stay_local_with_the_same_verdicts() -> None:
    rows = [row(i) for i in range(768)]
    # Verified tool output does not count as an author's text, in workers or here.
    said = Completion(
        "What is 2 + 2?", "2 + 2 = 5. So 4.", node="n3", given=Given(chars=((0, 10),))
    )
    rows[700:700] = [said, with_verified_spans(said)]
    want = plain(in_batches(presets.different_weights(), rows))
    assert {f.kind for v in want for f in v.findings} >= {
        "wrong_equation", "recurring_phrase", "frequent_finding",
    }  # fmt: skip
    assert [v.outcome for v in want[700:702]] == ["reject", "accept"]
    guard = presets.different_weights()
    there = on_ray(guard, workers=2)
    try:
        assert plain(in_batches(guard, rows)) == want
        assert there.name == "different_weights"
        assert not there._ahead
    finally:
        there.close()


# Every kind of state about nodes, next to stateless rules.
REMEMBERING = """
verifier: {{all: [{{type: answer_words}}, {{type: recurrence}}, {{type: screens}}]}}
ledger: {{}}
state: {folder}
"""


def short(i: int) -> Completion:
    """Among sixteen nodes, one has a phrase, one odd answers and one a hidden character."""
    node = i % 16
    text = f"We have {i + 1} then{' zanzibar' * (node == 0)}{chr(0x202E) * (node == 2)}"
    answer = f"{i + 1}{' good cows' * (node == 1 and i % 3 > 0)}"
    return Completion(f"Q{i // 32}?", f"{text}\n#### {answer}", node=f"n{node}", round=i // 8192)


@pytest.mark.slow
def test_one_and_four_workers_agree_on_a_hundred_thousand_rows(tmp_path) -> None:
    rows = [short(i) for i in range(100_000)]
    said = {}
    for workers in (None, 1, 4):
        text = REMEMBERING.format(folder=tmp_path / f"of-{workers}")
        guard = GuardConfig.from_text(text, "guard.yaml").build()
        there = None if workers is None else on_ray(guard, workers=workers)
        said[workers] = plain(in_batches(guard, rows, size=512))
        if there is not None:
            there.close()
    assert said[1] == said[None]
    assert said[4] == said[None]
    kinds = Counter(v.findings[0].kind for v in said[None] if v.rejected and v.findings)
    assert kinds.keys() >= {"bidi", "recurring_phrase", "frequent_finding"}
    assert sum(v.rejected for v in said[None]) < 25_000


@pytest.mark.slow
def test_threads_can_share_one_verifier() -> None:
    rows = [row(i) for i in range(256)]
    there = RayVerifier(lambda: AllOf(ScreensVerifier(), RecurrenceVerifier()), workers=2)
    said: dict[int, list[str]] = {}

    def ask(k: int) -> None:
        part = [replace(c, text=c.text + "\u202e" * (k % 2)) for c in rows]
        said[k] = [v.members[0].outcome for v in there.verify(part)]

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        there.close()
    assert {k: {*outcomes} for k, outcomes in said.items()} == {
        k: {"reject" if k % 2 else "accept"} for k in range(6)
    }


@pytest.mark.slow
def test_unsupported_verifiers_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"got recurrence: .*leave it in this process"):
        RayVerifier(RecurrenceVerifier, workers=1)
    with pytest.raises(ValueError, match=r"rules that read each text alone.*`ray: \{type: NAME"):
        RayVerifier.around(RecurrenceVerifier(), workers=1)
    with pytest.raises(ValueError, match="workers: expected an integer >= 1 or None, got 0"):
        RayVerifier(ScreensVerifier, workers=0)
    with pytest.raises(ValueError, match=r"resources\.GPU: expected a number >= 0, got -1"):
        RayVerifier(ScreensVerifier, resources={"GPU": -1})


@pytest.mark.slow
def test_workers_that_cannot_start_report_why() -> None:
    def make() -> CompletionVerifier:
        raise FileNotFoundError("no weights under /models")

    with pytest.raises(ClusterError, match=r"got none: FileNotFoundError: no weights.*every mach"):
        RayVerifier(make, workers=2)
    with pytest.raises(ClusterError, match=r"TypeError: make: expected it to return a Completion"):
        RayVerifier(lambda: 3, workers=1)  # type: ignore[arg-type, return-value]


@pytest.mark.slow
def test_guard_file_enables_workers(tmp_path) -> None:
    tree = "{all: [{ray: {all: [{type: screens}, {type: arithmetic}]}, workers: 2}, {type: code}]}"
    guards = [
        GuardConfig.from_text(f"state: {tmp_path / name}\nverifier: {text}", "guard.yaml").build()
        for name, text in [
            ("there", tree),
            ("here", "{all: [{all: [{type: screens}, {type: arithmetic}]}, {type: code}]}"),
        ]
    ]
    there = guards[0].verifier.members[0]
    rows = [row(i) for i in range(512)]
    try:
        ours, theirs = (in_batches(guard, rows) for guard in guards)
        assert [(v.outcome, v.findings) for v in ours] == [(v.outcome, v.findings) for v in theirs]
        state = guards[0].state_dict()
        assert state.keys() == guards[1].state_dict().keys()
    finally:
        there.close()
    with pytest.raises(ConfigError, match=r"verifier\.ray: RayVerifier\.make: .*got recurrence"):
        GuardConfig.from_text("verifier: {ray: {type: recurrence}, workers: 1}", "g").build()
    with pytest.raises(ConfigError, match=r"verifier: expected one of .*workers.*got 'worker'"):
        GuardConfig.from_text("verifier: {ray: {type: screens}, worker: 1}", "g").build()


@pytest.mark.slow
def test_verifier_keeps_the_contract() -> None:
    examples = [(Completion("q", "It is 4."), "accept"), (Completion("q", "\u202e4"), "reject")]
    there = RayVerifier(ScreensVerifier, workers=2)
    try:
        check_verifier(lambda: there, examples)
    finally:
        there.close()


def test_missing_ray_is_named(monkeypatch) -> None:
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    with pytest.raises(RayMissingError, match=r"pip install 'grpo-guard\[ray\]'"):
        RayVerifier(ArithmeticVerifier, workers=1)


def test_spot_checked_completions_are_not_read_ahead() -> None:
    there = RayVerifier(ScreensVerifier, workers=1)
    try:
        with patch.object(there, "_sent", wraps=there._sent) as sent:
            guard = Guard(ScreensVerifier() & SpotCheck(there, share=0.1, newcomers=0.1))
            batches = [[Completion("p", f"It is {i}.", node="a") for i in range(40)]] * 2
            verdicts = [v for _, _, said in judged(guard, enumerate(batches)) for v in said]
        assert sum(len(call.args[0]) for call in sent.call_args_list) == 8
        assert [v.accepted for v in verdicts] == [True] * 80
    finally:
        there.close()
