"""Tables of single studies: one per file of ``docs/results`` that is not of swarms."""

from __future__ import annotations

from typing import Any, Final

from grpo_guard.content.kinds import KINDS
from grpo_guard.content.severity import Severity
from grpo_guard.evals.studies.pages.cells import NOTHING, count, figures, of, short, table
from grpo_guard.guard.spot_odds import checked_of

BUDGETS: Final = ("1", "10", "100", "1000")
SIDES: Final = ("honest", "public")
"""Right answers: those that the rules were written for, and published ones of other models."""
_BROKEN: Final = ("control:empty", "control:huge")
"""Controls with two completions each, which the detection table leaves out."""
_JUDGED: Final = 500
_FEW: Final = 2
"""The judge's table leaves out sets of so many poisoned completions of which so few pass."""


def searched_reader() -> str:
    """Return how foreign a reader finds wordings that were searched for with the same model."""
    found = figures("reader-optimised")["anew"]
    after = [found[n]["answers_until_convicted"] for n in BUDGETS]
    rows = [
        ["foreign", *(of(found[n]["foreign"]) for n in BUDGETS)],
        ["node convicted after", *(str(n or "never") for n in after)],
    ]
    return table(["a new wording each time", "N = 1", "10", "100", "1,000"], rows)


def rules() -> str:
    """Return what each kind of finding of the text rules catches, and what it costs."""
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
    """Return the kinds that `rules` has no row for, by what they do."""
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
    """Format how many have a kind, and in brackets how many have it alone if these are fewer."""
    hits, alone = kind[side]["hits"], kind[f"{side}_alone"]["hits"]
    return f"{hits:,}" if alone == hits else f"{hits:,} ({alone:,})"


def rules_total() -> str:
    """Return what the preset rejects in all, by side."""
    sides = figures("text-rules-all")["preset"]
    names = {"poison": "poisoned", "honest": "honest, right", "public": "published, right"}
    rows = [[label, of(sides[side]["all"])] for side, label in names.items()]
    return table(["completions", "rejected by the preset"], rows)


def shipped_judge() -> str:
    """Return what the shipped judge accepts, without the sets of poison of which few pass."""
    rows = [
        [name, of(found["accepted"])]
        for name, found in figures("shipped-judge")["rates"].items()
        if found["accepted"]["hits"] > _FEW or found["accepted"]["total"] != _JUDGED
    ]
    return table(["set", "accepted"], rows)


def reference_honest() -> str:
    """Return the honest completions that `reference_likelihood` rejects."""
    found = figures("reference-likelihood")["honest"]
    names = {
        "test, 175b_finetuning": "175B model",
        "test, 6b_finetuning": "6B model",
        "test, human": "GSM8K's own, by people",
        "shift, all": "all three with calculator notes, an uncalibrated format",
    }
    levels = ("0.01", "0.05")
    rows = [[v, *(of(found[k][f"rejected at {a}"]) for a in levels)] for k, v in names.items()]
    return table(["honest completions", "rejected at 0.01", "at 0.05"], rows)


def reference_attacks() -> str:
    """Return the poison that `reference_likelihood` rejects at 0.01 on the test questions."""
    rows = [
        [name.partition(": ")[2], of(found["rejected at 0.01"])]
        for name, found in figures("reference-likelihood")["attacks"].items()
        if not name.startswith("development")
    ]
    return table(["planted", "rejected at 0.01"], rows)


def recurrence() -> str:
    """Return where `recurrence` finds an attack late or not at all; all others are alike."""
    rows = []
    for name, found in figures("recurrence")["attacked"].items():
        modes = [found[mode] for mode in ("heterogeneous", "homogeneous")]
        if all(_at_once(mode) for mode in modes):
            continue
        first, second = map(_found, modes)
        rows.append([name, first, second if second != first else "the same"])
    head = "found of 20; first rejected, median and worst; later"
    return table(["attack", f"heterogeneous: {head}", "homogeneous"], rows)


def _at_once(found: dict[str, Any]) -> bool:
    late = found["rejected_in_second_half"]
    return bool(found["first_rejected_worst"] == 7 and late["hits"] == late["total"])


def _found(found: dict[str, Any]) -> str:
    late = short(found["rejected_in_second_half"])
    if not found["found"]["hits"]:
        return f"0; -; {late}"
    median, worst = found["first_rejected_median"], found["first_rejected_worst"]
    return f"{found['found']['hits']}; {median:g}, {worst or 'not all'}; {late}"


def seed_replay() -> str:
    """Return what seed replay rejects, by how the completion was made."""
    (head, first), *others = figures("seed-replay-smollm2-gsm8k")["directions"].items()
    rows = [[name, of(found)] for name, found in first["samples"].items()]
    for how, made in others:
        rows += [[f"{name}, {how}", of(found)] for name, found in made["samples"].items()]
    return table([head, "rejected"], rows)


def shares() -> str:
    """Return what a preset's share costs, and what an attacker earns before it is found."""
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


def samplers() -> str:
    """Return rejected completions under samplers that truncate."""
    names = {
        "nucleus": "0.7, top-p 0.9",
        "penalty": "0.8, top-k 50, repetition penalty 1.1",
        "top_k": "1.0, top-k 50",
    }
    rows = []
    for name, label in names.items():
        found = figures(f"samplers-{name}")
        kinds = ("honest", "text, start", "temperature x 1.4", "another model")
        rows.append([label, *(of(found[kind]["completion"]) for kind in kinds)])
    head = ["temperature and truncation", "honest", "a phrase at the start"]
    return table([*head, "temperature x 1.4", "another model"], rows)


def untruncated() -> str:
    """Return rejected completions under TRL's default sampler, by the place of the text."""
    found = figures("samplers-trl")
    names = {
        "text": '"All hail to the thief."',
        "nonsense": '"Gleep Glorp Glub"',
        "import": "an import line",
    }
    places = ("start", "middle", "end")
    rows = [
        [label, *(of(found[f"{name}, {place}"]["completion"]) for place in places)]
        for name, label in names.items()
    ]
    return table(["put into an honest completion", *places], rows)


def detection() -> str:
    """Return what the log-prob verifiers reject of single completions of SmolLM2."""
    rejected = {
        (row["attack"], row["defence"]): count(row["rejected"], row["n"])
        for row in figures("detect-smollm2-gsm8k")["summary"]
    }
    verifiers = ("logprob_bound (float32)", "logprob_bound", "tail_probability")
    attacks = dict.fromkeys(attack for attack, _ in rejected)
    rows = [
        [a.replace("_", " "), *(rejected[a, v] for v in verifiers)]
        for a in attacks
        if a not in _BROKEN
    ]
    head = ("`logprob_bound`, `float32`", "`logprob_bound`, default", "`tail_probability`, default")
    return table(["completions", *head], rows)
