"""The environment of processes that import the tests' modules as `tests.FOLDER.MODULE`."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(**more):
    """This process's environment with the checkout's root first on PYTHONPATH."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | more
