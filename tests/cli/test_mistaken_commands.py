"""Mistakes on the command line: each ends with status 2 and one message that names the option or
the file, what was expected, what came, and what to write instead. None waits for torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_guard

COMMANDS = {
    "verfy -c guard.yaml in.jsonl": "No such command 'verfy'. Did you mean 'verify'?",
    "verify in.jsonl -o out": "--config.*expected --config FILE, got none; .*init",
    "verify -c no.yaml in.jsonl -o out": "no.yaml: expected a guard file, got none there; looked",
    "verify -c guard.yaml no.jsonl -o out": "no.jsonl: .file.: expected a file.* 'in.jsonl'",
    "verify -c in.jsonl guard.yaml -o out": "guard.yaml: .file.: expected completions, got YAML; a",
    "verify guard.yaml in.jsonl -o out": "give one file of completions, and a guard file",
    "verify -c gaurd.yaml in.jsonl -o out": "gaurd.yaml: .*; looked in .* mean 'guard.yaml'?",
    "verify -c guard.yaml in.jsonl -o out --table --format json": "--table.*: expected --format t",
    "verify --table --format json out.jsonl": "--table.*: expected --format table .*got json",
    "verify -c different_weights in.jsonl -o out": "write .preset: different_weights. into one",
    "verify -c guard.yaml in.jsonl -o folder": "folder: expected a file, got a folder; name a file",
    "verify -c guard.yaml https://x/y.jsonl -o out": "got an address; fetch it first",
    "verify -c guard.yaml empty.jsonl -o out": "empty.jsonl: .*at least one completion, got none",
    "calibrate -c guard.yaml in.jsonl -o p.json": "expected one that reads log-probs, .*--rules",
    "verify -c guard.yaml in.jsonl -o in.jsonl": "in.jsonl: expected another file than the input",
    "verify -c guard.yaml in.jsonl --map text -o out": "FIELD=NAME such as text=.*got 'text'",
    "verify -c guard.yaml in.jsonl --map text=no -o out": "no: expected a column of .*got prompt",
    "verify -c guard.yaml in.jsonl --map txt=t -o out": "--map: .*got 'txt'; did you mean 'text'?",
    "verify -c guard.yaml in.jsonl --engine rey -o out": "'rey' is not .* did you mean 'ray'",
    "verify --guard no.yaml in.jsonl -o out": "no.yaml: expected a guard file, got none there",
    "verify --guard=no.yaml in.jsonl -o out": "no.yaml: expected a guard file, got none there",
    "verify -c guard.yaml in.jsonl -o no/out": "no/out: .* no folder no; make it: mkdir -p no$",
    "calibrate --rules -c guard.yaml in.jsonl -o no/out": "no/out: .* make it: mkdir",
    "view out.jsonl -o no/out.html": "no/out.html: .* no folder no; make it: mkdir -p no",
    "verify -c guard.yaml in.jsonl --enigne ray -o out": "No such option:? '?--enigne.*--engine",
    "verify -c guard.yaml folder -o out": "folder: expected a dataset's folder, .*got none",
    "view in.jsonl": "in.jsonl:1: outcome: expected a line that grpo-guard verify or .* --in",
    "view out.jsonl --in no.jsonl": "no.jsonl: .file.: expected a file .*got none there",
    "config check no.yaml": "no.yaml: expected a guard file, got none there; looked in",
    "config check guard.yml": "guard.yml: .*got none there; looked in .* mean 'guard.yaml'?",
    "serve -c guard.yml": "guard.yml: .*got none there; looked in .* mean 'guard.yaml'?",
    "init -o no/g.yaml --names --different-weights": "no/g.yaml: .*; make it: mkdir -p no",
    "init -o new.yaml": "init: expected answers on .* --same-weights or --different-weights, ",
    "init": "guard.yaml: expected a new file, got one that exists; -o FILE writes another",
    "judge probe -c guard.yaml": "verifier: expected one of type judge, got 0; --whole probes all",
    "serve -c guard.yaml --port 99999": "'--port': .*(less than or equal to|<=) ?65535",
    "calibrate -c guard.yaml in.jsonl": "Missing option '--out' / '-o'",
    "eval detect --attack txt": "--attacks: expected one of .*got 'txt'; did you mean 'text'?",
    "eval detect --guard different_weights": "; did you mean preset:different_weights?",
    "eval detect --attacks txt": "--attacks: expected one of .*got 'txt'; did you mean 'text'?",
    "eval detect --guard no.yaml": "no.yaml: expected a guard file, got none there; looked in",
    "eval detect --guard guard": "--guard: expected FILE.yaml or preset:NAME, got 'guard'",
    "eval detect --guard preset:judge": "got 'judge'; did you mean 'judged'?",
    "eval detect -c no.yaml": "no.yaml: expected a guard file, got none there; looked in",
    "eval detect --config=no.yaml": "no.yaml: expected a guard file, got none there; looked in",
    "eval detect --guard screns.yaml": "screns.yaml: verifier.type: .* did you mean 'screens'",
    "eval detect --task wordproblems": "'--task': 'wordproblems' is .* did you mean 'word_probl",
    "eval detect --honest no.jsonl": "--honest: no.jsonl: .file.: expected a file .*'in.jsonl'",
    "eval detect --honest said.jsonl": "--honest: said.jsonl:1: said: .*; --map text=COLUMN reads",
    "eval detect --honest said.jsonl --map node=by": "by, text: .*: --map node=COLUMN --map text=",
    "eval detect --map text=said": "--map: expected --honest FILE next to it, got none",
    "eval detect --honest empty.jsonl": "--honest: expected at least one completion, got the empty",
    "eval detect --attacks text": "--model: expected the folder .*--task word_problems has a bundl",
    "eval detect --task word_problems --temperature 0": "temperature: expected a finite number > 0",
    "eval detect --task word_problems --alpha 5": "--alpha: expected a number in .0, 1., got 5",
    "eval swarm --attack txt": "--attack: expected one of .*got 'txt'; did you mean 'text'?",
    "eval swarm --attack foo": "of [0-9]+ names such as dos, .*, got 'foo'; --list shows all$",
    "eval swarm --defence hetrogeneous": "got 'hetrogeneous'; did you mean 'heterogeneous'?",
    "eval swarm --share 25%": "--share: expected malicious/nodes such as 1/4, got '25%'",
    "eval swarm --on-reject nogain": "--on-reject: .*got 'nogain'; did you mean 'no_gain'?",
    "eval swarm --policy no": "--policy: expected one of .*got 'no'; or a folder, or an id",
    "eval swarm --policy ./no": "--policy: expected a folder with a model, found no folder ./no",
    "eval swarm --seeds 0": "'--seeds': .*(greater than or equal to|>=) ?1",
    "eval report folder": "folder/results.json: .file.: expected to exist, got nothing",
}
ALL = """
import json, sys
from typer.testing import CliRunner
from grpo_guard.cli.main import app
said = {}
for command in json.load(sys.stdin):
    result = CliRunner().invoke(app, command.split())
    odd = None if isinstance(result.exception, SystemExit) else repr(result.exception)
    torch = "torch" in sys.modules
    said[command] = [result.exit_code, result.stderr + result.stdout, odd, torch]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each command says, in one process in which nothing has loaded torch."""
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "guard.yaml").write_text("preset: different_weights\n")
    (folder / "in.jsonl").write_text('{"prompt": "p", "text": "t"}\n')
    (folder / "out.jsonl").write_text('{"index": 0, "outcome": "accept"}\n')
    (folder / "said.jsonl").write_text('{"prompt": "p", "said": "t"}\n')
    (folder / "screns.yaml").write_text("verifier: {type: screns}\n")
    (folder / "empty.jsonl").touch()
    (folder / "folder").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", ALL], input=json.dumps([*COMMANDS]), cwd=folder,
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(grpo_guard.__file__).parents[1])},
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistaken_command(said, command):
    status, message, odd, torch = said[command]
    # The frame that typer draws around its own messages, and its breaks.
    plain = " ".join(re.sub(r"[│╭╮╰╯─]", " ", message).split())
    assert re.search(COMMANDS[command], plain), plain
    assert status == 2
    assert odd is None
    assert "Traceback" not in message
    assert not torch, "torch was loaded before the mistake was found"
    assert plain.count("error:") <= 1
    assert "Value error" not in plain
