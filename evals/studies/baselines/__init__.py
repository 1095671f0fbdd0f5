"""Defences that only the tables of the results pages play; in a checkout ``--defence`` has them."""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "cap_improbable", "mask_span", "mask_content_span", "shipped_judge", "authors_logit_100",
    "authors_logit_60", "spot_checks_5", "spot_checks_10", "spot_checks_25", "spot_checks_50",
    "spot_checks_100", "own_prompts", "whole_rounds", "heterogeneous_signed",
)  # fmt: skip
"""Of the defences in `registry`, which needs torch."""
