"""Where a worker and its gateways meet: a directory of its own, with two sockets."""

import os
import secrets
import stat
from pathlib import Path

CONTROL_SOCKET = "control"
DATA_SOCKET = "data"


def socket_paths(directory: Path) -> tuple[Path, Path]:
    """Where a worker listens in its directory: the control and the data socket.

    Raises ValueError when the paths are too long for a Unix socket (107 bytes, unix(7)).
    """
    paths = directory / CONTROL_SOCKET, directory / DATA_SOCKET
    if max(len(str(path).encode()) for path in paths) > 107:
        raise ValueError(f"{directory}: too long a path for a socket")
    return paths


def private_directory(name: str) -> Path:
    """Where a worker's directory could be: a path that nothing has, short enough for sockets."""
    base = os.environ.get("TMPDIR", "/tmp")
    if len(base) > 60:
        base = "/tmp"  # a socket's path has room for 107 bytes
    return Path(base, f"duologue-{name[:16]}-{secrets.token_hex(8)}")


def make_private(directory: Path) -> None:
    """Make the directory, mode 0700, or accept one that only this user can have made.

    Raises PermissionError when somebody else has put something there.
    """
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        found = directory.lstat()
        if found.st_uid != os.getuid() or found.st_mode != stat.S_IFDIR | 0o700:
            raise PermissionError(f"{directory} is not a private directory") from None
