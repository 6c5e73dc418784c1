"""A release says what is in it, and who made it; its version is the same everywhere."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release import bill_of_materials
from release.assembly import CHART, SUMS, assemble, pack_chart
from release.lock_files import read_lock
from release.project import ROOT, declared, version
from release.signature import BadKey, is_signed, sign, signing_key

PASSWORD = b"not to be guessed"


def pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: bytes | None = None) -> bytes:
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def made(key: ec.EllipticCurvePrivateKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("release")
    assemble(into, key)
    return into


def test_the_bill_is_cyclonedx(made: Path) -> None:
    (bill,) = made.glob("*.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.read_text()) is None


def test_the_bill_has_every_locked_package_with_every_hash(made: Path) -> None:
    (path,) = made.glob("*.cdx.json")
    bill = json.loads(path.read_text())
    components = {one["name"]: one for one in bill["components"]}
    base = read_lock(ROOT / "requirements" / "base.lock")
    assert {name for name, one in components.items() if one["scope"] == "required"} == set(base)
    for lock in bill_of_materials.EXTRAS.values():
        for name, pinned in read_lock(ROOT / "requirements" / f"{lock}.lock").items():
            (file,) = components[name]["externalReferences"]
            assert components[name]["version"] == pinned.version
            assert {one["content"] for one in file["hashes"]} >= set(pinned.hashes)
    (direct,) = bill["dependencies"]
    assert {f"pkg:pypi/{name}@{base[name].version}" for name in declared()} <= set(direct["dependsOn"])


def test_the_sums_are_of_every_file(made: Path) -> None:
    lines = (made / SUMS).read_text().splitlines()
    listed = dict(line.split("  ")[::-1] for line in lines)
    files = {path.name for path in made.iterdir() if path.name != SUMS and path.suffix != ".sig"}
    assert listed == {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in files}


def test_the_chart_has_no_stray_file(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    with pytest.raises(ValueError, match="no file"):
        pack_chart(tmp_path, chart)
    for words in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *words], cwd=chart, check=True)
    (chart / "values.yaml.orig").write_text("left by an editor")
    with tarfile.open(pack_chart(tmp_path, chart)) as archive:
        names = {name.removeprefix("tidelog/") for name in archive.getnames()}
    assert {"Chart.yaml", "values.yaml", "templates/brokers.yaml"} <= names
    assert "values.yaml.orig" not in names


def test_two_releases_of_a_commit_differ_in_signatures_alone(
    made: Path, key: ec.EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    assemble(tmp_path / "again", key)
    for path in (tmp_path / "again").iterdir():
        if path.suffix != ".sig":
            assert path.read_bytes() == (made / path.name).read_bytes(), path.name


def test_a_signature_holds_for_its_file_and_key_alone(
    made: Path, key: ec.EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    (bill,) = made.glob("*.cdx.json")
    assert is_signed(bill, key.public_key()) and is_signed(made / SUMS, key.public_key())
    assert not is_signed(bill, ec.generate_private_key(ec.SECP256R1()).public_key())
    changed = tmp_path / bill.name
    changed.write_text(bill.read_text().replace("required", "optional", 1))
    shutil.copy(f"{bill}.sig", f"{changed}.sig")
    assert not is_signed(changed, key.public_key())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_openssl_verifies_it_as_the_page_says(made: Path, key: ec.EllipticCurvePrivateKey, tmp_path: Path) -> None:
    public = tmp_path / "tidelog.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    page = (ROOT / "docs" / "releases.md").read_text()
    (command,) = re.findall(r"^openssl dgst -sha256 .*$", page, re.MULTILINE)
    line = command.replace("tidelog.pub", str(public))
    done = subprocess.run(["sh", "-ec", line], cwd=made, capture_output=True, text=True, check=False)
    assert done.stdout == "Verified OK\n", done.stderr
    done = subprocess.run(["sha256sum", "--check", SUMS], cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_keys_of_another_kind_and_wrong_passwords_are_refused(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path = tmp_path / "key"
    path.write_bytes(pem(ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(BadKey, match="P-256"):
        signing_key(path)
    path.write_bytes(pem(key, PASSWORD))
    with pytest.raises(BadKey):
        signing_key(path, b"guessed")
    (tmp_path / "file").write_text("content")
    sign(tmp_path / "file", signing_key(path, PASSWORD))
    assert is_signed(tmp_path / "file", key.public_key())


def test_a_release_does_not_mix_with_what_is_there(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    (tmp_path / "tidelog-0.0.1.tar.gz").write_text("of before")
    with pytest.raises(ValueError, match="not empty"):
        assemble(tmp_path, key)


def test_images_have_the_version_as_their_tag() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    images = {one["image"] for one in compose["services"].values() if one["image"].startswith("tidelog")}
    tag = f"${{TIDELOG_VERSION:-{version()}}}"
    assert images == {f"tidelog:{tag}", f"tidelog-spark:{tag}"}
    built = [one["build"] for one in compose["services"].values() if "build" in one]
    assert {one["args"]["VERSION"] for one in built} == {tag}
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert set(re.findall(r"ARG VERSION=(\S+)", dockerfile)) == {version()}
    assert 'org.opencontainers.image.version="$VERSION"' in dockerfile
