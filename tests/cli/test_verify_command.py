"""``grpo-guard verify``: one verdict a line, in order; bad input says where and exits 2."""

import json
import os

import pytest
from typer.testing import CliRunner

from grpo_guard.cli.main import app
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS

CONFIG = f"""
alpha: 0.001
policy: {{on_reject: drop}}
verifier:
  all:
    - type: logprob_bound
      model: {WORD_PROBLEMS}
      sampling: {{engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}}
"""
PROMPT = "Q: Zoe has 18 plums. Zoe finds 9 more. How many plums does Zoe have now?\nA:"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "guard.yaml").write_text(CONFIG)
    return tmp_path


def run(files, *lines):
    (files / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    command = ["verify", "-c", files / "guard.yaml", files / "in.jsonl", "-o", files / "out.jsonl"]
    return CliRunner().invoke(app, [str(part) for part in command])


def test_verdicts_come_one_a_line_in_order_and_rejections_exit_0(files):
    gibberish = " ".join(["qz"] * 40)
    lines = [{"prompt": PROMPT, "text": t} for t in (gibberish, "", gibberish)]
    result = run(files, *map(json.dumps, lines))
    assert result.exit_code == 0, result.output
    verdicts = [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()]
    assert [v["index"] for v in verdicts] == [0, 1, 2]
    assert [v["outcome"] for v in verdicts] == ["reject"] * 3
    assert verdicts[1]["cause"] == "malformed"
    assert set(verdicts[0]) == {
        "index", "outcome", "cause", "p_value", "findings", "verifier", "seconds", "members",
    }  # fmt: skip
    assert set(verdicts[0]["findings"][0]) == {"kind", "message", "char_span", "token_span"}
    assert "reject 3/3" in result.output


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "in.jsonl:2: (line): expected a JSON object, got invalid JSON"),
        ("[" * 100_000, "in.jsonl:2: (line): expected a JSON object, got one nested too deeply"),
        ("3", "in.jsonl:2: (line): expected a JSON object, got int"),
        ('{"prompt": "x"}', "in.jsonl:2: text: expected to be present, got nothing"),
        ('{"prompt": "x", "text": 7}', "in.jsonl:2: text: expected a string, got 7"),
        ('{"prompt": "x", "text": "y", "txt": 1}', "in.jsonl:2: txt: expected one of prompt, text"),
        (
            '{"prompt": "x", "text": "y", "completion_ids": [1, "2"]}',
            "in.jsonl:2: completion_ids: expected a list of integers or null, got '2'",
        ),
    ],
)
def test_a_malformed_line_is_named_and_nothing_is_written(files, line, complaint):
    result = run(files, json.dumps({"prompt": "x", "text": "y"}), line)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not (files / "out.jsonl").exists()


@pytest.mark.parametrize("read", ["in.jsonl", "guard.yaml", "linked"])
@pytest.mark.parametrize("command", [["verify"], ["calibrate"], ["calibrate", "--rules"]])
def test_what_is_read_is_not_written_over(files, command, read):
    (files / "guard.yaml").write_text("verifier: {type: screens}")
    (files / "in.jsonl").write_text(json.dumps({"prompt": "p", "text": "t"}) + "\n")
    (files / "linked").symlink_to(files / "in.jsonl")
    before = [(files / name).read_text() for name in ("in.jsonl", "guard.yaml")]
    options = ["-c", files / "guard.yaml", files / "in.jsonl", "-o", files / read]
    result = CliRunner().invoke(app, [*command, *map(str, options)])
    assert result.exit_code == 2
    assert "expected another file than the one that is read" in result.stderr
    assert [(files / name).read_text() for name in ("in.jsonl", "guard.yaml")] == before


def test_a_pipe_stays_a_pipe_and_gets_the_verdicts(files):
    """So does a device: root could otherwise put a file in the place of /dev/null."""
    (files / "guard.yaml").write_text("verifier: {type: screens}")
    os.mkfifo(files / "out.jsonl")
    reader = os.open(files / "out.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    assert run(files, json.dumps({"prompt": "p", "text": "t"})).exit_code == 0
    assert json.loads(os.read(reader, 10_000))["index"] == 0
    os.close(reader)
    assert (files / "out.jsonl").is_fifo()
    assert {path.name for path in files.iterdir()} == {"in.jsonl", "guard.yaml", "out.jsonl"}


def test_nothing_is_written_but_the_file_that_was_asked_for(files):
    """Whoever may write to the folder may plant links under names that he knows beforehand."""
    (files / "precious").write_text("precious")
    for name in ("out.jsonl", "out.jsonl.part", ".out.jsonl.part"):
        (files / name).symlink_to(files / "precious")
    before = {path.name for path in files.iterdir()}
    assert run(files, json.dumps({"prompt": PROMPT, "text": "?"})).exit_code == 0
    assert (files / "precious").read_text() == "precious"
    assert json.loads((files / "out.jsonl").read_text())["index"] == 0
    assert {path.name for path in files.iterdir()} == before | {"in.jsonl"}


def test_missing_and_binary_files_are_bad_input(files):
    (files / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, place in (("nowhere.jsonl", " (file)"), ("binary.jsonl", "1: (line)")):
        arguments = ["verify", "-c", str(files / "guard.yaml"), str(files / name), "-o", "o"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert f"{name}:{place}: expected" in result.stderr


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("verifier: {type: logprob_bond}", "did you mean 'logprob_bound'?"),
        ("verifier: {all: []}", "verifier.all: expected a non-empty list"),
        ("verifier: {some: thing}", "verifier: expected type: NAME, or one of all, any"),
        ("alpha: 2\nverifier: {type: x}", "alpha"),
        ("alpah: 2\nverifier: {type: x}", "alpah"),
        ("policy: {on_reject: maybe}\nverifier: {type: x}", "policy.on_reject: expected 'zero'"),
        (CONFIG.replace("top_k: 50", "top_q: 50"), "sampling: expected one of engine, temp"),
        (CONFIG.replace("top_p: 1.0", "top_p: 7"), "SamplingSpec.top_p: expected a number"),
        (CONFIG.replace(str(WORD_PROBLEMS), "/no/such/where"), "expected a model folder or an id"),
        ("- a list", "expected a mapping, got list"),
        ("{unbalanced", "expected readable YAML"),
    ],
)
def test_a_wrong_configuration_is_named(files, config, complaint):
    (files / "guard.yaml").write_text(config)
    result = run(files, json.dumps({"prompt": "x", "text": "y"}))
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr


def test_help_loads_no_torch(files):
    import subprocess
    import sys

    probe = (
        "import sys; from typer.testing import CliRunner; from grpo_guard.cli.main import app;"
        "r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0, r.output;"
        "heavy = {'torch', 'transformers', 'datasets', 'trl', 'openai', 'vllm'} & set(sys.modules);"
        "assert not heavy, heavy; print(r.output)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    ).stdout
    for command in ("demo", "verify", "eval"):
        assert command in shown
