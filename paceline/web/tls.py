"""What a server proves its name with."""

from __future__ import annotations

import os
import ssl

from paceline.air.errors import ConfigError

FilePath = str | os.PathLike[str]


def tls_context(certfile: FilePath | None, keyfile: FilePath | None) -> ssl.SSLContext | None:
    """What the server proves its name with; None: it speaks HTTP without TLS."""
    if certfile is None:
        if keyfile is not None:
            raise ConfigError("A keyfile needs the certificate that belongs to it: give certfile as well.")
        return None
    for name, path in (("certfile", certfile), ("keyfile", keyfile)):
        if path is not None:
            _check_readable(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = certfile if keyfile is None else keyfile

    def no_password() -> str:  # left out, OpenSSL asks on the terminal
        raise ConfigError(
            f"The key in {os.fspath(key)} is encrypted; openssl pkey -in KEY -out NEW makes one that is not."
        )

    try:
        context.load_cert_chain(certfile, keyfile, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"The key in {os.fspath(key)} does not belong to the certificate in {os.fspath(certfile)}."
            ) from error
        where = f"{os.fspath(certfile)} and {os.fspath(keyfile)} hold" if keyfile else f"{os.fspath(certfile)} holds"
        raise ConfigError(
            f"{where} no certificate with its key, or not as PEM ({error.reason or error}). The certfile begins with "
            "the server's certificate; the key is in the same file, or in the keyfile."
        ) from error
    return context


def _check_readable(name: str, path: FilePath) -> None:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} is {path!r}: give the path of a PEM file.")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"The {name} {os.fspath(path)} cannot be read: {error.strerror}.") from error
