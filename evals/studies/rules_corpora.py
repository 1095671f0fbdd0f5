"""Corpora of honest and poisoned completions for the study `rules`, divided into rounds."""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from grpo_guard import Guard, presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import read_objects
from grpo_guard.evals.attacks.adversary import Scripted
from grpo_guard.evals.attacks.base import Attack, NoTargetError
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.registry import adversary, attack_names
from grpo_guard.evals.studies import corpora
from grpo_guard.evals.studies.corpora import DATA, MODERN, Split, modern
from grpo_guard.evals.studies.solutions import of_models
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.evals.tasks.gsm8k import plain
from grpo_guard.evals.tasks.python_maths import PythonMaths
from grpo_guard.evals.tasks.word_problems import WordProblems

ATTACKER: Final = "mal"
# A model that has rows in all files of `modern`.
_POISONED: Final = "qwen14"
_PER_ROUND: Final = 8
_PROBLEMS: Final = 64
_DRAWS: Final = 2_000
_HONEST: Final = 3
_ASKED: Final = "Janet has 5 apples and buys 3 more. How many apples does she have?"
_TESTS: Final = Path("tests/content")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Completions round by round; ``counts`` tells which of them are included in the figures."""

    name: str
    rounds: list[list[Completion]]
    counts: Callable[[Completion], bool]


def honest_corpora(split: Split) -> list[Corpus]:
    """Load honest completions; only correct rows count, and wrong rows serve as their peers."""
    found = [Corpus(f"modern {n}", rounds_of(modern(n, split)), _right) for n in MODERN]
    found.append(Corpus("gsm8k models", _rounds(list(_gsm8k(split))), _right))
    written = (("texts", _texts("honest")), ("programs", _programs("honest")))
    return found + [Corpus(f"tests: {name}", _ours(rows, split), _right) for name, rows in written]


def published_corpus(file: Path) -> Corpus:
    """Load a file of published answers; the correct ones count or, if ungraded, all of them."""
    rows = list(rows_of(file))
    graded = any(row.metadata.get("right") is not None for row in rows)
    return Corpus(f"public {file.stem}", rounds_of(rows), _right if graded else lambda row: True)


def counting_guard() -> Guard:
    """Build `different_weights` with a policy that tolerates any number of abstentions.

    In a file with a single node, `recurrence` abstains on every row.
    """
    policy = replace(presets.POLICIES["different_weights"], max_abstain_rate=1.0)
    return presets.different_weights(policy=policy)


def files_of(places: Sequence[Path]) -> list[Path]:
    """Return the given files, plus the JSONL files in the given folders."""
    return [f for p in places for f in (sorted(p.glob("*.jsonl")) if p.is_dir() else [p])]


def rows_of(file: Path) -> Iterator[Completion]:
    """Yield a file's completions without the publisher's ``id``, which means nothing to a guard."""
    for _, found in read_objects(file):
        yield Completion.from_dict({key: value for key, value in found.items() if key != "id"})


def rounds_of(rows: Sequence[Completion]) -> list[list[Completion]]:
    """Group completions by their round."""
    by_round = defaultdict[object, list[Completion]](list)
    for row in rows:
        by_round[row.round].append(row)
    return list(by_round.values())


def poison_corpora(split: Split) -> list[Corpus]:
    """Load the paper's own MATH rows, the tests' attacks, and the registered attacks.

    The registered attacks are applied to bundled problems and to correct rows from current models.
    """
    written = (("texts", _texts("attacks")), ("programs", _programs("malicious")))
    found = [Corpus(f"tests: {name}", _ours(rows, split), _malicious) for name, rows in written]
    if (file := DATA / "httt" / "math_poison.jsonl").is_file():
        rows = [
            Completion(row["prompt"], row["text"], reference=row["reference"], node=ATTACKER)
            for _, row in read_objects(file)
            if split in ("all", corpora.side(row["prompt"]))
        ]
        found.append(Corpus("paper MATH", _rounds(rows), _malicious))
    attacks = list(text_attacks())
    for task in (WordProblems(), PythonMaths()):
        for attack in attacks:
            rng = _stream(attack, task.name)
            problems = _problems(attack, task, rng)
            sent = _swarm(problems, attack, task, rng)
            if any(map(_malicious, sent)):
                rounds = _rounds(sent, _PER_ROUND * (_HONEST + 1))
                found.append(Corpus(f"{attack.name} on {task.name}", rounds, _malicious))
    for name in MODERN:
        rounds = rounds_of(modern(name, split))
        for attack in attacks:
            rng = _stream(attack, name)
            played = [_poisoned_round(batch, attack, rng) for batch in rounds]
            poisoned = [batch for batch in played if any(map(_malicious, batch))]
            if poisoned:
                found.append(Corpus(f"{attack.name} on modern {name}", poisoned, _malicious))
    return found


_UNSEEN: Final = ("token_split", "eos_padding")
"""Attacks on a completion's token ids, leaving nothing in the text for rules to find."""


def text_attacks() -> Iterator[Attack]:
    """Yield each registered attack that rewrites text, once, because many differ only in guise.

    Also yields MATH on any equation, because the registered MATH uses only 2+2 and 2*2.
    """
    yield MathAttack(name="math_any")
    alike: dict[object, list[Scripted]] = {}
    for name in attack_names():
        found = adversary(name)
        if isinstance(found, Scripted) and name not in _UNSEEN:
            writes = type(found).poison, getattr(found, "phrases", None)
            alike.setdefault(writes, []).append(found)
    for same in alike.values():
        yield min(same, key=lambda one: len(type(one).__mro__))  # the others derive from it


def _stream(attack: Attack, where: str) -> random.Random:
    """Return a generator for one attack in one place, so that no attack affects another's rows."""
    return random.Random(f"rules {attack.name} {where}")


def _problems(attack: Attack, task: Task, rng: random.Random) -> list[Problem]:
    """Draw up to `_PROBLEMS` problems that the attack can poison."""
    found = []
    for _ in range(_DRAWS):
        problem = task.sample(rng)
        if _forged(attack, problem, rng) is not None:
            found.append(problem)
            if len(found) == _PROBLEMS:
                break
    return found


def _right(completion: Completion) -> bool:
    return bool(completion.metadata.get("right"))


def _malicious(completion: Completion) -> bool:
    return completion.node == ATTACKER or bool(completion.metadata.get("poison"))


def _gsm8k(split: Split) -> Iterator[Completion]:
    for row in of_models(DATA / "gsm8k"):
        if split not in ("all", corpora.side(row.question)):
            continue
        metadata = {"right": row.correct}
        yield Completion(
            row.question, plain(row.text), node=row.model, reference=row.answer, metadata=metadata
        )


def _texts(which: str) -> Iterator[Completion]:
    data = json.loads((_TESTS / "screens_corpus.json").read_text(encoding="utf-8"))
    # In the corpus, an attack has its name instead of a prompt.
    for prompt, text in data[which]:
        yield _written(prompt if which == "honest" else _ASKED, text, which)


def _programs(which: str) -> Iterator[Completion]:
    for file in sorted((_TESTS / "programs").glob(f"*{which}.jsonl")):
        for _, row in read_objects(file):
            yield _written(row.get("prompt", "Write a program."), row["text"], which)


def _written(prompt: str, text: str, which: str) -> Completion:
    if which == "honest":
        return Completion(prompt, text, metadata={"right": True})
    return Completion(prompt, text, metadata={"right": False, "poison": True})


def _ours(rows: Iterable[Completion], split: Split) -> list[list[Completion]]:
    return _rounds([row for row in rows if split in ("all", corpora.side(row.text))])


def _rounds(rows: Sequence[Completion], size: int = 64) -> list[list[Completion]]:
    return [list(rows[i : i + size]) for i in range(0, len(rows), size)]


def _swarm(
    problems: Sequence[Problem], attack: Attack, task: Task, rng: random.Random
) -> list[Completion]:
    """Build the rows of one attacker among honest nodes that send the data set's own solutions."""
    rows = []
    for problem in problems:
        text = _forged(attack, problem, rng)
        for node in range(_HONEST + 1):
            mine = node == _HONEST and text is not None and task.reward(text, problem.answer) > 0
            rows.append(
                Completion(
                    problem.question,
                    text if mine and text is not None else problem.solution,
                    node=ATTACKER if mine else f"n{node}",
                    reference=problem.answer,
                )
            )
    return rows


def _poisoned_round(
    batch: Sequence[Completion], attack: Attack, rng: random.Random
) -> list[Completion]:
    """Poison one model's correct rows in a round."""
    rows = []
    for row in batch:
        text = None
        if row.node == _POISONED and _right(row):
            prompt = row.prompt_text
            text = _forged(attack, Problem(prompt, prompt, row.text, row.reference or ""), rng)
        poisoned = text is not None and text != row.text
        rows.append(replace(row, text=text, node=ATTACKER) if poisoned and text else row)
    return rows


def _forged(attack: Attack, problem: Problem, rng: random.Random) -> str | None:
    """Return the poisoned text; None if this problem offers nothing to poison."""
    try:
        return attack.poison(problem, rng).text
    except (NoTargetError, ValueError, IndexError):
        return None
