"""`python -m release.assembly KEY [DIR]`: a whole release, signed. `make release KEY=…` calls it.

Packages, Helm chart and bill of materials, SHA256SUMS of them all, and signatures of the bill and of SHA256SUMS.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from release import bill_of_materials, distributions, signature
from release.project import ROOT, version

SUMS = "SHA256SUMS"
CHART = ROOT / "charts" / "tidelog"


def assemble(into: Path, key: ec.EllipticCurvePrivateKey) -> list[Path]:
    """The files of the release. ValueError for a directory that has others."""
    if into.exists() and any(into.iterdir()):
        raise ValueError(f"{into} is not empty")
    sdist, wheel = distributions.build(into)
    chart = pack_chart(into)
    bill = bill_of_materials.write(into, [sdist, wheel, chart])
    sums = into / SUMS
    files = sorted([sdist, wheel, chart, bill])
    sums.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    return [*files, sums, signature.sign(bill, key), signature.sign(sums, key)]


def pack_chart(into: Path, chart: Path = CHART) -> Path:
    """What `helm package` makes of the files that git knows of, with the time of the commit and in one order."""
    moment = int(distributions.commit_time())
    files = [chart / name for name in distributions.tracked(chart)]
    if not files:
        raise ValueError(f"git knows of no file in {chart}")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(files):
            entry = tarfile.TarInfo(f"tidelog/{file.relative_to(chart)}")
            entry.size, entry.mtime, entry.mode = file.stat().st_size, moment, 0o644
            archive.addfile(entry, io.BytesIO(file.read_bytes()))
    path = into / f"tidelog-chart-{version()}.tgz"
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=moment))
    return path


if __name__ == "__main__":
    try:
        own = signature.asked_key(Path(sys.argv[1]))
        for made in assemble(Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "dist", own):
            print(made)
    except (signature.BadKey, OSError, ValueError) as error:
        sys.exit(str(error))
