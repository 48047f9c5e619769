"""TLS before a plain server: certificates for this machine, and a proxy that passes bytes on as they are.

Run as a script it is the proxy: ``python tls.py PORT UPSTREAM_PORT CHAIN_FILE KEY_FILE``.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Certificates:
    """Files: the authority to trust, and the chain and key that a server shows."""

    authority: Path
    chain: Path
    key: Path


def make_certificates(folder: Path, *, is_expired: bool = False, is_self_signed: bool = False) -> Certificates:
    """Make an authority and, signed by it or by itself, a certificate for 127.0.0.1, ::1 and localhost.

    It is valid for a day, or until yesterday. Needs the package ``cryptography``. They pass OpenSSL's strict checks
    (X509_V_FLAG_X509_STRICT, Python 3.13's default).
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("wherry test authority", ca_key, ca_key, is_authority=True)
    name, signing_key = ("wherry test authority", key) if is_self_signed else ("localhost", ca_key)
    leaf = _certificate(name, key, signing_key, is_authority=False, is_expired=is_expired)
    files = Certificates(folder / "authority.pem", folder / "chain.pem", folder / "key.pem")
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(authority.public_bytes(pem))
    files.chain.write_bytes(leaf.public_bytes(pem))
    files.key.touch(mode=0o600)
    files.key.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    ca_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
    is_expired: bool = False,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=2 if is_expired else 0)
    usage = x509.KeyUsage(not is_authority, False, False, False, False, is_authority, is_authority, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named("wherry test authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if not is_authority:
        addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
        hosts = [x509.DNSName("localhost"), *addresses]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(ca_key, hashes.SHA256())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while block := await reader.read(_BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    except (OSError, ssl.SSLError):  # one side is gone: so is the other, at once
        writer.transport.abort()
    finally:
        writer.close()


async def _serve(port: int, upstream_port: int, chain: str, key: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))

    server = await asyncio.start_server(handle, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
