"""Workers that die, hang or miscount: still one verdict each, and no failure becomes a score."""

# The class that reaches actors by value must not evaluate names that stay behind.
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'grpo-guard[ray]'")

from grpo_guard import Completion, CompletionVerifier, ScreensVerifier, presets
from grpo_guard.core.verdict import Verdict, accept, reject
from grpo_guard.server.distributed import RayVerifier, on_ray
from grpo_guard.server.distributed.worker import Worker

pytestmark = pytest.mark.usefixtures("cluster")


def obeying(folder: Path, seconds: float = 0.0) -> Callable[[], CompletionVerifier]:
    """A verifier that obeys commands in the text and writes its process id to the folder.

    Defined inside a function, so that it reaches the actors by value.
    """

    def make() -> CompletionVerifier:
        class Obeying(CompletionVerifier):
            name, scope, timeout = "obeying", "completion", None

            def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
                return [self._one(completion.text) for completion in batch]

            def _one(self, text: str) -> Verdict:
                time.sleep(seconds)
                if text == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if text == "hang":
                    time.sleep(3_600)
                if text == "raise":
                    raise RuntimeError("as it was told")
                return reject(self.name) if text == "bad" else accept(self.name)

        (folder / str(os.getpid())).touch()
        return Obeying()

    return make


@contextmanager
def workers(folder: Path, seconds: float = 0.0, **options: object) -> Iterator[RayVerifier]:
    there = RayVerifier(obeying(folder, seconds), workers=2, **options)  # type: ignore[arg-type]
    try:
        yield there
    finally:
        there.close()


def batch(texts: dict[int, str], count: int = 64, nodes: int = 4) -> list[Completion]:
    return [Completion("q", texts.get(i, "fine"), node=f"n{i % nodes}") for i in range(count)]


def outcomes(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.cause if verdict.abstained else verdict.outcome for verdict in verdicts]


@pytest.mark.slow
def test_text_that_kills_workers_abstains_alone(tmp_path) -> None:
    with workers(tmp_path) as there:
        said = there.verify(batch({5: "die", 6: "bad", 7: "raise"}))
    assert outcomes(said) == [
        {5: "fault", 6: "reject", 7: "fault"}.get(i, "accept") for i in range(64)
    ]
    assert said[5].findings[0].message.startswith("ActorDiedError: ")
    # It is isolated after at most 32, 16, 8, 4 and 2 others, and then tried three times.
    assert 5 <= len(list(tmp_path.iterdir())) <= 10


@pytest.mark.slow
def test_text_that_hangs_workers_abstains_alone(tmp_path) -> None:
    with workers(tmp_path, timeout=1.0) as there:
        said = there.verify(batch({2: "hang", 3: "bad"}, count=8, nodes=2))
    assert outcomes(said) == [{2: "timeout", 3: "reject"}.get(i, "accept") for i in range(8)]
    assert "no answer within 1 s" in said[2].findings[0].message


@pytest.mark.slow
def test_killed_workers_lose_and_duplicate_nothing(tmp_path) -> None:
    rows = batch(dict.fromkeys(range(0, 1500, 3), "bad"), count=1_500)
    killed = []
    with workers(tmp_path, seconds=0.004) as there:

        def kill() -> None:
            while len(killed) < 5:
                time.sleep(0.4)
                for path in tmp_path.iterdir():
                    if len(killed) < 5 and path.name not in killed:
                        os.kill(int(path.name), signal.SIGKILL)
                        killed.append(path.name)

        thread = threading.Thread(target=kill)
        thread.start()
        said = there.verify(rows)
        thread.join()
        assert outcomes(said) == ["reject" if i % 3 == 0 else "accept" for i in range(1_500)]
        # The replacement workers still answer.
        assert outcomes(there.verify(rows[:4])) == ["reject", "accept", "accept", "reject"]


@pytest.mark.slow
def test_worker_that_returns_too_few_verdicts_is_replaced(tmp_path, monkeypatch, caplog) -> None:
    (tmp_path / "first").touch()

    def read(self, part):
        answers = whole(self, part)
        try:
            (tmp_path / "first").unlink()
        except FileNotFoundError:
            return answers
        return answers[1:]

    whole = Worker.read
    monkeypatch.setattr(Worker, "read", read)
    # By value; otherwise the actors would find the correct one.
    monkeypatch.setattr(Worker, "__module__", "__main__")
    with workers(tmp_path) as there:
        said = there.verify(batch({4: "bad"}))
    assert outcomes(said) == ["reject" if i == 4 else "accept" for i in range(64)]
    assert not (tmp_path / "first").exists()
    assert "expected 32 answers, one per completion, got 31" in caplog.text


@pytest.mark.slow
def test_unpicklable_completion_abstains_alone(tmp_path) -> None:
    rows = batch({1: "bad"}, count=8)
    rows[6] = Completion("q", "fine", metadata={"lock": threading.Lock()})
    with workers(tmp_path) as there:
        said = there.verify(rows)
        assert outcomes(said) == [{1: "reject", 6: "fault"}.get(i, "accept") for i in range(8)]
        assert len(list(tmp_path.iterdir())) <= 2  # no worker was replaced because of it


@pytest.mark.slow
def test_text_that_kills_workers_can_be_rejected_by_another_rule(tmp_path) -> None:
    """An abstention in a stack: the member that runs here still decides."""

    def make() -> CompletionVerifier:
        class Dying(ScreensVerifier):
            def look(self, batch):
                if any("die" in completion.text for completion in batch):
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().look(batch)

        return Dying()

    guard = presets.different_weights(beside=[make()])
    there = on_ray(guard, workers=2)
    try:
        rows = [Completion("q", t, node="n", reference="4") for t in ("die", "2 + 2 = 5\n#### 4")]
        assert [v.outcome for v in guard.judge(rows)[1]] == ["abstain", "reject"]
    finally:
        there.close()


SHUT_DOWN = """
import ray
from grpo_guard import Completion, ScreensVerifier
from grpo_guard.server.distributed import RayVerifier

there = RayVerifier(ScreensVerifier, workers=1)
rows = [Completion("q", f"It is {i}.") for i in range(200)]
print({v.outcome.value for v in there.verify(rows)})
ray.shutdown()
print({v.cause.value for v in there.verify(rows)}, ray.is_initialized())
"""


@pytest.mark.slow
def test_stopped_ray_is_not_restarted(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHUT_DOWN], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{'accept'}", "{'fault'} False"]


@pytest.mark.slow
def test_closing_stops_running_work(tmp_path) -> None:
    there = RayVerifier(obeying(tmp_path, 0.5), workers=2)
    said: list[Verdict] = []
    thread = threading.Thread(target=lambda: said.extend(there.verify(batch({}))))
    thread.start()
    time.sleep(0.3)
    there.close()
    thread.join(timeout=20)
    assert outcomes(said) == ["fault"] * 64
