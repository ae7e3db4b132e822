-- +goose Up
CREATE TABLE IF NOT EXISTS lapse_inbox (
    consumer   VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    message_id VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at         DATETIME(6)  NOT NULL COMMENT 'UTC, when it was first handled',
    PRIMARY KEY (consumer, message_id),
    KEY lapse_inbox_at (at) -- pruning
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE IF EXISTS lapse_inbox;
