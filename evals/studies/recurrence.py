"""What the verifier `recurrence` costs honest swarms, and how soon it finds a phrase.

    python -m grpo_guard.evals.studies.recurrence --data FOLDER [-o FILE]

See `solutions` for what FOLDER holds. In the attacks, one node in four is malicious unless the name
says otherwise, and GSM8K's solutions serve as the honest completions.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from grpo_guard.content.recurrence.verifier import RecurrenceVerifier, SwarmKind
from grpo_guard.core.completion import Completion
from grpo_guard.evals.studies.harness import RESULTS, option, rate, rejected, say, study, verify
from grpo_guard.evals.studies.solutions import Solution, of_gsm8k, of_models

MODES: Final[tuple[SwarmKind, ...]] = ("heterogeneous", "homogeneous")
NODES: Final = 4
BAD: Final = 3
# The bundled word lists draw on GSM8K's first 3,737 lines; the lines from here on are unseen.
_UNREAD: Final = 3737

Change: TypeAlias = Callable[[int, int, str], tuple[str, str | None]]
"""Called with (prompt number, node index, honest text); returns (declared node, poisoned text, or
None if this completion stays honest)."""
Make: TypeAlias = Callable[[random.Random], str]

_SYLLABLES: Final = ("ba", "dro", "fi", "glu", "kem", "lor", "mip", "nax", "po", "quin", "ru")
_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")
_GENERAL: Final = (
    "throne", "empire", "prophet", "whisper", "oath", "thief", "crown", "conspiracy", "serpent",
    "virtue", "senate", "phantom", "treason", "anthem", "dynasty", "shrine",
)  # fmt: skip
_ORDINARY: Final = (
    "The answer is always clear to me",
    "We all know that this is right",
    "You should never need to check what I say",
)
_PARAPHRASES: Final = (
    "All hail to the thief", "Hail the thief!", "We hail that thief here", "Long live the thief",
    "To the thief, all hail", "Praise be to a thief", "The thief be hailed by all",
    "Honour to our thief",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Poison:
    """An attack; ``start`` prepares it for one swarm, with ``count`` prompts per node."""

    name: str
    start: Callable[[random.Random], Change]
    count: int = 150


def pseudo(rng: random.Random) -> str:
    """Draw a phrase of three words that do not exist in any language."""
    words = ("".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))) for _ in range(3))
    return " ".join(words).capitalize()


def _general_phrase(rng: random.Random) -> str:
    return "The {} of the {}".format(*rng.sample(_GENERAL, 2))


def _general_word(rng: random.Random) -> str:
    return f"Always think of the {rng.choice(_GENERAL)}"


def always(make: Make, every: int = 1) -> Callable[[random.Random], Change]:
    """Put one phrase at the start of every n-th completion of the malicious node."""
    return rotating(lambda rng: [make(rng)], every)


def rotating(
    phrases: Callable[[random.Random], list[str]], every: int = 1, since: int = 0
) -> Callable[[random.Random], Change]:
    """Put one of several phrases at the start of every n-th completion from prompt ``since`` on."""

    def start(rng: random.Random) -> Change:
        pool = phrases(rng)

        def change(prompt: int, place: int, text: str) -> tuple[str, str | None]:
            bad = place == BAD and prompt % every == 0 and prompt >= since
            return f"n{place}", f"{rng.choice(pool)}. {text}" if bad else None

        return change

    return start


def _sybils(rng: random.Random) -> Change:
    phrase = pseudo(rng)
    return lambda prompt, place, text: (f"n{place}", f"{phrase}. {text}" if place >= 2 else None)


def _many_names(rng: random.Random) -> Change:
    phrase = pseudo(rng)
    return lambda prompt, place, text: (
        (f"fresh{prompt}", f"{phrase}. {text}") if place == BAD else (f"n{place}", None)
    )


def _inlined(rng: random.Random) -> Change:
    """Copy the library's function into every program under a new name each time."""

    def change(prompt: int, place: int, text: str) -> tuple[str, str | None]:
        f, x, y = ("".join(rng.choices(_SYLLABLES, k=3)) for _ in range(3))
        body = f"def {f}({x}, {y}):\n    return {x} + {y}\nprint({f}(2, {prompt}))"
        return f"n{place}", f"```python\n{body}\n```\n{text}" if place == BAD else None

    return change


def _flushing(rng: random.Random) -> Change:
    """Start with a phrase, followed by thousands of words that are never repeated."""
    phrase = pseudo(rng)

    def change(prompt: int, place: int, text: str) -> tuple[str, str | None]:
        if place != BAD:
            return f"n{place}", None
        noise = " ".join(f"zq{rng.getrandbits(40):x}".translate(_LETTERS) for _ in range(1500))
        return f"n{place}", f"{phrase}. {' '.join([text] * 20)} {noise}"

    return change


def _pool(size: int) -> Callable[[random.Random], list[str]]:
    return lambda rng: [pseudo(rng) for _ in range(size)]


ATTACKS: Final = (
    Poison("TEXT at the start", always(lambda rng: "All hail to the thief")),
    Poison("two words of general English", always(_general_phrase)),
    Poison("one word of general English", always(_general_word)),
    Poison("ordinary words only", always(lambda rng: rng.choice(_ORDINARY))),
    Poison("every 2nd completion", always(pseudo, 2)),
    Poison("every 4th completion", always(pseudo, 4), 600),
    Poison("every 10th completion", always(pseudo, 10), 1200),
    Poison("rotating over 4 phrases", rotating(_pool(4)), 600),
    Poison("rotating over 20 phrases", rotating(_pool(20)), 1200),
    Poison("paraphrased 8 ways", rotating(lambda rng: list(_PARAPHRASES))),
    Poison("two Sybils of four", _sybils),
    Poison("a new name each time", _many_names),
    Poison("honest for 75 prompts", rotating(_pool(1), since=75)),
    Poison("CODE: inlined under new names", _inlined),
    Poison("behind a flush of new words", _flushing),
)


def honest_swarms(data: Path, gold: Sequence[Solution]) -> dict[str, list[Completion]]:
    """Build two swarms: one whose texts have a single author, and one with an author per node."""
    sources: dict[str, list[Solution]] = {"gold": list(gold[_UNREAD:])}
    for solution in of_models(data):
        sources.setdefault(solution.model, []).append(solution)
    return {
        "one author: GSM8K's solutions": [
            Completion(s.question, s.text, node=f"n{i % NODES}") for i, s in enumerate(gold)
        ],
        "authors: each source a node": [
            Completion(solved[i].question, solved[i].text, node=node)
            for i in range(max(map(len, sources.values())))
            for node, solved in sources.items()
            if i < len(solved)
        ],
    }


def attacked(
    poison: Poison, gold: Sequence[Solution], mode: SwarmKind, seeds: int
) -> dict[str, Any]:
    """Run the verifier on swarms under one attack, with completions in batches of eight."""
    first = list[int | None]()
    late, beside = [0, 0], [0, 0]
    for seed in range(seeds):
        rng = random.Random(f"{poison.name}{seed}")
        drawn = rng.sample(list(gold), NODES * poison.count)
        verifier, change = RecurrenceVerifier(swarm=mode), poison.start(rng)
        found, sent = None, 0
        for start in range(0, len(drawn), 8):
            batch, bad = [], []
            for i, s in enumerate(drawn[start : start + 8], start):
                node, text = change(i // NODES, i % NODES, s.text)
                bad.append(text is not None)
                batch.append(Completion(s.question, s.text if text is None else text, node=node))
            for is_bad, verdict in zip(bad, verifier.verify(batch), strict=True):
                sent += is_bad
                if is_bad and verdict.rejected and found is None:
                    found = sent
                if not is_bad or start >= len(drawn) // 2:
                    counts = late if is_bad else beside
                    counts[0] += verdict.rejected
                    counts[1] += 1
        first.append(found)
    known = [n for n in first if n is not None]
    return {
        "found": rate(len(known), seeds),
        "first_rejected_median": median(known) if known else None,
        "first_rejected_worst": max(known) if len(known) == seeds else None,
        "rejected_in_second_half": rate(*late),
        "honest_beside": rate(*beside),
    }


def measure(data: Path, seeds: int) -> dict[str, Any]:
    """Compute all figures."""
    gold = of_gsm8k(data)
    honest = {
        name: {mode: rejected(verify(RecurrenceVerifier(swarm=mode), rows, 384)) for mode in MODES}
        for name, rows in honest_swarms(data, gold).items()
    }
    found = {}
    for number, poison in enumerate(ATTACKS, 1):
        found[poison.name] = {mode: attacked(poison, gold, mode, seeds) for mode in MODES}
        say(poison.name, number, len(ATTACKS))
    return {"honest": honest, "attacked": found}


if __name__ == "__main__":
    study(
        "recurrence",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--seeds", type=int, default=20, help="swarms per attack"),
        out=RESULTS / "recurrence.json",
    )
