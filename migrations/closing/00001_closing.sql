-- What closing needs beside the orders, wherever they are kept.

-- +goose Up
-- One row, the switch that pauses expiry.
CREATE TABLE IF NOT EXISTS lapse_control (
    id     TINYINT NOT NULL,
    paused BOOLEAN NOT NULL,
    who    VARCHAR(255) NOT NULL,
    why    VARCHAR(1000) NOT NULL,
    since  DATETIME(6) NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO lapse_control (id, paused, who, why, since) VALUES (1, FALSE, '', '', UTC_TIMESTAMP(6));

-- A checkout in any language has a timer set, in its own transaction:
--
--     CALL lapse_timer('order.payment_timeout', order_id, deadline, 1800);
--
-- The deadline is a DATETIME in UTC, without an offset. The last argument is the delay in seconds that it was made
-- with, or NULL: a delay for which there is a rung takes one step. It writes with the rights of whoever calls it:
-- INSERT on lapse_outbox, and EXECUTE on the procedure. LAST_INSERT_ID() is after it what it was before.
DROP PROCEDURE IF EXISTS lapse_timer;
-- +goose StatementBegin
CREATE PROCEDURE lapse_timer(
    IN p_kind VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_order_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN p_deadline DATETIME(6),
    IN p_window_seconds DECIMAL(15, 3))
    MODIFIES SQL DATA
    SQL SECURITY INVOKER
BEGIN
    DECLARE v_body LONGBLOB;
    DECLARE v_last BIGINT UNSIGNED DEFAULT LAST_INSERT_ID();
    -- Asked for what must not be there: a $ would also match before a line feed at the end.
    IF p_kind IS NULL OR p_kind NOT REGEXP '^[A-Za-z0-9]' OR p_kind REGEXP '[^A-Za-z0-9._-]' OR CHAR_LENGTH(p_kind) > 100 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lapse_timer: the kind has to be 1 to 100 letters, digits, dots, dashes and underscores, such as order.payment_timeout';
    END IF;
    IF p_order_id IS NULL OR p_order_id = '' OR p_order_id REGEXP '[^!-~]' OR CHAR_LENGTH(p_order_id) > 64 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lapse_timer: the order id has to be 1 to 64 printable ASCII characters without spaces';
    END IF;
    IF p_deadline IS NULL OR MONTH(p_deadline) = 0 OR DAYOFMONTH(p_deadline) = 0 OR p_deadline < '1970-01-01' OR p_deadline > UTC_TIMESTAMP(6) + INTERVAL 10 YEAR THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lapse_timer: the deadline has to be a time in UTC, from 1970 to ten years from now';
    END IF;
    IF p_window_seconds IS NOT NULL AND (p_window_seconds <= 0 OR p_window_seconds > 315360000) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'lapse_timer: the window has to be more than no seconds and at most ten years, or NULL';
    END IF;
    SET v_body = CONVERT(JSON_OBJECT(
        'order_id', p_order_id, 'deadline', DATE_FORMAT(p_deadline, '%Y-%m-%dT%H:%i:%s.%fZ')) USING utf8mb4);
    INSERT INTO lapse_outbox (message_id, kind, body, size, content_type, app_id, due_at, window_ms, created_at)
    VALUES (UUID(), p_kind, v_body, LENGTH(v_body), 'application/json', 'lapse_timer', p_deadline,
            CAST(p_window_seconds * 1000 AS SIGNED), UTC_TIMESTAMP(6));
    DO LAST_INSERT_ID(v_last);
END
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE IF EXISTS lapse_timer;
DROP TABLE IF EXISTS lapse_control;
