"""``grpo-guard init`` writes a guard file from three answers; ``config check`` tests the file."""

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from grpo_guard.cli.inputs import bad_input, writing
from grpo_guard.cli.terminal import echo, exit_with
from grpo_guard.core.pages import page

if TYPE_CHECKING:
    from grpo_guard.core.verifier import CompletionVerifier
    from grpo_guard.guard import Guard

_SAMPLER = """\
# The sampler of every node. Completions of another sampler are rejected.
sampling: {engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}
"""
_MODEL = """\
# The policy: a folder or a model id. In training, pass the object that is trained (docs/trl.md).
model: PATH_OR_ID
"""
_FILES = {
    "shared_seed": (
        "All nodes hold the same weights and sample with shared seeds.",
        _MODEL + _SAMPLER + "# The name of the run, from which seeds are drawn.\ncoin: my-run\n",
    ),
    "same_weights": ("All nodes hold the same weights.", _MODEL + _SAMPLER),
    "different_weights": (
        "The nodes' models differ: the text itself is checked.",
        "# A model that decides about odd phrases, such as your policy (docs/reader.md):\n"
        "# reader: PATH_OR_ID\n",
    ),
}
_NAMES = """\
# State about nodes, kept over rounds and restarts.
state: guard-state
"""
_NAMELESS = """\
# Verifiers that compare nodes, or keep state about them, need names (`node`). Once completions have
# names, keep the state:
# state: guard-state
"""
_REST = """\
# What a rejected completion earns; the default is the preset's choice (docs/policy.md).
# policy: {on_reject: drop}

# Additional verifiers, your own included:
# beside:
#   - {type: my_rules:Shouting}
"""


def init(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; - is standard output.")
    ] = Path("guard.yaml"),
    same_weights: Annotated[
        bool | None,
        typer.Option(
            "--same-weights/--different-weights", help="Do all nodes hold the same weights?"
        ),
    ] = None,
    seeds: Annotated[
        bool | None,
        typer.Option("--seeds/--no-seeds", help="Do they sample with seeds that you choose?"),
    ] = None,
    names: Annotated[
        bool | None,
        typer.Option("--names/--no-names", help="Do you know who sent each completion?"),
    ] = None,
) -> None:
    """Write a commented guard file for the answers to three questions.

    Asks the questions that no option answers. Does not overwrite an existing file.
    """
    if str(out) != "-" and out.exists():
        exit_with(f"{out}: expected a new file, got one that exists; -o FILE writes another")
    try:
        if same_weights is None:
            same_weights = _asked("Do all nodes hold the same weights?", False)
        if same_weights and seeds is None:
            seeds = _asked("Do they sample with seeds you choose?", False)
        if names is None:
            names = _asked("Do you know who sent each completion?", True)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        exit_with(
            "\ninit: expected answers on standard input, got its end; the options "
            "--same-weights or --different-weights, --seeds or --no-seeds and --names or "
            "--no-names answer the questions"
        )
    text = guard_text(same_weights, bool(seeds), names)
    if str(out) == "-":
        echo(text.rstrip())
        return
    with writing(out), out.open("x", encoding="utf-8") as file:
        file.write(text)
    first = "fill in model:, then run" if same_weights else "next:"
    echo(f"wrote {out}; {first} grpo-guard config check {out}")


def _asked(question: str, default: bool) -> bool:
    return typer.confirm(question, default=default, err=True)


def guard_text(same_weights: bool, seeds: bool, names: bool) -> str:
    """Return the contents of a guard file: a preset with its options, plus comments."""
    preset = "different_weights"
    if same_weights:
        preset = "shared_seed" if seeds else "same_weights"
    about, options = _FILES[preset]
    remembered = _NAMES if names else _NAMELESS
    text = f"# {about}\npreset: {preset}\n\n{options}\n{remembered}\n{_REST}"
    return re.sub(r"docs/([a-z-]+)\.md", lambda found: page(found[1]), text)


def check(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The guard, as YAML.")],
) -> None:
    """Build the guard of a file, models included; show its verifiers and the columns it needs.

    Exit 2 if the guard cannot be built; the message names the field.
    """
    from grpo_guard.config import GuardConfig
    from grpo_guard.config.trial import tried

    with ExitStack() as stack:
        with bad_input():
            guard = stack.enter_context(tried(GuardConfig.from_yaml(config)))
        _describe(config, guard)


def _describe(config: Path, guard: "Guard") -> None:
    from grpo_guard.guard.idle import idle_without

    echo(f"{config}: valid")
    echo(f"  verifiers: {', '.join(_names(guard.verifier))}")
    for about, name in (("rejected", "on_reject"), ("not judged", "on_abstain")):
        first, *others = map(_effect, guard.policy.rules(name))
        echo(f"  a completion that is {about} {first}")
        for other in others:
            echo(f"    if the trainer cannot do that: it {other}")
    for field, idle in idle_without(guard.verifier).items():
        echo(f"  if completions have no {field}: {'; '.join(idle)}")


_EFFECTS: Final = {
    "drop": "leaves its group (drop)",
    "skip": "leaves its group (skip)",
    "no_gain": "leaves its group if its reward is above the group's mean (no_gain)",
    "zero": "earns 0 (zero)",
    "keep": "keeps its reward (keep)",
    "pass": "keeps its reward (pass)",
    "raise": "stops the run (raise)",
}
"""What a rule of the policy does to a completion."""


def _effect(rule: str | float) -> str:
    return _EFFECTS.get(str(rule), f"earns {rule}")


def _names(verifier: "CompletionVerifier") -> list[str]:
    """Return the names of a verifier's members. A reader comes last: it wraps the members whose
    findings it decides."""
    from grpo_guard.core.verifier import Composed

    if not isinstance(verifier, Composed):
        return [verifier.name]
    if len(verifier.members) == 1 and isinstance(verifier.members[0], Composed):
        return [*_names(verifier.members[0]), verifier.name]
    return [member.name for member in verifier.members]
