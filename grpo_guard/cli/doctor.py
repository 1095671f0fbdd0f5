"""``grpo-guard doctor``: what is installed, what verifiers lack, and whether kernels are right."""

import importlib.metadata
import platform
import re
import shutil

import typer

from grpo_guard.cli.terminal import echo

# Above this difference, the tiled head's log-probs differ from float64 by more than rounding.
TOLERANCE = 1e-4


def doctor() -> None:
    """Show what is installed, what each verifier lacks, and whether the kernels are right.

    Exit 1 if the kernels are wrong.
    """
    kernels = _kernels()
    for title, lines in (
        ("Installed", _installed()),
        ("Verifiers", _verifiers()),
        ("Log-prob kernels", [*_device(), *kernels]),
    ):
        echo("\n  ".join([title, *lines]))
    if any(line.startswith("WRONG") for line in kernels):
        raise typer.Exit(1)


def _installed() -> list[str]:
    """Return one line about grpo-guard and one about each extra's packages."""
    found = [f"grpo-guard {_version('grpo-guard')}, Python {platform.python_version()}"]
    extras: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("grpo-guard") or []:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        name = re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]
        if extra and extra[1] != "dev" and name != "grpo-guard":
            version = _version(name)
            extras.setdefault(extra[1], []).append(f"{name} {version or 'is missing'}")
    for title, packages in extras.items():
        lacks = any(package.endswith("is missing") for package in packages)
        remedy = f"; pip install 'grpo-guard[{title}]'" if lacks else ""
        found.append(f"{title}: {', '.join(packages)}{remedy}")
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _verifiers() -> list[str]:
    from grpo_guard.content.extras.rule import lacking
    from grpo_guard.core.registry import VERIFIERS, load, names

    found = []
    for name in names(VERIFIERS):
        try:
            kind = load(VERIFIERS, name)
        except Exception as error:
            found.append(f"{name}: cannot be loaded: {error!s:.200}")
            continue
        package, needs = getattr(kind, "package", None), getattr(kind, "needs", None)
        if package is not None:
            found.append(f"{name}: {lacking(package) or 'ready'}")
            continue
        found.append(f"{name}: ready" + (f"; give it {needs.partition(';')[0]}" if needs else ""))
    return found


def _device() -> list[str]:
    if _version("torch") is None:
        return ["torch is missing; pip install 'grpo-guard[torch]'"]
    import torch

    cuda = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    compiler = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    sums = f"can be compiled by {compiler}" if compiler else "a C++ compiler would make them faster"
    return [f"torch {torch.__version__} on {where}", f"sums of the head: {sums}"]


def _kernels() -> list[str]:
    """Compare a small head's log-probs and ranks with a float64 computation."""
    if _version("torch") is None:
        return []
    import torch

    from grpo_guard.core.sampling import SamplingSpec
    from grpo_guard.logprob.kernels.head_stats import head_stats
    from grpo_guard.logprob.kernels.scores import Head

    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    hidden = torch.randn(64, 32, generator=generator).to(device)
    weight = torch.randn(5000, 32, generator=generator).to(device)
    targets = torch.randint(5000, (64,), generator=generator).to(device)
    spec = SamplingSpec("transformers", 0.7, 50, 0.95)
    rows = head_stats(hidden, Head(weight), targets, spec).rows
    logits = hidden.double() @ weight.double().T / spec.temperature
    chosen = logits.gather(1, targets[:, None])
    log_probs = (chosen - logits.logsumexp(1, keepdim=True))[:, 0]
    ranks = (logits > chosen).sum(1)
    difference = float((rows.logprob.double() - log_probs).abs().max())
    off = int((rows.rank - ranks).abs().max())
    word = "right" if difference < TOLERANCE and off <= 1 else "WRONG"
    return [f"{word}: log-probs within {difference:.1e} of float64's, ranks within {off} (64 rows)"]
