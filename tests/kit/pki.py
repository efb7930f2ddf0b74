"""A certificate authority of the tests' own.

Owns throw-away keys and certificates, good and bad ones, as PEM files and as the contexts of both sides. Knows
nothing of NATS.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Certificate"]

_HOUR = timedelta(hours=1)


class Certificate(NamedTuple):
    """The PEM files of a certificate and of its key."""

    cert: Path
    key: Path


class Authority:
    """An authority that keeps what it makes in ``folder``, under names that begin with its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.name, self._folder, self._made = name, folder, 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(f"natsproto test {name}")
        self.cert = folder / f"{name}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = self._builder(self._subject, self._key).add_extension(constraints, critical=True)
        self._write(self.cert, builder.add_extension(usage, critical=True))

    def issue(self, *names: str, expired: bool = False, strict: bool = True) -> Certificate:
        """A certificate for host names and IP addresses, fit for servers and clients. One that is not ``strict`` lacks
        the key identifier of its authority, as many do that are made by hand.
        """
        self._made += 1
        stem = f"{self.name}-{self._made}"
        made = Certificate(self._folder / f"{stem}.pem", self._folder / f"{stem}-key.pem")
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = []
        for name in names:
            try:
                alternatives.append(x509.IPAddress(ip_address(name)))
            except ValueError:
                alternatives.append(x509.DNSName(name))
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._builder(_named(stem), key, expired=expired, strict=strict).add_extension(
            purposes, critical=False
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        self._write(made.cert, builder)
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def client(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority alone."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context

    def server(self, *names: str) -> ssl.SSLContext:
        """A server's context with a certificate for ``names``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(*names))
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool = False, strict: bool = True
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - (2 * _HOUR))
            .not_valid_after(now - _HOUR if expired else now + _HOUR)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(authority, critical=False) if strict else builder

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
