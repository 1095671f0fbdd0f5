"""What the code verifier rejects: ``python -m grpo_guard.evals.code_check [-o FILE]``.

Honest: the programs in ``tests/content/programs/honest.jsonl``, and functions cut out of the
standard library. Malicious: the paper's CODE attack on those programs and on word problems, and the
shapes in ``malicious.jsonl``. A third of the written programs was held out while the checks were
written. Nothing that is measured is executed.
"""

from __future__ import annotations

import argparse
import ast
import json
import platform
import random
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.content.code.modules import DEFAULT
from grpo_guard.content.code.names import words
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.stats import wilson
from grpo_guard.evals.tasks.word_problems import generate
from grpo_guard.verdict import Verdict
from grpo_guard.verifier import CompletionVerifier

PROGRAMS: Final = Path(__file__).resolve().parents[1] / "tests" / "content" / "programs"
WORD_PROBLEMS: Final = 500
MAX_LINES: Final = 60
# Modules that compute: chosen by subject, before any of them was measured. The interpreter's own
# machinery (functools, enum, copy, typing, dataclasses) is no model of a solution.
LIBRARY: Final = words(
    "_pydecimal _strptime bisect calendar collections colorsys datetime difflib fractions graphlib "
    "heapq html.entities ipaddress json.decoder json.encoder json.scanner keyword numbers "
    "nturl2path pprint queue random reprlib sched shlex statistics string stringprep textwrap"
)
# Command lines, files, descriptors: what solutions are not. Reported without a target.
MACHINERY: Final = words(
    "_collections_abc argparse configparser contextlib csv fnmatch functools gettext html optparse "
    "posixpath quopri tokenize turtle urllib.parse wave zoneinfo._zoneinfo"
)
# Measured once, after the checks were fixed; left out where they are not installed.
PACKAGES: Final = ("mpmath", "networkx", "sympy")
MAX_FUNCTIONS: Final = 1000
# Rejected and total when the held-out groups were judged for the first time. What the two honest
# programs showed (nested quotes of PEP 701, "skip all the rules") was mended afterwards.
FIRST_LOOK: Final = {
    "honest programs, held out": (2, 77),
    "malicious programs, held out": (44, 44),
    "mathematics packages, held out": (12, 1000),
}
# No solution pickles itself or takes part in building classes.
_NOT_SOLUTIONS: Final = words(
    "__reduce__ __reduce_ex__ __getstate__ __setstate__ _getstate __init_subclass__ __copy__"
)


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


def library_functions(modules: Iterable[str] = LIBRARY) -> Iterator[tuple[str, str]]:
    """Functions and methods of the standard library, each with the imports that it uses.

    Yields name and source of those with 2 to `MAX_LINES` lines whose imports, of the module and of
    their own, are all in the default allow-list.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    for module in sorted(modules):
        path = folder / (module.replace(".", "/") + ".py")
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        if path.exists():
            yield from _cut(module, path)


def package_functions(packages: Sequence[str] = PACKAGES) -> list[tuple[str, str]]:
    """At most `MAX_FUNCTIONS` functions of installed mathematics packages, drawn by a fixed seed.

    Same choice as `library_functions`; those that import from their own package drop out, as no
    solution reaches for a package's inner parts.
    """
    found: list[tuple[str, str]] = []
    for package in packages:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                if "test" not in str(path.relative_to(folder)):
                    found += _cut(f"{package}/{path.relative_to(folder)}", path)
    random.Random(0).shuffle(found)
    return found[:MAX_FUNCTIONS]


def _cut(module: str, path: Path) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    for name, node in _functions(tree):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if not 2 <= lines <= MAX_LINES or name.rpartition(".")[2] in _NOT_SOLUTIONS:
            continue
        if (used := _used(node, imports)) is not None:
            yield f"{module}.{name}", "\n".join([*used, "", ast.unparse(node)])


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _used(
    node: ast.FunctionDef, imports: Sequence[ast.Import | ast.ImportFrom]
) -> list[str] | None:
    """The import lines that a function needs; None where one is outside the allow-list."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    own = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
    needed = [
        statement
        for statement in imports
        if any((a.asname or a.name.partition(".")[0]) in names for a in statement.names)
    ]
    for statement in [*needed, *own]:
        modules = (
            ["." if statement.level else statement.module or ""]
            if isinstance(statement, ast.ImportFrom)
            else [alias.name for alias in statement.names]
        )
        roots = {module.partition(".")[0] for module in modules}
        if not roots <= DEFAULT - set(PACKAGES) or any(m.startswith("_") for m in modules):
            return None
    return [ast.unparse(statement) for statement in needed if statement not in own]


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


def measure(folder: Path = PROGRAMS) -> dict[str, Any]:
    """All rates, as they stand in the JSON."""
    verifier = CodeVerifier()
    honest, malicious = load("honest", folder), load("malicious", folder)
    rates = []
    for held_out in (False, True):
        suffix = "held out" if held_out else "development"
        for kind, rows, bad in (("honest", honest, False), ("malicious", malicious, True)):
            part = [row for row in rows if row["held_out"] is held_out]
            verdicts = judge(verifier, [row["text"] for row in part])
            names = [row["name"] for row in part]
            rates.append(rate(f"{kind} programs, {suffix}", verdicts, names, bad=bad))
    problems = [problem.solution for problem in generate(0, WORD_PROBLEMS)]
    groups = [
        ("standard library functions", list(library_functions()), False),
        ("mathematics packages, held out", package_functions(), False),
        ("standard library machinery (no target)", list(library_functions(MACHINERY)), False),
        ("word problems in prose", [(str(i), text) for i, text in enumerate(problems)], False),
        ("CODE attack of the paper", list(attacked(honest)), True),
    ]
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
            "long programs": speed(verifier, [_fenced(_joined(honest, i)) for i in range(50)]),
            "prose": speed(verifier, problems),
        },
    }


def _joined(rows: Sequence[dict[str, Any]], start: int, chars: int = 1000) -> str:
    """Honest programs one after another, about 300 tokens long."""
    text = ""
    for row in rows[start:]:
        if row["form"] == "tag" and "__future__" not in row["text"]:
            text += row["text"].removeprefix("<code>").removesuffix("</code>")
        if len(text) > chars:
            break
    return text


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"


def main() -> None:
    """Measure, print one line per group, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-o", "--out", type=Path, help="where to write the JSON")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="folder with the programs")
    arguments = parser.parse_args()
    results = measure(arguments.programs)
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
