"""Building blocks of an HTML page. Input can be hostile, so each one escapes what it shows."""

import html
import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from grpo_guard.content.kinds import KINDS
from grpo_guard.content.severity import Severity
from grpo_guard.core.p_values import p_text
from grpo_guard.evals.report.excerpt import Piece, excerpt, visible
from grpo_guard.evals.results import Example, ShownVerdict

_MOST_FINDINGS = 6


def esc(value: object, limit: int = 300) -> str:
    """Format any value as harmless, fully visible HTML text."""
    return html.escape(visible(value, limit=limit))


def marked(pieces: Sequence[Piece]) -> str:
    """Format an excerpt as HTML: poison in <mark>, evidence underlined, hidden characters boxed."""
    parts = []
    for poison, run in groupby(pieces, key=lambda piece: piece.poison):
        inner = "".join(_piece(piece) for piece in run)
        parts.append(f"<mark>{inner}</mark>" if poison else inner)
    return "".join(parts)


def _piece(piece: Piece) -> str:
    text = html.escape(piece.text)
    for is_so, name in ((piece.hidden, "hidden"), (piece.cut, "cut"), (piece.evidence, "found")):
        if is_so:
            text = f'<span class="{name}">{text}</span>'
    return text


def prose(text: str) -> str:
    """Format our own sentences, which can quote names from the file; keep ``%`` with its number."""
    return esc(text, limit=2000).replace(" %", "&nbsp;%")


def note(text: str) -> str:
    """Format a remark under a heading, in small print."""
    return f'<p class="note">{prose(text)}</p>'


def figure(title: str, under: str, svg: str) -> str:
    """Put a drawing under its title and caption; neither is escaped, so they must be our own."""
    caption = f'<h4>{title}</h4><p class="note">{under}</p>'
    return f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"


def shown_example(example: Example, title: str) -> str:
    """Format a completion, with its marks and its verdict, as HTML."""
    findings = [f for f in example.verdict.findings if f.char_span]
    pieces = excerpt(example.text, example.span, [f.char_span for f in findings if f.char_span])
    pieces = [*_cut(example.left_out[0], "before"), *pieces, *_cut(example.left_out[1], "after")]
    origin = [f"iteration {example.iteration}"] if example.iteration is not None else []
    origin += [example.node] if example.node else []
    legend = ["<mark>Marked</mark>: what the attack inserted."] if example.span else []
    if findings:
        legend.append('<span class="found">Underlined</span>: what the guard found.')
    if any(piece.hidden for piece in pieces):
        legend.append('<span class="hidden">Boxed</span>: a character that would be invisible.')
    return (
        f"<h3>{prose(title)}</h3>"
        f'<p class="note">{prose(", ".join(origin))}{". " if origin else ""}{" ".join(legend)}</p>'
        f'<pre><span class="asked">{marked(excerpt(example.prompt, limit=600))}</span>'
        f"{marked(pieces)}</pre>{_why(example)}"
    )


def _cut(count: int, where: str) -> list[Piece]:
    return [Piece(f"[{count:,} characters {where}]", cut=True)] if count > 0 else []


def _why(example: Example) -> str:
    verdict = example.verdict
    accepted = verdict.outcome == "accept"
    messages = [
        esc(finding.message, limit=600) + (_accepted_with(finding.kind) if accepted else "")
        for finding in verdict.findings[:_MOST_FINDINGS]
    ]
    nothing = "nothing found" if accepted else "no finding"
    first = messages[0] if messages else f"{nothing}, cause {esc(verdict.cause)}"
    by = ", ".join(esc(name, limit=60) for name in verdict.rejected_by[:_MOST_FINDINGS])
    name = esc(verdict.verifier) + (f" ({by})" if by else "")
    items = [f"<li><b>{name}</b>: {first}.</li>"]
    items += [f"<li>{message}.</li>" for message in messages[1:]]
    left = len(verdict.findings) - _MOST_FINDINGS
    if left > 0:
        items.append(f'<li class="note">and {left:,} more findings</li>')
    if example.earns_nothing:
        items.append("<li>Its answer is wrong, so it earns no reward and teaches nothing.</li>")
    items += [f'<li class="note">{text}.</li>' for text in _p_values(verdict)]
    return f'<ul class="why">{"".join(items)}</ul>'


def _accepted_with(kind: str) -> str:
    """Say why a finding of this kind did not reject; "" if the kind is not one of ours."""
    found = KINDS.get(kind)
    if found is None:
        return ""
    counted = "counts, and rejects once the node has it more often than others"
    only = counted if found.severity is Severity.COUNT else "was only reported"
    return f" (<code>{esc(kind)}</code>: {esc(found.meaning or only)})"


def _p_values(verdict: ShownVerdict) -> list[str]:
    """Describe the p-values of the members that decided, which are to be held against a level."""
    meaning = "the chance that honest work gives evidence this strong"
    if verdict.deciding is None and verdict.p_value is not None and verdict.rejected_by:
        p = p_text(verdict.p_value)
        return [f"p-value {p}, combined over all members, so it is larger than the deciding one"]
    known = verdict.deciding
    if known is None:
        known = {} if verdict.p_value is None else {verdict.verifier: verdict.p_value}
    return [
        f"p-value of {esc(name, limit=60)}: {p_text(p)}, {meaning}"
        for name, p in list(known.items())[:_MOST_FINDINGS]
    ]


def definitions(mapping: Mapping[str, object]) -> str:
    """Format a mapping as an HTML definition list; a nested mapping goes on one line."""
    items = "".join(
        f"<dt>{esc(key)}</dt><dd>{esc(_plain(value), limit=2000)}</dd>"
        for key, value in mapping.items()
    )
    return f'<dl class="keys">{items}</dl>' if items else ""


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return value if isinstance(value, str) else json.dumps(value, default=str)
