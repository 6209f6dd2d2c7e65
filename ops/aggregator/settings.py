"""Settings of the aggregator."""

from typing import Annotated

import msgspec
from msgspec import Meta

from workers.contract.errors import SettingsError


class AggregatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What only the aggregator needs to know."""

    usd_per_hour: Annotated[
        float | None,
        Meta(
            title="FLEET_USD_PER_HOUR", description="what the whole fleet costs an hour, in dollars; no costs are told without"
        ),
    ] = None
    page_login: Annotated[
        str | None,
        Meta(title="FLEET_PAGE_LOGIN", description="`user:password` that the aggregator asks for; needed off the loopback"),
    ] = None

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and not 0 <= self.usd_per_hour < float("inf"):
            raise SettingsError("FLEET_USD_PER_HOUR", self.usd_per_hour, "0 or more dollars an hour")
        if self.page_login is not None:
            user, _, password = self.page_login.partition(":")
            if not user or not password:
                raise SettingsError("FLEET_PAGE_LOGIN", "…", "user:password, neither of them empty")
