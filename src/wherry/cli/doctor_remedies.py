"""Remedies for the errors of a store, by their root cause."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from wherry.errors import AccessDeniedError, NotFoundError, StoreError
from wherry.store.environment import public_environment
from wherry.store.registry import backend_for, server_settings
from wherry.uri import StoreURI

_LOOK_S = 3.0
_FOR_THE_NETWORK = {
    socket.gaierror: "the host name is not known (DNS): check its spelling and this machine's network",
    ConnectionRefusedError: "nothing listens there: check host and port, and whether the server is running",
    TimeoutError: "no answer: check the address, firewalls and proxies",
}
#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_FOR_ANOTHER_HOST = (62, 64)


def remedy_for(error: BaseException, uri: StoreURI, options: Mapping[str, object]) -> str:
    """What to do next; empty if there is no advice."""
    hint = error.hint if isinstance(error, StoreError) else ""
    if isinstance(error, AccessDeniedError) and not hint:
        hint = backend_for(uri.scheme).hint_if_denied.format(bucket=uri.root)
    network = (text for cause in _causes(error) for kind, text in _FOR_THE_NETWORK.items() if isinstance(cause, kind))
    return _for_tls(error, uri, options) or next(network, hint)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _for_tls(error: BaseException, uri: StoreURI, options: Mapping[str, object]) -> str:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _FOR_ANOTHER_HOST:
                return "the certificate is for another host: correct the host name in endpoint_url"
            backend = backend_for(uri.scheme)
            variable = backend.authority_variable
            option = "-o verify=/path/to/ca.pem, or " if "verify" in backend.public_options else ""
            without = "; to try without it: -o verify=false" if option else ""
            return (
                "the certificate is not trusted (self-signed, or of an authority of your own): give its authority's file with "
                f"{option}${variable}{without}"
            )
        if isinstance(cause, ssl.SSLError):
            return "TLS does not work with this server: does it speak http:// only? Then write http:// in endpoint_url"
    endpoint = urlsplit(str(server_settings(uri.scheme, options, public_environment(uri.scheme)).get("endpoint_url") or ""))
    is_answer = isinstance(error, (AccessDeniedError, NotFoundError))
    if endpoint.scheme == "http" and not is_answer and _speaks_tls(endpoint.hostname, endpoint.port or 80):
        return "the server speaks TLS on this port: write https:// in endpoint_url"
    return ""


def _speaks_tls(host: str | None, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent: only the protocol is looked at
    try:
        with socket.create_connection((host or "", port), timeout=_LOOK_S) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False
