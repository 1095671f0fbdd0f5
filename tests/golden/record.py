"""Golden outcomes: the results of today's code, against which refactorings are compared.

    python -m tests.golden.record                  # which digests differ from the recorded ones
    python -m tests.golden.record --against        # the rows that differ from the recorded revision
    python -m tests.golden.record --against REV    # or from any other that has these verifiers
    python -m tests.golden.record --dump FILE      # today's rows, and
    python -m tests.golden.record --compare FILE   # those that differ from an earlier dump
    python -m tests.golden.record --write          # accept today's results; say why in the commit

Names of corpora limit each to these. A row is the outcome, cause, kinds and spans of one verifier
for one completion, by its index, unless it is plainly accepted; in ``settled``, what a grid of
rewards and verdicts earns under one policy (`settled_grid`). ``digests.json`` holds the number of
rows and their digest for each corpus and verifier. Corpora under ``../shared/data`` are skipped if
absent; their texts are never copied here.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from grpo_guard import AllOf, Completion, CompletionVerifier, Verdict
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.length.verifier import LengthVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.answer_words import AnswerWordsVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.tasks import word_problems
from tests.golden.settled import settled_grid

HERE = Path(__file__).resolve().parent  # also where a worktree of another revision links here
SHARED = HERE.parents[2] / "shared" / "data"
PROGRAMS = HERE.parent / "content" / "programs"
DIGESTS = HERE / "digests.json"

Batches = list[list[Completion]]
Rows = dict[str, list[str]]  # by verifier, or by policy

VERIFIERS: dict[str, Callable[[], CompletionVerifier]] = {
    "arithmetic": ArithmeticVerifier,
    "code": CodeVerifier,
    "screens": ScreensVerifier,
    "answer_words": AnswerWordsVerifier,
    "length": LengthVerifier,
    "recurrence": RecurrenceVerifier,
    "stack": lambda: AllOf(ScreensVerifier(), ArithmeticVerifier(), CodeVerifier()),
}


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.open(encoding="utf-8")]


def by_round(rows: list[Completion]) -> Batches:
    """One batch per round, in the order in which rounds first appear."""
    found: dict[int | None, list[Completion]] = {}
    for row in rows:
        found.setdefault(row.round, []).append(row)
    return list(found.values())


def modern(name: str) -> Batches:
    return by_round([Completion.from_dict(row) for row in lines_of(SHARED / "modern" / name)])


def authors() -> Batches:
    rows = lines_of(SHARED / "httt" / "math_poison.jsonl")
    return [[Completion.from_dict({k: v for k, v in r.items() if k != "split"}) for r in rows]]


def gsm8k() -> Batches:
    rows = lines_of(SHARED / "gsm8k" / "model_solutions.jsonl")
    questions = {q: i for i, q in enumerate(dict.fromkeys(r["question"] for r in rows))}
    return by_round([
        Completion(
            r["question"], r["completion"], node=r["model"], round=questions[r["question"]] // 8,
            reference=r["ground_truth"].rsplit("A:", 1)[-1].strip(),
        )
        for r in rows
    ])  # fmt: skip


def programs() -> Batches:
    files = sorted(PROGRAMS.glob("*.jsonl"))
    return [[Completion("Write it.", r["text"], task="code") for r in lines_of(f)] for f in files]


def screens_corpus() -> Batches:
    corpus = json.loads((HERE.parent / "content" / "screens_corpus.json").read_text("utf-8"))
    question = "Janet has 5 apples and buys 3 more. How many apples does she have?"
    return [
        [Completion(question, text) for _, text in [*corpus["attacks"], *corpus["passed"]]],
        [Completion(prompt, text) for prompt, text in corpus["honest"]],
    ]


def bundled() -> Batches:
    """Groups of eight from four nodes on the bundled task; node n3 sends an attack's poison."""
    rng = random.Random(0)
    task, attacks = word_problems.WordProblems(), [TextAttack(), MathAttack(), CodeAttack()]
    batches: Batches = []
    for number in range(12):
        batch = []
        for group in range(4):
            problem = task.sample(rng)
            for slot in range(8):
                text = problem.solution
                if slot % 4 == 3 and number % 2:
                    text = attacks[number // 2 % 3].poison(problem, rng).text
                batch.append(
                    Completion(
                        problem.prompt, text, reference=problem.answer, node=f"n{slot % 4}",
                        group=group, slot=slot, round=number,
                    )
                )  # fmt: skip
        batches.append(batch)
    return batches


CORPORA: dict[str, Callable[[], Batches]] = {
    "programs": programs,
    "screens_corpus": screens_corpus,
    "bundled": bundled,
    "httt": authors,
    "gsm8k": gsm8k,
    "modern_math": lambda: modern("math.jsonl"),
    "modern_min": lambda: modern("min.jsonl"),
    "modern_oly": lambda: modern("oly.jsonl"),
}


def written(place: int, verdict: Verdict) -> list[Any]:
    found = [[f.kind, *(f.char_span or ())] for f in verdict.findings]
    return [place, verdict.outcome.value, verdict.cause.value, found]


def verdicts(batches: Batches) -> Rows:
    """For each verifier a row per completion, except acceptances without a finding."""
    found: Rows = {}
    for name, make in VERIFIERS.items():
        verifier, place, rows = make(), 0, []
        for batch in batches:
            for verdict in verifier.verify(batch):
                if not verdict.accepted or verdict.findings:
                    rows.append(json.dumps(written(place, verdict)))
                place += 1
        found[name] = rows
    return found


def rows_of(corpus: str) -> Rows:
    """Today's rows; FileNotFoundError if the corpus is not here."""
    return settled_grid() if corpus == "settled" else verdicts(CORPORA[corpus]())


def today(corpora: Collection[str]) -> dict[str, Rows]:
    found = {}
    for corpus in corpora:
        try:
            found[corpus] = rows_of(corpus)
        except FileNotFoundError:
            print(f"{corpus}: absent, skipped", file=sys.stderr)
    return found


def digest(rows: list[str]) -> str:
    """Render the number of rows and what they say."""
    said = hashlib.sha256("".join(f"{row}\n" for row in rows).encode()).hexdigest()
    return f"{len(rows)} rows {said[:16]}"


def digests(rows: Rows) -> dict[str, str]:
    return {verifier: digest(said) for verifier, said in rows.items()}


def golden() -> dict[str, dict[str, str]]:
    return json.loads(DIGESTS.read_text(encoding="utf-8"))


def differing(corpus: str, rows: Rows) -> list[str]:
    """A line for each verifier whose rows are not the recorded ones."""
    now, recorded = digests(rows), golden().get(corpus, {})
    return [
        f"{name} on {corpus}: {now.get(name, 'none')}, recorded: {recorded.get(name, 'none')}"
        for name in {**recorded, **now}
        if now.get(name) != recorded.get(name)
    ]


def how_to_see(corpus: str) -> str:
    return f"python -m tests.golden.record {corpus} --against"


def recorded_revision() -> str:
    """The last commit that changed the recorded digests."""
    log = ["git", "log", "-1", "--format=%H", "--", str(DIGESTS)]
    return subprocess.run(log, check=True, capture_output=True, text=True).stdout.strip()


def rows_at(revision: str, corpora: Collection[str]) -> dict[str, Rows]:
    """Today's corpora, read by the code of another revision in a worktree that lasts as long."""
    with tempfile.TemporaryDirectory() as folder:
        tree, dump = Path(folder) / "tree", Path(folder) / "rows.json"
        add = ["git", "worktree", "add", "--quiet", "--detach", str(tree), revision]
        subprocess.run(add, check=True)
        try:
            (tree / "tests").rename(tree / "its-tests")
            (tree / "tests").symlink_to(HERE.parent)
            ask = [sys.executable, "-m", "tests.golden.record", *corpora, "--dump", str(dump)]
            env = {**os.environ, "PYTHONPATH": str(tree)}
            if subprocess.run(ask, check=False, cwd=tree, env=env).returncode:
                raise SystemExit(
                    f"{revision}: today's corpora and verifiers do not run with its code"
                )
            return json.loads(dump.read_text(encoding="utf-8"))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


def show(old: dict[str, Rows], new: dict[str, Rows]) -> int:
    """Print the rows that differ in what both have; return how many do."""
    different = 0
    for corpus in new:
        if corpus not in old:
            print(f"{corpus}: not there, skipped", file=sys.stderr)
            continue
        for name in {**old[corpus], **new[corpus]}:
            before, after = old[corpus].get(name, []), new[corpus].get(name, [])
            changed = [f"- {row}" for row in before if row not in set(after)]
            changed += [f"+ {row}" for row in after if row not in set(before)]
            different += len(changed)
            if changed:
                print(f"{name} on {corpus}: {len(changed)} rows differ", *changed, sep="\n  ")
    print(f"{different} rows differ")
    return different


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare today's outcomes with golden ones.")
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", help=", ".join(CORPORA))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--against", nargs="?", const="", metavar="REV")
    what.add_argument("--compare", type=Path, metavar="FILE")
    what.add_argument("--dump", type=Path, metavar="FILE")
    what.add_argument("--write", action="store_true")
    given = parser.parse_args(argv)
    corpora = given.corpora or ["settled", *CORPORA]
    if unknown := set(corpora) - {"settled", *CORPORA}:
        parser.error(f"no such corpus: {', '.join(sorted(unknown))}")

    rows = today(corpora)
    if given.against is not None:
        revision = given.against or recorded_revision()
        return min(show(rows_at(revision, list(rows)), rows), 1)
    if given.compare:
        return min(show(json.loads(given.compare.read_text(encoding="utf-8")), rows), 1)
    if given.dump:
        given.dump.write_text(json.dumps(rows), encoding="utf-8")
    elif given.write:
        anew = {**golden(), **{corpus: digests(found) for corpus, found in rows.items()}}
        DIGESTS.write_text(json.dumps(anew, indent=1) + "\n", encoding="utf-8")
    else:
        lines = [line for corpus, found in rows.items() for line in differing(corpus, found)]
        print(*lines, f"{len(lines)} digests differ", sep="\n")
        return min(len(lines), 1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
