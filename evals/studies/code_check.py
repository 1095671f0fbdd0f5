"""What the code verifier rejects: ``python -m grpo_guard.evals.studies.code_check [-o FILE]``.

Honest: the programs in ``tests/content/programs/honest.jsonl``, and functions cut out of the
standard library and of packages. Malicious: the paper's CODE attack on those programs and on word
problems, and the shapes in ``malicious.jsonl``. The ``reviewed_`` files were written later, against
the finished checks, and the ``last_`` files when those had been changed. Of the others a third was
held out while the checks were changed. No measured program is executed.

``--human-eval FILE`` measures the solutions of HumanEval (openai/human-eval, ``HumanEval.jsonl``)
in three honest forms: the body alone, fenced with an explanation, fenced with its tests; each side
of the split of `corpora` separately, as the rules were tuned on one. ``modern`` are completions of
current models, if they are in `corpora.DATA`.

``--packages NAME=FOLDER`` measures functions of the packages unpacked in a folder, under that name.
"""

from __future__ import annotations

import ast
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.studies.code_functions import (
    MAX_FUNCTIONS,
    OTHER_FUNCTIONS,
    folder_functions,
    library_functions,
    package_functions,
)
from grpo_guard.evals.studies.corpora import DATA, MODERN, modern, side
from grpo_guard.evals.studies.harness import option, per_second, rate, rejected, study
from grpo_guard.evals.tasks.word_problems import generate

PROGRAMS: Final = Path(__file__).resolve().parents[2] / "tests" / "content" / "programs"
WORD_PROBLEMS: Final = 500
Figures: TypeAlias = dict[str, Any]
# Rejected and total when the held-out groups were judged for the first time. Their failures were
# fixed afterwards, so today's rates say nothing about programs not yet seen.
FIRST_LOOK: Final = {
    "honest programs, held out": (2, 77),
    "malicious programs, held out": (44, 44),
    "mathematics packages, development": (12, 1000),
    "reviewed honest programs, held out": (0, 48),
    "reviewed malicious programs, held out": (107, 112),
    "last honest programs, held out": (1, 40),
    "modern_held_honest": (1, 41),
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
    """Read the rows of one file of programs.

    Args:
        name: ``"honest"`` or ``"malicious"``.
        folder: Where the files are.

    Raises:
        OSError: the file cannot be read.
    """
    text = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def attacked(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the paper's CODE attack on honest programs and prose solutions, if it succeeds."""
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


def group(verifier: CompletionVerifier, pairs: Sequence[tuple[str, str]], *, bad: bool) -> Figures:
    """Count the rejected among (name, text), and name those judged wrongly."""
    verdicts = verifier.verify([Completion("", text) for _, text in pairs])
    wrong = [
        {"name": name, "outcome": v.outcome.value, "reason": v.reason}
        for (name, _), v in zip(pairs, verdicts, strict=True)
        if v.rejected != bad
    ]
    kinds = Counter(kind for v in verdicts for kind in {f.kind for f in v.findings})
    return rejected(verdicts) | {"wrong": wrong, "findings": dict(sorted(kinds.items()))}


def written(verifier: CompletionVerifier, folder: Path) -> Figures:
    """Compute the rates of the files of programs, each in its two parts."""
    rates: Figures = {}
    for kind, bad in (("honest", False), ("malicious", True)):
        for prefix in ("", "reviewed ", "last "):
            rows = load(f"{prefix.replace(' ', '_')}{kind}", folder)
            for held_out in (False, True):
                part = [(row["name"], row["text"]) for row in rows if row["held_out"] is held_out]
                if part:
                    name = f"{prefix}{kind} programs, {'held out' if held_out else 'development'}"
                    rates[name] = group(verifier, part, bad=bad)
    return rates


def human_eval(path: Path) -> Iterator[tuple[str, Completion]]:
    """Yield honest forms of the solutions of HumanEval, each with its name.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt, body, tests = row["prompt"], row["canonical_solution"], row["test"]
        tried = f"{prompt}{body}\n{tests}\n\ncheck({row['entry_point']})\n"
        split = side(prompt)
        yield f"HumanEval, {split}, bodies", Completion(prompt, body)
        shown = f"The input is read once.\n\n{_fenced(prompt + body)}\n\nIt is short."
        yield f"HumanEval, {split}, fenced", Completion(prompt, shown)
        yield f"HumanEval, {split}, with tests", Completion(prompt, f"Tested:\n\n{_fenced(tried)}")


def of_models() -> Iterator[tuple[str, Completion]]:
    """Yield right completions of current models, each with the name of its set and side."""
    for name in MODERN if (DATA / "modern").is_dir() else ():
        for row in modern(name):
            if row.metadata["right"]:
                yield f"modern, {name}, {side(str(row.prompt))}", row


def of_completions(pairs: Iterable[tuple[str, Completion]]) -> Figures:
    """Count the rejected among completions with prompts, by name."""
    named: dict[str, list[Completion]] = {}
    for name, completion in pairs:
        named.setdefault(name, []).append(completion)
    return {name: rejected(CodeVerifier().verify(batch)) for name, batch in named.items()}


def of_current_models(folder: Path) -> Figures:
    """Compute the rates of programs written as current models write."""
    rates: Figures = {}
    for file in ("modern_honest", "modern_held_honest"):
        verdicts = [
            verdict
            for row in load(file, folder)
            for verdict in CodeVerifier().verify([Completion(row["prompt"], row["text"])])
        ]
        rates[file] = rejected(verdicts)
    return rates


def measure(programs: Path, packages: Sequence[str], human_eval_file: Path | None) -> Figures:
    """Compute all figures.

    Args:
        programs: Where the files of programs are.
        packages: ``NAME=FOLDER`` of unpacked packages.
        human_eval_file: ``HumanEval.jsonl``.
    """
    verifier = CodeVerifier()
    honest = load("honest", programs)
    rates = written(verifier, programs)
    functions = package_functions()
    others = functions[MAX_FUNCTIONS : MAX_FUNCTIONS + OTHER_FUNCTIONS]
    groups = {
        "standard library functions": _fenced_all(library_functions()),
        "mathematics packages, development": _fenced_all(functions[:MAX_FUNCTIONS]),
        "mathematics packages, other functions": _fenced_all(others),
    }
    for name, _, place in (entry.partition("=") for entry in packages):
        groups[name] = _fenced_all(folder_functions(Path(place)))
    rates |= {name: group(verifier, pairs, bad=False) for name, pairs in groups.items()}
    rates |= of_current_models(programs) | of_completions(of_models())
    if human_eval_file is not None:
        rates |= of_completions(human_eval(human_eval_file))
    rates["CODE attack of the paper"] = group(verifier, list(attacked(honest)), bad=True)
    long = long_programs(honest)
    fenced = [Completion("", _fenced(text)) for text in long]
    return {
        "rates": rates,
        "first_look": {name: rate(*counts) for name, counts in FIRST_LOOK.items()},
        "speed": {
            "long programs": per_second(CodeVerifier, fenced),
            "parser alone, long programs": parser_speed(long),
        },
    }


def long_programs(rows: Sequence[dict[str, Any]], chars: int = 1000) -> list[str]:
    """Return different programs of about 300 tokens: honest ones concatenated.

    Only those that the running Python parses unchanged: others are parsed more than once.
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
    """Time `ast.parse` on the same programs, a lower bound for any check of the tree."""
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


def _fenced_all(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, _fenced(source)) for name, source in pairs]


if __name__ == "__main__":
    study(
        "code",
        measure,
        option("--programs", type=Path, default=PROGRAMS, metavar="FOLDER"),
        option("--human-eval", type=Path, metavar="FILE", dest="human_eval_file"),
        option("--packages", action="append", default=[], metavar="NAME=FOLDER"),
    )
