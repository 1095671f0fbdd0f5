"""Where messages send their readers: the pages of the documentation, which no wheel contains."""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_URLS: Final = ("Documentation", "Repository", "Homepage")


def page(name: str) -> str:
    """Name a page such as ``"trl"``, or ``"trl#peers"``, by its path in the checkout; if this is an
    installed wheel, add where the checkout is."""
    file, mark, part = name.partition("#")
    path = f"docs/{file}.md{mark}{part}"
    if (_CHECKOUT / "docs" / f"{file}.md").is_file():
        return path
    return f"{path} in {_home()}"


def _home() -> str:
    """The address that the package's metadata gives of the project, or else its description."""
    try:
        found = metadata("grpo-guard").get_all("Project-URL") or []
    except PackageNotFoundError:
        found = []
    urls = dict(line.partition(", ")[::2] for line in found)
    return next((urls[name] for name in _URLS if name in urls), "grpo-guard's repository")
