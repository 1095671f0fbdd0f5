"""The GenRL adapter is found if GenRL is installed; importing it loads neither GenRL nor torch."""

import subprocess
import sys

LOADED = """
import sys
import grpo_guard.adapters.genrl.game, grpo_guard.adapters.genrl.rollouts
print(sorted({"torch", "genrl", "transformers", "cryptography"} & sys.modules.keys()))
"""


def test_import_loads_no_trainer():
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
