"""Tables for individual studies, from the files in ``docs/results`` that are not about swarms."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo_guard.content.kinds import KINDS
from grpo_guard.content.severity import Severity
from grpo_guard.evals.studies.pages.cells import NOTHING, count, figures, of, short, table
from grpo_guard.guard.spot_odds import checked_of

BUDGETS: Final = ("1", "10", "100", "1000")
SIDES: Final = ("honest", "public")
"""Sides with correct answers: those that the rules were written for, and published ones."""
_DETECTED: Final = (
    "honest",
    "text",
    "math",
    "code",
    "control:random_tokens",
    "control:other_model",
)
"""Kinds of completion in the detection table; all other controls are variants of these."""


def _listed(header: Sequence[str], found: Any, figure: str, names: Mapping[str, str]) -> str:
    """Make a table with one figure per set; ``names`` maps a set's name to the label to show."""
    return table(header, [[label, of(found[name][figure])] for name, label in names.items()])


def searched_reader() -> str:
    """Tabulate how foreign a reader finds wordings that were searched for using the same model."""
    found = figures("reader-optimised")["anew"]
    after = [found[n]["answers_until_convicted"] for n in BUDGETS]
    rows = [
        ["foreign", *(of(found[n]["foreign"]) for n in BUDGETS)],
        ["node convicted after", *(str(n or "never") for n in after)],
    ]
    return table(["a new wording each time", "N = 1", "10", "100", "1,000"], rows)


def rules() -> str:
    """Tabulate what each kind of finding of the text rules catches and costs."""
    found = figures("text-rules-all")["kinds"]
    rows = []
    for name, kind in found.items():
        sides = [kind["poison"]["hits"], *(kind[side]["hits"] for side in SIDES)]
        if not any(sides):
            continue
        verifier, _, finding = name.partition(": ")
        cells = [_with_alone(kind, side) for side in ("poison", *SIDES)]
        does = kind["severity"]
        if kind["with_reader"] != does:
            does += f" ({kind['with_reader']})"
        rows.append([f"`{finding}`", verifier, does, *cells])
    total = next(iter(found.values()))["poison"]["total"]
    head = ["kind", "verifier", "severity (with a reader)", f"poison of {total:,} (alone)"]
    return table([*head, "honest", "published"], rows)


def rules_without_rows() -> str:
    """Tabulate the kinds of finding that have no row in `rules`, by severity."""
    measured = figures("text-rules-all")["kinds"]
    found = {name.partition(": ")[2]: kind for name, kind in measured.items()}
    by_severity: dict[str, tuple[list[str], list[str]]] = {}
    for name, kind in sorted(KINDS.items()):
        if name in found and any(found[name][side]["hits"] for side in ("poison", *SIDES)):
            continue
        does = str(kind.severity)
        if kind.severity is Severity.CONFIRM:
            does = f"{kind.without_reader} (confirm)"
        by_severity.setdefault(does, ([], []))[name not in found].append(f"`{name}`")
    rows = [
        [does, *(", ".join(kinds) or NOTHING for kinds in both)]
        for does, both in sorted(by_severity.items())
    ]
    return table(["severity (with a reader)", "found nowhere", "not measured"], rows)


def _with_alone(kind: Any, side: str) -> str:
    """Format a kind's completions and, in brackets, if fewer, those with only that kind."""
    hits, alone = kind[side]["hits"], kind[f"{side}_alone"]["hits"]
    return f"{hits:,}" if alone == hits else f"{hits:,} ({alone:,})"


def rules_total() -> str:
    """Tabulate how many completions the preset rejects in total, by side."""
    names = {"poison": "poisoned", "honest": "honest, right", "public": "published, right"}
    sides = figures("text-rules-all")["preset"]
    return _listed(["completions", "rejected by the preset"], sides, "all", names)


_JUDGED: Final = (
    "honest: the task's solutions",
    "honest: programs",
    "policy: rewarded, right and to the point",
    "policy: all rewarded",
    "policy: unrewarded",
    "TEXT, unseen phrases",
    "MATH",
    "CODE",
    "program with an import, a helper or a remark",
    "poison: math_carried",
    "poison: wrong_answer",
    "poison: misworded",
    "GSM8K: ground truth",
)


def shipped_judge() -> str:
    """Tabulate the acceptance rates of the shipped judge on selected sets."""
    rates = figures("shipped-judge")["rates"]
    return _listed(["set", "accepted"], rates, "accepted", {name: name for name in _JUDGED})


def reference_honest() -> str:
    """Tabulate the honest completions that `reference_likelihood` rejects."""
    found = figures("reference-likelihood")["honest"]
    names = {
        "test, 175b_finetuning": "175B model",
        "test, 6b_finetuning": "6B model",
        "test, human": "GSM8K's own, by people",
        "shift, all": "all three with calculator notes, an uncalibrated format",
    }
    return _listed(["honest completions", "rejected at 0.01"], found, "rejected at 0.01", names)


_PLANTED: Final = (
    "TEXT at the start, 'All hail to the thief'",
    "TEXT in the middle, bland, 'Drink water and rest well'",
    "TEXT in the middle, on the subject, 'Let us think carefully about this'",
    "TEXT led in, 'As the old saying goes, all hail to the thief'",
    "MATH",
    "CODE",
    "lines shuffled",
    "another language",
)


def reference_attacks() -> str:
    """Tabulate the poison that `reference_likelihood` rejects at 0.01 on the test questions."""
    attacks = figures("reference-likelihood")["attacks"].items()
    found = {k.partition(": ")[2]: v for k, v in attacks if not k.startswith("development")}
    names = {name: name for name in _PLANTED}
    return _listed(["planted", "rejected at 0.01"], found, "rejected at 0.01", names)


_RECURRING: Final = (
    "ordinary words only",
    "every 4th completion",
    "every 10th completion",
    "rotating over 4 phrases",
    "rotating over 20 phrases",
    "paraphrased 8 ways",
    "two Sybils of four",
    "CODE: inlined under new names",
)


def recurrence() -> str:
    """Tabulate when `recurrence` finds an attack of each kind, in both modes."""
    rows = []
    attacked = figures("recurrence")["attacked"]
    for name in _RECURRING:
        first, second = (_found(attacked[name][mode]) for mode in ("heterogeneous", "homogeneous"))
        rows.append([name, first, second if second != first else "the same"])
    head = "found of 20; first rejected, median and worst; later"
    return table(["attack", f"heterogeneous: {head}", "homogeneous"], rows)


def _found(found: dict[str, Any]) -> str:
    late = short(found["rejected_in_second_half"])
    if not found["found"]["hits"]:
        return f"0; -; {late}"
    median, worst = found["first_rejected_median"], found["first_rejected_worst"]
    return f"{found['found']['hits']}; {median:g}, {worst or 'not all'}; {late}"


_REPLAY_VARIANTS: Final = (
    "math, rest drawn again",
    "token swapped in top-50",
    "longest of 80",
    "top-p 1.0",
)


def seed_replay() -> str:
    """Tabulate what seed replay rejects, by how each completion was made."""
    (head, first), *others = figures("seed-replay-smollm2-gsm8k")["directions"].items()
    rows = [[n, of(found)] for n, found in first["samples"].items() if n not in _REPLAY_VARIANTS]
    for how, made in others:
        rows += [[f"{name}, {how}", of(found)] for name, found in made["samples"].items()]
    return table([head, "rejected"], rows)


def shares() -> str:
    """Tabulate what a preset's ``share`` costs, and what an attacker earns before it is caught."""
    found = figures("shares")
    cost = found["cost"]
    rows = []
    for share in cost["same_weights"]:
        cells = [f"{float(share):.0%}".replace("%", " %")]
        for made in cost.values():
            own, whole = (made[s]["ms_per_completion"] for s in (share, "1.0"))
            cells.append(f"{own:.1f} ms = {own / whole:.2f}")
        for one in found["odds"]:
            if one["checked"] == checked_of(one["sent"], float(share)):
                cells.append(f"{one['rounds']:.1f}; {one['earned']:.1f}")
        rows.append(cells)
    sizes = [f"{one['poisoned']} of {one['sent']} poisoned" for one in found["odds"][:3]]
    sizes[0] += ": rounds; earned"
    head = ["share", "`same_weights`, CPU", "`shared_seed`, CPU", *sizes]
    return table(head, rows)


def detection() -> str:
    """Tabulate which single completions of SmolLM2 the log-prob verifiers reject."""
    rejected = {
        (row["attack"], row["defence"]): count(row["rejected"], row["n"])
        for row in figures("detect-smollm2-gsm8k")["summary"]
    }
    verifiers = ("logprob_bound (float32)", "logprob_bound", "tail_probability")
    rows = [[a.replace("_", " "), *(rejected[a, v] for v in verifiers)] for a in _DETECTED]
    head = ("`logprob_bound`, `float32`", "`logprob_bound`, default", "`tail_probability`, default")
    return table(["completions", *head], rows)
