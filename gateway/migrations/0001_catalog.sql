-- Times are microseconds since 1970. Keys are text that the gateway makes. No statement needs more than SQLite and PostgreSQL share.

CREATE TABLE projects (
    name         TEXT   NOT NULL PRIMARY KEY,
    -- The name of the project's directory; a deleted project keeps it until it is purged.
    directory    TEXT   NOT NULL UNIQUE,
    created_at   BIGINT NOT NULL,
    deleted_at   BIGINT
);

CREATE TABLE keys (
    id           TEXT   NOT NULL PRIMARY KEY,
    -- SHA-256 of the secret, hexadecimal.
    secret_hash  TEXT   NOT NULL,
    agent        TEXT   NOT NULL,
    -- Scopes, separated by spaces.
    scopes       TEXT   NOT NULL,
    -- Project names, separated by spaces; empty for all projects.
    projects     TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT
);

CREATE INDEX keys_revoked_at ON keys (revoked_at);
