"""The errors of OpenSSL, with advice."""

from __future__ import annotations

import ssl

from natsproto import errors

CLIENT_CERTIFICATE_HINT = "the server may require a client certificate, or a different one from that in the tls context"

_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "RECORD", "HTTP_REQUEST")
_REFUSED_HINT = (
    "the server offered TLS and then answered without: it has refused the connection, for example with 'maximum "
    "connections exceeded', which its log shows"
)
_TLS_HINTS = (
    (
        ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE"),
        "the server requires a client certificate: load one into the tls context",
    ),
    (
        ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED"),
        "the server does not trust the client certificate",
    ),
    (
        _NO_TLS_REASONS,
        "the server did not answer with TLS: remove tls_first (or wss), or use another port",
    ),
    (("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"), "client and server have no TLS version in common"),
    (
        ("EOF",),
        f"the server closed the connection during the handshake: {CLIENT_CERTIFICATE_HINT}, or does not support TLS",
    ),
)
"""Texts of OpenSSL, and the advice for each."""

_HOST_MISMATCH_CODES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_EXPIRED_CODES = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_NOT_STRICT_CODES = range(80, 95)  # X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA … X509_V_ERR_EC_KEY_EXPLICIT_PARAMS
_STRICT_X509_HINT = (
    "issue another certificate, or clear ssl.VERIFY_X509_STRICT (on by default since Python 3.13) in the tls context"
)


def tls_failure(exc: OSError, server: str, *, after_info: bool = False) -> errors.TlsFailed:
    """Return a TlsFailed for an OpenSSL error, with advice. ``after_info``: the server has offered TLS."""
    if not isinstance(exc, ssl.SSLError):
        reason = "the server closed the connection during the handshake"
        return errors.TlsFailed(f"{reason}: {CLIENT_CERTIFICATE_HINT}, or does not support TLS", server)
    said = getattr(exc, "verify_message", "") or exc.reason or str(exc)
    if isinstance(exc, ssl.SSLCertVerificationError):
        if exc.verify_code in _HOST_MISMATCH_CODES:
            hint = "the certificate is for another host: connect to the name in the certificate or set tls_hostname"
        elif exc.verify_code in _EXPIRED_CODES:
            hint = "the certificate is not valid at this time"
        elif exc.verify_code in _NOT_STRICT_CODES:
            hint = f"the certificate breaks rules of RFC 5280: {_STRICT_X509_HINT}"
        else:
            hint = "the certificate is not signed by a trusted CA: pass a tls context that has the CA"
    elif after_info and any(word in said for word in _NO_TLS_REASONS):
        hint = _REFUSED_HINT
    else:
        hint = next((hint for words, hint in _TLS_HINTS if any(word in said for word in words)), "see the cause")
    return errors.TlsFailed(f"{hint} ({said})", server)
