"""Standard input: what reads it passes where the task has one, and nothing else of `sys` does."""

import pytest
from code_programs import judge, kinds, tagged

from grpo_guard.completion import Completion
from grpo_guard.content.code.verifier import CodeVerifier

READS = {
    "for": "import sys\nfor line in sys.stdin:\n    print(line)",
    "in a function": "import sys\ndef f():\n    for x in sys.stdin:\n        print(x)\nf()",
    "comprehension": "import sys\nprint([int(line) for line in sys.stdin])",
    "read": "import sys\nn, *rest = map(int, sys.stdin.read().split())\nprint(n)",
    "readline": "import sys\nprint(sys.stdin.readline())",
    "readlines": "import sys\nprint(sys.stdin.readlines()[0])",
    "buffer": "import sys\nprint(sys.stdin.buffer.read().split()[0])",
    "lines of the buffer": "import sys\nfor line in sys.stdin.buffer:\n    print(line)",
    "another name of sys": "import sys as system_\nprint(system_.stdin.read())",
    "input": "print(int(input()) * 2)",
    "input replaced": "import sys\ninput = sys.stdin.readline\nprint(int(input()) * 2)",
    "open(0)": "print(open(0).read())",
    "lines of open(0)": "print(sum(int(line) for line in open(0)))",
    "with open(0)": "with open(0) as f:\n    print(f.read())",
    "iter of a method": "import sys\nfor line in iter(sys.stdin.readline, ''):\n    print(line)",
    "iter": "import sys\nlines = iter(sys.stdin)\nprint(next(lines), next(lines))",
    "map": "import sys\nprint(sum(map(int, sys.stdin)))",
    "unpacked": "import sys\nprint(*sys.stdin)",
    "list": "import sys\nlines = list(sys.stdin)\nprint(lines[0])",
    "enumerate": "import sys\nfor i, line in enumerate(sys.stdin):\n    print(i, line)",
    "from": "from sys import stdin\nfor line in stdin:\n    print(line)",
    "from, as": "from sys import stdin as s, stdout\nstdout.write(s.read())",
    "from, buffer": "from sys import stdin\nprint(stdin.buffer.readline())",
    "a name": "import sys\ndata = sys.stdin\nprint(data.readline())",
    "two names": "import sys\nf = g = sys.stdin\nprint(f.read(), g)",
    "in": "import sys\nprint('stop\\n' in sys.stdin)",
    "max": "import sys\nprint(max(sys.stdin, key=len))",
    "joined": "import sys\nprint(''.join(sys.stdin))",
    "csv": "import csv, sys\nprint(list(csv.reader(sys.stdin)))",
    "json": "import json, sys\nprint(json.load(sys.stdin))",
    "a default": "import sys\ndef f(s=sys.stdin):\n    return s.read()\nprint(f())",
    "an argument": "import sys\ndef f(s):\n    return next(s)\nprint(f(sys.stdin))",
    "an attribute": "import sys\nclass A:\n    f = sys.stdin\nprint(A.f.readline())",
    "a method": "import sys\nread = sys.stdin.buffer.readline\nprint(int(read()))",
    "open(0), mode": "print(open(0, 'rb').read())",
    "a file of the system": "print(open('/dev/stdin').read())",
    "its name": "import sys\nprint(sys.stdin.name)\nsys.stdin.close()",
}  # fmt: skip


@pytest.mark.parametrize("program", READS.values(), ids=READS)
def test_reading_passes_where_the_task_has_input_and_only_there(program) -> None:
    verdict = judge(tagged(program), stdin=True)
    assert verdict.accepted, verdict.findings
    assert judge(tagged(program)).rejected


REST = [
    "sys.stdin = [1]",
    "sys.stdin.buffer = 1",
    "del sys.stdin",
    "del sys.stdin.buffer",
    "print(sys.stdin.__class__)",
    "print(sys.stdin.readline.__self__)",
    "print(sys.stdin.buffer.raw)",
    "print(type(sys.stdin.buffer.raw)('/etc/passwd').read())",
    "print(sys.stdin.buffer.__class__)",
    "print(sys.stdin.fileno())",
    "print(sys.stdin.detach().raw)",
    "sys.stdin.reconfigure(encoding='x')",
    "s = sys\nprint(s.stdin.read())",
    "s = [sys]\nprint(s[0].stdin.read())",
    "print(sys.modules)",
    "print(sys.__stdin__.read())",
    "print(getattr(sys, 'stdin').buffer.raw)",
    "print(getattr(sys.stdin, 'buffer').raw)",
    "f = sys.stdin\nprint(f.buffer.raw)",
    "f = iter(sys.stdin)\nprint(f.buffer.raw)",
    "print(iter(sys.stdin).buffer.raw)",
    "print(next(iter([]), sys.stdin).buffer.raw)",
    "print(max(sys.stdin, 1, key=lambda f: 0).buffer.raw)",
    "print(sum([], sys.stdin).buffer.raw)",
    "print([sys.stdin][0].buffer.raw)",
    "print((f := sys.stdin).buffer.raw)",
    "def f(x=sys.stdin):\n    return x.buffer.raw\nprint(f())",
    "def f(x):\n    return x.buffer.raw\nprint(f(sys.stdin))",
    "def f():\n    return sys.stdin\nprint(f().buffer.raw)",
    "def list(x):\n    return x.buffer.raw\nprint(list(sys.stdin))",
    "class A:\n    f = sys.stdin\nprint(A.f.buffer.raw)",
    "class A:\n    pass\nA.f = sys.stdin\nprint(A.f.buffer.raw)",
    "class A:\n    from sys import stdin\nprint(A.stdin.buffer.raw)",
    "from sys import stdin\nf = lambda: stdin\nprint(f().buffer.raw)",
    "from sys import stdin\nprint(stdin.buffer.raw)",
    "f = g = sys.stdin\nprint(f.buffer.raw)",
    "from sys import stdin as s\nt = s.buffer\nr = t.raw\nprint(type(r)('x'))",
    "print(getattr(sys.stdin.buffer, 'raw'))",
    "from operator import attrgetter\nprint(attrgetter('buffer.raw')(sys.stdin))",
    "match sys.stdin.buffer:\n    case object(raw=r):\n        print(r)",
    "print(open(0, 'rb').raw)",
    "print(open('/dev/stdin', 'w'))",
    "print(open(0, opener=print))",
    "print(open(*[0, 'w']))",
    "from sys import __stdin__\nprint(__stdin__.read())",
    "from sys import modules\nprint(modules)",
    "match sys.stdin:\n    case object(buffer=b):\n        print(b.raw)",
    "with sys.stdin as f:\n    print(f.buffer.raw)",
    "with open(0) as f:\n    print(f.buffer.raw)",
    "print(open(0).buffer.raw)",
    "print(type(open(0).buffer.raw)('x').read())",
    "print(open(1).read())",
    "print(open(False).read())",
    "print(open(0, 'w'))",
    "print(open('x').read())",
    "f = open\nprint(f(0).read())",
    "print(list(map(open, [0]))[0].read())",
    "sys.stdin.read = lambda: '1'",
    "for sys.stdin in [[1]]:\n    print(1)",
    "print(f'{sys.stdin.buffer.raw}')",
    "from sys import *\nprint(type(stdin.buffer.raw)('/etc/passwd').read())",
]


@pytest.mark.parametrize("program", REST)
def test_the_rest_stays_closed(program) -> None:
    assert judge(tagged(f"import sys\n{program}"), stdin=True).rejected


@pytest.mark.parametrize("module", ["sys", "io", "types"])
def test_threat_everything_of_a_module_that_is_open_in_part(module) -> None:
    # A star brought the names unseen: type(stdin.buffer.raw) opens any file.
    program = f"from {module} import *\nprint(2)"
    assert "star_import" in kinds(judge(tagged(program)))
    assert judge(tagged(program), allow=[module]).accepted
    assert judge(tagged("from math import *\nprint(sqrt(4))")).accepted


def test_a_stream_is_followed_through_any_names() -> None:
    chain = "\n".join(f"f{i + 1} = f{i}" for i in range(3_000))
    program = f"import sys\nf0 = sys.stdin\n{chain}\nprint(f3000.buffer.raw)"
    assert "reaches_out" in kinds(judge(tagged(program), stdin=True))


@pytest.mark.parametrize(
    "question",
    [
        "Write a program that reads two numbers and prints their product.",
        "Write a script to ask the user for a name and greet them.",
        "The first line of input contains n. Print the sum from 1 to n.",
        "Print the square of the number that the user enters.",
    ],
)
def test_a_question_about_a_program_that_reads_opens_standard_input(question) -> None:
    (verdict,) = CodeVerifier().verify([Completion(question, tagged("print(int(input()) ** 2)"))])
    assert verdict.accepted, verdict.findings
