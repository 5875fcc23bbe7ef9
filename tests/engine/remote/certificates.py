"""Certificates for tests of encrypted connections."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import pytest


def make_certificates(folder: Path, addresses: Sequence[str] = ("127.0.0.1",)) -> tuple[str, str, str]:
    """The paths of a certificate, its key, and the authority that has signed it. Ray looks for the address in it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)) for address in addresses])
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "node")}
    for name, key in keys.items():
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(keys["ca"], hashes.SHA256())
        )
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}.key").write_bytes(pem)
    return str(folder / "node.crt"), str(folder / "node.key"), str(folder / "ca.crt")
