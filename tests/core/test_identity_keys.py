"""Private keys in files, public keys as text, and key rings."""

import os
import pickle
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from grpo_guard.nodes.identity.keys import (
    PREFIX,
    IdentityError,
    SigningKey,
    fingerprint,
    is_signed,
    require_label,
    require_public,
)
from grpo_guard.nodes.identity.ring import KeyRing

ALICE, BOB = SigningKey(b"a" * 32), SigningKey(b"b" * 32)


def test_key_round_trips_through_a_file_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    key = SigningKey.new()
    old = os.umask(0)
    try:
        key.write(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.read(path).public == key.public
    assert is_signed(key.public, SigningKey.read(path).sign(b"m"), b"m")


def test_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    ALICE.write(path)
    with pytest.raises(FileExistsError):
        BOB.write(path)
    assert SigningKey.read(path).public == ALICE.public
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        BOB.write(link)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o666])
def test_key_file_readable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    ALICE.write(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match="its owner alone can read"):
        SigningKey.read(path)


@pytest.mark.parametrize("text", ["", "ed25519-private", "ed25519-private zz", "a b c", "\xff"])
def test_invalid_key_file_is_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.key"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="expected a private key made by") as raised:
        SigningKey.read(path)
    assert "zz" not in str(raised.value)


def test_private_key_does_not_leak() -> None:
    assert repr(ALICE) == f"SigningKey({ALICE.public})"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(ALICE)
    with pytest.raises(IdentityError, match="secret: expected 32 bytes"):
        SigningKey(b"short secret")


def test_signature_verifies_for_one_message_and_key() -> None:
    said = ALICE.sign(b"message")
    assert is_signed(ALICE.public, said, b"message")
    assert not is_signed(ALICE.public, said, b"massage")
    assert not is_signed(BOB.public, said, b"message")
    assert not is_signed(ALICE.public, said[:-1], b"message")


def test_public_key_has_one_text_form() -> None:
    for other in (ALICE.public.upper(), ALICE.public + "\n", ALICE.public[8:], 7, None, ""):
        with pytest.raises(IdentityError, match="public_key: expected"):
            require_public(other)
    with pytest.raises(IdentityError):
        require_label("node", "a\u202eb")


@pytest.mark.parametrize(
    "ordinate",
    [
        0,
        1,
        2**255 - 20,
        2**255 - 19,
        2**255 - 18,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    ],
)
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_small_order_keys_are_refused(ordinate: int, sign: int) -> None:
    # Its signatures verify for many messages, by any signer.
    key = PREFIX + (ordinate | sign).to_bytes(32, "little").hex()
    with pytest.raises(IdentityError, match="public_key: expected a key of large order"):
        require_public(key)


@pytest.mark.parametrize("form", ["ed25519-private {}", "ann {}", "{}"])
def test_private_keys_are_quoted_in_no_message(tmp_path: Path, form: str) -> None:
    SigningKey.new().write(tmp_path / "node.key")
    secret = (tmp_path / "node.key").read_text().split()[1]
    (tmp_path / "keys").write_text(form.format(secret) + "\n")
    read = (
        partial(require_public, secret)
        if form == "{}"
        else partial(KeyRing.from_file, tmp_path / "keys")
    )
    with pytest.raises(IdentityError, match="grpo-guard identity show FILE") as refused:
        read()
    assert not any(secret[i : i + 8] in str(refused.value) for i in range(len(secret) - 8))


def test_small_order_points_verify_any_message() -> None:
    # With the neutral point as both halves, any message verifies, so such keys are refused.
    neutral = (1).to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes(neutral)
    for message in (b"one", b"another"):
        assert key.verify(neutral + bytes(32), message) is None, "it raises if it does not verify"


def test_fingerprints_are_short_and_unique() -> None:
    assert fingerprint(ALICE.public) != fingerprint(BOB.public)
    assert [len(group) for group in fingerprint(ALICE.public).split()] == [4] * 8


def test_key_ring_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.keys"
    path.write_text(f"# our nodes\n\nalice {ALICE.public}\n  bob\t{BOB.public}\r\n")
    ring = KeyRing.from_file(path)
    assert ring.names == {ALICE.public: "alice", BOB.public: "bob"}
    assert ring.key_of("bob") == BOB.public
    assert ring.key_of("carol") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alice", "nodes.keys:1: expected a name and a public key, got 1 words"),
        ("alice x", "nodes.keys:1: public_key: expected ed25519:"),
        ("alice {a}\nalice {b}", "nodes.keys:2: expected each name once, got 'alice' twice"),
        ("alice {a}\nbob {a}", "nodes.keys:2: expected one name for each key"),
        ("{b} {a}", "nodes.keys:1: name: expected no other key than its own"),
        ("a\x1b[2J {a}", "nodes.keys:1: name: expected 1 to 200 printable characters"),
    ],
)
def test_invalid_ring_line_is_located(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "nodes.keys"
    path.write_text(text.format(a=ALICE.public, b=BOB.public))
    with pytest.raises(IdentityError) as raised:
        KeyRing.from_file(path)
    assert problem in str(raised.value)
    with pytest.raises(IdentityError, match="expected a readable file of keys"):
        KeyRing.from_file(tmp_path / "none")


def test_missing_package_error_names_the_install_command() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from grpo_guard.nodes.identity.gate import Identity\n"
        "from grpo_guard.nodes.identity.ring import KeyRing\n"
        "try:\n    Identity(KeyRing(), run='r')\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'grpo-guard[identity]'" in done.stdout


def test_import_does_not_load_cryptography() -> None:
    code = (
        "import sys, grpo_guard, grpo_guard.config, grpo_guard.nodes.identity.gate\n"
        "print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)
