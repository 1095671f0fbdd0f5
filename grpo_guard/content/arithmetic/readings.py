"""The readings that a notation leaves open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from grpo_guard.content.arithmetic.expression import Reading, Run


def readings(*runs: Run) -> Iterator[Reading]:
    """The readings that the notation of these runs leaves open, apart from the default one.

    Each feature doubles their number (percentages: triple), so at most 384.
    """
    operands = [operand for run in runs for operand in run.numbers()]
    operands += [o for run in runs for o in run.operands if o.group is not None]
    operators = {sign for run in runs for sign in run.all_operators()}
    both, default = (True, False), (True,)
    percents = ("share", "plain", "relative") if any(o.percent for o in operands) else ("share",)
    choices = itertools.product(
        percents,
        both if any(o.scale != 1 for o in operands) else default,
        both if any(o.fraction is not None for o in operands) else default,
        (False, True) if "j" in operators and "/" in operators else (False,),
        (False, True) if "f" in operators and operators - {"f", "/"} else (False,),
        (False, True) if operators & set("+-") and operators & set("*/jf") else (False,),
        (False, True) if "^" in operators and any(o.negative for o in operands) else (False,),
        (False, True) if _has_stack(runs) else (False,),
    )
    next(choices)
    return itertools.starmap(Reading, choices)


def _has_stack(runs: tuple[Run, ...]) -> bool:
    groups = [o.group for run in runs for o in run.operands if o.group is not None]
    return any("//" in "".join(run.operators) for run in (*runs, *groups))
