"""Language models from a model hub, where one is reachable."""

from pathlib import Path

import httpx2
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

PREFERRED = ("q4_k_m", "q4_0", "q5_k_m", "q8_0")
"""Quantisations in order of preference, where a repository has several."""


class HubError(Exception):
    """The file could not be had. The text says why."""


def is_hub_id(text: str) -> bool:
    """Whether a text is ``owner/name`` or ``owner/name:file.gguf`` rather than a path."""
    repository, _, _ = text.partition(":")
    return repository.count("/") == 1 and not text.startswith((".", "/", "~"))


def preferred_file(names: list[str]) -> str:
    """The GGUF file to take. Raises HubError when there is none."""
    files = sorted(name for name in names if name.lower().endswith(".gguf"))
    whole = [name for name in files if "-of-0" not in name]
    for quantisation in PREFERRED:
        for name in whole:
            if quantisation in name.lower():
                return name
    if not whole:
        raise HubError("the repository has no GGUF file in one piece")
    return whole[0]


def fetch_gguf(hub_id: str, cache: Path) -> Path:
    """The file of ``owner/name[:file.gguf]``, from the cache folder if it is there; blocks.

    Raises HubError.
    """
    repository, _, name = hub_id.partition(":")
    folder = cache / "hub"
    try:
        if not name:
            name = preferred_file(HfApi().list_repo_files(repository))
        return Path(hf_hub_download(repository, name, cache_dir=folder))
    except LocalEntryNotFoundError as error:
        raise HubError(f"{hub_id}: the hub can't be reached, and the file is not cached") from error
    except EntryNotFoundError as error:
        raise HubError(f"{hub_id}: there is no such file") from error
    except HfHubHTTPError as error:
        raise HubError(f"{hub_id}: the hub said: {error}") from error
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise HubError(f"{hub_id}: {error}") from error
