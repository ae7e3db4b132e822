-- Ids, skus, tags, payment references and request keys are printable ASCII compared byte by byte:
-- under a collation that is blind to case, 'order-a1' would find 'Order-A1'.
-- Times are UTC. Amounts are in the currency's minor unit. Windows and extensions are in microseconds.

-- +goose Up
CREATE TABLE IF NOT EXISTS lapse_orders (
    id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status    ENUM ('pending', 'paid', 'cancelled', 'expired') CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    customer  VARCHAR(255) NOT NULL,
    region    VARCHAR(255) NOT NULL,
    total     BIGINT NOT NULL,
    currency  CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    placed_at DATETIME(6) NOT NULL,
    window_us BIGINT NOT NULL,
    deadline  DATETIME(6) NOT NULL,
    closed_at DATETIME(6) NULL,
    version   BIGINT NOT NULL,
    content   BINARY(32) NOT NULL COMMENT 'hash of what was ordered, to know the same order when it is placed again',
    PRIMARY KEY (id),
    KEY lapse_orders_due (status, deadline, id), -- the sweep
    KEY lapse_orders_status (status, id)         -- extending all
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_order_lines (
    order_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    position SMALLINT NOT NULL,
    sku      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity BIGINT NOT NULL,
    price    BIGINT NOT NULL COMMENT 'of one piece, in the currency of the order',
    PRIMARY KEY (order_id, position)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_order_tags (
    order_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tag      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (order_id, tag),
    KEY lapse_order_tags_tag (tag, order_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Unsigned: what would make a count negative fails, and takes its transaction with it.
CREATE TABLE IF NOT EXISTS lapse_stock (
    sku       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    available BIGINT UNSIGNED NOT NULL,
    reserved  BIGINT UNSIGNED NOT NULL,
    sold      BIGINT UNSIGNED NOT NULL,
    PRIMARY KEY (sku)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_timeline (
    order_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version  BIGINT NOT NULL,
    at       DATETIME(6) NOT NULL,
    type     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    who      VARCHAR(255) NOT NULL,
    why      VARCHAR(1000) NOT NULL,
    detail   VARCHAR(1000) NOT NULL,
    PRIMARY KEY (order_id, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_payments (
    reference VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version   BIGINT NOT NULL COMMENT 'of the order, with this payment',
    amount    BIGINT NOT NULL,
    currency  CHAR(3) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at        DATETIME(6) NOT NULL,
    late      BOOLEAN NOT NULL COMMENT 'the order was not pending any more: to be refunded',
    PRIMARY KEY (reference),
    UNIQUE KEY lapse_payments_order (order_id, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS lapse_extend_requests (
    request_key VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    more_us     BIGINT NOT NULL,
    tag         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty for all orders',
    who         VARCHAR(255) NOT NULL,
    why         VARCHAR(1000) NOT NULL,
    started_at  DATETIME(6) NOT NULL,
    after_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'orders up to this id are done',
    extended    BIGINT NOT NULL,
    done        BOOLEAN NOT NULL,
    PRIMARY KEY (request_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- +goose Down
DROP TABLE IF EXISTS lapse_extend_requests;
DROP TABLE IF EXISTS lapse_payments;
DROP TABLE IF EXISTS lapse_timeline;
DROP TABLE IF EXISTS lapse_stock;
DROP TABLE IF EXISTS lapse_order_tags;
DROP TABLE IF EXISTS lapse_order_lines;
DROP TABLE IF EXISTS lapse_orders;
