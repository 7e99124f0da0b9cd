"""The settings of what devices cost."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from storage.config.section import Section


class PriceConfig(Section):
    """What a device costs. The defaults are an H100's on GCP: see docs/spot.md."""

    reserved_usd_per_hour: float = Field(default=10.98, ge=0, le=1e6)
    """Dollars an hour of a reserved device."""

    spot_usd_per_hour: float = Field(default=2.51, ge=0, le=1e6)
    """Dollars an hour of a spot device."""

    book: str = ""
    """Price book that gives both prices instead, when a run is started: a .toml, .json or .csv file (see
    docs/spot.md), or `builtin:known`; empty for the two prices above."""

    device: str = ""
    """With `book`: kind of the devices as the book names it, such as `H100`."""

    reserved_zone: str = ""
    """With `book`: zone of the reserved devices, such as `gcp/us-east4`; they are rented on demand."""

    spot_zone: str = ""
    """With `book`: zone of the spot devices; empty is the reserved ones'."""

    @model_validator(mode="after")
    def _spot_is_cheaper(self) -> Self:
        if self.spot_usd_per_hour > self.reserved_usd_per_hour:
            raise ValueError(
                f"price.spot_usd_per_hour is {self.spot_usd_per_hour}, above reserved_usd_per_hour="
                f"{self.reserved_usd_per_hour}; lower it, or raise price.reserved_usd_per_hour"
            )
        return self

    @model_validator(mode="after")
    def _the_book_can_be_asked(self) -> Self:
        offer = {"device": self.device, "reserved_zone": self.reserved_zone, "spot_zone": self.spot_zone}
        if not self.book and any(offer.values()):
            given = ", ".join(f"price.{name}={value!r}" for name, value in offer.items() if value)
            raise ValueError(f"{given} without price.book; name a price book, or leave them empty")
        missing = [f"price.{name}" for name in ("device", "reserved_zone") if not offer[name]]
        if self.book and missing:
            raise ValueError(
                f"price.book is {self.book!r}, but nothing is given for {' and '.join(missing)}: the book "
                "has prices of several devices and zones; say which"
            )
        return self
