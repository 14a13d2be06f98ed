-- The newest events of sandboxes, for those who watch them. Positions ascend over all projects.
CREATE TABLE sandbox_events (
    position     BIGINT NOT NULL PRIMARY KEY,
    project      TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    sandbox_id   TEXT   NOT NULL,
    -- The sandbox at that time, as JSON.
    sandbox_json TEXT   NOT NULL,
    created_at   BIGINT NOT NULL
);
