"""Certificates for servers on loopback, made with openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def make_certificate(key: Path, certificate: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 that vouches for itself, as the context of a server."""
    how = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    who = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", *how, "-days", "2", *who, *files], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
