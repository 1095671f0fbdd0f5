"""results.json: the source of truth behind every table and report.

Shape: ``{"config", "versions", "runs": [...], "summary": [...]}``, with one run per (attack,
defence, setting, models, seed). Unknown fields are kept and ignored.
"""

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_guard.core.files import write_whole
from grpo_guard.evals.stats import Rate

ACCEPTED_POISON: Final = "accepted_poison"
REJECTED_CORRECT: Final = "rejected_correct"
REJECTED_POISON: Final = "rejected_poison"
# In detections: the kinds of completion that are not attacks, and the name of the metric.
HONEST: Final = "honest"
CONTROL: Final = "control:"
REJECTED: Final = "rejected"


class ResultsError(ValueError):
    """Raised for a results file that cannot be read: ``FILE: field: expected ..., got ...``."""


_PACKAGES: Final = ("torch", "transformers", "numpy")
# Above this, floats skip integers, and arithmetic on a file's claims could overflow.
_MOST: Final = 2**53
Value = Annotated[float, Field(ge=-_MOST, le=_MOST)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)


class Counts(_Model):
    """Numbers of completions over a whole run, by kind.

    ``honest_correct`` is the part of ``honest`` that earned a reward. ``cover`` counts poison-free
    completions from malicious nodes; older files do not have it.
    """

    honest: int = Field(ge=0, le=_MOST)
    honest_correct: int = Field(ge=0, le=_MOST)
    poisoned: int = Field(ge=0, le=_MOST)
    cover: int = Field(default=0, ge=0, le=_MOST)


class ShownFinding(_Model):
    """A verdict's finding, in the format of `Verdict.to_dict`."""

    kind: str
    message: str
    char_span: tuple[int, int] | None = None
    token_span: tuple[int, int] | None = None


class ShownVerdict(_Model):
    """The part of `Verdict.to_dict` that a report shows.

    ``deciding`` has the p-values of the members that decided; it is None in older files, whose
    ``p_value`` is that of a whole ensemble.
    """

    outcome: str
    cause: str
    verifier: str
    p_value: float | None = None
    findings: list[ShownFinding] = []
    rejected_by: list[str] = []
    deciding: dict[str, float] | None = None


class Example(_Model):
    """One completion and its verdict; ``span`` locates the attack's poison, in characters.

    ``kind`` is an attack's name or, in a training run, `ACCEPTED_POISON` or one of its siblings.
    ``left_out`` counts the characters that were cut before and after ``text``. ``earns_nothing``
    marks accepted poison that was found, but whose answer is wrong.
    """

    kind: str = ""
    prompt: str
    text: str
    span: tuple[int, int] | None = None
    node: str | None = None
    iteration: int | None = None
    left_out: tuple[int, int] = (0, 0)
    earns_nothing: bool = False
    verdict: ShownVerdict


class HeldOut(_Model):
    """Number of correct answers to held-out problems, which no run trains on."""

    correct: int = Field(ge=0, le=_MOST)
    total: int = Field(ge=0, le=_MOST)


class Run(_Model):
    """One training run. Rates are over the honest nodes' completions, with one value per iteration.

    ``leaves`` is the number of rounds after which the malicious nodes left, if they did. ``asr_of``
    is the number of completions over which attack success is measured in each round; None if that
    is as many as the honest nodes submit.
    """

    attack: str
    defence: str
    setting: str = "horizontal"
    models: str = "homogeneous"
    task: str = ""
    policy: str = ""
    seed: int
    leaves: int | None = Field(default=None, ge=1, le=_MOST)
    asr: list[Value]
    asr_of: int | None = Field(default=None, ge=1, le=_MOST)
    honest_reward: list[Value]
    rejected: Counts
    submitted: Counts | None = None
    abstained: int | None = Field(default=None, ge=0, le=_MOST)
    abstained_poisoned: int | None = Field(default=None, ge=0, le=_MOST)
    seconds: float | None = None
    guard_seconds: float | None = None
    mean_tokens: list[Value] = []
    excluded: dict[str, int] = {}
    held_out: HeldOut | None = None
    examples: list[Example] = []

    @property
    def example(self) -> Example | None:
        """The first example of a rejected poisoned completion, if any."""
        return next((one for one in self.examples if one.kind == REJECTED_POISON), None)

    @property
    def settings(self) -> dict[str, Any]:
        """The swarm's settings; empty if the run does not state them."""
        found = (self.model_extra or {}).get("config")
        return found if isinstance(found, dict) else {}


class Summary(_Model):
    """One metric of an (attack, defence) pair, with its 95 % interval.

    ``over`` names the unit that ``n`` counts. A rejection rate in a detection has further counts:
    ``located`` is the number of rejections whose finding overlaps the poison, ``causes`` counts the
    causes of verdicts other than acceptance, and ``members`` the rejections that each member of a
    guard contributed to. ``earns_nothing`` counts accepted poison that was found, but whose answer
    is wrong; it is None for other rates and in older files.
    """

    attack: str
    defence: str
    setting: str = ""
    models: str = ""
    task: str = ""
    metric: str
    mean: float | None
    low: float | None
    high: float | None
    n: int = Field(ge=0)
    over: str | None = None
    rejected: int | None = Field(default=None, ge=0)
    abstained: int | None = Field(default=None, ge=0)
    located: int | None = Field(default=None, ge=0)
    earns_nothing: int | None = Field(default=None, ge=0)
    causes: dict[str, int] = {}
    members: dict[str, int] = {}

    @property
    def accepted(self) -> int:
        """The number of completions that were neither rejected nor abstained on."""
        return max(0, self.n - (self.rejected or 0) - (self.abstained or 0))

    @property
    def rate(self) -> Rate | None:
        """The metric as a rate, from its own count or else the one implied by its mean."""
        count = self.rejected
        if count is None and self.mean is not None:
            count = round(self.mean * self.n)
        return Rate(count, self.n) if count is not None and 0 <= count <= self.n else None


class Results(_Model):
    """The full content of results.json."""

    config: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    runs: list[Run]
    summary: list[Summary] = []
    examples: list[Example] = []
    honest_p_values: dict[str, list[Share]] = {}
    p_values: dict[str, dict[str, list[Share]]] = {}


def parse_results(data: Any, name: str = "results.json") -> Results:
    """Check parsed JSON against the expected shape; `ResultsError` names the first wrong field."""
    try:
        return Results.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(file)"
        expected = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
        if first["type"] == "missing":
            raise ResultsError(f"{name}: {where}: expected to be present, got nothing") from None
        got = f"{first['input']!r:.80}"
        raise ResultsError(f"{name}: {where}: expected {expected}, got {got}") from None


def load_results(path: Path) -> Results:
    """Read and check a results file; raises `ResultsError` if it cannot be read or is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ResultsError(f"{path}: (file): expected to exist, got nothing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: (file): expected readable UTF-8, got {error}") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: e.g. a number of many digits
        raise ResultsError(f"{path}: (file): expected JSON, got {error}") from None
    return parse_results(data, str(path))


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, this package, the numerical packages and ``more``."""
    from grpo_guard.core.version import __version__

    found = {"python": platform.python_version(), "grpo_guard": __version__}
    for name in (*_PACKAGES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"machine": platform.machine()}


def today() -> str:
    """Return today's date (UTC) for a results file, in the form 2026-11-27."""
    return datetime.now(UTC).date().isoformat()


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, so that readers never see a partial file."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, so that readers never see a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
