"""Imports under other names, and in strings that timers, profilers and debuggers run."""

import time

import pytest

from grpo_guard import CodeVerifier, Completion

CODE = CodeVerifier(reach=True)


def verdict(code: str):
    return CODE.verify([Completion("Write a program.", f"```python\n{code}\n```")])[0]


@pytest.mark.parametrize(
    "code",
    [
        "from importlib import import_module as im\nz = im('zorblib')",
        "import importlib\nf = importlib.import_module\nz = f('zorblib')",
        "import importlib as i\nf = i.import_module\ng = f\nz = g('zorblib')",
        "import importlib\nz = importlib.import_module('zorb' + 'lib')",
        "import importlib\nz = importlib.import_module(name='zorblib')",
        "import timeit\ntimeit.timeit('import zorblib')",
        "from timeit import timeit\ntimeit(setup='import zorblib')",
        "import timeit as t\nt.Timer('import zorblib').timeit(1)",
        "import timeit\nS = 'import zorblib'\ntimeit.repeat('f()', S)",
        "import timeit\ntimeit.timeit('imp' + 'ort zorblib')",
        "import timeit\ntimeit.timeit(''.join(['imp', 'ort zorblib']))",
        "import timeit\ntimeit.timeit(f'import zorblib; f({1})')",
        "import timeit\ntimeit.timeit(\"import timeit; timeit.timeit('import zorblib')\")",
        "import timeit\ntimeit.timeit('exec(x)')",
        "import cProfile\ncProfile.run('import zorblib')",
        "import cProfile\np = cProfile.Profile()\np.run('import zorblib')",
        "from profile import run as r\nr('import zorblib')",
        "import pdb\npdb.run('import zorblib')",
        "import trace\ntrace.Trace().run('import zorblib')",
        "import torch\ntorch.hub.load('zorb/lib', 'add')",
        "from torch import hub\nhub.load('zorb/lib', 'add')",
        "from torch.hub import load as l\nl('zorb/lib:main', 'add')",
    ],
)
def test_imports_under_another_name_are_found(code: str) -> None:
    assert verdict(code).rejected


@pytest.mark.parametrize(
    "code",
    [
        "import importlib\njson = importlib.import_module('json')",
        "from importlib import import_module as im\nnp = im('numpy')",
        "import importlib\nf = importlib.import_module\nm = f('collections.abc')",
        "import importlib\nm = importlib.import_module('.views', package=__package__)",
        "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)",
        "import timeit\nprint(timeit.timeit('\"-\".join(map(str, range(100)))', number=10000))",
        "import timeit\ndef f():\n    return 1\nprint(timeit.timeit('f()', "
        "setup='from __main__ import f'))",
        "import timeit\nprint(timeit.timeit('sqrt(2)', 'from math import sqrt'))",
        "import timeit\nprint(timeit.timeit(lambda: sum(range(9)), number=9))",
        "import timeit\nfor n in (1, 2):\n    print(timeit.timeit(f'f({n})', globals=globals))",
        "import timeit\nS = '''\nimport numpy as np\nx = np.arange(9)\n'''\n"
        "print(timeit.repeat('x.sum()', setup=S))",
        "import cProfile\ndef main():\n    pass\ncProfile.run('main()', sort='cumtime')",
        "import cProfile, subprocess\nsubprocess.run(['ls', '-la'])\nsubprocess.run('ls -la')",
        "import pdb\npdb.set_trace()",
        "import torch\nm = torch.hub.load('pytorch/vision:v0.10.0', 'resnet18')",
        "import torch\nm = torch.hub.load('ultralytics/yolov5', 'yolov5s', pretrained=True)",
        "import torch\nm = torch.hub.load('./local', 'net', source='local')",
        "class A:\n    def f(self):\n        return self.hub.load('a/b')",
    ],
)
def test_usual_programs_pass(code: str) -> None:
    found = verdict(code)
    if "globals" in code:  # a mention of it is a finding of another kind
        assert {f.kind for f in found.findings} == {"dynamic_code"}
    else:
        assert found.accepted, found.reason


def test_sums_of_names_that_double_end_soon() -> None:
    lines = ["import timeit, importlib", "s0 = 'import x' + 'y'"]
    lines += [f"s{n} = s{n - 1} + s{n - 1}" for n in range(1, 60)]
    lines += ["a = a + 'x'", "importlib.import_module(a)", "timeit.timeit(s59)"] * 20
    started = time.process_time()
    verdict("\n".join(lines))
    assert time.process_time() - started < 5
