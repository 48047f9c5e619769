BEGIN TRANSACTION;
CREATE TABLE begins (            -- uploads whose begin was sent and not answered: there may be one in the store
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    store_id INTEGER NOT NULL, key TEXT NOT NULL, begun_s REAL NOT NULL
);
INSERT INTO "begins" VALUES(2,69682539052365,'never',1.79536146140701603889e+09);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, owner TEXT NOT NULL,
    store_id INTEGER NOT NULL REFERENCES stores (id),
    uri TEXT NOT NULL, key TEXT NOT NULL,
    place TEXT NOT NULL,         -- with the URI: which object; see place_of()
    object_id TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    overwrite INTEGER NOT NULL, token TEXT NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    created_s REAL NOT NULL, deadline_s REAL NOT NULL, not_before_s REAL NOT NULL DEFAULT 0, finished_s REAL,
    lease_owner TEXT, lease_until_s REAL, leases_lost INTEGER NOT NULL DEFAULT 0,
    crc32c INTEGER, pieces BLOB,  -- 4 bytes, big endian, for each piece of a large file
    upload_id TEXT, part_size_bytes INTEGER, etag TEXT,
    is_listed INTEGER NOT NULL DEFAULT 0,  -- its worker knows which parts the store holds: others may send the missing ones
    exclusive INTEGER,           -- without overwrite, when done: whether the store itself saw to it that the name was free
    error TEXT, error_kind TEXT, -- of a failed job: the words, and see kind_of()
    superseded_by INTEGER, reported INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "jobs" VALUES(1,'put','1-me',34637490967357,'s3://bucket/done','done','endpoint_url=http://127.0.0.1:9','o-done',10,1,'token-o-done','done',1,1.79536146139852929113e+09,1.79544786139851284025e+09,0.0,1.79536146139925098423e+09,NULL,NULL,0,NULL,NULL,NULL,NULL,'etag-1',0,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(2,'put','1-me',34637490967357,'s3://bucket/failed','failed','endpoint_url=http://127.0.0.1:9','o-failed',10,1,'token-o-failed','failed',1,1.79536146139949846266e+09,1.79544786139949178694e+09,0.0,1.7953614613998272419e+09,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,'403: no','AccessDeniedError',NULL,0);
INSERT INTO "jobs" VALUES(3,'put','1-me',34637490967357,'s3://bucket/waits','waits','endpoint_url=http://127.0.0.1:9','o-waits',10,1,'token-o-waits','queued',1,1.79536146139987945555e+09,1.79544786139987444873e+09,1.79544786140310907367e+09,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,'reset',NULL,NULL,0);
INSERT INTO "jobs" VALUES(4,'put','1-me',34637490967357,'s3://bucket/old','old','endpoint_url=http://127.0.0.1:9','o-superseded',10,1,'token-o-superseded','superseded',0,1.79536146140321373936e+09,1.79544786140320110322e+09,0.0,1.7953614614033892154e+09,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,5,0);
INSERT INTO "jobs" VALUES(5,'put','1-me',69682539052365,'s3://bucket/old','old','endpoint_url=http://127.0.0.1:9','o-newer',10,1,'token-o-newer','leased',1,1.7953614614033892154e+09,1.79544786140338349334e+09,0.0,NULL,'w-dead',1.79536152140369486811e+09,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(6,'put','1-me',69682539052365,'s3://bucket/part','part','endpoint_url=http://127.0.0.1:9','o-part',3000,1,'token-o-part','leased',1,1.79536146140359520917e+09,1.79544786140359163284e+09,0.0,NULL,'w-dead',1.79536152140378332136e+09,0,7,X'000000010000000200000003','upload-1',1000,NULL,1,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(7,'put','1-me',69682539052365,'s3://bucket/kept','kept','endpoint_url=http://127.0.0.1:9','o-kept-1',10,0,'token-o-kept-1','queued',0,1.79536146140711426735e+09,1.79544786140709495539e+09,0.0,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(8,'put','1-me',69682539052365,'s3://bucket/kept','kept','endpoint_url=http://127.0.0.1:9','o-kept-2',10,0,'token-o-kept-2','queued',0,1.79536146140711426735e+09,1.79544786140710878373e+09,0.0,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(9,'put','1-me',69682539052365,'s3://bucket/marker','marker','endpoint_url=http://127.0.0.1:9','o-marker',10,1,'token-o-marker','queued',0,1.79536146140741610524e+09,1795447861.40741,0.0,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(10,'put','1-me',176791412475907,'file:///data/x','x','','o-x',10,1,'token-o-x','queued',0,1.79536146140761923789e+09,1.79544786140761518473e+09,0.0,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES(11,'put','1-me',176791412475907,'file:///data/y','y','','o-x',10,1,'token-o-x','queued',0,1.79536146140776586531e+09,1.79544786140776133531e+09,0.0,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,0);
CREATE TABLE parts (
    job_id INTEGER NOT NULL, number INTEGER NOT NULL,
    crc32c INTEGER,              -- of its bytes, where it is known
    etag TEXT, size_bytes INTEGER,  -- the receipt; NULL: not sent yet
    lease_owner TEXT, lease_until_s REAL,
    tries INTEGER NOT NULL DEFAULT 0,  -- how often a helper gave it back: those are left to the job's own worker
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
INSERT INTO "parts" VALUES(6,1,1,'etag-part',1000,NULL,NULL,0);
INSERT INTO "parts" VALUES(6,2,2,NULL,NULL,NULL,NULL,0);
INSERT INTO "parts" VALUES(6,3,3,NULL,NULL,NULL,NULL,0);
CREATE TABLE requirements (
    job_id INTEGER NOT NULL, key TEXT NOT NULL, after_job INTEGER,
    PRIMARY KEY (job_id, key)
) WITHOUT ROWID;
INSERT INTO "requirements" VALUES(9,'part',6);
CREATE TABLE stores (
    id INTEGER PRIMARY KEY,      -- made of the rest
    scheme TEXT NOT NULL, root TEXT NOT NULL,
    options TEXT NOT NULL,       -- JSON, public ones only
    secret_names TEXT NOT NULL,  -- JSON list: the options that live in memory
    settings TEXT NOT NULL       -- JSON: retry and transfer configuration
);
INSERT INTO "stores" VALUES(34637490967357,'s3','bucket','{"endpoint_url": "http://127.0.0.1:9"}','["aws_secret_access_key"]','{"retry": {"call_deadline_s": 30.0, "first_wait_s": 0.25, "job_deadline_s": 86400.0, "longest_wait_s": 20.0}, "secrets": {"from_environment": 1}, "transfer": {"multipart_threshold_bytes": 67108864, "part_size_bytes": 8388608, "parts_in_flight": 8, "range_size_bytes": 16777216, "ranges_in_flight": 8, "stall_timeout_s": 60.0}}');
INSERT INTO "stores" VALUES(69682539052365,'s3','bucket','{"endpoint_url": "http://127.0.0.1:9"}','["aws_secret_access_key"]','{"retry": {"call_deadline_s": 30.0, "first_wait_s": 0.25, "job_deadline_s": 7200.0, "longest_wait_s": 20.0}, "secrets": {"from_environment": 1}, "transfer": {"multipart_threshold_bytes": 67108864, "part_size_bytes": 8388608, "parts_in_flight": 8, "range_size_bytes": 16777216, "ranges_in_flight": 8, "stall_timeout_s": 60.0}}');
INSERT INTO "stores" VALUES(176791412475907,'file','/data','{}','[]','{"retry": {"call_deadline_s": 30.0, "first_wait_s": 0.25, "job_deadline_s": 86400.0, "longest_wait_s": 20.0}, "transfer": {"multipart_threshold_bytes": 67108864, "part_size_bytes": 8388608, "parts_in_flight": 8, "range_size_bytes": 16777216, "ranges_in_flight": 8, "stall_timeout_s": 60.0}}');
CREATE INDEX jobs_open ON jobs (uri, id) WHERE state IN ('queued', 'leased');
CREATE INDEX jobs_ready ON jobs (not_before_s, id) WHERE state = 'queued';
CREATE INDEX jobs_by_owner ON jobs (owner, state);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_uri ON jobs (uri, id);
CREATE INDEX parts_missing ON parts (job_id, number) WHERE etag IS NULL AND lease_owner IS NULL;
CREATE INDEX parts_leased ON parts (lease_owner) WHERE lease_owner IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',11);
INSERT INTO "sqlite_sequence" VALUES('begins',2);
COMMIT;
PRAGMA user_version = 3;
