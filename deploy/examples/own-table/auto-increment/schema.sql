-- A shop that counts its orders, and keeps a small number for the status.

CREATE TABLE orders (
    id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    customer_id BIGINT UNSIGNED NOT NULL DEFAULT 0,
    total_cents BIGINT NOT NULL DEFAULT 0,
    status      TINYINT NOT NULL COMMENT '0 to be paid, 1 paid, 2 shipped, 3 cancelled, 4 expired',
    pay_until   DATETIME(3) NOT NULL COMMENT 'UTC',
    closed_at   DATETIME(3) NULL COMMENT 'UTC',
    PRIMARY KEY (id),
    KEY orders_due (status, pay_until) -- the sweep
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE order_lines (
    order_id BIGINT UNSIGNED NOT NULL,
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
    order_id BIGINT UNSIGNED NOT NULL,
    event    VARCHAR(16) NOT NULL,
    at       DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (order_id, event)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
