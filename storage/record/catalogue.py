"""`spotlight.duckdb`: views over the files of all runs, for DuckDB's own command line, pandas or polars.

The file holds no rows, and Spotlight itself never reads it. It is replaced by a rename, never written in
place, so that a program that has it open delays no writer. Its views hold absolute paths: a home that was
moved or copied gets a new file with its next run.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StorageError
from storage.home import Home
from storage.record.files import AS_DISCARDED, KEPT_OF_DISCARDED, PART_FILE, is_whole, refusals, write_json
from storage.record.reading import COSTS, DESCRIBED, EVALUATION_FILE, PROMPTS, globbed, select_rows
from storage.record.run_folder import EVENTS_FILE, NOTES_FILE, RUN_FILE, RunFolder
from storage.record.tables import COLUMNS, EVALUATION_COLUMNS, schema

_EXAMPLES = "_examples"
"""The folder with an empty file of each kind: DuckDB refuses a view without any file."""

_ENTRIES = "[!.]*"
"""The entries of a folder except those being written, fetched or moved aside, which begin with a dot."""

_RUN = "url_decode(parse_filename(parse_dirpath(filename)))"
"""The run that a file's folder is named after; the rows of a copy under another name are of its original."""

_log = logging.getLogger(__name__)

_LIVE = ("iteration", "evaluation", "part")


def refresh_catalogue(home: Home) -> None:
    """Make the catalogue, unless it exists with the views of this home and version.

    A failure is only a warning: the catalogue serves users, and no run needs it.
    """
    views = list(_views(home))
    examples = RunFolder(home.runs / _EXAMPLES)
    marker, made = examples.path / "views.sql", "\n".join(views).encode()
    try:
        if home.database.exists() and marker.exists() and marker.read_bytes() == made:
            return
        # The lock: other processes may add their first runs at the same moment.
        with refusals(f"the catalogue {home.database}"), examples.locked():
            _make_examples(home)
            _make_catalogue(home.database, views)
            marker.write_bytes(made)
    except (StorageError, OSError) as error:
        _log.warning("no queries with spotlight.duckdb until the next run begins: %s", error)


def _make_catalogue(catalogue: Path, views: Sequence[str]) -> None:
    """Write the file elsewhere, and move it into place once it is known to hold the views."""
    with tempfile.TemporaryDirectory(
        dir=catalogue.parent, prefix=".making-", ignore_cleanup_errors=True
    ) as folder:
        made = Path(folder) / catalogue.name
        try:
            with duckdb.connect(str(made)) as connection:
                for view in views:
                    connection.execute(f"CREATE VIEW {view}")
                connection.execute("CHECKPOINT")
            # On a full disk, closing reports nothing and leaves an empty file.
            with duckdb.connect(str(made), read_only=True) as connection:
                found = connection.execute(
                    "SELECT count(*) FROM duckdb_views() WHERE NOT internal"
                ).fetchone()
        except duckdb.Error as error:
            raise StorageError(
                f"cannot make the catalogue {catalogue}: {error}; free disk space, and look for damaged "
                "files with `spotlight doctor`"
            ) from error
        if found != (len(views),):
            raise StorageError(f"cannot write the catalogue {catalogue}: views are missing; free disk space")
        made.chmod(0o600)
        # A program killed with the old file open leaves one, which would not fit the new file.
        catalogue.with_name(f"{catalogue.name}.wal").unlink(missing_ok=True)
        made.replace(catalogue)


def _views(home: Home) -> Iterator[str]:
    """Yield the views, each as the text after `CREATE VIEW`."""
    runs, evaluations = f"{globbed(home.runs)}/{_ENTRIES}", f"{globbed(home.evaluations)}/{_ENTRIES}"
    # `read_text` finds all files as soon as the view is bound; `read_json` would hold 32 MiB for each.
    covers = """from_json(content, '{"covers": ["VARCHAR"]}').covers"""
    yield (
        "counted_folders AS SELECT folder, NOT bool_or(covered) AS counts FROM (SELECT unnest("
        f"[{{folder: parse_dirpath(filename), covered: false}}] || list_transform({covers}, lambda name: "
        "{folder: parse_dirpath(parse_dirpath(filename)) || '/' || name, covered: true}), max_depth := 2) "
        f"FROM read_text('{runs}/part-*/{PART_FILE}')) GROUP BY folder"
    )
    for table, columns in COLUMNS.items():
        rows = _counted_rows(runs, table, columns)
        yield f"{table} AS {PROMPTS.format(rows=f'({rows})') if table == 'prompts' else rows}"
    yield f"costs AS {COSTS}"
    for table, columns in EVALUATION_COLUMNS.items():
        yield f"{table} AS {select_rows([f'{evaluations}/{table}.parquet'], columns)}"
    yield _described("runs", f"{runs}/{RUN_FILE}", f"run_id = {_RUN}")
    yield _described("separate_evaluations", f"{evaluations}/{EVALUATION_FILE}", "evaluation_id IS NOT NULL")
    yield _described(
        "reproductions", f"{globbed(home.reproductions)}/{_ENTRIES}.json", "reproduction_id IS NOT NULL"
    )
    run_id = f"{_RUN} AS run_id"
    yield (
        f"events AS SELECT {run_id}, row_number() OVER (PARTITION BY filename) AS event_id, * "
        f"EXCLUDE (filename) FROM read_json('{runs}/{EVENTS_FILE}', format = 'newline_delimited', "
        "ignore_errors = true, filename = true, "
        "columns = {happened_at: 'DOUBLE', kind: 'VARCHAR', message: 'VARCHAR'}) WHERE kind IS NOT NULL"
    )
    notes = f"read_json('{runs}/{NOTES_FILE}', filename = true, columns = {{"
    yield (
        f"run_notes AS SELECT {run_id}, unnest(notes) FROM {notes}notes: 'STRUCT(tags VARCHAR, note VARCHAR, "
        "archived BOOLEAN, changed_at DOUBLE)'}) WHERE notes.tags IS NOT NULL"
    )
    yield (
        f"run_links AS SELECT run_id, link.key AS place, link.value.address AS address, "
        f"link.value.noted_at AS noted_at FROM (SELECT {run_id}, unnest(map_entries(links)) AS link FROM "
        f"{notes}links: 'MAP(VARCHAR, STRUCT(address VARCHAR, noted_at DOUBLE))'}}))"
    )


def _counted_rows(runs: str, table: str, columns: Mapping[str, pa.DataType]) -> str:
    """Return a select of a table's rows, each once, whatever is compacted meanwhile.

    The parts are found first, as the left side of a join is bound first. A part found too late is left out,
    as the folders that it covers are still there.
    """
    kinds = (*_LIVE, "discarded") if table in KEPT_OF_DISCARDED else _LIVE
    files = ", ".join(f"'{runs}/{kind}-*/{table}.parquet'" for kind in kinds)
    name = "parse_filename(parse_dirpath(filename))"
    replaced = ", ".join(
        f"CASE WHEN starts_with({name}, 'discarded-') THEN '{value}' ELSE {column} END AS {column}"
        for column, value in AS_DISCARDED.items()
        if column in columns and "discarded" in kinds
    )
    return (
        f"SELECT * EXCLUDE (folder, counts, filename){f' REPLACE ({replaced})' if replaced else ''} "
        f"FROM counted_folders RIGHT JOIN read_parquet([{files}], union_by_name = true, filename = true) "
        f"ON folder = parse_dirpath(filename) WHERE coalesce(counts, NOT starts_with({name}, 'part-')) "
        f"AND run_id = {_RUN.replace('filename)', 'parse_dirpath(filename))')}"
    )


def _described(table: str, files: str, condition: str) -> str:
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in DESCRIBED[table].items())
    return (
        f"{table} AS SELECT * EXCLUDE (filename) FROM read_json('{files}', columns = {{{columns}}}, "
        f"filename = true) WHERE {condition}"
    )


def _make_examples(home: Home) -> None:
    examples, evaluation = home.runs / _EXAMPLES, home.evaluations / _EXAMPLES
    for folder in (*(f"{kind}-000000" for kind in _LIVE), "discarded-0000-iteration-000000"):
        _make_tables(examples / folder, COLUMNS)
    _make_tables(evaluation, EVALUATION_COLUMNS)
    home.reproductions.mkdir(exist_ok=True)
    described = (examples / NOTES_FILE, examples / RUN_FILE, evaluation / EVALUATION_FILE)
    facts: dict[Path, dict[str, Any]] = {
        file: {} for file in (*described, home.reproductions / f"{_EXAMPLES}.json")
    }
    facts[examples / "part-000000" / PART_FILE] = {"covers": []}
    for file, values in facts.items():
        if not file.exists():
            write_json(file, values)
    (examples / EVENTS_FILE).touch()


def _make_tables(folder: Path, tables: Iterable[str]) -> None:
    """Write empty files except those that exist and are whole: a program may have them open."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        file = folder / f"{table}.parquet"
        if not is_whole(file):
            writing = file.with_name(f".writing-{file.name}")
            pq.ParquetWriter(writing, schema(table)).close()
            writing.replace(file)
