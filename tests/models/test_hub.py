from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

from duologue.models import hub
from duologue.models.hub import HubError, fetch_gguf, is_hub_id, preferred_file

RESPONSE = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.example/file"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", True),
        ("owner/name:file.gguf", True),
        ("owner/name:folder/file.gguf", True),
        ("name", False),
        ("./owner/name", False),
        ("/models/some.gguf", False),
        ("~/some.gguf", False),
        ("a/b/c.gguf", False),
    ],
)
def test_what_a_hub_id_is(text: str, expected: bool) -> None:
    assert is_hub_id(text) is expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (["m-q8_0.gguf", "m-f16.gguf"], "m-q8_0.gguf"),
        (["m-f16.gguf", "a-bf16.GGUF"], "a-bf16.GGUF"),
        (["m-q4_k_m-00001-of-00002.gguf", "m-q8_0.gguf"], "m-q8_0.gguf"),
    ],
)
def test_which_file_of_a_repository_is_taken(names: list[str], expected: str) -> None:
    assert preferred_file(names) == expected


@pytest.mark.parametrize("names", [[], ["model.safetensors"], ["m-00001-of-00002.gguf"]])
def test_a_repository_without_a_whole_file_is_refused(names: list[str]) -> None:
    with pytest.raises(HubError, match="no GGUF file in one piece"):
        preferred_file(names)


class Hub:
    """Stands in for the hub's client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, str, Path]] = []
        self.error = error
        monkeypatch.setattr(HfApi, "list_repo_files", lambda self, name: ["a-q4_0.gguf"])
        monkeypatch.setattr(hub, "hf_hub_download", self.download)

    def download(self, repository: str, name: str, *, cache_dir: Path) -> str:
        if self.error is not None:
            raise self.error
        self.asked.append((repository, name, cache_dir))
        return str(cache_dir / name)


def test_a_file_is_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Hub(monkeypatch)
    assert fetch_gguf("owner/name:b.gguf", tmp_path) == tmp_path / "hub" / "b.gguf"
    assert fetch_gguf("owner/name", tmp_path) == tmp_path / "hub" / "a-q4_0.gguf"
    assert store.asked == [
        ("owner/name", "b.gguf", tmp_path / "hub"),
        ("owner/name", "a-q4_0.gguf", tmp_path / "hub"),
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalEntryNotFoundError("offline"), "can't be reached"),
        (EntryNotFoundError("none"), "no such file"),
        (HfHubHTTPError("denied", response=RESPONSE), "the hub said: denied"),
        (httpx2.ConnectError("refused"), "refused"),
        (OSError("no room"), "no room"),
    ],
)
def test_why_a_file_could_not_be_had_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, said: str
) -> None:
    Hub(monkeypatch, error)
    with pytest.raises(HubError, match=said):
        fetch_gguf("owner/name:b.gguf", tmp_path)
