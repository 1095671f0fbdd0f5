"""Adversaries that know the source code of one of this library's verifiers or of a baseline.

Also includes attacks from the paper's own code that its text does not mention. The results of all
these attacks are in the tables on the results pages, so the wheel does not include the attacks; in
a checkout, ``--attack`` accepts them by the names below.
"""

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
        "inequality": "Inequality",
        "taken_back": "TakenBack",
    },
    "unpublished": {
        "judge_in_think": "JudgeInThink",
        "insulting": "Insulting",
        "shakespeare": "Shakespeare",
        "subliminal": "Subliminal",
    },
}
ATTACKS: Final = {
    name: f"{__name__}.{module}:{kind}"
    for module, kinds in _KINDS.items()
    for name, kind in kinds.items()
}
"""Maps an attack's name to its class, as ``package.module:Class``."""
