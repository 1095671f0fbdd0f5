"""An mkdocs hook: tables of guard files and metrics from the code, and names that wrap."""

import re
from collections.abc import Collection
from typing import Any

from grpo_guard import Completion, Guard, ScreensVerifier
from grpo_guard.cli.config import part_options
from grpo_guard.cli.metrics import MEANINGS
from grpo_guard.config import WRAPPERS, GuardConfig, verifier_options
from grpo_guard.config.preset_options import preset_options
from grpo_guard.config.presets import PRESETS
from grpo_guard.core.options import Options, listed, options_of
from grpo_guard.core.registry import VERIFIERS, load, names
from grpo_guard.core.verdict import NOT_CHECKED, Cause, Usage, abstain, accept
from grpo_guard.guard.metrics import metrics


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of the reference pages."""
    for marker, table in (("guard-file", guard_file), ("metrics", logged)):
        if (place := f"<!-- {marker} -->") in markdown:
            markdown = markdown.replace(place, table())
    return markdown


_CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.DOTALL)
_NAME = re.compile(r"(?<=<code>)[^<]+")
_JOINT = re.compile(r"(?<=[_./=:])(?=\w)|(?<=[a-z])(?=[A-Z])")


def on_page_content(html: str, **_: Any) -> str:
    """Let a long name in a table wrap at its joints, not inside its words."""
    return _CELL.sub(
        lambda cell: _NAME.sub(lambda name: _JOINT.sub("<wbr>", name[0]), cell[0]), html
    )


def guard_file() -> str:
    """The keys of a guard file below its top: its parts, each preset, each verifier."""
    parts = []
    for name in ("policy", "ledger", "identity"):
        parts += [f"## `{name}`", _table(part_options(GuardConfig, name))]
    for name, preset in PRESETS.items():
        parts += [
            f"## `preset: {name}`",
            _first_line(preset),
            _table(preset_options(name)),
        ]
    own = options_of("", dict, fields=WRAPPERS)
    parts += ["## Next to every `type`", "What wraps a verifier.", _table(own)]
    for name in names(VERIFIERS):
        kind = load(VERIFIERS, name)
        needs = f"Needs {kind.needs}." if kind.needs else "Needs nothing else."
        model = verifier_options(kind)
        about = [_first_line(kind), needs, _table(model, without=WRAPPERS)]
        parts += [f"## `type: {name}`", *about]
    return "\n\n".join(parts)


def logged() -> str:
    """The table of metrics."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items()]
    return "\n".join(["| name | what |", "|---|---|", *rows])


def logged_names() -> set[str]:
    """What a batch with every kind of verdict logs, with placeholders for what differs."""
    asked = Usage(requests=1, tokens_in=1, usd=0.1, latency=0.1)
    batch = [accept("judge", usage=asked), abstain("judge", Cause.TIMEOUT)]
    batch.append(accept("judge", members=(accept(NOT_CHECKED),)))
    review = Guard(ScreensVerifier()).review([Completion("p", "t", node="NAME")])
    of_review = [name for name in review.metrics if "screens" not in name]
    names = {
        name.replace("judge", "VERIFIER") for name in (*metrics(batch), *of_review)
    }
    return {
        re.sub("(?<=NAME/).*", "OUTCOME", n.replace("timeout", "CAUSE")) for n in names
    }


def _table(model: type[Options], without: Collection[str] = ()) -> str:
    rows = [
        f"| `{name}` | {kind.replace('|', 'or')} | {default} |"
        for name, (kind, default) in listed(model).items()
        if name not in without
    ]
    return (
        "\n".join(["| key | value | |", "|---|---|---|", *rows])
        if rows
        else "No options."
    )


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]
