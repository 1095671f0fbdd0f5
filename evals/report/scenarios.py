"""Groups the runs of a results file by attack: attack-free, undefended and guarded runs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_guard.evals.report.series import Conditions, Series, conditions
from grpo_guard.evals.results import Results, Run
from grpo_guard.evals.roles import (
    COIN,
    NONE,
    SILENT,
    attack_free,
    ordered_attacks,
    ordered_defences,
    own_guard,
    plain,
    under_coin,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One attack under one set of conditions: attack-free, undefended and guarded series.

    ``free_under_coin`` is the attack-free series of nodes that sample under a public coin. ``name``
    is the attack's name plus any conditions that set it apart from the attack's other scenarios.
    """

    attack: str
    where: Conditions
    free: Series | None
    undefended: Series | None
    guarded: tuple[Series, ...]
    free_under_coin: Series | None = None
    name: str = ""

    def beside(self, series: Series) -> Series | None:
        """Return the attack-free series to compare ``series`` with; None for that series itself."""
        coin = self.free_under_coin if under_coin(series.defence) else None
        found = coin or self.free
        return None if series is found else found

    @property
    def attacked(self) -> list[Series]:
        """The series under attack: undefended first, then guarded."""
        return [*([self.undefended] if self.undefended else []), *self.guarded]

    @property
    def series(self) -> list[Series]:
        """All series, with the attack-free ones first."""
        free = [one for one in (self.free, self.free_under_coin) if one is not None]
        return [*free, *self.attacked]


def scenarios(results: Results) -> list[Scenario]:
    """Group the runs by attack and conditions, in an order independent of the order in the file."""
    pools: dict[tuple[str, Conditions, str], list[Run]] = defaultdict(list)
    for run in results.runs:
        pools[run.attack, conditions(run), run.defence].append(run)
    keys = dict.fromkeys(key[:2] for key in pools)
    # Attack-free runs are compared with every attack; guarded ones also get their own row.
    guarded_free = {key[:2] for key in pools if attack_free(key[0]) and key[2] not in (NONE, COIN)}
    attacks = [key for key in keys if not attack_free(key[0]) or key in guarded_free]
    attacks = attacks or list(keys)
    place = {name: at for at, name in enumerate(ordered_attacks(key[0] for key in keys))}
    found = []
    for attack, where in sorted(attacks, key=lambda key: (place[key[0]], key[1])):
        defences = ordered_defences(key[2] for key in pools if key[:2] == (attack, where))
        guarded = [name for name in defences if name not in (NONE, COIN)]
        labels = {NONE: "undefended"}
        if len(guarded) == 1 and not own_guard(guarded[0]):
            labels[guarded[0]] = "guarded"
        series = {
            name: Series(labels.get(name, name), _seeds(pools[attack, where, name]))
            for name in defences
        }
        quiet = SILENT + attack.removeprefix(plain(attack))  # the same share of malicious nodes
        free = _free("attack-free", pools, [(quiet, where, NONE), (NONE, where, NONE)])
        coin = _free("attack-free, public coin", pools, [(quiet, where, COIN)])
        undefended = None if attack_free(attack) else series.get(NONE)
        rest = tuple(series[name] for name in guarded)
        found.append(Scenario(attack, where, free, undefended, rest, coin))
    return _named(found)


def _free(
    label: str,
    pools: dict[tuple[str, Conditions, str], list[Run]],
    keys: Sequence[tuple[str, Conditions, str]],
) -> Series | None:
    """Return the series for the first key that has runs, or None if there isn't one."""
    runs = next((pools[key] for key in keys if key in pools), None)
    return Series(label, _seeds(runs)) if runs else None


def _seeds(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Sort the runs by seed, keeping one per seed: a repeated run is not a second observation."""
    found: dict[int, Run] = {}
    for run in runs:
        found.setdefault(run.seed, run)
    return tuple(found[seed] for seed in sorted(found))


def _named(found: Sequence[Scenario]) -> list[Scenario]:
    named = []
    for one in found:
        others = [other.where for other in found if other.attack == one.attack]
        parts = ["no attack" if one.attack == NONE else one.attack]
        for at, field in enumerate(Conditions._fields):
            if len({where[at] for where in others}) > 1:
                value = str(one.where[at]) or "?"
                parts.append(f"{value} iterations" if field == "iterations" else value)
        named.append(replace(one, name=", ".join(parts)))
    return named
