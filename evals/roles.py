"""Classifies attacks and defences, and defines the order that a page lists them in."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

NONE: Final = "none"
SILENT: Final = "silent"
"""The empty attack: malicious nodes send nothing; see `attacks.silent`."""
COIN: Final = "coin"
"""The empty defence: honest nodes sample under a public coin, but no guard checks their draws."""
PRESET: Final = "preset:"
"""Name prefix for a preset that the user runs as their own guard."""


class Role(StrEnum):
    """The role of a defence on a page of results."""

    UNDEFENDED = "undefended"
    BASELINE = "baseline"
    PART = "part"
    GUARD = "guard"


STACKS: Final = (
    "homogeneous", "same_weights", "heterogeneous", "different_weights_reader",
    "different_weights_frozen", "heterogeneous_signed",
)  # fmt: skip
_PARTS: Final = (
    "seed_replay", "logprob_bound", "tail_probability", "reference_likelihood", "ledger", "screens",
    "answer_words", "arithmetic", "code", "recurrence", "length", "judge", "shipped_judge",
    "mask_span", "mask_content_span", "cap_improbable", "own_prompts", "whole_rounds",
)  # fmt: skip
_BASELINES: Final = (
    "paper_", "authors_", "kl_",
)  # fmt: skip
_ROLES: Final = tuple(Role)

# The paper's attacks first, each with its variants; then the adaptive ones.
ATTACKS: Final = (
    "text", "text_every_sentence", "text_majority_vote", "half_gibberish", "math", "code", "dos",
    "dos_majority_vote", "padded", "moderate_dos", "seed_grinding", "seed_grinding_math",
    "seed_grinding_dos", "withholding", "rotating", "paraphrased", "thesaurus",
    "ordinary_words", "echoed_name", "answer_unit", "sybil_spread", "one_of_twelve", "early_only",
    "trigger", "textual_arithmetic", "inequality", "taken_back", "inlined_code", "renamed_helpers",
    "judge_injection", "judge_in_think", "insulting", "shakespeare", "subliminal", "retokenised",
    "impersonation", "forged_reference", "forged_tool_result",
    "claimed_mask", "token_split", "cap_forcing", "eos_padding", "reward_selection",
)  # fmt: skip
_UNDER_COIN: Final = (COIN, "seed_replay", "own_prompts", "whole_rounds", "homogeneous")
# Judged by mean length: if success meant "twice as long", stopping at 1.5 times would go unnoticed.
_LENGTHENING: Final = frozenset(
    {
        "dos",
        "dos_majority_vote",
        "padded",
        "moderate_dos",
        "seed_grinding_dos",
        "cap_forcing",
    }
)


def plain(name: str) -> str:
    """Strip anything a plan adds in brackets, as in ``text (1/16)`` and ``homogeneous (zero)``."""
    return name.partition(" (")[0]


def under_coin(defence: str) -> bool:
    """Whether honest nodes sample under a public coin with this defence, which changes draws.

    The name of the user's own guard says so: ``guard.yaml (coin)``.
    """
    return plain(defence) in _UNDER_COIN or f" ({COIN})" in defence


def own_guard(defence: str) -> bool:
    """Whether a defence is the user's own: a guard file, or a preset without changes."""
    name = plain(defence)
    return name.endswith((".yaml", ".yml")) or name.startswith(PRESET)


def attack_free(attack: str) -> bool:
    """Whether the named attack is a baseline in which no node sends poison."""
    return plain(attack) in (NONE, SILENT)


def role(defence: str) -> Role:
    """Return the role of the named defence; an unknown name counts as the user's own guard."""
    name = plain(defence)
    if name in (NONE, COIN):
        return Role.UNDEFENDED
    if own_guard(name):
        return Role.GUARD
    if name.startswith(_BASELINES):
        return Role.BASELINE
    return Role.PART if name.startswith("spot_checks_") or name in _PARTS else Role.GUARD


def under_test(defences: Iterable[str]) -> list[str]:
    """Return the defences to pass a verdict on, in order.

    These are the recommended stacks and the user's own guards. If there are none, the library's
    verifiers are judged individually. Baselines are never judged.
    """
    found = ordered_defences(defences)
    guards = [name for name in found if role(name) is Role.GUARD]
    return guards or [name for name in found if role(name) is Role.PART]


def lengthens(attack: str) -> bool:
    """Whether an attack's success is measured as a length rather than a share of completions."""
    return plain(attack) in _LENGTHENING


def ordered_attacks(names: Iterable[str]) -> list[str]:
    """Return each name once, in the order of `ATTACKS`, with unknown names last."""
    places = {name: place for place, name in enumerate(ATTACKS)}
    unique = dict.fromkeys(names)
    return sorted(unique, key=lambda name: (places.get(plain(name), len(places)), name))


def ordered_defences(names: Iterable[str]) -> list[str]:
    """Return each name once: undefended first, then baselines, single verifiers and guards."""

    def place(name: str) -> tuple[int, int, str]:
        known = STACKS if role(name) is Role.GUARD else _BASELINES
        at = next((i for i, start in enumerate(known) if plain(name).startswith(start)), len(known))
        return _ROLES.index(role(name)), at, name

    return sorted(dict.fromkeys(names), key=place)
