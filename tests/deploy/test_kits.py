"""Kits: complete, private, added to without touching others', refused when they cannot work."""

from __future__ import annotations

import json
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509 import Certificate, load_pem_x509_certificate
from cryptography.x509.oid import NameOID

from fedmend.deploy import kits
from fedmend.errors import FedmendError, FileFormatError, SettingsError

NAMES = ("server", "north", "south", "submitter", "observer")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kits") / "out"
    kits.provision(out, "hub.example.org:9000", ["north", "south"], valid_days=30)
    return out


def certificate(folder: Path, name: str = kits.CERTIFICATE) -> Certificate:
    return load_pem_x509_certificate((folder / name).read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_a_kit_is_complete_and_signed_by_the_authority(made: Path, name: str) -> None:
    kit = kits.read_kit(made / name)
    assert (kit.host, kit.port) == ("hub.example.org", 9000)
    leaf, root = certificate(made / name), certificate(made / name, kits.ROOT)
    public = root.public_key()
    assert isinstance(public, RSAPublicKey)
    assert leaf.signature_hash_algorithm is not None
    public.verify(
        leaf.signature, leaf.tbs_certificate_bytes, PKCS1v15(), leaf.signature_hash_algorithm
    )
    assert root == certificate(made / kits.AUTHORITY, kits.ROOT)
    (common,) = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert common.value == ("hub.example.org" if name == "server" else name)
    left = kit.expires - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert (made / name / "policy.toml").exists() == (name in ("north", "south"))


def test_keys_are_their_owners_alone(made: Path) -> None:
    keys = list(made.rglob("*.key"))
    assert len(keys) == 1 + len(NAMES)
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert not (made / "north" / "ca.key").exists()
    authority = (made / kits.AUTHORITY / kits.KEY).read_bytes()
    for name in NAMES:
        assert all(authority != path.read_bytes() for path in (made / name).iterdir())


def test_keys_stay_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kits.provision(tmp_path, "localhost", ["north"])
    finally:
        os.umask(before)
    for key in tmp_path.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_adding_a_silo_keeps_everything_else(tmp_path: Path) -> None:
    kits.provision(tmp_path, "localhost", ["north"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = kits.provision(tmp_path, "localhost", ["north", "west"])
    assert done.made == ("west",)
    assert set(done.kept) == {"server", "north", "submitter", "observer"}
    del before[tmp_path / kits.AUTHORITY / kits.MADE]
    assert {path: path.read_bytes() for path in before} == before
    assert certificate(tmp_path / "west", kits.ROOT) == certificate(tmp_path / "north", kits.ROOT)


OTHERS = (kits.SERVER, kits.SUBMITTER, kits.OBSERVER)


@pytest.mark.parametrize("remembered", [True, False], ids=["", "founded by an older version"])
def test_kits_that_were_handed_out_are_not_made_again(tmp_path: Path, remembered: bool) -> None:
    first = kits.provision(tmp_path, "localhost", ["north"])
    assert first.remark is None
    for name in (*OTHERS, "north"):
        shutil.rmtree(tmp_path / name)
    if not remembered:
        (tmp_path / kits.AUTHORITY / kits.MADE).unlink()
    done = kits.provision(tmp_path, "localhost", ["west"])
    assert (done.made, done.handed_out) == (("west",), OTHERS)
    assert not any((tmp_path / name).exists() for name in (*OTHERS, "north"))
    assert done.remark is not None
    assert "server, submitter, observer; for a new one remove its name from" in done.remark
    assert kits.described(done)["handed_out"] == OTHERS


def test_a_kit_is_made_again_for_whoever_asks_for_it(tmp_path: Path) -> None:
    kits.provision(tmp_path, "localhost", ["north"])
    for name in (*OTHERS, "north"):
        shutil.rmtree(tmp_path / name)
    memory = tmp_path / kits.AUTHORITY / kits.MADE
    memory.write_text(memory.read_text().replace("observer\n", ""))
    done = kits.provision(tmp_path, "localhost", ["north"])
    assert done.made == ("north", "observer")
    assert done.handed_out == (kits.SERVER, kits.SUBMITTER)
    assert memory.read_text().split() == ["north", "observer", "server", "submitter"]


def test_kits_of_an_interrupted_provision_are_still_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = kits._make_kit

    def interrupted(folder: Path, name: str, *rest: Any) -> None:
        if name == kits.SUBMITTER:
            raise KeyboardInterrupt
        make(folder, name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(kits, "_make_kit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kits.provision(tmp_path, "localhost", ["north"])
    done = kits.provision(tmp_path, "localhost", ["north"])
    assert (done.made, done.kept) == ((kits.SUBMITTER, kits.OBSERVER), (kits.SERVER, "north"))


def test_a_federation_has_one_address(made: Path) -> None:
    with pytest.raises(SettingsError, match=r"whose server is hub\.example\.org:9000"):
        kits.provision(made, "elsewhere.example.org", ["north"])


@pytest.mark.parametrize(
    ("server", "silos", "says"),
    [
        ("", ["a"], "not allowed"),
        ("host name", ["a"], "not allowed"),
        ("../etc", ["a"], "not allowed"),
        ("host:0", ["a"], "port"),
        ("host:99999", ["a"], "port"),
        ("host:x", ["a"], "port"),
        ("a:b:c", ["a"], "port"),
        ("[::1]", ["a"], "not allowed"),
        ("localhost", [], "at least one silo"),
        ("localhost", [""], "cannot be called"),
        ("localhost", ["../up"], "cannot be called"),
        ("localhost", ["a b"], "cannot be called"),
        ("localhost", ["server"], "another kit's name"),
        ("localhost", ["Authority"], "another kit's name"),
        ("localhost", ["a", "Localhost"], "the server's host"),
        ("localhost", ["a", "A"], "named twice"),
        ("localhost", ["x" * 64], "cannot be called"),
    ],
)
def test_names_and_addresses(tmp_path: Path, server: str, silos: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        kits.provision(tmp_path / "out", server, silos)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("days", [0, -1, 4000])
def test_validity(tmp_path: Path, days: int) -> None:
    with pytest.raises(SettingsError, match="--days"):
        kits.provision(tmp_path / "out", "localhost", ["a"], valid_days=days)


def copy(made: Path, name: str, to: Path) -> Path:
    to.mkdir(mode=0o700)
    for path in (made / name).iterdir():
        (to / path.name).write_bytes(path.read_bytes())
        (to / path.name).chmod(0o600)
    return to


def test_a_kit_for_another_role(made: Path) -> None:
    with pytest.raises(SettingsError, match="the kit of a silo; this command takes that of the se"):
        kits.read_kit(made / "north", "server")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (kits.KIT, None),
        (kits.KIT, b"{}"),
        (kits.KIT, b"[]"),
        (kits.KIT, b"\xff"),
        (kits.KIT, json.dumps({"format": kits.FORMAT, "role": "king", "port": 1}).encode()),
        (kits.CERTIFICATE, None),
        (kits.CERTIFICATE, b"junk"),
        (kits.KEY, None),
        (kits.ROOT, None),
    ],
)
def test_damaged_kits(made: Path, tmp_path: Path, file: str, content: bytes | None) -> None:
    kit = copy(made, "north", tmp_path / "kit")
    (kit / file).unlink()
    if content is not None:
        (kit / file).write_bytes(content)
    with pytest.raises(FileFormatError):
        kits.read_kit(kit)


def test_a_key_that_others_can_read(made: Path, tmp_path: Path) -> None:
    kit = copy(made, "north", tmp_path / "kit")
    (kit / kits.KEY).chmod(0o644)
    with pytest.raises(SettingsError, match="can be read by others"):
        kits.read_kit(kit)


@pytest.mark.parametrize(("name", "rights"), [("", "700"), (kits.KEY, "600")])
def test_a_signing_key_that_others_can_read(tmp_path: Path, name: str, rights: str) -> None:
    kits.provision(tmp_path, "localhost", ["north"])
    path = tmp_path / kits.AUTHORITY / name
    path.chmod(path.stat().st_mode | 0o040)
    with pytest.raises(SettingsError, match=f"can be read by others .* chmod {rights} it"):
        kits.provision(tmp_path, "localhost", ["west"])
    assert not (tmp_path / "west").exists()


def test_an_expired_certificate(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # only UTC is asked
            return datetime.now(UTC) + timedelta(days=31)

    monkeypatch.setattr(kits, "datetime", Later)
    with pytest.raises(SettingsError, match="expired on"):
        kits.read_kit(made / "north")


def test_an_authority_without_its_key(tmp_path: Path) -> None:
    kits.provision(tmp_path, "localhost", ["north"])
    (tmp_path / kits.AUTHORITY / kits.KEY).unlink()
    with pytest.raises(FedmendError, match="no usable signing key"):
        kits.provision(tmp_path, "localhost", ["west"])


def test_removed_silos(made: Path, tmp_path: Path) -> None:
    kit = kits.read_kit(copy(made, "server", tmp_path / "kit"))
    assert kits.read_removed(kit) == []
    kit.file(kits.REMOVED).write_text("south\n\n north \nsouth\n")
    assert kits.read_removed(kit) == ["north", "south"]
    kit.file(kits.REMOVED).write_text("north, south\n")
    with pytest.raises(FileFormatError, match="'north, south' is not the name of a silo"):
        kits.read_removed(kit)
