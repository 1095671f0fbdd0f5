"""Build the sdist, a wheel from the tree and a wheel from the sdist, and run them elsewhere.

An editable install hides what a wheel lacks: adapters/ and evals/ reach it by another route than
the symlinks that serve the checkout. Wheel and sdist are also installed into an environment with
TRL, as README says, in which README's example and the quickstart run in an empty folder.
"""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUST_CONTAIN = (
    "grpo_guard/guard/guard.py",
    "grpo_guard/py.typed",
    "grpo_guard/adapters/trl/reward.py",
    "grpo_guard/adapters/genrl/game.py",
    "grpo_guard/nodes/identity/gate.py",
    "grpo_guard/evals/demo.py",
    "grpo_guard/evals/policies/word_problems/model.safetensors",
)
MUST_LACK = ("grpo_guard/evals/studies/", "grpo_guard/evals/training/")
MOST_BYTES = 12 * 2**20
PROBE = """
import grpo_guard, grpo_guard.adapters, grpo_guard.evals.attacks.text, grpo_guard.core.testing
import grpo_guard.adapters.genrl.game, grpo_guard.nodes.identity.gate  # without their extras
from grpo_guard.evals.attacks.registry import attack_names
from grpo_guard.core.registry import ATTACKS, load
assert "site-packages" in grpo_guard.__file__, grpo_guard.__file__
assert {"text", "dos"} < set(attack_names()) and "withholding" not in attack_names()  # a study's
print(load(ATTACKS, "text").__name__, "loaded from", grpo_guard.__version__)
"""


# README's example names a model and a data set of the reader's, and has a run's usual length.
GIVEN = """
from datasets import Dataset
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS as MODEL
ask = "Q: Sam has {} stamps. Sam sells 2. How many stamps does Sam have now?\\nA:"
rows = [{"prompt": ask.format(n), "answer": str(n - 2)} for n in range(4, 12)]
train_dataset = Dataset.from_list(rows)
"""
SHORT = (
    "GRPOConfig(use_cpu=True, bf16=False, max_steps=1, logging_steps=1, num_generations=4, "
    "per_device_train_batch_size=4, max_completion_length=32, report_to='none', "
)


def run(*command: str | Path, cwd: Path) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def build(source: Path, out: Path, kind: str) -> Path:
    run(sys.executable, "-m", "build", f"--{kind}", "--outdir", out, source, cwd=out)
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def try_wheel(wheel: Path, where: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in MUST_CONTAIN if name not in names]
    if missing:
        raise SystemExit(f"{wheel.name}: expected {', '.join(missing)} inside, found none")
    if any(name.startswith(MUST_LACK) for name in names):
        raise SystemExit(f"{wheel.name}: expected nothing of {' or '.join(MUST_LACK)} inside")
    if (size := wheel.stat().st_size) > MOST_BYTES:
        raise SystemExit(f"{wheel.name}: expected at most {MOST_BYTES:,} bytes, got {size:,}")
    # The installed tree uses the dependencies of this environment, but not its checkout.
    venv.create(where / "env", with_pip=True, system_site_packages=False)
    python = where / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-qq", wheel, cwd=where)
    run(python, "-c", PROBE, cwd=where)
    run(where / "env" / "bin" / "grpo-guard", "--help", cwd=where)


def python_of(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


def try_trl(wheel: Path, sdist: Path, where: Path) -> None:
    """Install each of the two into an environment with TRL, and do there what the pages say."""
    (example,) = [block for block in python_of("README.md") if "GRPOTrainer" in block]
    (where / "readme.py").write_text(GIVEN + example.replace("GRPOConfig(", SHORT))
    (where / "quickstart.py").write_text("\n".join(python_of("docs/quickstart.md")))
    venv.create(where / "env", with_pip=True, system_site_packages=False)
    python = where / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "-qq", "-c", ROOT / "tests" / "constraints.txt")
    # The release that this environment has: without a GPU the build for CPUs.
    torch = importlib.metadata.version("torch").partition("+")[0]
    run(*pip, f"torch=={torch}", cwd=where)
    run(*pip, f"{wheel}[trl]", cwd=where)
    expect(python, "readme.py", where, "'guard/accept_rate': '1'")
    expect(python, "quickstart.py", where, "'guard/node/mallory/reject': '1'")
    run(*pip, "--force-reinstall", "--no-deps", sdist, cwd=where)
    expect(python, "readme.py", where, "'guard/accept_rate': '1'")


def expect(python: Path, program: str, where: Path, said: str) -> None:
    """Run a program, which must print ``said``."""
    command = [str(python), program]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode or said not in done.stdout:
        raise SystemExit(
            f"{program}: expected {said}, got {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    print(f"{program}: printed {said}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for name in ("tree", "sdist", "unpacked", "trl"):
            (base / name).mkdir()
        from_tree = build(ROOT, base / "tree", "wheel")
        try_wheel(from_tree, base / "tree")
        sdist = build(ROOT, base / "sdist", "sdist")
        with tarfile.open(sdist) as archive:
            archive.extractall(base / "unpacked", filter="data")
        (source,) = (base / "unpacked").iterdir()
        from_sdist = build(source, base / "sdist", "wheel")
        try_wheel(from_sdist, base / "sdist")
        a, b = (set(zipfile.ZipFile(w).namelist()) for w in (from_tree, from_sdist))
        if a != b:
            raise SystemExit(f"the two wheels differ in {sorted(a ^ b)}")
        print(f"wheel and sdist -> wheel agree: {len(a)} files")
        try_trl(from_tree, sdist, base / "trl")


if __name__ == "__main__":
    main()
