-- The event of a delivery that is in no log of a project: its id and its data, as JSON. None for events of the log and for tests.
ALTER TABLE deliveries ADD COLUMN event_json TEXT;
-- The time of the end that was warned of; another end is warned of again.
ALTER TABLE sandboxes ADD COLUMN warned_of BIGINT;
