"""Programs in tool calls, notebooks, tags, labels and diffs are read as those that run them do."""

import json
import time
from collections.abc import Callable

import pytest

from grpo_guard import ArithmeticVerifier, CodeVerifier, Completion, ScreensVerifier
from grpo_guard.content.json_text import as_read, strings_of

CODE = CodeVerifier(reach=True)


def call(code: str) -> str:
    data = {"name": "python", "arguments": {"code": code}}
    return f"<tool_call>\n{json.dumps(data)}\n</tool_call>"


def nested(code: str) -> str:
    data = {"name": "python", "arguments": json.dumps({"code": code})}
    return f"I call it.\n<tool_call>\n{json.dumps(data)}\n</tool_call>"


def diff(code: str) -> str:
    added = "\n".join("+" + line for line in code.split("\n"))
    return f"--- a/x.py\n+++ b/x.py\n@@ -0,0 +1,3 @@\n{added}"


WAYS: dict[str, Callable[[str], str]] = {
    "call": call,
    "nested": nested,
    "third level": lambda c: nested(json.dumps({"code": c})),
    "mistral": lambda c: '[TOOL_CALLS][{"name": "python", "arguments": ' + json.dumps({"code": c}),
    "second object": lambda c: call("print(1)") + "\n" + call(c),
    "object behind an object": lambda c: '{"a": 1}\nOk.\n{"a": "b"} ' + json.dumps({"code": c}),
    "answer": lambda c: json.dumps({"code": c}),
    "notebook": lambda c: json.dumps({"cells": [{"source": c.splitlines(keepends=True)}]}),
    "input": lambda c: f"Action: python\nAction Input: {c}",
    "label and JSON": lambda c: f"Action Input: {json.dumps({'code': c})}",
    "parameter": lambda c: f"<function=python><parameter=code>{c}</parameter></function>",
    "long key": lambda c: f"<tool_call>{json.dumps({'x' * 300: 1, 'code': c})}</tool_call>",
    "blanks": lambda c: call(c).replace("\n{", " " * 99 + "{"),
    "escaped letters": lambda c: call(c).replace("port", "\\u0070ort"),
    "tabs": lambda c: call("if 1:\n\t" + c.replace("\n", "\n\t")),
    "diff": diff,
    "fenced diff": lambda c: f"```diff\n{diff(c)}\n```",
    "diff without a header": lambda c: f"```diff\n+{c.replace(chr(10), chr(10) + '+')}\n```",
    "prompt": lambda c: "In [1]: " + c.replace("\n", "\n   ...: "),
}
BAD = (
    "import zorblib\nprint(zorblib.add(2, 3))",
    "from zorblib import add\nprint(add(2, 3))",
    "z = __import__('zorblib')\nprint(z.add(2, 3))",
    'def f():\n    """Add."""\n    import zorblib\n    return zorblib.add(2, "\\n")\nprint(f())',
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", BAD)
def test_programs_are_found_wherever_they_are(way: str, code: str) -> None:
    assert CODE.verify([Completion("Add 2 and 3.", WAYS[way](code))])[0].rejected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\nprint(np.add(2, 3))",
        'def f(a, b):\n    """Add "a"."""\n    return f"{a + b}\\n"\nprint(f(2, 3))',
        "x = 2\nprint(x + 3)",
    ],
)
def test_usual_programs_pass_in_all_of_them(way: str, code: str) -> None:
    verdict = CODE.verify([Completion("Add 2 and 3.", WAYS[way](code))])[0]
    assert verdict.accepted, verdict.reason


@pytest.mark.parametrize("way", ["call", "nested", "answer", "notebook", "label and JSON"])
def test_programs_in_strings_keep_their_indentation(way: str) -> None:
    code = BAD[-1].replace("import zorblib", "exec('import zorblib')")
    verdict = CODE.verify([Completion("Add 2 and 3.", WAYS[way](code))])[0]
    assert {finding.kind for finding in verdict.findings} >= {"dynamic_code"}


OTHERS = {
    "java": "package a;\nimport java.util.List;\nimport java.util.Map;\npublic class A {\n}\n",
    "java alone": "import java.util.List;\nimport java.util.Map;\n\nclass A {\n}\n",
    "kotlin": "import kotlin.math.max\n\nfun main() {\n    println(max(2, 3))\n}\n",
    "swift": "import Foundation\n\nlet x = 3\nprint(x)\n",
    "js": "import React, { useState } from 'react';\nimport x from './x';\nexport default x;\n",
    "haskell": "module Main where\nimport Data.List\nimport qualified Data.Map as M\nmain = x\n",
    "go": 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("a")\n}\n',
    "lean": "import Mathlib\nimport Mathlib.Tactic\n\ntheorem x : 1 + 1 = 2 := by norm_num\n",
    "nim": 'import strutils\nimport sequtils\n\nfor i in 0..3:\n  echo "a"\n',
    "search": "import duties",
    "sentence": "The import of goods rose.\nFrom there on\nimport fell.",
    "shell": "pip list\nls -la\nfrom=3\necho $from",
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("key", ["content", "query", "code"])
def test_other_strings_in_calls_pass(other: str, key: str) -> None:
    if key == "code" and other in ("search", "sentence"):
        pytest.skip("under this key it is a program")
    text = json.dumps({"name": "write_file", "arguments": {"path": "a", key: OTHERS[other]}})
    for shown in (f"<tool_call>\n{text}\n</tool_call>", text):
        verdict = CODE.verify([Completion("Write the file.", shown)])[0]
        assert verdict.accepted, verdict.reason


@pytest.mark.parametrize("other", ["java", "kotlin", "js", "haskell", "go"])
def test_diffs_in_other_languages_pass(other: str) -> None:
    added = "".join(f"+{line}\n" for line in OTHERS[other].splitlines())
    for head in ("", f"--- a/x.{other}\n+++ b/x.{other}\n@@ -0,0 +1,3 @@\n"):
        verdict = CODE.verify([Completion("Patch it.", f"```diff\n{head}{added}```")])[0]
        assert verdict.accepted, verdict.reason


def test_a_patch_may_import_from_the_folders_that_the_question_shows() -> None:
    added = diff("from utils.pages import Pages\n\nassert Pages(3).count == 3")
    patch = f"```diff\n{added}\n```"
    assert CODE.verify([Completion("[start of utils/pages.py]", patch)])[0].accepted
    assert CODE.verify([Completion("Fix the count.", patch)])[0].rejected


@pytest.mark.parametrize("wrap", [call, nested])
def test_all_rules_read_the_text_of_a_call(wrap: Callable[[str], str]) -> None:
    worked = "Tom starts with 3 * 12 = 36.\nSo 36 - 7 = 29 are left."
    wrong = Completion("How many?", wrap(worked + "\n12 + 13 = 26\n"), reference="29")
    assert ArithmeticVerifier().verify([wrong])[0].findings
    for hidden in ("\u202ehidden", "h\u200bi\u200bd", "\U000e0041", "The answ\u0435r is \u043eld."):
        text = wrap(f"{worked}\n{hidden}\n")
        assert ScreensVerifier().verify([Completion("How many?", text)])[0].rejected, hidden
    right = [Completion("How many?", wrap(worked), reference="29")]
    assert not ArithmeticVerifier().verify(right)[0].findings
    assert ScreensVerifier().verify(right)[0].accepted


def test_dictionaries_in_programs_are_no_json() -> None:
    for text in (
        'Look:\n```python\nrows = [\n{"a": "b\\n"},\n]\n```',
        '```js\nconst x = [\n  {"a": "b\\n"}\n]\n```',
        'print({"a": "b\\n"})',
    ):
        assert as_read(Completion("q", text)).text == text


HOSTILE = {
    "never closed": '{"a":"' * 170_000,
    "lines never closed": '\n{"a":1' * 140_000,
    "tags": "<a>{" * 250_000,
    "brackets": "{\n" * 500_000,
    "objects": '{"a":"\n"}\n' * 100_000,
    "strings": '<x>{"a":[' + '"import x\\n",' * 75_000 + "]}",
    "escapes": '<t>{"a":"' + "\\n" * 500_000 + '"}',
    "escaped quotes": '<t>{"a":"' + "\\u0022" * 160_000 + '"}',
    "tags and blanks": ("<a>" + " " * 199) * 5_000,
    "labels": ("\nInput:" + " " * 199) * 5_000,
    "keys": ('\n{"' + "x" * 999) * 1_000,
    "one tag": "<a" * 500_000,
    "backslashes": '<t>{"a":"' + "\\" * 999_999 + '"}',
    "levels": '<x>{"a": ' + json.dumps(json.dumps({"a": json.dumps({"a": '\n"' * 99_999})})) + "}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_megabyte_is_read_in_linear_time(kind: str) -> None:
    text = HOSTILE[kind]
    times = []
    for size in (len(text) // 4, len(text)):
        started = time.process_time()
        read = as_read(Completion("q", text[:size]))
        times.append(time.process_time() - started)
        assert len(read.text) == size
        assert all(0 <= a <= b <= size for a, b in strings_of(read))
    assert times[1] < 12 * times[0] + 1


@pytest.mark.parametrize(
    "text",
    [
        "<a>import x\n" * 40_000,
        "<" * 490_000,
        "@@ -1\n\n" * 70_000,
        "@@ -1" + "+\n" * 240_000,
        "In [1]:   import" * 30_000,
        '<t>{"code":"print(1)\\nprint(1)\\n' + "; " * 240_000 + 'a"}',
        '<x>{"a":[' + '"x=1\\nprint(1)",' * 30_000 + "]}",
    ],
)
def test_hostile_wraps_are_read_in_bounded_time(text: str) -> None:
    started = time.process_time()
    CODE.verify([Completion("q", text)])
    assert time.process_time() - started < 30
