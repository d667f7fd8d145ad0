"""A checkpoint's folder: the one that is named, or a model hub's copy of it."""

from pathlib import Path

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from duologue.models.hub import HubError, is_hub_id

FILES = ("*.json", "*.safetensors", "*.model", "voices.tgz")
"""Weights in formats that run code on loading are not fetched."""


def checkpoint_folder(name: str, cache: Path) -> Path:
    """A path as it is, or ``owner/name`` fetched from the hub into the cache; blocks.

    What the cache has already is not asked for again, and is used without a network too. Raises
    :exc:`HubError`.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_id(name):
        raise HubError(f"{name}: there is no such folder")
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES), cache_dir=cache / "hub"))
    except LocalEntryNotFoundError as error:
        raise HubError(f"{name}: the hub can't be reached, and it is not cached") from error
    except HfHubHTTPError as error:
        raise HubError(f"{name}: the hub said: {error}") from error
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise HubError(f"{name}: {error}") from error
