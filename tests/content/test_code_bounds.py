"""Bounds: hostile text neither crashes the interpreter nor takes time without limit."""

import subprocess
import sys
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_guard.content.code.extract import MAX_BLOCKS, extract
from grpo_guard.content.code.verifier import MAX_FINDINGS, MAX_TEXT
from grpo_guard.core.verdict import Cause
from tests.content.code_programs import judge, tagged
from tests.helpers.subprocesses import environment

LIMIT = 50_000
PIECES = [
    "(", ")", "([{", "lambda:", "not ", "-", "1+", "2**", ".b", "[0]", "()", "1 if 1 else ",
    "if 1:pass\n", "elif 1:pass\n", "9", "1,", '"a" ', '"""\\', "f'{x}' ", "f'{", "{x:{y}}", "#",
    "import a\n", "from a import ", "(a:=", "await ", "a=", "1<", "a and ", "[a for a in ",
    "chr(65)+", "Ab1", "a1", "@a\n", "class a:pass\n", "print x\n", "type X[", "\ud800", "\x00",
    "a\r", "\x0c", "\ufeff", "ｅ", "é;", "while 1:", "try:\n", "yield ", "\\\n", "\t \t",
    "x.__class__;", "you are a b c ", "ignore all ", "```\n", "<code>", "</code>", "<code>```py\n",
    "~~~\n", "{a.",
    "`import a` ", "x.__class__;", "open;", "getattr(a,b);", "#import a\n", "# ignore all\n", "np;",
    "x=9**n;", "n=9\n", "def f():f()\n", "for i in x:x.append(i)\n", " \t", "'%s%s'%('a','b');",
    "import numpy as np\n", "'>>> f(\n'\n", "a_b_c_d;", "'ｅ';", "```sh\nrm -rf\n```\n",
    "import ", "x = (\n", "def f(a, b): return a + b\n", "\N{COMBINING ACUTE ACCENT}", "'\\\n",
]  # fmt: skip


def repeated(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


def hostile(size: int) -> list[str]:
    texts = [repeated(piece, size) for piece in PIECES]
    texts += [
        "".join(" " * i + "if 1:\n" for i in range(400)),
        "".join(" " * i + f"def f{i}():\n" for i in range(95)) + " " * 95 + "pass",
        "x=" + "9" * size, "x=0x" + "f" * size, "x=" + "-" * size + "1", "(" * 55 + ")" * 55,
        "{" * 55 + ":a", "a=" + "{**" * 40, 'f"' * 30, "a = " + "a" * size,
        "if 1:pass\n" + repeated("elif 1:pass\n", size), "x=" + repeated("9**", size) + "9",
    ]  # fmt: skip
    return [form for text in texts for form in (text, tagged(text))]


# The longest texts that are read at all.
@pytest.mark.slow
@pytest.mark.timeout(300)  # read again from each character, these would take longer
def test_the_longest_texts_are_read_once() -> None:
    for text in hostile(MAX_TEXT - 10_000):
        assert len(text) <= MAX_TEXT
        assert len(judge(text).findings) <= MAX_FINDINGS


# A C stack overflow kills the process, so only another process can show that none happened. A
# thread has the smaller stack, and verifiers run in threads.
@pytest.mark.slow
def test_no_text_within_the_limit_kills_the_process() -> None:
    script = (
        "import threading\n"
        "from tests.content.test_code_bounds import LIMIT, hostile\n"
        "from tests.content.code_programs import judge\n"
        "def run():\n"
        "    for text in hostile(LIMIT - 100):\n"
        "        assert judge(text).findings is not None\n"
        "    print('alive')\n"
        "thread = threading.Thread(target=run); thread.start(); thread.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "alive"


def test_too_much_code_is_overlong() -> None:
    at_limit = "x = 1\n" * 100
    assert judge(tagged(at_limit), max_chars=len(tagged(at_limit))).accepted
    assert judge(tagged(at_limit), max_chars=100).cause is Cause.OVERLONG
    assert judge("<code>x = 1</code>" * (MAX_BLOCKS + 1)).cause is Cause.OVERLONG
    assert judge("<code>x = 1</code>" * MAX_BLOCKS).accepted


# 10^5 brackets never reach the parser.
def test_deep_nesting_is_refused_before_parsing() -> None:
    verdict = judge(tagged("(" * 20_000 + ")" * 20_000))
    assert verdict.cause is Cause.MALFORMED
    assert judge(tagged("print(" + "(" * 40 + "1" + ")" * 40 + ")")).accepted


def test_findings_are_capped() -> None:
    verdict = judge(tagged("\n".join(f"import calc{i}" for i in range(500))))
    assert verdict.rejected
    assert len(verdict.findings) == MAX_FINDINGS


# Under -W error a warning of the parser would look like broken code.
def test_parser_warnings_are_suppressed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge(tagged(r'print("\d", 1if 1 else 2)')).accepted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=40))
@example(["<code>", "```"])
@example(["```python\n", "</code>", "import x\n"])
def test_arbitrary_text_never_raises(parts: list[str]) -> None:
    text = "".join(parts)
    for block in extract(text):
        assert text[block.start : block.start + len(block.text)] == block.text
    verdict = judge(text)
    for finding in verdict.findings:
        if finding.char_span:
            assert 0 <= finding.char_span[0] <= finding.char_span[1] <= len(text)
    judge(tagged(text))
