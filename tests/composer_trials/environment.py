"""The environment of Composer: its packages, above those of the environment that the tests run in."""

from __future__ import annotations

import hashlib
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from wherry.posix.locks import lock

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
#: torchvision's compiled operators do not load beside the CPU build of torch; fake kernels for what is not there are an error.
_FAKE_KERNELS = ('@torch.library.register_fake("torchvision::nms")\n', '@torch.library.register_fake("torchvision::qnms")\n')


def python_with_composer() -> Path:
    """The interpreter of the environment, which is made if it is missing or stale: a minute, and 90 MB."""
    place = ROOT / ".composer"
    place.mkdir(exist_ok=True)
    with open(place / "lock", "w") as held:
        lock(held.fileno())
        made_from = hashlib.sha256(REQUIREMENTS.read_bytes() + f"{sys.version} {site.getsitepackages()}".encode()).hexdigest()
        stamp, environment = place / "stamp", place / "env"
        if not stamp.exists() or stamp.read_text() != made_from:
            shutil.rmtree(environment, ignore_errors=True)
            _make(environment)
            stamp.write_text(made_from)
    return environment / "bin" / "python"


def _make(environment: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps", "-r", str(REQUIREMENTS)]
    subprocess.run(pip, check=True, timeout=300)
    lines = [f"import site; site.addsitedir({each!r})\n" for each in site.getsitepackages()]  # their own .pth files count as well
    (packages / "wherry-tests.pth").write_text("".join(lines))
    kernels = packages / "torchvision" / "_meta_registrations.py"
    text = kernels.read_text()
    for each in _FAKE_KERNELS:
        text = text.replace(each, "")
    kernels.write_text(text)
