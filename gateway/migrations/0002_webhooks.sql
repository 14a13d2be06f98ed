-- Webhooks, and the deliveries of their events. A delivery names its event by position; the event itself is in the log of the project.

CREATE TABLE webhooks (
    id           TEXT   NOT NULL PRIMARY KEY,
    project      TEXT   NOT NULL,
    url          TEXT   NOT NULL,
    -- It signs deliveries, so it is stored as it is.
    secret       TEXT   NOT NULL,
    -- Kinds of events, separated by spaces; empty for all.
    kinds        TEXT   NOT NULL,
    -- Names of workspaces, separated by line breaks; empty for all.
    workspaces   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    -- The position up to which deliveries were queued; unknown until the server first sees the webhook.
    position     BIGINT,
    -- The number of the next delivery.
    next_number  BIGINT NOT NULL
);

CREATE TABLE deliveries (
    webhook_id   TEXT   NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    number       BIGINT NOT NULL,
    -- The position of the event; none for a test.
    position     BIGINT,
    kind         TEXT   NOT NULL,
    -- pending, delivered, failed
    state        TEXT   NOT NULL,
    attempts     BIGINT NOT NULL,
    -- The HTTP status of the last answer; 0 without one.
    status       BIGINT NOT NULL,
    error        TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    attempted_at BIGINT,
    next_at      BIGINT,
    PRIMARY KEY (webhook_id, number)
);

CREATE INDEX deliveries_state ON deliveries (webhook_id, state, next_at);
