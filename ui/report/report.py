"""The sections of a report, from the same figures, charts and rules as the pages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from storage.environment import MODELLED
from storage.errors import ConfigurationError
from storage.evaluations.quality import LEAST_PROMPTS
from storage.home import dashboard_page
from storage.record.ledger import Ledger, bill_entries, read_ledger
from storage.record.queries import devices as device_queries
from storage.record.queries.images import images_before_after
from storage.record.reading import RecordConnection
from storage.record.run_store import RunStore
from ui.charts.cost import ASSUMPTION, bill_charts, on_demand_cost
from ui.charts.devices import MOST_BARS, gantt_chart, read_course, utilisation_charts
from ui.charts.layout import Axis
from ui.data.links import lasting_links
from ui.data.run import QualityView, RunView, read_quality, read_run, sources_of, with_verdicts
from ui.elements.formatting import duration, ending_in_words, moment, money, percent, simulated_in_words
from ui.elements.image_grid import gallery_html
from ui.pages.convergence import charts as convergence
from ui.pages.convergence.verdict import verdict
from ui.pages.health.findings import Evidence, by_level
from ui.pages.health.rules import findings_of
from ui.pages.seeds import charts as seed_charts
from ui.report.html_page import Report

_DRAWN_ITERATIONS = 3  # of the time line of all devices: the latest


def write_report(store: RunStore, run_id: str, out: Path) -> None:
    """Write a run's report as HTML; an existing file is replaced in one step.

    Raises:
        ConfigurationError: `out` is a folder, or its folder is missing.
        RunNotFoundError: there is no such run.
        StorageError: a file of the record is damaged.
    """
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigurationError(f"cannot write {out}: it must be a file in an existing folder; name another")
    page = report_page(store, run_id)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(out)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigurationError(f"cannot write {out}: {error}; name another file with --out") from error


def report_page(store: RunStore, run_id: str) -> str:
    """Return the report as HTML; raises the same errors as `write_report`."""
    view = read_run(store, run_id)
    report = Report(f"Spotlight: {run_id}")
    with store.reading(run_id) as connection:
        noted = store.links(run_id)
        report.links(lasting_links(view, noted, dashboard_page(run_id)))
        ledger = read_ledger(connection, run_id)
        _summary(report, view, ledger)
        quality = read_quality(connection, run_id)
        _scores(report, view, quality, store)
        _images(report, connection, view)
        _quality(report, view, quality)
        _health(report, view, ledger, quality)
        _costs(report, view, ledger)
        _devices(report, view, connection)
        _seeds(report, view, connection)
    _particulars(report, view)
    return report.page()


def _summary(report: Report, view: RunView, ledger: Ledger) -> None:
    row = view.row
    ended = "" if row.ended_at is None else f", ended {moment(row.ended_at)}"
    report.sentence(
        f"{view.status}{', archived' * view.notes.archived}; started {moment(row.created_at)}{ended}.", "note"
    )
    if view.simulated is not None:
        report.sentence(simulated_in_words(view.simulated))
    if view.notes.tags:
        report.table(pd.DataFrame({"tags": [", ".join(view.notes.tags)]}))
    if view.notes.note:
        report.preformatted(view.notes.note)
    if row.error:
        report.preformatted(ending_in_words(row.error))
    report.sentence(verdict(view)[1])
    idle = ledger.spot_idle_share
    facts = {
        "iterations": str(len(view.metrics)),
        "at work": duration(view.elapsed_s),
        "cost so far": money(view.paid_usd, view.is_modelled),
        "spot idle": "-" if idle is None else percent(idle),
    }
    report.table(pd.DataFrame([facts]))


def _scores(report: Report, view: RunView, quality: QualityView, store: RunStore) -> None:
    report.section("Convergence")
    if view.scores.empty and view.metrics.empty:
        report.sentence("Nothing has been scored yet.")
        return
    axes: tuple[Axis, ...] = ("iteration", "time", "usd")
    report.charts([convergence.score_chart(view, "score", over, quality.judges) for over in axes])
    if view.gives_verdict:
        report.charts([convergence.score_chart(view, "exact", "iteration")], wide=True)
    seeds, courses = convergence.read_seed_courses(store, view.row.run_id)
    if len(set(courses["run_id"].tolist())) > 1:
        report.charts([convergence.interval_chart(courses, seeds, "score")], wide=True)
        names = ", ".join(f"{run_id} (seed {seed})" for seed, run_id in seeds.items())
        report.sentence(f"Runs that differ only in the seed: {names}.", "note")
    report.charts(convergence.learning_charts(view))


def _images(report: Report, connection: RecordConnection, view: RunView) -> None:
    report.section("Images before and after")
    images = images_before_after(connection, view.row.run_id)
    if images.empty:
        report.sentence("This run has no images.")
        return
    verdicts = with_verdicts(images, view.gives_verdict)
    report.gallery(gallery_html(verdicts, sources_of(view, images)))


def _quality(report: Report, view: RunView, quality: QualityView) -> None:
    if charts := [*convergence.quality_charts(quality), *convergence.part_charts(view, quality)]:
        report.section("Image quality")
        report.charts(charts)
    if quality.verdict is not None and quality.figures:
        table = convergence.quality_table(quality.verdict)
        report.table(table)
        if any(change.prompts < LEAST_PROMPTS for change in quality.verdict.others):
            report.sentence(f"Changes have an interval from {LEAST_PROMPTS} prompts on.", "note")


def _health(report: Report, view: RunView, ledger: Ledger, quality: QualityView) -> None:
    report.section("Health")
    for level, listed in by_level(findings_of(Evidence(view, ledger, quality))).items():
        for finding in listed:
            report.sentence(
                f"**{level.capitalize()}: {finding.title}.** {finding.text} {finding.advice}".strip(), level
            )


def _costs(report: Report, view: RunView, ledger: Ledger) -> None:
    report.section("Cost")
    if not ledger.entries:
        report.sentence("Nothing has been paid for yet.")
        return
    report.charts(bill_charts(view, ledger))
    if on_demand_cost(ledger, view.is_modelled) is not None:
        report.sentence(ASSUMPTION, "note")
    bill = bill_entries(ledger)
    if view.is_modelled:
        report.sentence(
            f"{MODELLED} No device was rented: amounts are time at the prices in the settings.", "note"
        )
        bill = bill.rename(columns={"usd": f"usd {MODELLED}"})
    report.table(bill)


def _devices(report: Report, view: RunView, connection: RecordConnection) -> None:
    report.section("Devices")
    run_id = view.row.run_id
    iterations = device_queries.recorded_iterations(connection, run_id)
    if not iterations:
        report.sentence("No device time has been recorded yet.")
        return
    latest = iterations[-_DRAWN_ITERATIONS:]
    course = read_course(connection, run_id, latest[0], latest[-1])
    if not course.intervals.empty:
        drawn = gantt_chart(course, view.metrics, MODELLED if view.is_modelled else "")
        report.charts([drawn], wide=True)
        report.sentence(f"The latest {len(latest)} of {len(iterations):,} recorded iterations.", "note")
    report.charts(utilisation_charts(device_queries.utilisation(connection, run_id, MOST_BARS)))


def _seeds(report: Report, view: RunView, connection: RecordConnection) -> None:
    report.section("Seeds")
    seeds = seed_charts.read_seeds(connection, view.row.run_id)
    if not any(count > 0 for count in seeds.drafts["drafts"].tolist()):
        report.sentence("This run drafted no seeds.")
        return
    charts = [] if seeds.pairs.empty else [seed_charts.pair_chart(seeds.pairs)]
    charts += [seed_charts.rank_chart(view), seed_charts.spread_chart(view)]
    charts += [seed_charts.success_chart(seeds.drafts)] if view.gives_verdict else []
    report.charts(charts)
    drawn = seed_charts.draft_map(seeds.drafts, view.gives_verdict)
    if drawn is not None:
        report.charts([drawn], wide=True)


def _particulars(report: Report, view: RunView) -> None:
    report.section("Settings, environment and events")
    changed, refused = view.changed_settings()
    if refused:
        report.sentence(refused)
    report.preformatted(json.dumps(changed, indent=2, default=str))
    report.preformatted(json.dumps(view.row.environment, indent=2))
    if not view.events.empty:
        report.table(view.events.assign(happened_at=view.events["happened_at"].map(moment)))
