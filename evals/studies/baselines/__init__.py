"""Defences that only the tables of the results pages play; in a checkout ``--defence`` has them."""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "cap_improbable", "mask_span", "mask_content_span", "f_tis", "median_baseline",
    "noise_corrected", "local_share", "own_majority", "exact_duplicates", "distance_to_solution",
    "shipped_judge", "paper_judge", "authors_judge_2025", "authors_judge_2025_all",
    "authors_judge_later", "authors_judge_later_all", "authors_logit_100",
    "authors_logit_100_oracle", "authors_logit_60", "authors_logit_60_oracle", "spot_checks_5",
    "spot_checks_10", "spot_checks_25", "spot_checks_50", "spot_checks_100", "max_length",
    "own_prompts", "whole_rounds", "heterogeneous_signed",
)  # fmt: skip
"""Of the defences in `registry`, which needs torch."""
