-- +goose Up
CREATE TABLE IF NOT EXISTS lapse_outbox (
    id            BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    message_id    VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    exchange      VARCHAR(255) NULL COMMENT 'of a message that is published at once',
    kind          VARCHAR(255) NOT NULL COMMENT 'routing key',
    body          LONGBLOB     NOT NULL,
    size          INT UNSIGNED NOT NULL COMMENT 'bytes of body and headers',
    content_type  VARCHAR(255) NOT NULL,
    app_id        VARCHAR(255) NOT NULL,
    headers       MEDIUMTEXT   NULL COMMENT 'JSON object',
    due_at        DATETIME(6)  NULL COMMENT 'UTC, of a timer',
    window_ms     BIGINT       NULL COMMENT 'delay that the timer was made for',
    made_at       DATETIME(6)  NULL COMMENT 'UTC, the timestamp that its maker gave it',
    created_at    DATETIME(6)  NOT NULL COMMENT 'UTC',
    claimed_until DATETIME(6)  NOT NULL DEFAULT '2000-01-01 00:00:00' COMMENT 'UTC, no relay takes the row before',
    attempts      INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'times it was not confirmed',
    error         TEXT         NULL COMMENT 'why it was set aside'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE IF EXISTS lapse_outbox;
