"""What "Hail to the Thief" says in prose of its attacks, undefended, to stand beside our curves.

Source: arXiv 2511.09780 v2. Its curves are pictures and were not measured from them: only values
that its text states are here. Its models and tasks are other ones than a bundled policy's, so that
the comparison is one of kind and speed, not of figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpo_guard.evals.report.charts import Mark
from grpo_guard.evals.roles import plain

SOURCE: Final = (
    "“Hail to the Thief”, arXiv 2511.09780 v2, values stated in its text "
    "(4 nodes, 1 malicious, B = 32, G = 12, 5 seeds; Qwen2.5-1.5B on GSM8K, for CODE "
    "Qwen2.5-Coder-1.5B on OpenMathInstruct-1)"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says of one attack without defence.

    Attributes:
        says: In our words.
        points: Values that the text gives: shares of completions, or for ``length`` multiples of
            the length without attack.
        length: The claim is about mean length.
    """

    says: str
    points: tuple[Mark, ...] = ()
    length: bool = False


_DOS: Final = Claim("mean length more than doubles", (Mark(2.0),), length=True)
_CLAIMS: Final = {
    "text": Claim(
        "more than 60 % within 20 iterations, about 100 % by iteration 40",
        (Mark(0.6, 20), Mark(1.0, 40)),
    ),
    "text_every_sentence": Claim("succeeds; no number is given"),
    "text_majority_vote": Claim("as good as with the data set’s own solutions"),
    "math": Claim("levels off at about 90 %", (Mark(0.9),)),
    "code": Claim("more than 50 %", (Mark(0.5),)),
    "dos": _DOS,
    "dos_majority_vote": Claim("as good as with known answers", (Mark(2.0),), length=True),
}


def claim(attack: str) -> Claim | None:
    """The paper's claim on an attack of that name, or None where it has none."""
    return _CLAIMS.get(plain(attack))
