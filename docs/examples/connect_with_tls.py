"""TLS: a private authority, client certificates, and the errors of failed handshakes.

Run it with ``python docs/examples/connect_with_tls.py`` where ``natsproto[server]`` and the package cryptography are
installed; the latter makes the throw-away certificates.
"""

import asyncio
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import natsproto
from natsproto.errors import ConnectFailed
from natsproto.testing import ServerTls, run_server


def make_certificates(folder: Path) -> None:
    """An authority, and a certificate for 127.0.0.1 that serves both sides here: ca.pem, cert.pem, key.pem."""
    now, authority, key = (
        datetime.now(UTC),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "flower shop CA")])
    may_sign = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    host = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    # Which key has signed, and whose key it is: Python 3.13 and newer look for both.
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    for path, subject, public, critical in (
        ("ca.pem", issuer, authority.public_key(), [x509.BasicConstraints(ca=True, path_length=None), may_sign]),
        ("cert.pem", x509.Name([]), key.public_key(), [host]),
    ):
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        builder = builder.add_extension(signer, critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        for extension in critical:
            builder = builder.add_extension(extension, critical=True)
        signed = builder.sign(authority, hashes.SHA256())
        (folder / path).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


async def main() -> None:
    """A server that requires client certificates, and three clients."""
    folder = Path(tempfile.mkdtemp())
    make_certificates(folder)
    ca, cert, key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"

    def context() -> ssl.SSLContext:
        """Called for every attempt, so that renewed files are used."""
        made = ssl.create_default_context(cafile=str(ca))
        made.load_cert_chain(cert, key)
        return made

    async with run_server(tls=ServerTls(cert=cert, key=key, ca=ca, verify=True)) as server:
        async with natsproto.connect(server.url, tls=context) as nc:
            print("connected to", nc.connected_url.partition("://")[0])
        for tls in (True, ssl.create_default_context(cafile=str(ca))):
            try:
                await natsproto.connect(server.url, tls=tls)
            except ConnectFailed as failed:
                print("refused:", failed.attempts[0][1])


if __name__ == "__main__":
    asyncio.run(main())

# prints: connected to tls
# prints: refused: TLS with 127.0.0.1:... failed: the certificate is not signed by a trusted CA: ...
# prints: refused: TLS with 127.0.0.1:... failed: the server requires a client certificate: ...
