"""The settings of what devices cost."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from storage.config.section import Section


class PriceConfig(Section):
    """What a device costs. The defaults are an H100's on GCP: see docs/explanation/spot.md."""

    reserved_usd_per_hour: float = Field(default=10.98, ge=0, le=1e6)
    """Dollars an hour of a reserved device."""

    spot_usd_per_hour: float = Field(default=2.51, ge=0, le=1e6)
    """Dollars an hour of a spot device."""

    book: str = ""
    """Price book that gives both prices instead, when a run is started: a .toml, .json or .csv file (see
    docs/explanation/spot.md), or `builtin:known`; empty for the two prices above."""

    offer: str = ""
    """With `book`: what is rented, as the book names it: DEVICE@ZONE, as in `H100@gcp/us-east4`, or
    DEVICE@ZONE,ZONE where the spot devices are in another zone than the reserved ones."""

    @property
    def device(self) -> str:
        """Kind of the devices, as the book names it."""
        return self.offer.partition("@")[0]

    @property
    def reserved_zone(self) -> str:
        """Zone of the reserved devices, which are rented on demand."""
        return self.offer.partition("@")[2].partition(",")[0]

    @property
    def spot_zone(self) -> str:
        """Zone of the spot devices."""
        return self.offer.partition("@")[2].rpartition(",")[2]

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
        if not self.book and self.offer:
            raise ValueError(
                f"price.offer={self.offer!r} without price.book; name a price book, or leave it empty"
            )
        if self.book and not (self.device and self.reserved_zone and self.spot_zone):
            raise ValueError(
                f"price.book is {self.book!r}, but price.offer is {self.offer!r}: the book has prices of "
                "several devices and zones; say which, as in H100@gcp/us-east4 or "
                "H100@gcp/us-east4,gcp/us-central1"
            )
        return self
