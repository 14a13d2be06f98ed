-- Times are microseconds since 1970.
CREATE TABLE sandboxes (
    id           TEXT   NOT NULL PRIMARY KEY,
    project      TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    state        TEXT   NOT NULL,
    -- Why it is in its state.
    reason       TEXT   NOT NULL,
    template     TEXT   NOT NULL,
    runtime      TEXT   NOT NULL,
    -- How the runtime finds its processes; empty before they are started.
    handle       TEXT   NOT NULL,
    workspace    TEXT   NOT NULL,
    -- The key that created it, and the actor of its operations.
    key_id       TEXT   NOT NULL,
    agent        TEXT   NOT NULL,
    -- SHA-256 of what its agent registers with next, hexadecimal.
    credential   TEXT   NOT NULL,
    -- Limits, network and what enforces the limits.
    config_json  TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);

CREATE INDEX sandboxes_project ON sandboxes (project, created_at);
CREATE INDEX sandboxes_state ON sandboxes (state);
