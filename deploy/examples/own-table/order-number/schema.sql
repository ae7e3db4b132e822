-- A shop that knows its orders by a number that is a text, beside a key of the table's own. Its clocks are in
-- Beijing.

CREATE TABLE shop_order (
    id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    order_no        VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    user_id         BIGINT UNSIGNED NOT NULL DEFAULT 0,
    status          VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'unpaid, paid, delivered, revoked, closed',
    pay_expire_time DATETIME NULL COMMENT 'UTC+8',
    close_time      DATETIME NULL COMMENT 'UTC+8',
    PRIMARY KEY (id),
    UNIQUE KEY shop_order_no (order_no),
    KEY shop_order_due (status, pay_expire_time, order_no) -- the sweep
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE order_lines (
    order_id VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sku      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity INT UNSIGNED NOT NULL,
    PRIMARY KEY (order_id, sku)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE stock (
    sku       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    available BIGINT UNSIGNED NOT NULL,
    reserved  BIGINT UNSIGNED NOT NULL,
    sold      BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (sku)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE order_history (
    order_id VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    event    VARCHAR(16) NOT NULL,
    at       DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (order_id, event)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
