"""Defences for the tables on the results pages; ``--defence`` knows them in a checkout."""

from typing import Final

NAMES: Final = (
    "cap_improbable", "mask_span", "mask_content_span", "shipped_judge", "authors_logit_100",
    "authors_logit_60", "spot_checks_5", "spot_checks_10", "spot_checks_25", "spot_checks_50",
    "spot_checks_100", "own_prompts", "whole_rounds", "heterogeneous_signed",
)  # fmt: skip
"""Names of the defences in `registry`, kept here because importing `registry` needs torch."""
