"""The secret that worker loops and the programs that attach to them share.

It never stands on a command line. By default it is a file of the user's own, made at first use: on hosts with a common
home folder nothing has to be done, elsewhere the file is copied once, or named by `ROOST_SECRET_FILE`.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ..actors.errors import RoostError

SECRET_FILE = "ROOST_SECRET_FILE"
LEAST = 16  # bytes; a word that somebody thought of is found by trying


def secret_file() -> Path:
    """Where the secret is: `$ROOST_SECRET_FILE`, else `~/.roost/secret`."""
    named = os.environ.get(SECRET_FILE)
    return Path(named) if named else Path.home() / ".roost" / "secret"


def resolve_secret(secret: bytes | str | None) -> bytes:
    """The bytes of a secret that was given; of the user's file, made when it is not there, for None.

    Raises RoostError for a secret that is too short, and for a file that others can read or that is another user's.

    >>> resolve_secret("an open one, of thirty bytes..")
    b'an open one, of thirty bytes..'
    """
    if secret is None:
        return read_secret(secret_file())
    if not isinstance(secret, bytes | str):
        raise TypeError(f"a secret is bytes, or text, or None for the one in {secret_file()}; not {type(secret)!r}")
    found = secret.encode() if isinstance(secret, str) else secret
    if len(found) < LEAST:
        raise RoostError(
            f"a secret has at least {LEAST} bytes, this one has {len(found)}: take secrets.token_bytes(32)"
        )
    return found


def read_secret(path: Path) -> bytes:
    """The secret in a file, which is made with 32 random bytes (as hexadecimal text) when it is not there."""
    if not os.path.lexists(path):
        _make(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
    except FileNotFoundError:
        raise RoostError(
            f"the secret file {path} is a link to {os.path.realpath(path)}, which is not there: remove the link for a "
            f"new secret, or name another file with {SECRET_FILE}"
        ) from None
    except OSError as error:
        raise RoostError(f"the secret in {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise RoostError(
            f"the secret file {path} is {_kind(status.st_mode)}, not a regular file: name another with {SECRET_FILE}"
        )
    with open(descriptor, "rb") as file:
        if status.st_uid not in (os.getuid(), 0):
            raise RoostError(
                f"the secret in {path} belongs to user {status.st_uid}, not to you: use a file of your own"
            )
        if status.st_mode & 0o077:
            raise RoostError(
                f"the secret in {path} can be read by others (mode {stat.S_IMODE(status.st_mode):o}): run chmod 600 "
                f"{path}, and make a new one if anybody may have"
            )
        found = file.read(4096).strip()
    if len(found) < LEAST:
        raise RoostError(
            f"the secret in {path} has {len(found)} bytes, and needs {LEAST}: remove the file for a new one"
        )
    return found


def _kind(mode: int) -> str:
    names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")


def _make(path: Path) -> None:
    """Make the file in one step: of several processes that do so at once one wins, and all read the same."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32).hex().encode() + b"\n")
                file.flush()
                os.fsync(descriptor)
            os.link(draft, path)
        finally:
            os.unlink(draft)
    except FileExistsError:
        return  # another process has just made it
    except OSError as error:
        raise RoostError(
            f"the secret file {path} cannot be made: {error}; name another with {SECRET_FILE}, or pass secret="
        ) from None
