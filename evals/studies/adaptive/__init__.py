"""Adversaries who know the source of one of this library's verifiers or of a baseline.

Also attacks from the paper's own code that its text does not mention. The results of all these
attacks are in the tables of the results pages, so the wheel leaves the attacks out; in a checkout
``--attack`` accepts them by the names below.
"""

from __future__ import annotations

from typing import Final

_KINDS: Final = {
    "exchange": {"impersonation": "Impersonation", "forged_reference": "ForgedReference"},
    "grinding": {
        "seed_grinding": "SeedGrinding",
        "seed_grinding_dos": "SeedGrindingLength",
        "seed_grinding_math": "SeedGrindingMath",
        "withholding": "Withholding",
    },
    "renamed": {"inlined_code": "InlinedCode", "renamed_helpers": "RenamedHelpers"},
    "unnoticed": {
        "ordinary_words": "OrdinaryWords",
        "thesaurus": "Thesaurus",
        "echoed_name": "EchoedName",
        "answer_unit": "AnswerUnit",
    },
    "unpublished": {
        "judge_in_think": "JudgeInThink",
        "insulting": "Insulting",
        "shakespeare": "Shakespeare",
        "subliminal": "Subliminal",
    },
    "unread": {"inequality": "Inequality", "taken_back": "TakenBack"},
}
ATTACKS: Final = {
    name: f"{__name__}.{module}:{kind}"
    for module, kinds in _KINDS.items()
    for name, kind in kinds.items()
}
"""Attack name -> its class, as ``package.module:Class``."""
