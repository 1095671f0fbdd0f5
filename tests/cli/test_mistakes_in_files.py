"""Mistakes in a guard file: one message gives the field, what was expected and what was found."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_guard
from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.config.yaml_text import mapping_from
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer tests set this for the whole process; names of models would be refused then."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


SAMPLING = "sampling: {engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}"
SAME = f"preset: same_weights\n{SAMPLING}\n"

FILES = {
    "a hyphen in a preset": (
        "preset: different-weights",
        "preset: expected one of .*got 'different-weights'; did you mean 'different_weights'?",
    ),
    "capitals in a preset": (
        "preset: Different_Weights",
        "got 'Different_Weights'; did you mean 'different_weights'?",
    ),
    "a preset by its name in the suite": (
        "preset: heterogeneous",
        "preset: expected one of .*got 'heterogeneous'; did you mean 'different_weights'?",
    ),
    "a reader as a type": (
        f"verifier: {{all: [{{type: screens}}, {{type: reader, model: {WORD_PROBLEMS}}}]}}",
        r"verifier.all\[1\].type: 'reader' .* comes with reader: PATH next to preset: different_w",
    ),
    "a reader next to a tree": (
        f"verifier: {{type: screens}}\nreader: {WORD_PROBLEMS}",
        "reader: expected it next to preset: different_weights, got no preset",
    ),
    "standing as a type": (
        "verifier: {all: [{type: screens}, {type: standing}]}",
        "'standing' is not written as a type: it comes with ledger: at the top of the file",
    ),
    "a hyphen in a type": (
        "verifier: {type: logprob-bound}",
        "verifier.type: .*got 'logprob-bound'; did you mean 'logprob_bound'?",
    ),
    "a hyphen in an option": (
        "policy: {on-reject: drop}\nverifier: {type: screens}",
        "policy: expected one of on_reject.*got 'on-reject'; did you mean 'on_reject'?",
    ),
    "a hyphen in a kind": (
        "verifier: {type: arithmetic, severity: {wrong-equation: report}}",
        "severity: .*got 'wrong-equation'; did you mean 'wrong_equation'?",
    ),
    "a key next to a preset": (
        "preset: different_weights\npolcy: {on_reject: drop}",
        "different_weights: expected one of .*policy.*got 'polcy'; did you mean 'policy'?",
    ),
    "a key next to a tree": (
        "verifier: {type: screens}\npolcy: {on_reject: drop}",
        "got 'polcy'; did you mean 'policy'?",
    ),
    "a wrapper of 0.1 next to a preset": (
        "preset: different_weights\nfrequent: {wrong_textual: 0.1}",
        r"frequent: expected none next to .* beside: with severity: \{KIND: count\}",
    ),
    "a wrapper of 0.1 in a tree": (
        "verifier: {frequent: {kind: wrong_textual, verifier: {type: arithmetic}}}",
        r"verifier.frequent: expected its verifier alone, with severity: \{KIND: count\}",
    ),
    "an option of 0.2 next to a preset": (
        "preset: different_weights\nbatch_alpha: 0.01",
        "batch_alpha: expected none .*put the verifier into beside: with count_alpha: ALPHA",
    ),
    "an option of length in 0.2": (
        "verifier: {type: length, trusted_tolerance: 0.2}",
        "trusted_tolerance: expected to be left out; length_scaling: of preset: different_weights",
    ),
    "a class in an old package": (
        "verifier: {type: 'grpo_guard.nodes.recurrence:RecurrenceVerifier'}",
        "did you mean 'grpo_guard:RecurrenceVerifier'?",
    ),
    "a class in a package that only holds its module": (
        "verifier: {type: 'grpo_guard.content.length:LengthVerifier'}",
        "did you mean 'grpo_guard.content.length.verifier:LengthVerifier'?",
    ),
    "a path for a mapping": (
        "verifier: {type: screens}\nledger: run.sqlite",
        "ledger: expected mapping of path, exclude.*got 'run.sqlite'",
    ),
    "a rule": (
        "preset: different_weights\npolicy: {on_reject: nogain}",
        "policy.on_reject: expected .*got 'nogain'; did you mean 'no_gain'?",
    ),
    "a rule that YAML reads as false": (
        "preset: different_weights\npolicy: {on_reject: no}",
        "policy.on_reject: expected .*got False; YAML reads yes, no, on and off as",
    ),
    "an engine": (
        f"preset: same_weights\nmodel: org/x\n{SAMPLING.replace('transformers', 'vlm')}",
        "sampling.engine: expected .*got 'vlm'; did you mean 'vllm'?",
    ),
    "a sampler's option": (
        "preset: same_weights\nmodel: org/x\nsampling: {engine: vllm, temprature: 1}",
        "sampling: expected one of .*got 'temprature'; did you mean 'temperature'?",
    ),
    "no sampler": (
        "preset: same_weights\nmodel: org/x",
        "same_weights.sampling: expected mapping of engine.*got nothing .the sampling",
    ),
    "a misspelt sampler": (
        SAME.replace("sampling:", "samplng:") + "model: org/x",
        "same_weights: expected one of .*got 'samplng'; did you mean 'sampling'?",
    ),
    "a verifier's bare name": (
        "verifier: screens",
        r"verifier: expected a mapping such as \{type: screens\}, got 'screens'",
    ),
    "a bare name in a list": (
        "verifier: {all: [code]}",
        r"verifier.all\[0\]: expected a mapping such as \{type: code\}, got 'code'",
    ),
    "a list of verifiers": (
        "verifier: [{type: screens}]",
        r"verifier: expected .*got a list; write several verifiers as \{all: \[...\]\}",
    ),
    "beside without a list": (
        "preset: different_weights\nbeside: {type: code}",
        r"beside: expected a list such as \[\{type: code\}\], got a mapping; put it in square",
    ),
    "a bare name beside": (
        "preset: different_weights\nbeside: [code]",
        r"beside: item 0: expected a mapping such as \{type: code\}, got 'code'",
    ),
    "a verifier next to a preset": (
        "preset: different_weights\nverifier: {type: screens}",
        "verifier: expected none next to preset: different_weights, got one; .* its list beside:",
    ),
    "a ledger next to a preset": (
        "preset: different_weights\nledger: {path: x}",
        "ledger: expected none next to preset.* in the folder state:",
    ),
    "a class with a dot": (
        "verifier: {type: my_rules.Shouting}",
        "got 'my_rules.Shouting'; write a class of your own as my_rules:Shouting",
    ),
    "a path to no model": (
        f"{SAME}model: ./nowhere",
        "model: expected a model's folder or an id NAME/MODEL, got './nowhere', and it does",
    ),
    "a checkpoint that is not there": (
        f"{SAME}model: out/checkpoint-500",
        "model: expected a model's folder .*got 'out/checkpoint-500'",
    ),
    "a word that is no folder": (
        f"{SAME}model: nowhere",
        "model: expected a model's folder or an id NAME/MODEL, got 'nowhere', which is not a",
    ),
    "an option of a log-prob verifier": (
        f"verifier: {{type: logprob_bound, modle: x, {SAMPLING}}}",
        "verifier: expected an option of logprob_bound, .*got 'modle'; did you mean 'model'?",
    ),
    "an option of a rule": (
        "verifier: {all: [{type: screens, max_lenght: 5}]}",
        r"verifier.all\[0\]: expected an option of screens, one of .*got 'max_lenght'; did you "
        "mean 'max_characters'?",
    ),
    "a policy's number": (
        "preset: different_weights\npolicy: {max_abstain_rate: 25}",
        r"policy: Policy.max_abstain_rate: expected a number in \[0, 1\], got 25",
    ),
    "a path to no reader": (
        "preset: different_weights\nreader: ~/policy",
        "reader: expected .*got '~/policy', and it does not exist; ~ is not expanded",
    ),
    "a path to no tokenizer": (
        "preset: different_weights\ntokenizer: /no/where",
        "tokenizer: expected .*got '/no/where'",
    ),
    "a path in a leaf": (
        f"verifier: {{all: [{{type: logprob_bound, model: ./nowhere, {SAMPLING}}}]}}",
        r"verifier.all\[0\].model: expected .*got './nowhere'",
    ),
    "no judge": ("preset: judged", "judged.backend: expected .*got nothing .required"),
    "a judge's bare name": (
        "preset: judged\nbackend: openai",
        "backend: expected mapping or 'ship",
    ),
    "a judge's type": (
        "preset: judged\nbackend: {type: opnai, model: m}",
        "backend.type: expected one of .*got 'opnai'; did you mean 'openai'?",
    ),
    "an empty file": ("", r"\(file\): expected a mapping such as .*got an empty file"),
    "a list in place of a file": ("- a", r"\(file\): expected a mapping such as .*got a list"),
    "no blank behind a colon": (
        "preset:different_weights",
        "got a single text; write a space after each colon",
    ),
    "neither preset nor verifier": ("alpha: 0.001", "expected verifier: or preset:, got neither"),
    "a number with a unit": (
        "alpha: 0.1 %\nverifier: {type: screens}",
        "alpha: expected number, got 5 characters of text; write numbers without",
    ),
    "a number out of range": ("alpha: 5\nverifier: {type: screens}", "number less than 1, got 5"),
    "text in place of a switch": (
        "preset: different_weights\nlength: 'yes'",
        "different_weights.length: expected true or false, got 'yes'",
    ),
    "a list with two indentations": (
        "verifier:\n  all:\n    - type: screens\n   - type: length\n",
        r"an error in line 4, column 4: `   - type: ...`; is `-` indented as the one in line 3\?",
    ),
    "a key with another indentation": (
        "preset: different_weights\nsampling:\n  engine: x\n temperature: 1\n",
        "line 4, column 2: ` temperature: ...`; is it indented as the keys next to it?",
    ),
    "a tab": ("verifier:\n\ttype: screens", "line 2.*indent YAML with spaces, not with tabs"),
    "an open quote": (
        'preset: different_weights\ncoin: "run\n',
        "line 3, column 1; is the quote that opens in line 2 closed?",
    ),
    "an open bracket": (
        "alpha: 0.1\nverifier: {type: screens\n",
        "is the bracket that opens in line 2 closed, with a comma between entries?",
    ),
    "a preset twice": (
        "preset: different_weights\npreset: judged",
        r"line 2, column 1: `preset: ...` \(a repeated key; write each key once\)",
    ),
    "a state that is empty": (
        "preset: different_weights\nstate: ''",
        'state: expected a folder\'s path, got ""; write "." for this folder',
    ),
    "a variable in a state": (
        "preset: different_weights\nstate: $HOME/state",
        r"state: expected .*got '\$HOME/state'; \$ is not expanded, write the whole path",
    ),
    "a variable in a model": (
        f"{SAME}model: $HOME/policy",
        r"model: expected .*got '\$HOME/policy', and it does not exist; \$ is not expanded",
    ),
    "a function with a dot": (
        "preset: different_weights\nenvironment: my_tools.answer",
        "environment: expected package.module:function, got",
    ),
    "an empty list": ("verifier: {all: []}", "verifier.all: expected a non-empty list, got an em"),
    "a restriction of a preset": (
        "preset: different_weights\nonly: {task: math}",
        "only: expected none next to preset.*; restrict a verifier in its list beside:",
    ),
    "a device that is not there": (
        f"{SAME}model: {WORD_PROBLEMS}\ndevice: gpu",
        "device: expected cpu, or a device that torch finds here, got 'gpu': ",
    ),
    "a share above 1": (
        f"{SAME}model: {WORD_PROBLEMS}\nshare: 10",
        r"share: expected a number in \(0, 1\], got 10",
    ),
    "a log in no folder": (
        "preset: different_weights\nlog: /dev/null/no/where.jsonl",
        "guard.yaml: log: expected a file to append verdicts to, .*cannot be made .Not a directory",
    ),
    "a judge that is not there": (
        "preset: judged\nbackend: {type: openai, model: m, base_url: 'http://127.0.0.1:9'}",
        "verifier: http://127.0.0.1:9: cannot be reached .*; start the server, or correct base",
    ),
    "no file of references": (
        "preset: different_weights\nreferences: nowhere.jsonl",
        "references: nowhere.jsonl: .*expected a readable file",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_mistakes_in_a_guard_file(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, said = FILES[case]
    with pytest.raises(ConfigError, match=said) as refused:
        GuardConfig.from_text(text, "guard.yaml").build()
    assert "\n" not in str(refused.value)
    assert re.match("guard.yaml: (?!guard.yaml)", str(refused.value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SAME}model: {WORD_PROBLEMS}", "preset (same_weights): needs torch, which is not inst"),
        (f"preset: different_weights\nreader: {WORD_PROBLEMS}", "needs torch, which is not instal"),
        (f"preset: different_weights\ntokenizer: {WORD_PROBLEMS}", "tokenizer: expected transform"),
        ("preset: judged\nbackend: shipped", "transformers backend needs torch"),
    ],
)
@pytest.mark.parametrize("command", [["verify"], ["calibrate"]])
def test_missing_extra_gives_one_message_with_the_remedy(tmp_path, text, said, command):
    (tmp_path / "guard.yaml").write_text(text)
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "p", "text": "t"}) + "\n")
    (tmp_path / "run.py").write_text(
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from grpo_guard.cli.main import app\n"
        "app()\n"
    )
    root = Path(grpo_guard.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "run.py", *command, "-c", "guard.yaml", "in.jsonl", "-o", "out"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    if command == ["calibrate"] and SAME not in text:
        assert "nothing to calibrate" in done.stderr  # whatever is installed
        return
    if command == ["verify"]:
        assert said in done.stderr
    assert "pip install 'grpo-guard[torch]'" in done.stderr


def test_misspelt_option_is_refused_before_torch_is_loaded(tmp_path):
    (tmp_path / "guard.yaml").write_text("verifier: {type: logprob_bound, modle: x}")
    code = (
        "import sys\n"
        "from grpo_guard.config import ConfigError, GuardConfig\n"
        "try:\n"
        "    GuardConfig.from_yaml('guard.yaml').build()\n"
        "except ConfigError:\n"
        "    print('torch' in sys.modules)\n"
    )
    root = Path(grpo_guard.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.stdout == "False\n"


def test_merges_and_keys_of_other_types_are_no_repeated_keys():
    text = """
verifier:
  all:
    - &leaf
      <<: &base {type: length, alpha: 0.01}
      alpha: 0.02
    - <<: *leaf
"""
    read = mapping_from(text, "guard.yaml")
    assert read["verifier"]["all"] == [{"type": "length", "alpha": 0.02}] * 2
    assert mapping_from("x: {1: a, '1': b}", "guard.yaml") == {"x": {1: "a", "1": "b"}}


@pytest.mark.parametrize(
    "value", ["!!map [a]", "!!map foo", "!!bool x", "!!int ''", "[{a: 1, a: 2}]"]
)
def test_values_that_are_not_of_their_tag_are_no_yaml(value):
    with pytest.raises(ConfigError, match="expected readable YAML"):
        mapping_from(f"verifier: {value}", "guard.yaml")
