"""The command ``grpo-guard identity``."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from grpo_guard.cli.inputs import Mapped, bad_input
from grpo_guard.cli.terminal import echo

BATCH = 1024
# Maximum number of refusals shown individually; all refusals are counted.
MOST_SHOWN = 20

app = typer.Typer(no_args_is_help=True, help="Make signing keys, show them, check signatures.")


@app.command()
def new(
    path: Annotated[Path, typer.Argument(metavar="KEY", help="New file for the private key.")],
) -> None:
    """Make a private key that only its owner can read. Exit 2 if the file exists."""
    from grpo_guard.nodes.identity.keys import SigningKey

    with bad_input(OSError, ImportError):
        key = SigningKey.new()
        try:
            key.write(path)
        except FileExistsError:
            raise FileExistsError(
                f"{path}: expected a new file, got an existing one; overwriting loses the key"
            ) from None
    _tell(key.public)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="KEY", help="A private key.")],
) -> None:
    """Print the public key, and a fingerprint that two people can compare by voice."""
    from grpo_guard.nodes.identity.keys import SigningKey

    with bad_input(ValueError, ImportError):
        key = SigningKey.read(path)
    _tell(key.public)


@app.command()
def verify(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="One completion per line.")],
    run: Annotated[str, typer.Option(help="Name of the training run.")],
    keys: Annotated[
        Path | None, typer.Option(help="Known keys, NAME and public key per line; default: any.")
    ] = None,
    mapped: Mapped = None,
) -> None:
    """Check the signed envelopes of a file. Exit 1 if any is refused, 2 on bad input."""
    from grpo_guard.cli.rows import Rows, opened
    from grpo_guard.nodes.identity.gate import ANY_ROUND, Identity
    from grpo_guard.nodes.identity.ring import KeyRing

    counts: Counter[str] = Counter()
    with bad_input(ValueError, ImportError), opened(source, mapped or ()) as lines:
        # Without a key file, we check that signatures are valid, but not who signed.
        ring = KeyRing(pin=True, most_pinned=10**6) if keys is None else KeyRing.from_file(keys)
        gate = Identity(ring, run=run, late=ANY_ROUND)
        rows = Rows(lines.file, str(source))
        for begin in range(0, len(rows), BATCH):
            read = [rows[i].completion for i in range(begin, min(begin + BATCH, len(rows)))]
            batch, given = gate.admit([c for c in read if c is not None])
            for i, (completion, verdict) in enumerate(zip(batch, given, strict=True), begin + 1):
                kind = f"signed by {ring.name_of(completion.node or '')}"
                if verdict is not None:
                    kind = f"refused: {verdict.findings[0].kind}"
                    if sum(n for k, n in counts.items() if k.startswith("ref")) < MOST_SHOWN:
                        echo(f"completion {i}: {verdict.reason}", err=True)
                counts[kind] += 1
    for kind, count in sorted(counts.items()):
        echo(f"{count:>9,}  {kind}")
    if any(kind.startswith("refused") for kind in counts):
        raise typer.Exit(1)


def _tell(public: str) -> None:
    from grpo_guard.nodes.identity.keys import fingerprint

    echo(f"public key   {public}\nfingerprint  {fingerprint(public)}")
