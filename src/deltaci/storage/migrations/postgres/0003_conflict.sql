-- What a write calls when somebody else wrote first. It takes the whole statement back, so that a batch needs no
-- transaction around its only statement.
CREATE FUNCTION deltaci_conflict() RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'written by somebody else' USING ERRCODE = 'serialization_failure'; END $$;
