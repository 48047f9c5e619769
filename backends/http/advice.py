"""The next step after an error that is nobody's but the way's to the server, for the backends' tables of errors."""

from __future__ import annotations

import re

#: After a ProxyLoginError.
LOGIN_HINT = "give the proxy's user and password in HTTPS_PROXY (HTTP_PROXY for plain HTTP): http://user:password@host:port"
#: After 413 of something that is no store's own limit.
SIZE_HINT = "the server, or a proxy before it, takes no body of this size: raise its limit, or give a smaller part_size_bytes"
OTHER_HOST_HINT = "it is for another host: correct the endpoint"
#: OpenSSL's words; urllib3 has words of its own for a wrong name.
_CERTIFICATES = (
    (re.compile("mismatch|doesn't match"), OTHER_HOST_HINT),
    (
        re.compile("certificate (has expired|is not yet valid)"),
        "if this machine's clock is right, the server needs a new certificate; else set the clock (NTP)",
    ),
    (re.compile("CERTIFICATE_VERIFY_FAILED"), "give the file of its authority as storage option 'verify'"),
)


def certificate_hint(words: str) -> str:
    """What to do if these words of OpenSSL or urllib3 refuse a certificate; empty if they are about something else."""
    return next((hint for sought, hint in _CERTIFICATES if sought.search(words)), "")
