-- Import of another store's records. Everything happens before the project has an operation; the last call gives it all of them at
-- once. An import that was interrupted begins anew and overwrites its own rows.

-- Locks the project, and refuses one that is in use.
CREATE FUNCTION enter_import(p bigint, n bytea, g bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE pr projects;
BEGIN
  pr := enter_project(p, n, g);
  IF pr.next_operation <> 1 THEN
    RAISE EXCEPTION 'the project is not empty' USING ERRCODE = 'AM006';
  END IF;
END $$;

CREATE FUNCTION import_operations(p bigint, n bytea, g bigint, of_seq bigint[], of_record bytea[], of_previous text[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM enter_import(p, n, g);
  INSERT INTO operations (project, seq, record, previous)
    SELECT p, e.seq, e.record, e.previous::bigint[] FROM unnest(of_seq, of_record, of_previous) e(seq, record, previous)
    ON CONFLICT (project, seq) DO UPDATE SET record = excluded.record, previous = excluded.previous;
END $$;

CREATE FUNCTION import_requests(p bigint, n bytea, g bigint, of_scope bytea[], of_request bytea[], of_seq bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM enter_import(p, n, g);
  INSERT INTO requests (project, scope, request, seq)
    SELECT p, e.scope, e.request, e.seq FROM unnest(of_scope, of_request, of_seq) e(scope, request, seq)
    ON CONFLICT (project, scope) DO UPDATE SET request = excluded.request, seq = excluded.seq;
END $$;

-- Sets the references and the range of the log: from now on the project has its operations.
CREATE FUNCTION finish_import(p bigint, n bytea, g bigint, first bigint, next bigint, of_name text[], of_value bytea[],
  of_move bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM enter_import(p, n, g);
  DELETE FROM refs WHERE project = p;
  INSERT INTO refs (project, name, value, last_move)
    SELECT p, e.name, e.value, e.move FROM unnest(of_name, of_value, of_move) e(name, value, move);
  UPDATE projects SET first_operation = first, next_operation = next WHERE project = p;
END $$;
