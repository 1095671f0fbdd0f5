"""The judge that ships: a small model, its rubric and its threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
RUBRIC: Final = "word_problems"
