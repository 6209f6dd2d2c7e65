"""Settings of one worker process, which differ from host to host. Read once, in workers/celery.py."""

import difflib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from workers.contract.errors import SettingsError
from workers.contract.settings import FleetSettings, check_url, setting_rows

ELSEWHERE = frozenset({"FLEET_USD_PER_HOUR", "FLEET_PAGE_LOGIN"})
"""Read by other parts of the fleet."""


def misspelt_settings(environment: Iterable[str]) -> list[str]:
    """A sentence for each variable that begins with FLEET_ and that nobody reads."""
    known = {row.name for kind in (FleetSettings, WorkerSettings) for row in setting_rows(kind)} | ELSEWHERE
    told = []
    for name in sorted(name for name in environment if name.startswith("FLEET_") and name not in known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        told.append(f"{name} is no setting, and nothing reads it{f'; did you mean {near[0]}?' if near else ''}")
    return told


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker needs to know about its engine and itself."""

    engine_url: Annotated[
        str,
        Meta(
            title="ENGINE_URL", description="the SGLang server of this worker, `http://127.0.0.1:30000`", pattern=r"^https?://"
        ),
    ]
    engine_api_key: Annotated[
        str | None,
        Meta(title="ENGINE_API_KEY", description="sent as bearer token, if the server was started with --api-key"),
    ] = None
    model: Annotated[
        str | None,
        Meta(title="FLEET_MODEL", description="what runs call this engine's model, if it calls itself otherwise"),
    ] = None
    slots: Annotated[
        str,
        Meta(
            title="FLEET_SLOTS",
            description="requests in flight: a number, or `auto` = 1.25 × the engine's effective running limit",
            pattern=r"^(auto|[1-9]\d{0,4})$",
        ),
    ] = "auto"
    request_timeout_s: Annotated[
        float,
        Meta(title="FLEET_REQUEST_TIMEOUT_S", description="one answer may take so long; longest answer ÷ slowest speed", gt=0),
    ] = 3600.0
    max_tries: Annotated[
        int, Meta(title="FLEET_MAX_TRIES", description="tries of one prompt, where another try can help", ge=1, le=20)
    ] = 4
    retry_for_s: Annotated[
        float, Meta(title="FLEET_RETRY_FOR_S", description="longest wait between the tries of one prompt, in all", gt=0)
    ] = 900.0
    engine_grace_s: Annotated[
        float,
        Meta(
            title="FLEET_ENGINE_GRACE_S",
            description="an engine may be sick so long before its batches go to other workers",
            ge=0,
        ),
    ] = 30.0
    hang_s: Annotated[
        float, Meta(title="FLEET_HANG_S", description="no token for so long with requests in flight: the engine hangs", ge=1)
    ] = 60.0
    drain_s: Annotated[
        float, Meta(title="FLEET_DRAIN_S", description="after SIGTERM, finish what is in flight for so long", ge=0)
    ] = 20.0

    gpu: Annotated[
        str | None,
        Meta(
            title="FLEET_GPU",
            description="index or UUID of the engine's GPU; else `CUDA_VISIBLE_DEVICES`, else the only one",
        ),
    ] = None

    def fixed_slots(self) -> int | None:
        """The number, or None for `auto`."""
        return None if self.slots == "auto" else int(self.slots)

    def __post_init__(self) -> None:
        if self.request_timeout_s <= self.hang_s:  # else a hang looks like many slow answers, and their prompts fail
            raise SettingsError(
                "FLEET_REQUEST_TIMEOUT_S", self.request_timeout_s, f"more than FLEET_HANG_S={self.hang_s:g} seconds"
            )
        check_url("ENGINE_URL", self.engine_url)
        if self.engine_api_key is not None and not (self.engine_api_key.isascii() and self.engine_api_key.isprintable()):
            raise SettingsError("ENGINE_API_KEY", "…", "printable ASCII characters, as an HTTP header can carry")
