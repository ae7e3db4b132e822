-- A shop whose order ids are large numbers from a generator, and whose status is one of a few words.

CREATE TABLE trade_order (
    order_id     BIGINT NOT NULL,
    buyer_id     BIGINT NOT NULL DEFAULT 0,
    amount       DECIMAL(12, 2) NOT NULL DEFAULT 0,
    state        ENUM ('WAIT_PAY', 'PAID', 'SHIPPED', 'FINISHED', 'CANCELLED', 'TIMEOUT') NOT NULL,
    pay_deadline BIGINT NOT NULL COMMENT 'milliseconds since 1970; 0 for none',
    PRIMARY KEY (order_id),
    KEY trade_order_due (state, pay_deadline) -- the sweep
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE order_lines (
    order_id BIGINT NOT NULL,
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
    order_id BIGINT NOT NULL,
    event    VARCHAR(16) NOT NULL,
    at       DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (order_id, event)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
