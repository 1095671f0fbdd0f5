"""The tables by name, as requested by a docs page with ``<!-- table: NAME -->``."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final

from grpo_guard.evals.studies.figures import RERUN, files, made_by
from grpo_guard.evals.studies.pages import studies
from grpo_guard.evals.studies.pages.cells import table
from grpo_guard.evals.studies.pages.swarms import runs, side_by_side

_SUCCESS: Final = "success, last 10 rounds"
_SHARES: Final = "success, % (highest round)"
_POISON: Final = "poison rejected"
_RIGHT: Final = "honest right rejected"
_REWARD: Final = "honest reward (attack-free)"
_GAIN: Final = "honest reward compared with attack-free"


def _against(file: str, attacks: str) -> str:
    names = attacks.split(",")
    rows = [[(file, name, "none")] + [(file, name, "heterogeneous")] * 2 for name in names]
    head = [f"undefended: {_SHARES}", f"guarded: {_SHARES}", f"poison rejected: {_POISON}"]
    return side_by_side("attack", rows, head, [f"`{name}`" for name in names])


def _incidents() -> str:
    rows: list[list[tuple[str, str, str]]] = []
    names = ("token_split", "cap_forcing", "eos_padding", "reward_selection")
    for guard in _PRESETS.values():
        rows.append([("incidents", name, guard) for name in names])
    head = [f"`{name}`: {_POISON}" for name in names]
    return side_by_side("preset", rows, head, [f"`{name}`" for name in _PRESETS])


def manifest() -> str:
    """Return a table of result files by version, marking those that `make figures` reruns."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in files():
        found[made_by(name)[0]].append(f"`{name}`{' *' if name in RERUN else ''}")
    return table(["made by", "files"], [[who, ", ".join(found[who])] for who in sorted(found)])


_PRESETS: Final = {
    "same_weights": "same_weights",
    "shared_seed": "homogeneous",
    "different_weights": "heterogeneous",
    "judged": "judged.yaml",
    "failures_only": "preset:failures_only",
}
"""Maps a preset's name to its defence in the runs of `studies.incidents`."""
_UNREAD: Final = "answer_unit,taken_back,inequality,thesaurus,echoed_name,renamed_helpers"

TABLES: Final[dict[str, Callable[[], str]]] = {
    "swarm-smollm2": partial(
        runs,
        [
            ("smollm2", "text", "none,same_weights,heterogeneous"),
            ("smollm2", "math", "none,heterogeneous"),
            ("smollm2-bets", "math", "same_weights"),
            ("smollm2-sums", "math", "paper_logit"),
            ("smollm2-code", "code", "none,same_weights,heterogeneous"),
        ],
        [_SUCCESS, _POISON, "honest rejected"],
    ),
    "swarm-seeds": partial(
        runs,
        [
            ("seeds", "text", "none,same_weights,heterogeneous"),
            ("seeds", "math", "none,same_weights,heterogeneous,different_weights_reader"),
            ("seeds", "code", "none,same_weights,heterogeneous"),
        ],
        ["success, mean over seeds (least to most)", _POISON, _RIGHT, _GAIN],
    ),
    "swarm-standard": partial(
        runs,
        [("standard", "text,math,code,dos", "none,paper_logit,homogeneous")],
        [_SUCCESS, _POISON, _RIGHT],
    ),
    "swarm-untruncated": partial(
        runs,
        [("untruncated", "text,math,code,dos", "none,same_weights")],
        [_SUCCESS, _POISON, "honest rejected"],
    ),
    "swarm-models": partial(
        runs,
        [
            ("models", "text,math", "none,heterogeneous"),
            ("models", "code", "none,heterogeneous,heterogeneous (no_gain)"),
        ],
        [_SHARES, _POISON, _RIGHT, _REWARD],
    ),
    "swarm-coin": partial(
        runs,
        [
            ("adaptive-coin", "seed_grinding,seed_grinding_dos", "none,homogeneous,own_prompts"),
            ("adaptive-coin", "withholding", "none,homogeneous,whole_rounds"),
        ],
        [_SHARES, _POISON, _REWARD],
    ),
    "swarm-unread": partial(_against, "adaptive-unread", _UNREAD),
    "incidents": _incidents,
    "shares": studies.shares,
    "figures": manifest,
    "searched-reader": studies.searched_reader,
    "rules": studies.rules,
    "rules-total": studies.rules_total,
    "rules-without-rows": studies.rules_without_rows,
    "shipped-judge": studies.shipped_judge,
    "reference-honest": studies.reference_honest,
    "reference-attacks": studies.reference_attacks,
    "recurrence": studies.recurrence,
    "seed-replay": studies.seed_replay,
    "detection": studies.detection,
}
