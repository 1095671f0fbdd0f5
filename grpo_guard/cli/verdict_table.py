"""``grpo-guard verify --table``: verdicts by cause and by node, each with an example."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpo_guard.cli.terminal import terminal
from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.quoting import visible
from grpo_guard.core.verdict import Outcome, Verdict

MOST_ROWS: Final = 10_000
"""Maximum number of causes, and of nodes, counted by name; all others share a line."""
SHOWN_ROWS: Final = 25
_OTHERS: Final = "(others)"
_UNKNOWN: Final = "(no name)"


@dataclass
class _Line:
    """Counts of outcomes for a cause or node, and the first example."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    example: str = ""


class VerdictTable:
    """Counts of verdicts by cause and node, with examples, using memory that does not grow with the
    file."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self._causes: dict[tuple[Outcome, str], _Line] = {}
        self._nodes: dict[str, _Line] = {}

    def add(self, completion: Completion | None, verdict: Verdict, node: str | None) -> None:
        """Count a verdict; ``completion`` is None for a line without one, which names ``node``."""
        from grpo_guard.guard.verdict_log import line_of

        if completion is None:
            self.add_logged({**verdict.to_dict(), "node": node})
        elif not verdict.accepted:
            self.add_logged(line_of(completion, verdict))
        elif verdict.findings:
            self.add_logged({**line_of(completion, verdict), **verdict.to_dict()})
        else:
            self._count(completion.node, Outcome.ACCEPT)

    def add_logged(self, line: Mapping[str, Any]) -> None:
        """Count a line of a `VerdictLog`, or a line written by ``grpo-guard verify``. Raises
        ValueError if it is neither."""
        if "accepted" in line:
            for node, count in _accepted(line["accepted"]):
                self._count(node, Outcome.ACCEPT, count)
            return
        try:
            outcome = Outcome(str(line.get("outcome")))
        except ValueError:
            raise ValueError(
                f"outcome: expected accept, reject or abstain, got {shown(line.get('outcome'))}"
                f"; {no_verdict(line, 'completions need --config')}"
            ) from None
        findings = line.get("findings")
        first = findings[0] if isinstance(findings, list) and findings else {}
        first = first if isinstance(first, dict) else {}
        node = line.get("node")
        self._count(node, outcome)
        if outcome is Outcome.ACCEPT:
            for (by, kind), message in findings_of(line).items():
                example = _example(line, {"message": message})
                self._cause(outcome, f"{by[:64]}: {kind[:64]}", f"{_name(node)}: {example}")
            return
        example = _example(line, first)
        cause = f"{line.get('cause')}"[:40]
        kind = f"{first.get('kind', '')}"[:64]
        verifier = next(deciding(line), f"{line.get('verifier')}")[:64]
        name = f"{verifier}: {kind or cause}" if kind != cause else f"{verifier}: {cause}"
        self._cause(outcome, name, f"{_name(node)}: {example}")
        of_node = self._of(node)
        of_node.example = of_node.example or f"{outcome.value}, {kind or cause}: {example}"

    def _cause(self, outcome: Outcome, name: str, example: str) -> None:
        line = _line(self._causes, (outcome, name), (outcome, _OTHERS))
        line.outcomes[outcome] += 1
        line.example = line.example or example

    def _of(self, node: Any) -> _Line:
        return _line(self._nodes, _name(node), _OTHERS)

    def _count(self, node: Any, outcome: Outcome, count: int = 1) -> None:
        self.outcomes[outcome] += count
        self._of(node).outcomes[outcome] += count

    def text(self) -> str:
        """Format the counts for a human reader."""
        return "\n\n".join([self.totals(), *self.tables()])

    def totals(self) -> str:
        """Format the number and share of each outcome on one line."""
        total = self.outcomes.total()
        return ", ".join(
            f"{o.value} {self.outcomes[o]:,}/{total:,} ({self.outcomes[o] / max(1, total):.2%})"
            for o in Outcome
        )

    def tables(self) -> list[str]:
        """Format a table by cause and one by node; leave out those without rows."""
        causes = [
            (outcome.value, name, f"{line.outcomes[outcome]:,}", line.example)
            for (outcome, name), line in sorted(
                self._causes.items(), key=lambda one: (-one[1].outcomes[one[0][0]], one[0][1])
            )
        ]
        nodes = [
            (name, *(f"{line.outcomes[o]:,}" for o in Outcome), line.example)
            for name, line in sorted(
                self._nodes.items(), key=lambda one: (-one[1].outcomes[Outcome.REJECT], one[0])
            )
        ]
        parts = []
        if causes:
            parts.append(printed(("verdict", "verifier: cause", "count", "example"), causes))
        if nodes and set(self._nodes) != {_UNKNOWN}:
            parts.append(printed(("node", *(o.value for o in Outcome), "example"), nodes))
        return parts


def no_verdict(line: Mapping[str, Any], otherwise: str) -> str:
    """Say where the verdicts are that a line lacks; ``otherwise`` says it for completions."""
    if "sha256" in line and "beginning" in line:
        return "a line of serve --audit has no verdict; log: FILE in the guard file writes verdicts"
    return otherwise


def verdict_lines(path: Path, takes: str, otherwise: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a file of verdicts as `read_objects` does. If even the first line is not an object, the
    error also says what the command ``takes``, and what to do with completions (``otherwise``). If
    there is no file, it says where it was looked for."""
    from grpo_guard.core.files import nowhere
    from grpo_guard.core.jsonl import InputError, read_objects

    number = 0
    try:
        for number, line in read_objects(path):
            yield number, line
    except InputError as error:
        if not path.exists():
            raise InputError(f"{path}: (file): {nowhere(path, 'a file of verdicts')}") from None
        if number or not path.is_file():
            raise
        hint = f"{takes} verdicts, as grpo-guard verify writes them; {otherwise}"
        raise InputError(f"{error}; {hint}") from None


def table_of(path: Path) -> VerdictTable:
    """Build the table for a file of verdicts. Raises InputError if the file cannot be read, or a
    line is not a verdict."""
    from grpo_guard.core.jsonl import InputError

    table = VerdictTable()
    for number, line in verdict_lines(path, "--table alone takes", "completions need --config"):
        try:
            table.add_logged(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from None
    return table


def _accepted(given: Any) -> list[tuple[Any, int]]:
    try:
        found = [(node, count) for node, count in given]
    except (TypeError, ValueError):
        found = [(None, -1)]
    if not all(type(count) is int and count >= 0 for _, count in found):
        raise ValueError(f"accepted: expected [[node, count], ...], got {shown(given)}")
    return found


def _line(lines: dict[Any, _Line], key: Any, others: Any) -> _Line:
    if key not in lines and len(lines) >= MOST_ROWS:
        key = others
    return lines.setdefault(key, _Line())


def deciding(line: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    """Yield the names of the deciding members, as in `Verdict.deciding`, from a verdict in JSON or
    a line of a log."""
    for member in _agreeing(line):
        inner = list(deciding(member, depth - 1)) if depth else []
        yield from inner or [str(member.get("verifier"))]
    names = line.get("deciding")
    yield from map(str, names if isinstance(names, list) else ())


def deciding_p_values(line: Mapping[str, Any], depth: int = 8) -> list[tuple[str, float]]:
    """Return names and p-values as `p_values.deciding_p_values` does, from a verdict in JSON."""
    same = _agreeing(line)
    if same and depth:
        return [pair for member in same for pair in deciding_p_values(member, depth - 1)]
    p = line.get("p_value")
    return [(str(line.get("verifier")), p)] if isinstance(p, int | float) else []


def findings_of(line: Mapping[str, Any], depth: int = 8) -> dict[tuple[str, str], str]:
    """Return the first message of each kind of finding in a verdict in JSON, by the innermost
    verifier with its outcome that has the finding, and the kind."""
    found: dict[tuple[str, str], str] = {}
    for member in _agreeing(line) if depth else ():
        found = findings_of(member, depth - 1) | found
    known = {kind for _, kind in found}
    findings = line.get("findings")
    for finding in findings if isinstance(findings, list) else ():
        if isinstance(finding, dict) and (kind := str(finding.get("kind"))) not in known:
            found.setdefault((str(line.get("verifier")), kind), str(finding.get("message")))
    return found


def _agreeing(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the members of a verdict that have its outcome."""
    members = line.get("members")
    members = members if isinstance(members, list) else []
    same = line.get("outcome")
    return [one for one in members if isinstance(one, dict) and one.get("outcome") == same]


def _name(node: Any) -> str:
    return _UNKNOWN if node is None else visible(str(node)[:80])


def _example(line: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    """Format a finding's message, followed by the text or the number of the row it refers to."""
    message = cut_between_words(str(finding.get("message") or line.get("cause")), 120)
    excerpt = line.get("excerpt")
    if excerpt is not None:
        return f"{message} | {shown(str(excerpt), 200)}"
    row = line.get("id") if line.get("id") is not None else line.get("index")
    return message if row is None else f"{message} | row {shown(row, 40)}"


def cut_between_words(text: str, most: int) -> str:
    """Cut a text between words if it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    words = text[: most - 4]
    return f"{words.rpartition(' ')[0] or words} ..."


def printed(
    header: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    *,
    most: int = SHOWN_ROWS,
    width: int = 120,
    pad_edge: bool = False,
) -> str:
    """Format a table of at most ``most`` rows, and the number of the others."""
    from rich.table import Table

    table = Table(*header, box=None, pad_edge=pad_edge)
    for row in rows[:most]:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    into = io.StringIO()
    terminal(file=into, width=width).print(table)
    more = len(rows) - most
    return into.getvalue().rstrip() + (f"\n... and {more:,} more" if more > 0 else "")
