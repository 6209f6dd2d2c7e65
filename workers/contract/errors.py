"""Every error that one part of the fleet shows another. A command's own refusals stand beside the command.

Knows the classes, their sentences and the exit code of a command that ends with one. Does not know where they are raised.

```
FleetError
├── Retryable       RunElsewhere · EngineUnavailable · EngineOverloaded · BrokerUnavailable ·
│                   StoreUnavailable (StoreBusy · StoreFull)
├── Permanent       PromptRejected (one row) · ShardCorrupt · ContractMismatch · WorkersLost ·
│                   StoreDenied · BrokerUntrusted · BrokerDenied
├── UsageError      SourceUnreadable · RunDiffers · RunLeftovers · RunUnknown · StoreEmpty · RowRejected (one row, `--strict`)
├── SettingsError   the process does not start
└── RunIncomplete · StaleMessage · ScratchUnusable
```
Callers decide by class, never by text. A class takes values and writes its own sentence; the values also go to `super()`,
because errors cross the worker pool by pickle.
"""

from typing import Literal

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BROKER = 3
EXIT_STORE = 4
EXIT_ENGINE = 5


class FleetError(Exception):
    """Base of all; `exit_code` is what a command ends with."""

    exit_code = EXIT_FAILED


class Retryable(FleetError):
    """The same thing may succeed later."""


class Permanent(FleetError):
    """Trying again changes nothing."""


class UsageError(FleetError):
    """The command, or the data that it was given, cannot be used."""

    exit_code = EXIT_USAGE


class EngineUnavailable(Retryable):
    """No connection, 5xx, or no answer in time.

    `kind`: `refused` (the request never left), `lost` (it was in flight), `timeout`, or `error` (a 5xx answer).
    """

    exit_code = EXIT_ENGINE

    def __init__(self, engine_url: str, cause: str, kind: Literal["refused", "lost", "timeout", "error"] = "error") -> None:
        super().__init__(engine_url, cause, kind)
        self.engine_url, self.cause, self.kind = engine_url, cause, kind

    def __str__(self) -> str:
        return f"engine {self.engine_url}: {self.cause}; is the server up? `curl {self.engine_url}/v1/models`"


class EngineOverloaded(Retryable):
    """The engine's queue is full; `retry_after_s` is the engine's own wish, if it gave one."""

    exit_code = EXIT_ENGINE

    def __init__(self, engine_url: str, cause: str, retry_after_s: float | None = None) -> None:
        super().__init__(engine_url, cause, retry_after_s)
        self.engine_url, self.cause, self.retry_after_s = engine_url, cause, retry_after_s

    def __str__(self) -> str:
        return f"engine {self.engine_url} is overloaded: {self.cause}; lower FLEET_SLOTS or raise --max-queued-requests"


class StoreUnavailable(Retryable):
    """The store did not answer, or answered that it cannot now."""

    exit_code = EXIT_STORE

    def __init__(self, url: str, action: str, cause: str) -> None:
        super().__init__(url, action, cause)
        self.url, self.action, self.cause = url, action, cause

    def __str__(self) -> str:
        return f"store {self.url}: {self.action}: {self.cause}; check FLEET_STORE and AWS_ENDPOINT_URL"


class StoreBusy(StoreUnavailable):
    """The store is busy, or asks for fewer requests: 503 SlowDown and its like."""

    def __str__(self) -> str:
        return (
            f"store {self.url}: {self.action}: {self.cause}; it is busy, or wants fewer requests at once; workers ask again "
            "by themselves, a command when it is given again; if that does not end, ask for a higher limit or use fewer workers"
        )


class StoreFull(StoreUnavailable):
    """The disk of a folder store has no room."""

    def __init__(self, url: str, action: str, cause: str, free_bytes: int | None) -> None:
        super().__init__(url, action, cause)
        self.args = (url, action, cause, free_bytes)
        self.free_bytes = free_bytes

    def __str__(self) -> str:
        free = "" if self.free_bytes is None else f", {self.free_bytes} bytes are free in {self.url.removeprefix('file://')}"
        return (
            f"store {self.url}: {self.action}: {self.cause}{free}; make room there: workers then go on by themselves, "
            "a command when it is given again"
        )


class OfBroker(FleetError):
    """Something about Redis; `broker` is its URL without the password."""

    exit_code = EXIT_BROKER

    def __init__(self, broker: str, cause: str) -> None:
        super().__init__(broker, cause)
        self.broker, self.cause = broker, cause


class BrokerUnavailable(OfBroker, Retryable):
    """Redis did not answer."""

    def __str__(self) -> str:
        return f"broker {self.broker}: {self.cause}; is Redis up, and does FLEET_BROKER name it?"


class BrokerDenied(OfBroker, Permanent):
    """Redis knows us not, or forbids this."""

    def __str__(self) -> str:
        return (
            f"broker {self.broker}: {self.cause}; check user and password in FLEET_BROKER, and the user's rights (SECURITY.md)"
        )


class BrokerUntrusted(OfBroker, Permanent):
    """Its certificate is signed by nobody whom we trust."""

    def __str__(self) -> str:
        return (
            f"broker {self.broker}: its certificate is not trusted ({self.cause}); ssl_ca_certs in FLEET_BROKER names the file "
            "of its authority"
        )


class StoreDenied(Permanent):
    """The store knows us not, or forbids this."""

    exit_code = EXIT_STORE

    def __init__(self, url: str, action: str, cause: str) -> None:
        super().__init__(url, action, cause)
        self.url, self.action, self.cause = url, action, cause

    def __str__(self) -> str:
        return f"store {self.url}: {self.action} denied: {self.cause}; check the credentials, the bucket and its policy"


class PromptRejected(Permanent):
    """4xx: the engine will refuse this prompt again."""

    def __init__(self, prompt_id: str, status: int, message: str) -> None:
        super().__init__(prompt_id, status, message)
        self.prompt_id, self.status, self.message = prompt_id, status, message

    def __str__(self) -> str:
        return f"prompt {self.prompt_id}: the engine refused it with {self.status}: {self.message}"


class StaleMessage(FleetError):
    """A message of an earlier run of the same name: the run that is there now has messages of its own."""

    def __init__(self, batch: str, found: float, expected: float) -> None:
        super().__init__(batch, found, expected)
        self.batch, self.found, self.expected = batch, found, expected

    def __str__(self) -> str:
        return f"message of {self.batch}: of the run made at {self.found}, the run there now was made at {self.expected}"


class WorkersLost(Permanent):
    """One worker after the other fell silent with this batch in hand, and none brought a new outcome."""

    def __init__(self, batch: str, workers: int) -> None:
        super().__init__(batch, workers)
        self.batch, self.workers = batch, workers

    def __str__(self) -> str:
        return (
            f"batch {self.batch}: {self.workers} workers fell silent with it in hand; look for what kills them "
            "(memory?), then `producer resume`"
        )


class ShardCorrupt(Permanent):
    """An object of the store does not hold what the manifest says."""

    def __init__(self, key: str, found: str, expected: str) -> None:
        super().__init__(key, found, expected)
        self.key, self.found, self.expected = key, found, expected

    def __str__(self) -> str:
        outcome = "/completions/" in self.key
        restore = "restore the object, or delete it to have its prompts generated again" if outcome else "restore the object"
        return f"{self.key}: found {self.found}, expected {self.expected}; {restore}, then `producer resume`"


class ContractMismatch(Permanent):
    """Written by a version that this one cannot read."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(what, found, expected)
        self.what, self.found, self.expected = what, found, expected

    def __str__(self) -> str:
        return f"{self.what}: schema {self.found}, this program reads {self.expected}; upgrade the older side"


class SourceUnreadable(UsageError):
    """A source file that cannot be read as a whole."""

    def __init__(self, source: str, cause: str) -> None:
        super().__init__(source, cause)
        self.source, self.cause = source, cause

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}; nothing was enqueued"


class RowRejected(UsageError):
    """`--strict`: rows were rejected, so nothing is enqueued."""

    def __init__(self, rejected: int, accepted: int, first: str) -> None:
        super().__init__(rejected, accepted, first)
        self.rejected, self.accepted, self.first = rejected, accepted, first

    def __str__(self) -> str:
        total = self.rejected + self.accepted
        return (
            f"{self.rejected} of {total} rows rejected, the first: {self.first}; nothing was enqueued. "
            "Correct them, or leave out --strict"
        )


class RunDiffers(UsageError):
    """The run exists with something else under the same name."""

    def __init__(self, run: str, field: str, found: object, expected: object) -> None:
        super().__init__(run, field, found, expected)
        self.run, self.field, self.found, self.expected = run, field, found, expected

    def __str__(self) -> str:
        return (
            f"run {self.run} exists with another {self.field}: this command says {self.found}, "
            f"the run has {self.expected}; use another --run, or the same {self.field}"
        )


class RunLeftovers(UsageError):
    """Completions lie under a run's name without its manifest: workers would take them for this run's."""

    def __init__(self, run: str, store_url: str, key: str) -> None:
        super().__init__(run, store_url, key)
        self.run, self.store_url, self.key = run, store_url, key

    def __str__(self) -> str:
        return (
            f"run {self.run}: {self.store_url} holds completions of an earlier run of this name ({self.key} and perhaps more) "
            "without its manifest; restore that, or remove them, or use another --run"
        )


class OfRunInStore(FleetError):
    """Something about a run and a store that does not have it."""

    def __init__(self, run: str, store_url: str) -> None:
        super().__init__(run, store_url)
        self.run, self.store_url = run, store_url


class RunUnknown(OfRunInStore, UsageError):
    """No manifest of that name."""

    def __str__(self) -> str:
        return f"no run {self.run} in {self.store_url}; `producer runs` lists those that are there"


class StoreEmpty(OfRunInStore, UsageError):
    """No manifest of that name, nor of any other."""

    def __str__(self) -> str:
        return f"no run {self.run} in {self.store_url}, which holds no run at all; does FLEET_STORE name the right place?"


class RunElsewhere(OfRunInStore, Retryable):
    """A batch of a run whose manifest this process' store does not hold."""

    def __str__(self) -> str:
        return (
            f"run {self.run}: {self.store_url} holds no manifest of it; has this worker the FLEET_STORE of the producer? "
            "If the run was deleted, `producer cancel` ends it"
        )


class ScratchUnusable(FleetError):
    """A command's temporary files cannot be written."""

    def __init__(self, folder: str, cause: str) -> None:
        super().__init__(folder, cause)
        self.folder, self.cause = folder, cause

    def __str__(self) -> str:
        return (
            f"temporary files in {self.folder}: {self.cause}; make room there, or name another folder in TMPDIR, "
            "then give the same command again"
        )


class RunIncomplete(FleetError):
    """Something was asked that needs every prompt to have its outcome."""

    def __init__(self, run: str, missing: int, total: int) -> None:
        super().__init__(run, missing, total)
        self.run, self.missing, self.total = run, missing, total

    def __str__(self) -> str:
        return (
            f"run {self.run}: {self.missing:,} of {self.total:,} prompts have no outcome yet; "
            f"wait (`producer status {self.run}`), or take what is there with --partial"
        )


class SettingsError(FleetError):
    """A setting is missing or out of range; the process does not start."""

    exit_code = EXIT_USAGE

    def __init__(self, name: str, found: object, expected: str) -> None:
        super().__init__(name, found, expected)
        self.name, self.found, self.expected = name, found, expected

    def __str__(self) -> str:
        found = "is not set" if self.found is None else f"is {self.found!r}"
        return f"{self.name} {found}, expected {self.expected}"
