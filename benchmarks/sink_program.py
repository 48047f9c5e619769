"""The sink as a program to start: sink.c where there is a C compiler, else python_sink."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def language_of_sink(*, tls: bool = False) -> str:
    """C, or Python where there is no C compiler, or, for TLS, no OpenSSL headers for it."""
    if shutil.which("cc") is None:
        return "Python"
    if not tls:
        return "C"
    look = subprocess.run(["cc", "-E", "-x", "c", "-"], input=b"#include <openssl/ssl.h>\n", capture_output=True, check=False)
    return "Python" if look.returncode else "C"


def sink_program(folder: Path, *, tls: bool = False) -> list[str]:
    """The command to start in `benchmarks`, built in `folder`; to be followed by the port and, for TLS, certificate and key."""
    if language_of_sink(tls=tls) == "Python":
        return [sys.executable, "-m", "python_sink"]
    secure = ["-DTLS", "-lssl", "-lcrypto"] if tls else []
    program = str(folder / "sink")
    subprocess.run(["cc", "-O2", "-pthread", str(HERE / "sink.c"), "-o", program, *secure], check=True)
    return [program]
