"""The GNU OpenMP library for llama.cpp, on systems that come without one."""

import ctypes
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

NAME = "libgomp.so.1"


def with_openmp(
    environ: Mapping[str, str],
    folder: Path,
    *,
    present: Callable[[], bool] | None = None,
    bundled: Callable[[], Path | None] | None = None,
) -> dict[str, str]:
    """An environment for a process that imports xllamacpp.

    xllamacpp's wheel expects `libgomp.so.1` of the system, which a small container may lack.
    ctranslate2's wheel carries one under another name: a link to it is made in `folder`, and
    `LD_LIBRARY_PATH` leads there. Where the system has the library, `environ` is returned as it
    is. `present` tells whether it has, `bundled` finds the other; both by looking, if not given.

    Raises OSError when the link can't be made.
    """
    if (present or system_has_openmp)():
        return dict(environ)
    library = (bundled or bundled_openmp)()
    if library is None:
        return dict(environ)
    link = folder / NAME
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    paths = [str(folder), environ.get("LD_LIBRARY_PATH", "")]
    return {**environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}


def system_has_openmp() -> bool:
    """Whether the dynamic linker finds the library by itself."""
    try:
        ctypes.CDLL(NAME)
    except OSError:
        return False
    return True


def bundled_openmp() -> Path | None:
    """The copy that came with ctranslate2, which is not imported for this."""
    spec = importlib.util.find_spec("ctranslate2")
    if spec is None or spec.origin is None:
        return None
    libraries = Path(spec.origin).parent.with_name("ctranslate2.libs")
    return next(iter(sorted(libraries.glob("libgomp*.so*"))), None)
