"""HTTPS, with certificates that are made here."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from paceline import serve
from paceline.air.errors import ConfigError
from paceline.web.tls import tls_context
from tests.serve.serving import Server, Times, serving
from tests.web.client import PATIENCE, read_to_end, until


def make_certificate(
    folder: Path, name: str, encryption: KeySerializationEncryption | None = None
) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certfile, keyfile = folder / f"{name}.crt", folder / f"{name}.key"
    certfile.write_bytes(certificate.public_bytes(Encoding.PEM))
    keyfile.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()))
    return certfile, keyfile


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "server")


def ask(url: str, token: str | None, certfile: Path) -> Any:
    """A request by a client that checks the server's certificate."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/predict", b'[{"x": 1}]', headers)
    context = ssl.create_default_context(cafile=certfile)
    with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
        return json.load(answer)


def test_requests_over_https(files: tuple[Path, Path], tmp_path: Path) -> None:
    certfile, keyfile = files
    running = serve.run(Times(), port=0, blocking=False, certfile=certfile, keyfile=str(keyfile))
    assert running is not None
    with running:
        assert running.url.startswith("https://127.0.0.1:")
        assert ask(running.url, running.token, certfile) == {"predictions": [10.0]}
        stranger, _ = make_certificate(tmp_path, "stranger")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(running.url, running.token, stranger)
        with pytest.raises(OSError, match=r"."):  # nobody answers what is not encrypted
            ask(running.url.replace("https", "http"), running.token, certfile)


def test_the_key_may_be_in_the_certfile(files: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files[0].read_bytes() + files[1].read_bytes())
    with serving(Times(), tls=tls_context(both, None)) as server:
        assert ask(server.running.url, server.running.token, files[0]) == {"predictions": [10.0]}


def encrypted(server: Server, certfile: Path, connection: socket.socket) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=certfile)
    return context.wrap_socket(connection, server_hostname=server.address[0])


def test_a_body_that_is_too_large_is_answered(files: tuple[Path, Path]) -> None:
    size = 33 << 20
    with (
        serving(Times(), tls=tls_context(*files)) as server,
        server.connect() as bare,
        encrypted(server, files[0], bare) as connection,
    ):
        connection.sendall(server.head(size) + bytes(size))
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_handshake_that_is_not_made_is_given_up(files: tuple[Path, Path]) -> None:
    with serving(Times(), tls=tls_context(*files), header_timeout_s=0.2) as server, server.connect() as connection:
        assert read_to_end(connection) == b""


def test_a_client_that_had_connected_before_the_end_is_answered(files: tuple[Path, Path]) -> None:
    with serving(Times(), tls=tls_context(*files)) as server, server.connect() as bare:
        stopping = threading.Thread(target=server.running.stop)
        stopping.start()
        until(lambda: _is_refused(server))
        with encrypted(server, files[0], bare) as connection:
            connection.sendall(server.head(10) + b'[{"x": 1}]')
            answer = read_to_end(connection)
        stopping.join()
    assert answer.endswith(b'{"predictions":[10.0]}')


def _is_refused(server: Server) -> bool:
    with socket.socket() as another:
        return another.connect_ex(server.address) != 0


def test_files_that_cannot_be_used(files: tuple[Path, Path], tmp_path: Path) -> None:
    certfile, keyfile = files
    _, other = make_certificate(tmp_path, "other")
    _, locked = make_certificate(tmp_path, "locked", BestAvailableEncryption(b"secret"))
    (tmp_path / "text").write_text("not a certificate")
    for given, message in (
        ({"keyfile": keyfile}, r"keyfile.*certfile"),
        ({"certfile": tmp_path / "none"}, rf"certfile {tmp_path / 'none'}.*No such file"),
        ({"certfile": certfile, "keyfile": tmp_path / "none"}, rf"keyfile {tmp_path / 'none'}"),
        ({"certfile": tmp_path}, rf"certfile {tmp_path}.*directory"),
        ({"certfile": 3}, r"certfile.*\b3\b.*PEM"),
        ({"certfile": certfile}, rf"{certfile}.*certificate.*key"),
        ({"certfile": tmp_path / "text", "keyfile": keyfile}, rf"{tmp_path / 'text'}.*{keyfile}.*PEM"),
        (
            {"certfile": certfile, "keyfile": other},
            rf"{other}.*{certfile}",
        ),
        ({"certfile": certfile, "keyfile": locked}, rf"{locked}.*encrypted"),
    ):
        with pytest.raises(ConfigError, match=message):
            serve.run(Times(), port=0, blocking=False, **given)  # type: ignore[arg-type]  # one is wrong on purpose
