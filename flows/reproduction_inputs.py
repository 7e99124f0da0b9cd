"""The reference of a reproduction and its settings, found before anything starts."""

from __future__ import annotations

from pathlib import Path

from flows.configuration import given_configuration, with_absolute_paths
from flows.deployed.forms import ReproductionForm
from storage.config.loading import load_with_sources
from storage.config.run_config import RunConfig
from storage.config.tracking import TrackingConfig
from storage.errors import ConfigurationError, RunNotFoundError
from storage.evaluations.reproductions import Reference, read_reference, reference_of, reference_run_of
from storage.record.run_store import RunStore
from tasks.checks.quick_checks import with_read_options
from tasks.prices import with_prices

REFERENCE_FILE = ".json"
"""The suffix of a reference file; no other name is taken for one."""


def find_reference(store: RunStore, form: ReproductionForm) -> tuple[str, Reference | None]:
    """Return the series that a form means and its reference; None if this run will become the reference.

    Raises:
        RunNotFoundError, ConfigurationError: the named run or file does not exist, is unfinished or is no
            reference.
    """
    if form.reference and form.renew:
        raise ConfigurationError(
            f"renew makes a preset's new reference, but reference is {form.reference!r}; give only one"
        )
    if form.reference.endswith(REFERENCE_FILE):
        file = Path(form.reference).expanduser()
        return file.name, read_reference(file)
    if form.reference:
        return form.reference, reference_of(store, form.reference)
    recorded = None if form.renew else reference_run_of(store.home, form.preset)
    if recorded is None:
        return form.preset, None
    try:
        return form.preset, reference_of(store, recorded)
    except RunNotFoundError as error:
        raise RunNotFoundError(
            f"run {recorded!r}, the reference of preset {form.preset!r}, was removed; put its folder back, "
            f"or record a new one with `spotlight reproduce --preset {form.preset} --renew`"
        ) from error


def config_again(form: ReproductionForm, was: Reference | None) -> RunConfig:
    """Return the recorded configuration with deliberate changes; this machine's environment is ignored.

    The recorded prices stay, whatever has become of the price book, unless a change is about prices.
    """
    if was is None:
        return with_prices(given_configuration(form.preset, form.settings))
    # Its own MLflow server may be elsewhere, or gone.
    config = was.run_config.model_copy(update={"tracking": TrackingConfig()})
    if not form.settings:
        return config  # unchanged: no value is read or derived again
    changed = with_absolute_paths(with_read_options(*load_with_sources(None, form.settings, {}, config)))
    return changed if changed.price == config.price else with_prices(changed)
