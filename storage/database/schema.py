"""The tables of Spotlight's DuckDB file, and the version they are at.

Times are Unix seconds (DOUBLE), durations end in `_s`, money in `_usd` or is called `usd`.
Every table has a primary key, so that a record written twice is there once.
"""

from __future__ import annotations

import duckdb

SCHEMA_VERSION = 8

_FIRST_TABLES = """
CREATE TABLE schema_version (version INTEGER NOT NULL);

CREATE TABLE runs (
    run_id VARCHAR PRIMARY KEY,
    name VARCHAR NOT NULL,
    status VARCHAR NOT NULL,
    created_at DOUBLE NOT NULL,
    ended_at DOUBLE,
    host VARCHAR NOT NULL,
    pid BIGINT NOT NULL,
    process_started_at DOUBLE,          -- tells a process from a later one with the same pid
    config VARCHAR NOT NULL,            -- JSON of RunConfig
    environment VARCHAR NOT NULL,       -- JSON: versions, commit, device
    summary VARCHAR NOT NULL,           -- JSON
    error VARCHAR
);

CREATE TABLE iterations (
    run_id VARCHAR, iteration INTEGER,
    policy_version INTEGER NOT NULL, started_at DOUBLE NOT NULL, ended_at DOUBLE NOT NULL,
    PRIMARY KEY (run_id, iteration)
);

CREATE TABLE iteration_metrics (
    run_id VARCHAR, iteration INTEGER, name VARCHAR,
    value DOUBLE NOT NULL,
    PRIMARY KEY (run_id, iteration, name)
);

CREATE TABLE prompts (                  -- training and held-out prompts are numbered separately
    run_id VARCHAR, purpose VARCHAR, prompt_id BIGINT,
    prompt VARCHAR NOT NULL,
    PRIMARY KEY (run_id, purpose, prompt_id)
);

CREATE TABLE samples (
    run_id VARCHAR, iteration INTEGER, prompt_id BIGINT, seed_index BIGINT,
    policy_version INTEGER NOT NULL, score DOUBLE NOT NULL, exact BOOLEAN NOT NULL,
    detail VARCHAR NOT NULL, error VARCHAR, seed_rank INTEGER NOT NULL,
    explored_score DOUBLE, advantage DOUBLE, worker VARCHAR NOT NULL,
    PRIMARY KEY (run_id, iteration, prompt_id, seed_index)
);

CREATE TABLE evaluations (
    run_id VARCHAR, iteration INTEGER,
    policy_version INTEGER NOT NULL, started_at DOUBLE NOT NULL, ended_at DOUBLE NOT NULL,
    score DOUBLE NOT NULL, exact DOUBLE NOT NULL,
    PRIMARY KEY (run_id, iteration)
);

CREATE TABLE evaluation_images (
    run_id VARCHAR, iteration INTEGER, prompt_id BIGINT, seed_index BIGINT,
    score DOUBLE NOT NULL, exact BOOLEAN NOT NULL, detail VARCHAR NOT NULL, error VARCHAR,
    png BLOB,
    PRIMARY KEY (run_id, iteration, prompt_id, seed_index)
);

CREATE TABLE worker_states (            -- phase: iteration, evaluation or discarded
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, started_at DOUBLE, worker VARCHAR, place INTEGER,
    market VARCHAR NOT NULL, state VARCHAR NOT NULL, ended_at DOUBLE NOT NULL, usd_per_hour DOUBLE NOT NULL,
    PRIMARY KEY (run_id, phase, iteration, started_at, worker, place)
);

CREATE TABLE costs (
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, state VARCHAR, market VARCHAR,
    device_s DOUBLE NOT NULL, usd DOUBLE NOT NULL,
    PRIMARY KEY (run_id, phase, iteration, state, market)
);

CREATE TABLE events (
    run_id VARCHAR, event_id BIGINT,
    happened_at DOUBLE NOT NULL, kind VARCHAR NOT NULL, message VARCHAR NOT NULL,
    PRIMARY KEY (run_id, event_id)
);
"""

_ADDED_TABLES = {
    2: """
CREATE TABLE candidates (               -- drafts of candidate seeds; round -1: the monitor's re-scores
    run_id VARCHAR, iteration INTEGER, prompt_id BIGINT, seed_index BIGINT, fidelity VARCHAR,
    policy_version INTEGER,
    score DOUBLE NOT NULL, exact BOOLEAN NOT NULL, error VARCHAR,
    round INTEGER NOT NULL, rank INTEGER NOT NULL, kept BOOLEAN NOT NULL,
    PRIMARY KEY (run_id, iteration, prompt_id, seed_index, fidelity, policy_version)
);

CREATE TABLE sample_images (            -- thumbnails of some rows of samples
    run_id VARCHAR, iteration INTEGER, prompt_id BIGINT, seed_index BIGINT,
    png BLOB NOT NULL,
    PRIMARY KEY (run_id, iteration, prompt_id, seed_index)
);
""",
    3: """
CREATE TABLE device_events (            -- kind: storage/database/records.py::DeviceEvent
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, happened_at DOUBLE, worker VARCHAR, place INTEGER,
    market VARCHAR NOT NULL, kind VARCHAR NOT NULL, detail VARCHAR NOT NULL,
    PRIMARY KEY (run_id, phase, iteration, happened_at, worker, place)
);
""",
    4: """
CREATE TABLE reproductions (            -- a recorded run done again, and what the comparison said
    reproduction_id VARCHAR PRIMARY KEY,
    series VARCHAR NOT NULL,            -- what is done again and again: a preset, a run, a file
    how VARCHAR NOT NULL,               -- train or evaluate
    reference VARCHAR NOT NULL,         -- the run that was done again
    run_id VARCHAR,                     -- the run that did it; null where none was made
    started_at DOUBLE NOT NULL, ended_at DOUBLE NOT NULL,
    verdict VARCHAR NOT NULL,           -- recorded, identical, within, drifted or failed
    message VARCHAR NOT NULL,
    score_was DOUBLE, score_is DOUBLE,
    difference DOUBLE, low DOUBLE, high DOUBLE, -- of paired held-out scores, with its 95 % interval
    differences VARCHAR NOT NULL        -- JSON: a list of {kind, what, was, is}
);
CREATE TABLE sequence_groups (          -- devices that shared each sequence; members: joined by `+`
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, started_at DOUBLE, epoch INTEGER, place INTEGER,
    instance VARCHAR NOT NULL, members VARCHAR NOT NULL, degree INTEGER NOT NULL, ended_at DOUBLE NOT NULL,
    PRIMARY KEY (run_id, phase, iteration, started_at, epoch, place)
);
CREATE TABLE step_times (               -- what a denoising step took by degree, where `auto` chooses it
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, request_class VARCHAR, degree INTEGER,
    step_s DOUBLE NOT NULL, chunks INTEGER NOT NULL,
    PRIMARY KEY (run_id, phase, iteration, request_class, degree)
);
CREATE TABLE separate_evaluations (     -- made by `spotlight evaluate`; run_id: NULL for an untouched model
    evaluation_id VARCHAR PRIMARY KEY,
    run_id VARCHAR, iteration INTEGER NOT NULL, policy_version INTEGER NOT NULL,
    started_at DOUBLE NOT NULL, ended_at DOUBLE NOT NULL,
    score DOUBLE NOT NULL, exact DOUBLE NOT NULL, images INTEGER NOT NULL,
    folder VARCHAR,                     -- where the images lie
    config VARCHAR NOT NULL,            -- JSON of RunConfig
    environment VARCHAR NOT NULL        -- JSON: versions, commit, digests
);

CREATE TABLE separate_evaluation_images (
    evaluation_id VARCHAR, prompt_id BIGINT, seed_index BIGINT,
    prompt VARCHAR NOT NULL, tag VARCHAR NOT NULL,
    score DOUBLE NOT NULL, exact BOOLEAN NOT NULL, detail VARCHAR NOT NULL, error VARCHAR,
    PRIMARY KEY (evaluation_id, prompt_id, seed_index)
);
""",
    5: """
CREATE TABLE paid_time (                -- measured from joining to loss, apart from worker_states
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, worker VARCHAR,
    market VARCHAR NOT NULL, paid_s DOUBLE NOT NULL,
    PRIMARY KEY (run_id, phase, iteration, worker)
);
""",
    6: """
CREATE TABLE standby_time (             -- what processes that wait for a place have used of their hosts
    run_id VARCHAR, phase VARCHAR, iteration INTEGER, standby VARCHAR,
    waited_s DOUBLE NOT NULL, cpu_s DOUBLE NOT NULL, memory_bytes BIGINT NOT NULL,
    taken INTEGER NOT NULL, lost INTEGER NOT NULL, -- how often: each life of a run has one of that name
    PRIMARY KEY (run_id, phase, iteration, standby)
);
""",
    7: """
CREATE TABLE run_notes (                -- what a person has noted about a run
    run_id VARCHAR PRIMARY KEY,
    tags VARCHAR NOT NULL,              -- JSON: a list of words
    note VARCHAR NOT NULL, archived BOOLEAN NOT NULL, changed_at DOUBLE NOT NULL
);
CREATE TABLE run_links (                -- where else a run is; place: prefect or mlflow
    run_id VARCHAR, place VARCHAR,
    address VARCHAR NOT NULL, noted_at DOUBLE NOT NULL,
    PRIMARY KEY (run_id, place)
);
""",
    8: """
CREATE TABLE evaluation_image_figures ( -- what a held-out image looks like; `part_NAME`: parts of its score
    run_id VARCHAR, iteration INTEGER, prompt_id BIGINT, seed_index BIGINT, name VARCHAR,
    value DOUBLE NOT NULL,
    PRIMARY KEY (run_id, iteration, prompt_id, seed_index, name)
);
CREATE TABLE separate_evaluation_image_figures (
    evaluation_id VARCHAR, prompt_id BIGINT, seed_index BIGINT, name VARCHAR,
    value DOUBLE NOT NULL,
    PRIMARY KEY (evaluation_id, prompt_id, seed_index, name)
);
""",
}
"""Version -> the tables that it brought."""


def create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create every table and note the version; call it inside a transaction."""
    connection.execute(_FIRST_TABLES)
    connection.execute("INSERT INTO schema_version VALUES (1)")
    upgrade_tables(connection, 1)


def upgrade_tables(connection: duckdb.DuckDBPyConnection, version: int) -> None:
    """Bring tables of an earlier version to the present one; call it inside a transaction.

    No row is touched: what came later are tables of their own.
    """
    for tables in _tables_since(version):
        connection.execute(tables)
    connection.execute("UPDATE schema_version SET version = ?", [SCHEMA_VERSION])


def add_empty_tables(connection: duckdb.DuckDBPyConnection, version: int) -> None:
    """Let a reader of an earlier version's file see the later tables, empty; the file stays as it is."""
    for tables in _tables_since(version):
        connection.execute(tables.replace("CREATE TABLE", "CREATE TEMP TABLE"))


def stored_version(connection: duckdb.DuckDBPyConnection) -> int | None:
    """The version of the tables in the file; None where there are none yet.

    Call it outside a transaction: in a new file it fails, and would take the transaction with it.
    """
    try:
        row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    except duckdb.CatalogException:  # the file is new: no table of that name
        return None
    return None if row is None else row[0]


def _tables_since(version: int) -> list[str]:
    return [_ADDED_TABLES[later] for later in range(version + 1, SCHEMA_VERSION + 1)]
