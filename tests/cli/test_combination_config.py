"""Combinators' options and calibrations in YAML, and the command that calibrates rules."""

import json

import pytest
from typer.testing import CliRunner

from grpo_guard import AllOf, Cascade, Completion
from grpo_guard.cli.main import app
from grpo_guard.config import ConfigError, GuardConfig, build_verifier
from grpo_guard.core.calibrated import Calibrated
from grpo_guard.core.ensemble import Vote

SCREENS, ARITHMETIC = {"type": "screens"}, {"type": "arithmetic"}
RIGHT = "2 + 2 = 4, so the answer is 4."
GUARD = """
alpha: 0.05
policy: {on_long: scale}
verifier:
  all:
    - {type: screens}
    - {type: arithmetic, calibration: CALIBRATION}
  alpha: 0.05
  shares: [1, 4]
"""


def command(folder, *arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def honest(folder, n=60, text=RIGHT):
    lines = [{"prompt": f"Question {i // 4}?", "text": text, "node": f"n{i % 4}"} for i in range(n)]
    path = folder / "honest.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def guard_file(folder):
    path = folder / "guard.yaml"
    path.write_text(GUARD.replace("CALIBRATION", str(folder / "calibration.json")))
    return path


def test_from_honest_completions_to_a_guard_with_a_shared_budget(tmp_path):
    out, config = tmp_path / "calibration.json", guard_file(tmp_path)
    result = command(tmp_path, "calibrate", "--rules", "-c", config, honest(tmp_path), "-o", out)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["format"] == "grpo-guard calibration 1"
    assert {name: v["completions"] for name, v in written["verifiers"].items()} == {
        "screens": 60,
        "arithmetic": 60,
    }
    guard = GuardConfig.from_yaml(config).build()
    assert isinstance(guard.verifier, AllOf)
    assert guard.verifier.shares == [0.2, 0.8]
    assert isinstance(guard.verifier.members[1], Calibrated)
    assert guard.length_scaling is not None


def test_combinators_take_options_next_to_their_list():
    cascade = build_verifier({"cascade": [SCREENS, ARITHMETIC], "alpha": 0.01}, 1e-3)
    assert isinstance(cascade, Cascade)
    assert cascade.alpha == 0.01
    assert isinstance(build_verifier({"vote": [SCREENS, ARITHMETIC], "rejects": 2}, 1e-3), Vote)
    assert build_verifier({"all": [SCREENS, ARITHMETIC]}, 1e-3).alpha is None


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ({"all": [SCREENS], "alpha": 2}, r"verifier\.all: AllOf\.alpha: expected .* got 2"),
        (
            {"cascade": [SCREENS], "shares": [1, 2]},
            r"verifier\.cascade: Cascade\.shares: expected 1",
        ),
        (
            {"all": [SCREENS], "rejects": 1},
            r"verifier\.all: expected one of alpha, shares, name, got .rejects",
        ),
        ({"any": [SCREENS], "alpha": 0.1}, r"verifier\.any: expected one of name, got .alpha"),
        ({"all": [SCREENS], "any": [SCREENS]}, "expected type: NAME, or one of"),
        ({"not": SCREENS, "alpha": 0.1}, "expected type: NAME, or one of"),
        ({"all": []}, "expected a non-empty list"),
        ({"type": "screens", "calibration": "/nowhere.json"}, "expected a calibration file"),
    ],
)
def test_invalid_trees_are_refused(node, problem):
    with pytest.raises(ConfigError, match=problem):
        build_verifier(node, 1e-3)


def test_too_few_honest_completions_for_the_budget_are_refused(tmp_path):
    out, config = tmp_path / "calibration.json", guard_file(tmp_path)
    command(tmp_path, "calibrate", "--rules", "-c", config, honest(tmp_path, 8), "-o", out)
    with pytest.raises(ConfigError, match="calibrate it on more honest"):
        GuardConfig.from_yaml(config).build()


def test_calibrate_refuses_invalid_input(tmp_path):
    out, config = tmp_path / "out.json", guard_file(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    result = command(tmp_path, "calibrate", "--rules", "-c", config, empty, "-o", out)
    assert result.exit_code == 2
    assert "expected at least one completion, got none" in result.output
    config.write_text("verifier: {all: [{type: screens}, {type: screens}]}")
    result = command(tmp_path, "calibrate", "--rules", "-c", config, honest(tmp_path), "-o", out)
    assert result.exit_code == 2
    assert "expected one 'screens', got two" in result.output
    config.write_text("verifier: {type: length}")
    result = command(tmp_path, "calibrate", "--rules", "-c", config, honest(tmp_path, 1), "-o", out)
    assert result.exit_code == 2
    assert "abstained on all" in result.output
    assert not out.exists()


def test_guard_file_with_a_ledger(tmp_path):
    path, database = tmp_path / "guard.yaml", tmp_path / "run.sqlite"
    path.write_text(f"verifier: {{type: screens}}\nledger: {{path: '{database}', ratio: 1.0}}\n")
    guard = GuardConfig.from_yaml(path).build()
    batch = [Completion("Q", "It is 4.", node=f"n{i}", round=0) for i in range(4)]
    assert guard.apply([1.0] * 4, batch) == [1.0] * 4
    assert guard.ledger.settings.tolerance.ratio == 1.0
    shown = command(tmp_path, "ledger", "show", database)
    assert shown.exit_code == 0, shown.output
    assert "n3" in shown.output
    released = command(tmp_path, "ledger", "release", database, "n3")
    assert released.exit_code == 0, released.output
    unknown = command(tmp_path, "ledger", "release", database, "n9")
    assert unknown.exit_code == 2
    path.write_text(
        f"verifier: {{type: screens}}\nledger: {{path: '{database}', exclude: false}}\n"
    )
    assert GuardConfig.from_yaml(path).build().verifier.name == "screens"


@pytest.mark.parametrize("ledger", ["{path: /no/such/folder/run.sqlite}", "{path: X, alpha: 2}"])
def test_invalid_ledgers_are_refused(tmp_path, ledger):
    path = tmp_path / "guard.yaml"
    ledger = ledger.replace("X", str(tmp_path / "run.sqlite"))
    path.write_text(f"verifier: {{type: screens}}\nledger: {ledger}\n")
    with pytest.raises(ConfigError, match="ledger: "):
        GuardConfig.from_yaml(path).build()


@pytest.mark.parametrize(
    ("written", "number"),
    [("1e-3", 1e-3), ("1E-3", 1e-3), ("1.e-3", 1e-3), (".1e-2", 1e-3), ("0.001", 1e-3),
     ("+1e-3", 1e-3), ("1.0e-03", 1e-3)],
)  # fmt: skip
def test_yaml_numbers_with_bare_exponents_are_read(tmp_path, written, number):
    """YAML 1.1, and so PyYAML, requires a point before an exponent and a sign in it."""
    path = tmp_path / "guard.yaml"
    path.write_text(f"alpha: {written}\nverifier: {{type: length, alpha: {written}}}\n")
    config = GuardConfig.from_yaml(path)
    assert (config.alpha, config.verifier["alpha"]) == (number, number)
    config.build()


@pytest.mark.parametrize("text", ["e5", "1e", "a1e5", "1e5b", "0x1e5g", "1e-3 x", "'1e5'"])
def test_yaml_names_are_not_converted(tmp_path, text):
    path = tmp_path / "guard.yaml"
    path.write_text(f"verifier: {{type: {text}}}\n")
    assert GuardConfig.from_yaml(path).verifier == {"type": text.strip("'")}
