-- The desk: dead letters, the jobs that replay them, and who did what.

-- +goose Up
CREATE TABLE IF NOT EXISTS lapse_dead_letters (
    id             BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    identity       VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the same however often it is delivered',
    -- What comes from the wire may be any bytes.
    message_id     VARBINARY(255) NOT NULL,
    kind           VARBINARY(255) NOT NULL,
    subject        VARBINARY(255) NOT NULL COMMENT 'what it is about, for instance an order',
    queue          VARBINARY(255) NOT NULL COMMENT 'that it was collected from',
    exchange       VARBINARY(255) NOT NULL COMMENT 'of its first route',
    routing_key    VARBINARY(255) NOT NULL COMMENT 'of its first route',
    reason         VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempts       INT UNSIGNED NOT NULL,
    error          TEXT NOT NULL COMMENT 'the last one',
    first_error    TEXT NOT NULL,
    first_error_at DATETIME(6) NULL COMMENT 'UTC',
    fingerprint    CHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'of its group',
    properties     BLOB NOT NULL COMMENT 'JSON',
    headers        LONGBLOB NOT NULL COMMENT 'JSON, with the types of AMQP',
    body           LONGBLOB NOT NULL,
    size           INT UNSIGNED NOT NULL COMMENT 'bytes of the body',
    died_at        DATETIME(6) NOT NULL COMMENT 'UTC',
    collected_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    replays        INT UNSIGNED NOT NULL COMMENT 'times that the message had been replayed before',
    replayed_by    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the job that published it last',
    state          VARCHAR(12) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'open, replayed, settled or discarded',
    resolved_at    DATETIME(6) NULL COMMENT 'UTC, when it ceased to be open',
    resolved_by    VARCHAR(255) NOT NULL DEFAULT '' COMMENT 'and why; in advance, of a letter that is being replayed',
    resolution     VARCHAR(1000) NOT NULL DEFAULT '',
    replay_id      CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'the last job that it belonged to',
    UNIQUE KEY lapse_dead_letters_identity (identity),
    -- In the order of lists, and with what is looked for on the way. Each of those that begin with the state has to be
    -- written for every letter that is replayed, so they are few.
    KEY lapse_dead_letters_state (state, died_at, id, reason),
    KEY lapse_dead_letters_kind (state, kind, died_at, id, reason),
    KEY lapse_dead_letters_group (state, fingerprint, died_at),
    KEY lapse_dead_letters_subject (subject, died_at),
    KEY lapse_dead_letters_message (message_id, died_at),
    KEY lapse_dead_letters_replay (replay_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_dead_letter_groups (
    fingerprint CHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    kind        VARBINARY(255) NOT NULL,
    reason      VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    pattern     TEXT NOT NULL COMMENT 'the error without what differs from letter to letter'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_replays (
    id           CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    state        VARCHAR(12) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'running, cancelling, done or cancelled',
    who          VARCHAR(255) NOT NULL,
    why          VARCHAR(1000) NOT NULL,
    selection    MEDIUMTEXT NOT NULL COMMENT 'JSON, what was asked for',
    high_water   BIGINT NOT NULL COMMENT 'no letter with a greater id belongs to it',
    rate         INT UNSIGNED NOT NULL COMMENT 'messages a second; 0 is as fast as they are confirmed',
    to_exchange  VARBINARY(255) NULL COMMENT 'another destination than the first route',
    to_key       VARBINARY(255) NULL,
    total        BIGINT NOT NULL,
    published    BIGINT NOT NULL DEFAULT 0,
    settled      BIGINT NOT NULL DEFAULT 0,
    failed       BIGINT NOT NULL DEFAULT 0,
    trouble      TEXT NULL COMMENT 'what it waits for at present',
    created_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    started_at   DATETIME(6) NULL COMMENT 'UTC',
    updated_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    ended_at     DATETIME(6) NULL COMMENT 'UTC',
    owner        VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'the process that runs it',
    leased_until DATETIME(6) NOT NULL DEFAULT '2000-01-01 00:00:00' COMMENT 'UTC, nobody else takes it before',
    KEY lapse_replays_state (state, leased_until)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_replay_results (
    replay_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    letter_id BIGINT NOT NULL,
    result    VARCHAR(12) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'published, settled or failed',
    detail    VARCHAR(1000) NOT NULL,
    at        DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (replay_id, letter_id),
    KEY lapse_replay_results_letter (letter_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row, locked by whoever selects letters for something to be done with them.
CREATE TABLE IF NOT EXISTS lapse_desk (
    id TINYINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO lapse_desk (id) VALUES (1);

-- Rows are only ever added.
CREATE TABLE IF NOT EXISTS lapse_audit (
    id        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at        DATETIME(6) NOT NULL COMMENT 'UTC',
    actor     VARCHAR(255) NOT NULL,
    action    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    subject   VARBINARY(255) NOT NULL COMMENT 'for instance an order or a replay',
    selection MEDIUMTEXT NULL COMMENT 'JSON',
    count     BIGINT NOT NULL,
    reason    VARCHAR(1000) NOT NULL,
    result    VARCHAR(1000) NOT NULL,
    KEY lapse_audit_actor (actor, id),
    KEY lapse_audit_action (action, id),
    KEY lapse_audit_subject (subject, id),
    KEY lapse_audit_at (at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE IF EXISTS lapse_audit, lapse_desk, lapse_replay_results, lapse_replays, lapse_dead_letter_groups, lapse_dead_letters;
