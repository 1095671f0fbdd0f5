"""``grpo-guard identity``, and guard files with ``identity:`` and ``references:``."""

import json
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.core.completion import Completion
from grpo_guard.nodes.identity.envelope import signed
from grpo_guard.nodes.identity.keys import SigningKey, fingerprint

ALICE, EVE = SigningKey(b"a" * 32), SigningKey(b"e" * 32)
RUN = "run-7"


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def lines(path: Path, *completions: Completion) -> Path:
    path.write_text("".join(json.dumps(asdict(c)) + "\n" for c in completions))
    return path


def work(slot: int = 0, text: str = "It is 72.") -> Completion:
    return Completion("What is 70 + 2?", text, round=0, slot=slot, node="alice")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.keys"
    path.write_text(f"alice {ALICE.public}\n")
    return path


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    honest = signed(work(), ALICE, run=RUN)
    return lines(
        tmp_path / "in.jsonl",
        honest,
        honest,
        replace(signed(work(1), ALICE, run=RUN), text="poison"),
        signed(work(2), EVE, run=RUN),
        work(3),
    )


def test_new_creates_a_key_and_show_prints_the_public_key(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    made = invoke("identity", "new", path)
    assert made.exit_code == 0, made.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = SigningKey.read(path)
    shown = invoke("identity", "show", path)
    assert shown.output == made.output
    assert key.public in shown.output
    assert fingerprint(key.public) in shown.output
    again = invoke("identity", "new", path)
    assert again.exit_code == 2
    assert "overwriting loses the key" in again.output
    assert SigningKey.read(path).public == key.public


def test_show_of_an_invalid_key_exits_with_2(tmp_path: Path) -> None:
    assert invoke("identity", "show", tmp_path / "none").exit_code == 2


def test_verify_counts_signers_and_refusal_reasons(keys: Path, sent: Path) -> None:
    done = invoke("identity", "verify", sent, "--run", RUN, "--keys", keys)
    assert done.exit_code == 1
    for expected in (
        "1  signed by alice",
        "1  refused: replayed",
        "1  refused: forged",
        "1  refused: wrong_key",
        "1  refused: unsigned",
        "completion 3: its signature does not match its content",
    ):
        assert expected in done.output


def test_verify_of_valid_envelopes_exits_with_0(tmp_path: Path, keys: Path) -> None:
    sound = lines(tmp_path / "in.jsonl", *(signed(work(i), ALICE, run=RUN) for i in range(3)))
    assert invoke("identity", "verify", sound, "--run", RUN, "--keys", keys).exit_code == 0
    assert invoke("identity", "verify", sound, "--run", RUN).exit_code == 0
    assert invoke("identity", "verify", sound, "--run", "other").exit_code == 1
    assert invoke("identity", "verify", sound, "--run", "a b").exit_code == 2


def test_help_loads_neither_torch_nor_cryptography() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from grpo_guard.cli.main import app;"
        "r = CliRunner().invoke(app, ['identity', 'verify', '--help']);"
        "print(r.exit_code, {'torch', 'cryptography'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("0 set()\n", "", 0)


def guard_file(tmp_path: Path, identity: str, more: str = "") -> Path:
    path = tmp_path / "guard.yaml"
    path.write_text(f"preset: different_weights\nidentity: {identity}\n{more}")
    return path


def test_guard_file_refuses_unknown_signers(tmp_path: Path, keys: Path, sent: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"prompt": "What is 70 + 2?", "answer": 72}))
    config = tmp_path / "guard.yaml"
    config.write_text(
        f"verifier: {{type: screens}}\nreferences: {answers}\n"
        f"identity: {{keys: {keys}, run: {RUN}}}\n"
    )
    out = tmp_path / "out.jsonl"
    done = invoke("verify", "-c", config, sent, "-o", out)
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["outcome"] for row in found] == ["accept", *["reject"] * 4]
    assert [row["node"] for row in found] == [ALICE.public, *[None] * 4]
    assert [row["findings"][0]["kind"] for row in found[1:]] == [
        "replayed",
        "forged",
        "wrong_key",
        "unsigned",
    ]


def test_unsigned_line_does_not_make_honest_rounds_late(tmp_path: Path, keys: Path) -> None:
    # Groups are judged at the position of their first line, so an unsigned line early in the file
    # would otherwise have the last round judged first.
    honest = [
        signed(Completion(f"{i} + {n} = ?", "7", round=n, slot=0, node="alice"), ALICE, run=RUN)
        for n in range(5)
        for i in range(40)
    ]
    strange = Completion(honest[-1].prompt, "7", round=4, slot=0, node="mallory")
    out = tmp_path / "out.jsonl"
    config = tmp_path / "guard.yaml"
    config.write_text(f"verifier: {{type: arithmetic}}\nidentity: {{keys: {keys}, run: {RUN}}}\n")
    source = lines(tmp_path / "in.jsonl", strange, *honest, honest[0])
    assert invoke("verify", source, "--config", config, "--out", out).exit_code == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    kinds = [row["findings"][0]["kind"] if row["findings"] else None for row in found]
    assert kinds == ["unsigned", *[None] * len(honest), "replayed"]


def test_guard_file_can_admit_unsigned_work(tmp_path: Path, keys: Path, sent: Path) -> None:
    config = guard_file(tmp_path, f"{{keys: {keys}, run: {RUN}, unsigned: admit, late: 0}}")
    guard = GuardConfig.from_yaml(config).build()
    _, (verdict,) = guard.judge([work()])
    assert verdict.accepted


@pytest.mark.parametrize(
    ("identity", "problem"),
    [
        ("{run: r}", "identity.keys: expected a file of public keys, or pin: true"),
        (
            "{keys: nowhere.keys, run: r}",
            "identity: nowhere.keys: expected a readable file of keys",
        ),
        ("{pin: true}", "identity.run: expected text, got nothing"),
        ("{pin: true, run: 7}", "identity.run: expected text"),
        (
            "{pin: true, run: r, unsigned: perhaps}",
            "identity.unsigned: expected 'refuse' or 'admit'",
        ),
        ("{pin: true, run: r, late: -1}", "identity: late: expected a number of rounds >= 0"),
        ("{pin: true, run: r, kies: f}", "identity: expected one of"),
    ],
)
def test_invalid_identity_section_is_explained(tmp_path: Path, identity: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        GuardConfig.from_yaml(guard_file(tmp_path, identity)).build()
    assert problem in str(raised.value)


def test_invalid_references_file_names_the_line(tmp_path: Path) -> None:
    config = guard_file(tmp_path, "{pin: true, run: r}", "references: nowhere.jsonl\n")
    with pytest.raises(ConfigError, match="references: nowhere"):
        GuardConfig.from_yaml(config).build()
