"""The releases of torch and torch_npu with prebuilt hooks, and the hashes of what is fetched."""

import json
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

import registry

PINS = Path(__file__).with_name("pins.json")
MACHINES = ("x86_64", "aarch64")
PACKAGES = {"torch": "torch", "torch-npu": "torch_npu"}  # the import name of each distribution


@dataclass(frozen=True)
class Release:
    """A release of torch, or of torch_npu with the torch that it needs."""

    distribution: str  # `torch` or `torch-npu`
    version: str  # the version of the distribution

    @property
    def requirement(self) -> str:
        """The release as pip names it: exactly this one, not 2.13.0+cpu of another index."""
        return f"{self.distribution}==={self.version}"

    @property
    def torch(self) -> "Release":
        """The torch of this release: torch_npu 2.12.0.post3 needs torch 2.12.0."""
        return Release("torch", ".".join(self.version.split(".")[:3]))


def pinned() -> list[Release]:
    """Return all pinned releases."""
    pins = json.loads(PINS.read_text())
    return [Release(name, version) for name, versions in pins.items() for version in versions]


def fetch(release: Release, folder: Path) -> None:
    """Unpack the headers of a pinned release for this machine, and compare the hashes."""
    pin = json.loads(PINS.read_text())[release.distribution][release.version].get(
        platform.machine()
    )
    if pin is None:
        raise SystemExit(f"{release.requirement} is not pinned for {platform.machine()}")
    url, wheel = registry.locate(release.requirement, platform.machine())
    found = {"wheel": wheel}
    if wheel == pin["wheel"]:
        found["headers"] = registry.unpack_headers(url, PACKAGES[release.distribution], folder)
    if found != pin:
        raise SystemExit(
            f"{release.requirement}: the registry has other files ({found}) than pinned ({pin})"
        )


def pin(requirement: str) -> None:
    """Add a release to the pins, or renew its hashes."""
    distribution, _, version = requirement.partition("==")
    release = Release(distribution, version)
    pins = json.loads(PINS.read_text()) if PINS.exists() else {}
    hashes = {}
    for machine in MACHINES:
        url, wheel = registry.locate(release.requirement, machine)
        with tempfile.TemporaryDirectory() as folder:
            headers = registry.unpack_headers(url, PACKAGES[distribution], Path(folder))
        hashes[machine] = {"wheel": wheel, "headers": headers}
    pins.setdefault(distribution, {})[version] = hashes
    PINS.write_text(json.dumps(pins, indent=1) + "\n")
