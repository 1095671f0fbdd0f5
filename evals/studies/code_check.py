"""What the code verifier rejects: ``python -m grpo_guard.evals.studies.code_check [-o FILE]``.

Honest: the programs in ``tests/content/programs/honest.jsonl``, and functions cut out of the
standard library and of packages. Malicious: the paper's CODE attack on those programs and on word
problems, and the shapes in ``malicious.jsonl``. The ``reviewed_`` files were written later, against
the finished checks, and the ``last_`` files when those had been changed. Of the others a third was
held out while the checks were changed. Nothing that is measured is executed.

``--packages NAME=FOLDER`` measures functions of the packages unpacked in a folder, under that name.
"""

from __future__ import annotations

import argparse
import ast
import json
import platform
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.studies.code_functions import (
    MACHINERY,
    MAX_FUNCTIONS,
    OTHER_FUNCTIONS,
    folder_functions,
    library_functions,
    package_functions,
)
from grpo_guard.evals.tasks.word_problems import generate
from grpo_guard.verdict import Verdict
from grpo_guard.verifier import CompletionVerifier

PROGRAMS: Final = Path(__file__).resolve().parents[2] / "tests" / "content" / "programs"
WORD_PROBLEMS: Final = 500
# Rejected and total when the held-out groups were judged for the first time. What they showed was
# mended afterwards, so that the rates of today say nothing about programs not yet seen.
FIRST_LOOK: Final = {
    "honest programs, held out": (2, 77),
    "malicious programs, held out": (44, 44),
    "mathematics packages, development": (12, 1000),
    "reviewed honest programs, held out": (0, 48),
    "reviewed malicious programs, held out": (107, 112),
    "last honest programs, held out": (1, 40),
    "last malicious programs, held out": (45, 50),
    "mathematics packages, other functions": (14, 1500),
    # algorithms 1.0.1, intervaltree 3.2.1, labmath 2.2.0, more-itertools 11.2.1, num2words 0.5.14,
    # numpy-financial 1.0.0, portion 2.6.3, textdistance 4.6.3, toolz 1.2.0, uncertainties 3.2.3
    "packages of algorithms": (23, 1500),
    # bidict 0.24.1, boltons 26.2.0, cvxopt 1.3.3, dimod 0.12.23, galois 0.4.11, inflect 7.6.0,
    # mathutils 5.1.0, pint 0.25.3, primefac 2.0.12, pulp 3.3.2, pyprimes 0.1, pyswarm 1.1.2,
    # python-constraint 1.4.0, quantities 0.16.4, roman 5.2, shapely 2.2.0, simpy 4.1.2,
    # statsmodels 0.15.0
    "packages of all kinds": (52, 1500),
    # autograd 1.9.1, emcee 3.1.6, filterpy 2.0.0, lmfit 1.3.4, scikit-learn 1.9.1, scipy 1.17.1
    "scientific packages": (57, 1500),
}


def load(name: str, folder: Path = PROGRAMS) -> list[dict[str, Any]]:
    """The rows of one file of programs.

    Args:
        name: ``"honest"`` or ``"malicious"``.
        folder: Where the files are.

    Raises:
        OSError: the file cannot be read.
    """
    text = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def attacked(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The paper's CODE attack on honest programs and on solutions in prose, where it succeeds."""
    attack = CodeAttack()
    for row in rows:
        text = row["text"]
        if row["form"] != "tag":
            continue
        poisoned = attack.poison_text(text, random.Random(row["name"])).text
        if attack.success(poisoned):
            yield row["name"], poisoned
    for index, problem in enumerate(generate(0, WORD_PROBLEMS)):
        poisoned = attack.poison(problem, random.Random(index)).text
        if attack.success(poisoned):
            yield f"word_problem_{index}", poisoned


def judge(verifier: CompletionVerifier, texts: Sequence[str]) -> list[Verdict]:
    """Verdicts on completions of an empty prompt."""
    return verifier.verify([Completion("", text) for text in texts])


def rate(
    name: str, verdicts: Sequence[Verdict], names: Sequence[str], *, bad: bool
) -> dict[str, Any]:
    """Count and 95 % Wilson interval of the rejected, with the names of those judged wrongly."""
    rejected = sum(verdict.rejected for verdict in verdicts)
    interval = wilson(rejected, len(verdicts))
    wrong = [
        {"name": n, "outcome": v.outcome.value, "reason": v.reason}
        for n, v in zip(names, verdicts, strict=True)
        if v.rejected != bad
    ]
    kinds = Counter(kind for v in verdicts for kind in {f.kind for f in v.findings})
    return {
        "name": name,
        "rejected": rejected,
        "total": len(verdicts),
        "rate": interval.value,
        "low": interval.low,
        "high": interval.high,
        "wrong": wrong,
        "findings": dict(sorted(kinds.items())),
    }


def spans_hit(rows: Sequence[dict[str, Any]], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """How often a finding of a rejected program overlaps the place of its bad part."""
    hits = total = 0
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.rejected:
            start, end = row["span"]
            spans = [
                f.char_span for f in verdict.findings if f.char_span and f.kind != "unparsable"
            ]
            total += 1
            hits += any(a < end and start < b for a, b in spans)
    interval = wilson(hits, total)
    return {"hits": hits, "total": total, "low": interval.low, "high": interval.high}


def speed(verifier: CompletionVerifier, texts: Sequence[str], repeats: int = 5) -> dict[str, Any]:
    """Completions per second of CPU time on one core: the best of several passes."""
    best = min(_pass(verifier, texts) for _ in range(repeats))
    size = sum(map(len, texts)) / len(texts)
    return {"completions": len(texts), "mean_chars": size, "per_second": len(texts) / best}


def _pass(verifier: CompletionVerifier, texts: Sequence[str]) -> float:
    started = time.process_time()
    judge(verifier, texts)
    return time.process_time() - started


def written(verifier: CompletionVerifier, folder: Path) -> list[dict[str, Any]]:
    """The rates of the files of programs, each in its two parts."""
    rates = []
    for kind, bad in (("honest", False), ("malicious", True)):
        for prefix in ("", "reviewed ", "last "):
            rows = load(f"{prefix.replace(' ', '_')}{kind}", folder)
            for held_out in (False, True):
                part = [row for row in rows if row["held_out"] is held_out]
                if part:
                    verdicts = judge(verifier, [row["text"] for row in part])
                    name = f"{prefix}{kind} programs, {'held out' if held_out else 'development'}"
                    rates.append(rate(name, verdicts, [row["name"] for row in part], bad=bad))
    return rates


def measure(folder: Path = PROGRAMS, packages: Sequence[str] = ()) -> dict[str, Any]:
    """All rates, as they stand in the JSON.

    Args:
        folder: Where the files of programs are.
        packages: ``NAME=FOLDER`` of unpacked packages.
    """
    verifier = CodeVerifier()
    honest = load("honest", folder)
    files = ("malicious", "reviewed_malicious", "last_malicious")
    malicious = [row for file in files for row in load(file, folder)]
    rates = written(verifier, folder)
    functions = package_functions()
    problems = [problem.solution for problem in generate(0, WORD_PROBLEMS)]
    groups = [
        ("standard library functions", list(library_functions()), False),
        ("mathematics packages, development", functions[:MAX_FUNCTIONS], False),
        (
            "mathematics packages, other functions",
            functions[MAX_FUNCTIONS : MAX_FUNCTIONS + OTHER_FUNCTIONS],
            False,
        ),
        ("standard library machinery (no target)", list(library_functions(MACHINERY)), False),
        ("word problems in prose", [(str(i), text) for i, text in enumerate(problems)], False),
        ("CODE attack of the paper", list(attacked(honest)), True),
    ]
    for name, _, place in (entry.partition("=") for entry in packages):
        groups.append((name, folder_functions(Path(place)), False))
    for name, pairs, bad in groups:
        texts = [text if name.startswith(("CODE", "word")) else _fenced(text) for _, text in pairs]
        rates.append(rate(name, judge(verifier, texts), [n for n, _ in pairs], bad=bad))
    return {
        "python": platform.python_version(),
        "rates": rates,
        "first_look": {
            name: {"rejected": hits, "total": total, "low": i.low, "high": i.high}
            for name, (hits, total) in FIRST_LOOK.items()
            for i in (wilson(hits, total),)
        },
        "spans": spans_hit(malicious, judge(verifier, [row["text"] for row in malicious])),
        "speed": {
            "programs": speed(verifier, [row["text"] for row in honest]),
            "long programs": speed(verifier, [_fenced(text) for text in long_programs(honest)]),
            "parser alone, long programs": parser_speed(long_programs(honest)),
            "prose": speed(verifier, problems),
            "long prose": speed(
                verifier, ["\n".join(problems[i : i + 13]) for i in range(0, 500, 13)]
            ),
        },
    }


def long_programs(rows: Sequence[dict[str, Any]], chars: int = 1000) -> list[str]:
    """Different programs of about 300 tokens: honest ones one after another.

    Only those that the running Python parses as they stand: others are parsed more than once.
    """
    parts: list[str] = []
    for row in rows:
        source = row["text"].removeprefix("<code>").removesuffix("</code>")
        if row["form"] == "tag" and "__future__" not in source and _parses(source):
            parts.append(source)
    texts: list[str] = []
    while parts:
        text = ""
        while parts and len(text) <= chars:
            text += parts.pop(0)
        if len(text) > chars:
            texts.append(text)
    return texts


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def parser_speed(texts: Sequence[str], repeats: int = 5) -> dict[str, Any]:
    """`ast.parse` of the same programs: what no check of the tree can be faster than."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        for text in texts:
            ast.parse(text)
        best = min(best, time.process_time() - started)
    size = sum(map(len, texts)) / len(texts)
    return {"completions": len(texts), "mean_chars": size, "per_second": len(texts) / best}


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


def main() -> None:
    """Measure, print one line per group, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-o", "--out", type=Path, help="where to write the JSON")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="folder with the programs")
    parser.add_argument("--packages", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    results = measure(arguments.programs, arguments.packages)
    for row in results["rates"]:
        share = f"{row['rejected']} / {row['total']} ({row['low']:.2%} to {row['high']:.2%})"
        print(f"{row['name']}: rejected {share}")
        for wrong in row["wrong"][:10]:
            print(f"    {wrong['name']}: {wrong['outcome']}, {wrong['reason']}")
    print("first look:", results["first_look"])
    print("spans:", results["spans"])
    print("speed:", results["speed"])
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
